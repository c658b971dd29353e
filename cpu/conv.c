/* SPDX-License-Identifier: MIT */
/*
 * conv on oneDNN's direct convolution, in channels-last order: for other layouts of source and
 * destination oneDNN runs its reference code, which is a thousand times slower. Weights have the
 * layout that oneDNN chooses for the operation.
 */
#include "cpu.h"

#include <math.h>

/* Returns whether the convolution runs over images, as a kernel of depth 1 allows. Depthwise
 * convolutions are 15 times faster over images, and oneDNN 3.2's 1x1x1 over volumes is wrong in
 * bf16 on AMX. */
static int
is_flat(const struct qv_op_conv *op)
{
    return op->kd == 1;
}

/* pieces() returns how many images or volumes a sample of y has, batch() how many of them one run
 * computes, which must be adjacent in memory. */
static int64_t
pieces(const struct qv_op_conv *op)
{
    return is_flat(op) ? (op->d - 1) / op->sd + 1 : 1;
}

static int64_t
batch(const struct qv_op_conv *op)
{
    if (is_flat(op) && op->d > 1)
        return op->sd > 1 ? 1 : op->x_depth == op->d ? op->n * op->d : op->d;
    return op->x_depth == op->d ? op->n : 1;
}

/* Returns the epilogue. If op->sums is 2, the existing values of y are the residual. */
static struct qv_op_epilogue
epilogue_of(const struct qv_op_conv *op)
{
    struct qv_op_epilogue epilogue = qv_op_conv_epilogue(op);
    if (op->sums == 2) {
        epilogue.residual_rows = epilogue.rows;
        epilogue.residual_dtype = op->y_dtype;
    }
    return epilogue;
}

/* Writes the sizes of the axes that exist; returns their number. */
static int
set_axes(int64_t *out, const struct qv_op_conv *op, int64_t d, int64_t h, int64_t w)
{
    int n = 0;
    if (!is_flat(op))
        out[n++] = d;
    out[n++] = h;
    out[n++] = w;
    return n;
}

static dnnl_status_t
tensor_md(dnnl_memory_desc_t *out, const struct qv_op_conv *op, int64_t channels,
          const int64_t size[3], dnnl_data_type_t type)
{
    dnnl_dims_t dims = { batch(op), channels };
    int n = 2 + set_axes(dims + 2, op, size[0], size[1], size[2]);
    return dnnl_memory_desc_create_with_tag(out, n, dims, type,
                                            is_flat(op) ? dnnl_nhwc : dnnl_ndhwc);
}

static dnnl_status_t
weights_md(dnnl_memory_desc_t *out, const struct qv_op_conv *op, dnnl_data_type_t type,
           bool canonical)
{
    static const dnnl_format_tag_t tags[] = { dnnl_abcd, dnnl_abcde, dnnl_abcdef };
    dnnl_dims_t dims;
    int n = 0;
    if (op->groups > 1)
        dims[n++] = op->groups;
    dims[n++] = op->o / op->groups;
    dims[n++] = op->c / op->groups;
    n += set_axes(dims + n, op, op->kd, op->kh, op->kw);
    return dnnl_memory_desc_create_with_tag(out, n, dims, type,
                                            canonical ? tags[n - 4] : dnnl_format_tag_any);
}

/* Returns the gap between two taps. For a single-tap kernel it must be 0, otherwise oneDNN does not
 * use its fastest code. */
static int64_t
gap(int64_t kernel, int64_t dilation)
{
    return kernel > 1 ? dilation - 1 : 0;
}

static dnnl_status_t
create_pd(struct qv_device_cpu *dev, const struct qv_op_conv *op,
          const dnnl_memory_desc_t md[CPU_SCRATCH], dnnl_primitive_attr_t attr,
          dnnl_primitive_desc_t *out)
{
    dnnl_dims_t strides, gaps, before, after;
    set_axes(strides, op, op->sd, op->sh, op->sw);
    set_axes(gaps, op, gap(op->kd, op->dd), gap(op->kh, op->dh), gap(op->kw, op->dw));
    set_axes(before, op, 0, op->top, op->left);
    set_axes(after, op, 0, op->bottom, op->right);
    return dnnl_convolution_forward_primitive_desc_create(out, dev->engine, dnnl_forward_inference,
                                                          dnnl_convolution_direct, md[CPU_SRC],
                                                          md[CPU_WEIGHTS], md[CPU_BIAS],
                                                          md[CPU_DST], strides, gaps, before, after,
                                                          attr);
}

/* Creates the descriptor of a convolution that is bare, or wide, or neither. */
static dnnl_status_t
create_kind(struct qv_device_cpu *dev, const struct qv_op_conv *c, const struct conv_cpu *kind,
            dnnl_primitive_desc_t *out)
{
    const struct qv_op_epilogue epilogue = epilogue_of(c);
    const int64_t size[] = { c->d, c->h, c->w };
    const dnnl_dims_t bias = { c->o };
    const dnnl_data_type_t type = kind->wide ? dnnl_f32 : dnnl_type_cpu(c->x_dtype);
    int64_t positions[3];
    dnnl_memory_desc_t md[CPU_SCRATCH] = { 0 };
    dnnl_primitive_attr_t attr = NULL;
    qv_op_conv_output(c, positions);
    dnnl_status_t s = tensor_md(&md[CPU_SRC], c, c->c, size, type);
    if (!s)
        s = weights_md(&md[CPU_WEIGHTS], c, type, false);
    if (!s && c->bias && !kind->bare)
        s = dnnl_memory_desc_create_with_tag(&md[CPU_BIAS], 1, bias, dnnl_type_cpu(c->bias_dtype),
                                             dnnl_a);
    if (!s)
        s = tensor_md(&md[CPU_DST], c, c->o, positions,
                      kind->bare ? dnnl_f32 : dnnl_type_cpu(c->y_dtype));
    if (!s)
        s = dnnl_primitive_attr_create(&attr);
    if (!s)
        s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!s && !kind->bare)
        s = qv_epilogue_cpu(&epilogue, attr);
    if (!s)
        s = create_pd(dev, c, md, attr, out);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < CPU_SCRATCH; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    return s;
}

/* oneDNN's depthwise kernel for CPUs without AVX2 (3.2's and 3.8's) adds the residual with an
 * instruction that crashes unless every four channels are aligned. tests/checkconv found it. */
static bool
crashes(const struct qv_op_conv *op, const struct conv_cpu *kind, const_dnnl_primitive_desc_t pd)
{
    return !kind->bare && epilogue_of(op).residual_rows && op->o > 4 && op->o % 4 &&
           !strcmp(qv_primitive_name_cpu(pd), "jit_dw:sse41");
}

/* Creates the primitive's descriptor, which the caller destroys, of the first kind that oneDNN runs
 * neither as reference code nor into a crash. The choice depends on the operation alone, so layout,
 * lay_out and prepare agree. No oneDNN convolution supports an alpha; the older ones (below
 * AVX-512, and all for channel groups) do not support a residual after an activation, and some do
 * not exist in bf16. */
static qv_status
create(struct qv_device_cpu *dev, const struct qv_op *op, struct conv_cpu *kind,
       dnnl_primitive_desc_t *out, qv_error *err)
{
    enum { KINDS = 3 };
    static const struct conv_cpu kinds[KINDS] = { { .bare = false },
                                                  { .bare = true },
                                                  { .bare = true, .wide = true } };
    int i = op->u.conv.alpha != 1;
    *kind = kinds[i];
    dnnl_status_t s = create_kind(dev, &op->u.conv, kind, out);
    while (!s && ++i < KINDS &&
           (qv_primitive_is_reference_cpu(*out) || crashes(&op->u.conv, kind, *out))) {
        dnnl_primitive_desc_destroy(*out);
        *kind = kinds[i];
        s = create_kind(dev, &op->u.conv, kind, out);
    }
    return qv_dnnl_check_cpu(s, "convolution", err);
}

qv_status
qv_conv_layout_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, struct qv_layout *out,
                   qv_error *err)
{
    struct conv_cpu kind;
    dnnl_primitive_desc_t pd;
    qv_status status = create(dev, matrix->conv, &kind, &pd, err);
    if (status)
        return status;
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    *out = (struct qv_layout){ dnnl_memory_desc_get_size(md), matrix->n };
    dnnl_primitive_desc_destroy(pd);
    return QV_OK;
}

qv_status
qv_conv_lay_out_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, const void *src,
                    void *dst, qv_error *err)
{
    struct conv_cpu kind;
    dnnl_primitive_desc_t pd;
    dnnl_memory_desc_t canonical = NULL;
    qv_status status = create(dev, matrix->conv, &kind, &pd, err);
    if (status)
        return status;
    dnnl_status_t s =
        weights_md(&canonical, &matrix->conv->u.conv, dnnl_type_cpu(matrix->dtype), true);
    if (!s) {
        s = qv_reorder_cpu(dev, canonical, src,
                           dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), dst);
        dnnl_memory_desc_destroy(canonical);
    }
    dnnl_primitive_desc_destroy(pd);
    return qv_dnnl_check_cpu(s, "laying out a convolution's weight", err);
}

static qv_status
check_counts(const struct qv_op *op, qv_error *err)
{
    const struct qv_op_conv *c = &op->u.conv;
    int64_t out[3];
    qv_op_conv_output(c, out);
    double most = fmax((double)c->d * (double)c->h * (double)c->w,
                       (double)out[0] * (double)out[1] * (double)out[2]);
    most = fmax(most, (double)c->n * (double)c->d);
    return qv_count_check_cpu(op, fmax(most, fmax((double)c->c, (double)c->o)), err);
}

static qv_status
prepare_conv(struct qv_device_cpu *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    struct conv_cpu *conv = &kernel->conv;
    const struct qv_op_epilogue epilogue = epilogue_of(&kernel->op.u.conv);
    dnnl_primitive_desc_t pd;
    qv_status status = check_counts(&kernel->op, err);
    if (status)
        return status;
    if (dev->wrong_sparse_bf16 && kernel->op.u.conv.x_dtype == QV_BF16 &&
        qv_op_conv_is_sparse(&kernel->op.u.conv))
        return qv_fail(err, QV_EUNSUPPORTED,
                       "conv: a stride exceeds its kernel, or the kernel sees only padding: this "
                       "oneDNN computes wrong values for it in bf16");
    status = create(dev, &kernel->op, conv, &pd, err);
    if (status)
        return status;
    dnnl_status_t s = qv_primitive_open_cpu(dev, pd, 1, &conv->primitive);
    if (conv->bare)
        conv->sums_bytes = qv_aligned((size_t)(epilogue.rows * epilogue.cols) * sizeof(float));
    if (conv->wide)
        conv->x_bytes = qv_aligned(qv_op_view(&kernel->op, 0).bytes * 2);
    *scratch_bytes = conv->sums_bytes + conv->x_bytes + conv->primitive.scratch_bytes;
    dnnl_primitive_desc_destroy(pd);
    return qv_dnnl_check_cpu(s, "convolution", err);
}

static void
widen(const struct qv_device_cpu *dev, const struct qv_op *op, const void *x, float *to)
{
    const struct qv_view view = qv_op_view(op, 0);
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t row = 0; row < view.rows; row++)
        qv_lanes_load_cpu(to + row * view.cols, at_cpu(x, view.dtype, row * view.cols), view.dtype,
                          view.cols);
}

static qv_status
run_conv(struct qv_device_cpu *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_conv *op = &kernel->op.u.conv;
    const struct conv_cpu *conv = &kernel->conv;
    const struct qv_op_epilogue epilogue = epilogue_of(op);
    void *const residual = op->sums == 2 ? p[4] : p[3];
    void *const wide_x = (char *)scratch + conv->sums_bytes;
    char *const x = conv->wide ? wide_x : p[0], *const y = conv->bare ? scratch : p[4];
    const int64_t n = pieces(op);
    const size_t frame = (size_t)(op->h * op->w * op->c) *
                         (conv->wide ? sizeof(float) : qv_dtype_bytes(op->x_dtype));
    const size_t dst = (size_t)(epilogue.rows / (op->n * n) * op->o) *
                       (conv->bare ? sizeof(float) : qv_dtype_bytes(op->y_dtype));
    if (conv->wide)
        widen(dev, &kernel->op, p[0], wide_x);
    if (!conv->bare)
        qv_epilogue_residual_cpu(dev, &epilogue, residual, y);
    dnnl_status_t s = dnnl_success;
    for (int64_t i = 0; i < op->n * n && !s; i += batch(op)) {
        int64_t at = i / n * op->x_depth + i % n * op->sd;
        s = qv_primitive_run_cpu(dev, &conv->primitive,
                                 (void *[]){ x + (size_t)at * frame, p[1], p[2],
                                             y + (size_t)i * dst, (char *)wide_x + conv->x_bytes });
    }
    if (!s && conv->bare)
        qv_epilogue_rows_cpu(dev->threads, &epilogue, scratch, (void *[]){ p[2], residual, p[4] });
    return qv_dnnl_check_cpu(s, "convolution", err);
}

static void
release_conv(struct qv_kernel *kernel)
{
    qv_primitive_close_cpu(&kernel->conv.primitive);
}

static void
describe_conv(const struct qv_kernel *kernel, char *text, size_t size)
{
    qv_primitive_describe_cpu(kernel->conv.wide ? "in f32 by " : "", &kernel->conv.primitive, text,
                              size);
    if (kernel->conv.bare)
        snprintf(text + strlen(text), size - strlen(text), ", then our epilogue");
}

const struct verbs_cpu qv_conv_verbs_cpu = {
    .prepare = prepare_conv, .run = run_conv, .release = release_conv, .describe = describe_conv
};
