/* SPDX-License-Identifier: MIT */
/*
 * conv on cuDNN, channels last: with its epilogue in one graph if cuDNN supports that, otherwise as
 * f32 sums that our own kernel finishes, otherwise entirely on our own kernel.
 */
#include "cudnn_graph.h"
#include "dtype.h"

#include <stdlib.h>
#include <string.h>

/* Tensors of the graph; values between two operations are numbered from BETWEEN on. */
enum { X = 1, W, BIAS, RESIDUAL, Y, ALPHA, BETWEEN };

/* ---- weights ----------------------------------------------------------------------------------*/

qv_status
qv_conv_lay_out_cuda(struct qv_device_cuda *dev, const struct qv_matrix *matrix, const void *src,
                     struct qv_buffer dst, qv_error *err)
{
    size_t bytes = (size_t)(matrix->n * matrix->k) * qv_dtype_bytes(matrix->dtype);
    char *laid_out = malloc(bytes);
    if (!laid_out)
        return qv_fail(err, QV_ENOMEM, "no memory for a weight of %zu bytes", bytes);
    qv_channels_last(matrix, src, laid_out);
    qv_status status = qv_upload_cuda(&dev->base, dst, laid_out, bytes, err);
    free(laid_out);
    return status;
}

/* ---- how much one run computes --------------------------------------------------------------- */

/* Returns whether the convolution runs over images, as a kernel of depth 1 allows: cuDNN has more
 * kernels for them than for volumes. */
static bool
is_flat(const struct qv_op_conv *op)
{
    return op->kd == 1;
}

static int64_t
frames_of(const struct qv_op_conv *op)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    return out[0];
}

static int64_t
frame_values(const struct qv_op_conv *op)
{
    return op->h * op->w * op->c;
}

/* Returns how many frames of x are needed for `frames` frames of y. */
static int64_t
window(const struct qv_op_conv *op, int64_t frames)
{
    return (frames - 1) * op->sd + op->dd * (op->kd - 1) + 1;
}

/* Images of several samples are one batch only if all of them are evenly spaced in memory. */
static bool
goes_together(const struct qv_op_conv *op, int64_t samples, int64_t frames)
{
    return !is_flat(op) || samples == 1 || frames == 1 || op->x_depth == frames * op->sd;
}

/* Many of cuDNN's kernels use 32-bit indices. */
static bool
fits(const struct qv_op_conv *op, int64_t samples, int64_t frames)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    int64_t x = ((samples - 1) * op->x_depth + window(op, frames)) * frame_values(op);
    int64_t w = op->o * (op->c / op->groups) * op->kd * op->kh * op->kw;
    int64_t y = samples * frames * out[1] * out[2] * op->o;
    return x <= INT32_MAX && w <= INT32_MAX && y <= INT32_MAX;
}

/* Chooses the largest part that one run can compute: an equal share of the samples, or of one
 * sample's frames. */
static bool
choose_part(const struct qv_op_conv *op, struct conv_cuda *out)
{
    int64_t frames = frames_of(op);
    for (int64_t i = 1; i <= op->n; i++)
        if (op->n % i == 0 && goes_together(op, op->n / i, frames) && fits(op, op->n / i, frames)) {
            out->samples = op->n / i;
            out->frames = frames;
            return true;
        }
    for (int64_t i = 2; i <= frames; i++)
        if (frames % i == 0 && fits(op, 1, frames / i)) {
            out->samples = 1;
            out->frames = frames / i;
            return true;
        }
    return false;
}

/* ---- the graph --------------------------------------------------------------------------------*/

/* Returns the alignment of addresses that are multiples of `bytes`. */
static int64_t
alignment_of(int64_t bytes)
{
    int64_t power = bytes & -bytes;
    return power < TENSOR_ALIGNMENT ? power : TENSOR_ALIGNMENT;
}

static bool
runs_once(const struct qv_op_conv *op, const struct conv_cuda *run)
{
    return run->samples == op->n && run->frames == frames_of(op);
}

/* A run may begin at any frame, and so may a separately summed depth tap. */
static int64_t
x_alignment(const struct qv_op_conv *op, const struct conv_cuda *run)
{
    return runs_once(op, run) && !op->sums
               ? TENSOR_ALIGNMENT
               : alignment_of(frame_values(op) * (int64_t)qv_dtype_bytes(op->x_dtype));
}

/* Returns the size of a run's part of y, or of its addend, in values of the given dtype. */
static int64_t
y_bytes(const struct qv_op_conv *op, const struct conv_cuda *run, int64_t dtype)
{
    int64_t out[3];
    qv_op_conv_output(op, out);
    return run->samples * run->frames * out[1] * out[2] * op->o * (int64_t)qv_dtype_bytes(dtype);
}

static int64_t
y_alignment(const struct qv_op_conv *op, const struct conv_cuda *run, int64_t dtype)
{
    return runs_once(op, run) ? TENSOR_ALIGNMENT : alignment_of(y_bytes(op, run, dtype));
}

static int64_t
y_dtype(const struct qv_op_conv *op, bool bare)
{
    return bare ? QV_F32 : op->y_dtype;
}

/* Describes n adjacent samples of c channels; images have no depth. */
static struct tensor_cuda
channels_last(const struct qv_op_conv *op, int64_t id, int64_t dtype, int64_t n, int64_t c,
              const int64_t size[3])
{
    struct tensor_cuda out = { .id = id, .dtype = dtype, .n = 5 - is_flat(op), .dims = { n, c } };
    int64_t stride = c;
    out.strides[1] = 1;
    for (int i = out.n - 1; i > 1; i--) {
        out.dims[i] = size[i + 3 - out.n];
        out.strides[i] = stride;
        stride *= out.dims[i];
    }
    out.strides[0] = stride;
    return out;
}

static struct tensor_cuda
x_tensor(const struct qv_op_conv *op, const struct conv_cuda *run)
{
    int64_t n = run->samples * (is_flat(op) ? run->frames : 1);
    struct tensor_cuda out = channels_last(op, X, op->x_dtype, n, op->c,
                                           (int64_t[]){ window(op, run->frames), op->h, op->w });
    if (is_flat(op) && run->frames > 1)
        out.strides[0] = op->sd * frame_values(op);
    else if (run->samples > 1)
        out.strides[0] = op->x_depth * frame_values(op);
    out.alignment = x_alignment(op, run);
    return out;
}

static struct tensor_cuda
y_tensor(const struct qv_op_conv *op, const struct conv_cuda *run, int64_t id, int64_t dtype)
{
    int64_t out[3], n = run->samples * (is_flat(op) ? run->frames : 1);
    qv_op_conv_output(op, out);
    struct tensor_cuda tensor =
        channels_last(op, id, dtype, n, op->o, (int64_t[]){ run->frames, out[1], out[2] });
    tensor.is_virtual = id >= BETWEEN;
    tensor.alignment = tensor.is_virtual ? 0 : y_alignment(op, run, dtype);
    return tensor;
}

/* Describes one value per channel, or one for all. */
static struct tensor_cuda
vector(const struct qv_op_conv *op, int64_t id, int64_t dtype, int64_t c)
{
    struct tensor_cuda out = channels_last(op, id, dtype, 1, c, (int64_t[]){ 1, 1, 1 });
    out.by_value = id == ALPHA;
    return out;
}

/* A step after the convolution: y = mode(y, b). */
struct step {
    cudnnPointwiseMode_t mode;
    struct tensor_cuda b; /* id 0: the step is an activation, which has no b */
};
enum { MOST_STEPS = 4 };

static int
list_steps(const struct qv_op_conv *op, const struct conv_cuda *run, struct step *steps)
{
    static const cudnnPointwiseMode_t acts[QV_ACT_COUNT] = {
        [QV_ACT_GELU_TANH] = CUDNN_POINTWISE_GELU_APPROX_TANH_FWD,
        [QV_ACT_GELU_ERF] = CUDNN_POINTWISE_GELU_FWD,
    };
    int n = 0;
    if (run->bare)
        return 0;
    if (op->alpha != 1)
        steps[n++] = (struct step){ CUDNN_POINTWISE_MUL, vector(op, ALPHA, QV_F32, 1) };
    if (op->bias)
        steps[n++] = (struct step){ CUDNN_POINTWISE_ADD, vector(op, BIAS, op->bias_dtype, op->o) };
    if (op->act)
        steps[n++] = (struct step){ acts[op->act], { 0 } };
    if (op->residual_rows || op->sums == 2)
        steps[n++] =
            (struct step){ CUDNN_POINTWISE_ADD, y_tensor(op, run, RESIDUAL, y_dtype(op, false)) };
    return n;
}

/* The dilation of a single tap has no effect, but would rule out cuDNN's best kernels. */
static int64_t
dilation_of(int64_t kernel, int64_t dilation)
{
    return kernel > 1 ? dilation : 1;
}

static cudnnBackendDescriptor_t
describe_convolution(struct sketch_cuda *sketch, const struct qv_op_conv *op)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t before[] = { 0, op->top, op->left }, after[] = { 0, op->bottom, op->right };
    const int64_t strides[] = { op->sd, op->sh, op->sw };
    const int64_t dilations[] = { dilation_of(op->kd, op->dd), dilation_of(op->kh, op->dh),
                                  dilation_of(op->kw, op->dw) };
    const int64_t flat = is_flat(op), n = 3 - flat;
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision },
        { CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode },
        { CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n },
        { CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, n, before + flat },
        { CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, n, after + flat },
        { CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, n, strides + flat },
        { CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, n, dilations + flat },
    };
    return qv_describe_cuda(sketch, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes,
                            COUNT_OF(attributes));
}

static void
add_convolution(struct sketch_cuda *sketch, const struct qv_op_conv *op,
                const struct conv_cuda *run, cudnnBackendDescriptor_t y)
{
    const struct tensor_cuda x_is = x_tensor(op, run);
    const struct tensor_cuda w_is = channels_last(op, W, op->w_dtype, op->o, op->c / op->groups,
                                                  (int64_t[]){ op->kd, op->kh, op->kw });
    const cudnnBackendDescriptor_t convolution = describe_convolution(sketch, op);
    const cudnnBackendDescriptor_t x = qv_describe_tensor_cuda(sketch, &x_is);
    const cudnnBackendDescriptor_t w = qv_describe_tensor_cuda(sketch, &w_is);
    const float one = 1, zero = 0;
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
          &convolution },
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x },
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w },
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y },
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one },
        { CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero },
    };
    qv_operation_cuda(sketch, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, attributes,
                      COUNT_OF(attributes));
}

static void
sketch_conv(struct sketch_cuda *sketch, const struct qv_op_conv *op, const struct conv_cuda *run)
{
    struct step steps[MOST_STEPS];
    cudnnBackendDescriptor_t values[MOST_STEPS + 1]; /* the last one is y */
    int n = list_steps(op, run, steps);
    for (int i = 0; i <= n; i++) {
        const struct tensor_cuda value = i < n ? y_tensor(op, run, BETWEEN + i, QV_F32)
                                               : y_tensor(op, run, Y, y_dtype(op, run->bare));
        values[i] = qv_describe_tensor_cuda(sketch, &value);
    }
    add_convolution(sketch, op, run, values[0]);
    for (int i = 0; i < n; i++)
        qv_pointwise_cuda(sketch, steps[i].mode, 0, values[i],
                          steps[i].b.id ? qv_describe_tensor_cuda(sketch, &steps[i].b) : NULL,
                          values[i + 1]);
}

/* ---- preparing --------------------------------------------------------------------------------*/

static int64_t
rows_of(const struct qv_op_conv *op)
{
    return qv_op_conv_epilogue(op).rows;
}

/* Returns whether to try cuDNN's graph with the steps after the convolution (bare: without them).
 * cuDNN does not support a residual with repeating rows, its activations are not exact enough for
 * f32, and activations with a sigmoid run on our kernel. With sums = 1 there are no further steps,
 * so the two graphs are the same, and only one is tried. */
static bool
has_form(const struct qv_op_conv *op, bool bare)
{
    if (bare)
        return op->sums != 1;
    bool act = !op->act || op->act == QV_ACT_GELU_TANH || op->act == QV_ACT_GELU_ERF;
    return act && (!op->residual_rows || op->residual_rows == rows_of(op)) &&
           !(op->act && op->y_dtype == QV_F32);
}

qv_status
qv_conv_plan_cuda(const struct target_cuda *target, const struct qv_op_conv *op,
                  struct conv_cuda *out, qv_error *err)
{
    qv_status status = QV_EUNSUPPORTED;
    *out = (struct conv_cuda){ 0 };
    if (!choose_part(op, out))
        return qv_fail(err, status, "conv: cuDNN does not support it: one frame has 2^31 values");
    for (int bare = 0; bare < 2 && status == QV_EUNSUPPORTED; bare++) {
        struct sketch_cuda sketch = { 0 };
        if (!has_form(op, bare))
            continue;
        out->bare = bare;
        sketch_conv(&sketch, op, out);
        status = qv_graph_open_cuda(&sketch, target, op->x_dtype, &out->graph, err);
        qv_sketch_close_cuda(&sketch);
    }
    return status;
}

static size_t
sums_bytes(const struct qv_op_conv *op)
{
    return qv_aligned((size_t)(rows_of(op) * op->o) * sizeof(float));
}

static qv_status
prepare_conv(struct qv_device_cuda *dev, struct qv_kernel *kernel, size_t *scratch_bytes,
             qv_error *err)
{
    const struct target_cuda target = { .dev = dev, .tf32 = dev->tf32 };
    const struct qv_op_conv *op = &kernel->op.u.conv;
    struct conv_cuda *conv = &kernel->u.conv;
    qv_error failure = { 0 };
    qv_status status = qv_conv_plan_cuda(&target, op, conv, &failure);
    if (status && status != QV_EUNSUPPORTED)
        return qv_fail(err, status, "%s", failure.text);
    snprintf(kernel->naive, sizeof kernel->naive, "%.199s", failure.text);
    *scratch_bytes = qv_aligned(conv->graph.workspace_bytes);
    if (conv->graph.plan && conv->bare)
        *scratch_bytes += sums_bytes(op);
    return QV_OK; /* without a plan our own kernel runs */
}

/* ---- running ----------------------------------------------------------------------------------*/

/* Runs the graph once; p has its operands, with the graph's y in place of the operation's. */
static qv_status
run_once(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p,
         void *workspace, qv_error *err)
{
    const struct qv_op_conv *op = &kernel->op.u.conv;
    const struct conv_cuda *conv = &kernel->u.conv;
    const float alpha = (float)op->alpha;
    int64_t y_aligned = y_alignment(op, conv, y_dtype(op, conv->bare));
    const struct binding_cuda all[] = {
        { X, "conv's x", p[0], x_alignment(op, conv) },
        { W, "conv's w", p[1], TENSOR_ALIGNMENT },
        { Y, "conv's y", p[4], y_aligned },
        { BIAS, "conv's bias", p[2], TENSOR_ALIGNMENT },
        { RESIDUAL, "conv's residual", op->sums == 2 ? p[4] : p[3], y_aligned },
        { ALPHA, "conv's alpha", &alpha, 0 },
    };
    struct step steps[MOST_STEPS];
    struct binding_cuda bindings[GRAPH_MOST_BINDINGS];
    int n = 3, n_steps = list_steps(op, conv, steps);
    memcpy(bindings, all, 3 * sizeof *all);
    for (int i = 0; i < n_steps; i++)
        for (int j = 3; j < COUNT_OF(all); j++)
            if (steps[i].b.id == all[j].id)
                bindings[n++] = all[j];
    return qv_graph_run_cuda(dev, &conv->graph, bindings, n, workspace, err);
}

/* Runs the graph on each part; a bare graph writes to `sums`. */
static qv_status
run_parts(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p, char *sums,
          void *workspace, qv_error *err)
{
    const struct qv_op_conv *op = &kernel->op.u.conv;
    const struct conv_cuda *conv = &kernel->u.conv;
    int64_t frames = frames_of(op);
    int64_t frame = frame_values(op) * (int64_t)qv_dtype_bytes(op->x_dtype);
    int64_t y_step = y_bytes(op, conv, y_dtype(op, conv->bare));
    char *x = p[0], *residual = p[3], *y = conv->bare ? sums : p[4];
    qv_status status = QV_OK;
    for (int64_t n = 0; n < op->n; n += conv->samples)
        for (int64_t f = 0; f < frames && !status; f += conv->frames) {
            void *operands[] = { x + (n * op->x_depth + f * op->sd) * frame, p[1], p[2], residual,
                                 y };
            status = run_once(dev, kernel, operands, workspace, err);
            y += y_step;
            if (residual)
                residual += y_step;
        }
    return status;
}

/* Applies the epilogue after a bare graph, or adds its sums to y. */
static qv_status
run_epilogue(struct qv_device_cuda *dev, const struct qv_op_conv *op, void *const *p,
             const void *sums, qv_error *err)
{
    struct qv_op_epilogue epilogue = qv_op_conv_epilogue(op);
    if (op->sums)
        epilogue = (struct qv_op_epilogue){ .rows = epilogue.rows,
                                            .cols = epilogue.cols,
                                            .alpha = 1,
                                            .residual_rows = epilogue.rows,
                                            .y_dtype = op->y_dtype };
    return qv_check_cuda(dev,
                         qv_epilogue_cuda(dev->stream, &epilogue, sums, p[2],
                                          op->sums ? p[4] : p[3], p[4]),
                         "qv_epilogue_cuda", err);
}

static qv_status
run_conv(struct qv_device_cuda *dev, const struct qv_kernel *kernel, void *const *p, void *scratch,
         qv_error *err)
{
    const struct qv_op_conv *op = &kernel->op.u.conv;
    const struct conv_cuda *conv = &kernel->u.conv;
    if (!conv->graph.plan)
        return qv_check_cuda(dev, qv_conv_naive_cuda(dev->stream, op, p[0], p[1], p[2], p[3], p[4]),
                             "qv_conv_naive_cuda", err);
    char *sums = conv->bare ? scratch : NULL; /* lies before the workspace */
    char *workspace = conv->bare ? sums + sums_bytes(op) : scratch;
    qv_status status = run_parts(dev, kernel, p, sums, workspace, err);
    return status || !conv->bare ? status : run_epilogue(dev, op, p, sums, err);
}

static void
release_conv(struct qv_kernel *kernel)
{
    qv_graph_close_cuda(&kernel->u.conv.graph);
}

/* Returns why the steps after the convolution are not in its graph. */
static const char *
epilogue_obstacle(const struct qv_op_conv *op)
{
    if (has_form(op, false))
        return "cuDNN has no engine for both in one graph";
    return op->residual_rows && op->residual_rows != rows_of(op)
               ? "cuDNN has no residual whose rows repeat"
               : "cuDNN's activations are not exact in f32";
}

static void
describe_conv(const struct qv_kernel *kernel, char *text, size_t size)
{
    const struct qv_op_conv *op = &kernel->op.u.conv;
    const struct conv_cuda *conv = &kernel->u.conv;
    size_t used = qv_graph_describe_cuda(&conv->graph, kernel->naive, text, size);
    if (!conv->graph.plan)
        return;
    int64_t runs = op->n / conv->samples * (frames_of(op) / conv->frames);
    if (runs > 1)
        used += (size_t)snprintf(text + used, size - used, ", %lld runs", (long long)runs);
    if (conv->bare)
        snprintf(text + used, size - used, ", then our %s: %s", op->sums ? "sum" : "epilogue",
                 epilogue_obstacle(op));
}

const struct verbs_cuda qv_conv_verbs_cuda = {
    .library = CUDNN,
    .prepare = prepare_conv,
    .run = run_conv,
    .release = release_conv,
    .describe = describe_conv,
};
