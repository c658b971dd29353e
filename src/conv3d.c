/* SPDX-License-Identifier: MIT */
#include "conv3d.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

static const char *const axis_names[3] = { "depth", "height", "width" };
static const char *const layout_names[QV_LAYOUT_COUNT] = { "channels-first", "channels-last",
                                                           "patch rows", "byte frames" };
static const char *const causal_names[QV_CAUSAL_COUNT] = { "none", "zeros", "first frame",
                                                           "kept frames" };
static const char *const lowering_names[QV_LOWERING_COUNT] = {
#define QV_LOWERING_NAME(name, text) text,
    QV_LOWERING_LIST(QV_LOWERING_NAME)
#undef QV_LOWERING_NAME
};

const char *
qv_lowering_name(enum qv_lowering lowering)
{
    return (unsigned)lowering < QV_LOWERING_COUNT ? lowering_names[lowering] : "unknown";
}

int
qv_lowering_find(const char *name)
{
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        if (name && strcmp(name, lowering_names[i]) == 0)
            return i;
    return -1;
}

static bool
holds_patches(const struct qv_conv3d_desc *d)
{
    return d->layout == QV_LAYOUT_PATCH_ROWS || d->layout == QV_LAYOUT_FRAMES_U8;
}

static int64_t
kernel_volume(const struct qv_conv3d_desc *d)
{
    return d->kernel[0] * d->kernel[1] * d->kernel[2];
}

/* ---- guards ---------------------------------------------------------------------------------- */

struct question {
    const struct qv_conv3d_desc *desc;
    const struct qv_caps *caps;
    char *text;
    size_t size;
};

/* A guard holds, or says in words why not. */
typedef bool guard(const struct question *q);

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
forbid(const struct question *q, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(q->text, q->size, format, ap);
    va_end(ap);
    return false;
}

static bool
kernel_is_stride(const struct question *q)
{
    const struct qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++)
        if (d->stride[a] != d->kernel[a])
            return forbid(q, "stride %lld differs from kernel %lld on the %s axis",
                          (long long)d->stride[a], (long long)d->kernel[a], axis_names[a]);
    return true;
}

/* Frames must come from somewhere; a causal mode that pads nothing is no obstacle. */
static bool
not_causal(const struct question *q)
{
    const struct qv_conv3d_desc *d = q->desc;
    if (d->causal != QV_CAUSAL_NONE && d->pad_front[0] > 0)
        return forbid(q, "causal padding (%s) of %lld on the depth axis", causal_names[d->causal],
                      (long long)d->pad_front[0]);
    return true;
}

static bool
unpadded(const struct question *q, int n_axes)
{
    const struct qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < n_axes; a++) {
        if (d->pad_front[a])
            return forbid(q, "padding %lld in front on the %s axis", (long long)d->pad_front[a],
                          axis_names[a]);
        if (d->pad_back[a])
            return forbid(q, "padding %lld behind on the %s axis", (long long)d->pad_back[a],
                          axis_names[a]);
    }
    return true;
}

static bool
no_padding(const struct question *q)
{
    return unpadded(q, 3);
}

static bool
no_depth_padding(const struct question *q)
{
    return unpadded(q, 1);
}

/* One tap has nothing to dilate. */
static bool
not_dilated(const struct question *q)
{
    const struct qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++)
        if (d->dilation[a] != 1 && d->kernel[a] > 1)
            return forbid(q, "dilation %lld on the %s axis", (long long)d->dilation[a],
                          axis_names[a]);
    return true;
}

static bool
one_group(const struct question *q)
{
    return q->desc->groups == 1 || forbid(q, "%lld groups", (long long)q->desc->groups);
}

static bool
divisible(const struct question *q)
{
    const struct qv_conv3d_desc *d = q->desc;
    const int64_t sizes[3] = { d->d, d->h, d->w };
    for (int a = 0; a < 3; a++)
        if (sizes[a] % d->kernel[a])
            return forbid(q, "%s %lld is not a multiple of kernel %lld", axis_names[a],
                          (long long)sizes[a], (long long)d->kernel[a]);
    return true;
}

static bool
frames_equal(const struct question *q)
{
    return q->desc->frames_equal || forbid(q, "no promise that the frames are equal");
}

static bool
kernel_has_depth(const struct question *q)
{
    return q->desc->kernel[0] > 1 || forbid(q, "kernel depth 1 leaves no frames to sum");
}

/* The matrix [n*d'*h'*w', c*kd*kh*kw] lies in memory as it is: patch rows; volumes of one kernel
 * each; voxels where the kernel is one. */
static bool
input_is_rows(const struct qv_conv3d_desc *d)
{
    switch (d->layout) {
    case QV_LAYOUT_PATCH_ROWS: return true;
    case QV_LAYOUT_CHANNELS_LAST:
        return kernel_volume(d) == 1 && d->stride[0] == 1 && d->stride[1] == 1 && d->stride[2] == 1;
    case QV_LAYOUT_CHANNELS_FIRST:
        return d->d == d->kernel[0] && d->h == d->kernel[1] && d->w == d->kernel[2];
    default: return false;
    }
}

/* Leaving frames out of rows that exist would be a copy to save what is paid already. */
static bool
rows_to_be_made(const struct question *q)
{
    return !input_is_rows(q->desc) || forbid(q, "the input's rows already hold all %lld frames",
                                             (long long)q->desc->kernel[0]);
}

static bool
kernel_is_one(const struct question *q)
{
    const int64_t *k = q->desc->kernel;
    return kernel_volume(q->desc) == 1 || forbid(q, "kernel %lldx%lldx%lld is not 1x1x1",
                                                 (long long)k[0], (long long)k[1], (long long)k[2]);
}

static bool
kernel_depth_is_one(const struct question *q)
{
    return q->desc->kernel[0] == 1 ||
           forbid(q, "kernel depth %lld is not 1", (long long)q->desc->kernel[0]);
}

static bool
right_in_bf16(const struct question *q)
{
    if (q->desc->dtype == QV_BF16 && q->caps->wrong_conv3d_bf16)
        return forbid(q, "this device library's Conv3d is known to be wrong in bf16");
    return true;
}

/* ---- lowerings ------------------------------------------------------------------------------- */

/* What a legal lowering comes down to, in words. */
typedef void gist(const struct qv_conv3d_desc *d, char *text, size_t size);

static int64_t
output_rows(const struct qv_conv3d_desc *d)
{
    int64_t out[3];
    qv_conv3d_output(d, out);
    return d->n * out[0] * out[1] * out[2];
}

static void
gist_patchify(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel = stride = %lldx%lldx%lld, no padding: one product [%lld, %lld]",
             (long long)d->kernel[0], (long long)d->kernel[1], (long long)d->kernel[2],
             (long long)output_rows(d), (long long)(d->c * kernel_volume(d)));
}

static void
gist_still(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    int64_t k = d->c * kernel_volume(d);
    snprintf(text, size,
             "the %lld frames are one picture, weights summed: one product [%lld, %lld]"
             " in place of %lld columns",
             (long long)d->kernel[0], (long long)output_rows(d), (long long)(k / d->kernel[0]),
             (long long)k);
}

static void
gist_pointwise(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel 1x1x1, no padding: one product over channels [%lld, %lld]",
             (long long)output_rows(d), (long long)d->c);
}

static void
gist_frames(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    int64_t out[3];
    qv_conv3d_output(d, out);
    snprintf(text, size, "kernel depth 1: one 2D convolution over %lld frames",
             (long long)(d->n * out[0]));
}

static void
gist_by_depth(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel depth %lld: as many 2D convolutions, summed in f32",
             (long long)d->kernel[0]);
}

static void
gist_direct(const struct qv_conv3d_desc *d, char *text, size_t size)
{
    (void)d;
    snprintf(text, size, "the device's own 3D convolution takes every shape");
}

#define PATCHIFY_GUARDS not_causal, no_padding, kernel_is_stride, not_dilated, one_group, divisible

/* What must hold for each lowering, in the order in which it is asked. */
static const struct lowering {
    guard *guards[10]; /* NULL ends */
    gist *gist;
    bool product; /* one GEMM: its operations exist */
} lowerings[QV_LOWERING_COUNT] = {
    [QV_LOWERING_PATCHIFY] = { { PATCHIFY_GUARDS }, gist_patchify, true },
    [QV_LOWERING_STILL] = { { PATCHIFY_GUARDS, frames_equal, kernel_has_depth, rows_to_be_made },
                            gist_still,
                            true },
    [QV_LOWERING_POINTWISE] = { { kernel_is_one, not_causal, no_padding, one_group },
                                gist_pointwise,
                                true },
    [QV_LOWERING_FRAMES] = { { kernel_depth_is_one, not_causal, no_depth_padding },
                             gist_frames,
                             false },
    [QV_LOWERING_BY_DEPTH] = { { NULL }, gist_by_depth, false },
    [QV_LOWERING_DIRECT] = { { right_in_bf16 }, gist_direct, false },
};

static bool
guards_hold(const struct question *q, enum qv_lowering lowering)
{
    for (guard *const *g = lowerings[lowering].guards; *g; g++)
        if (!(*g)(q))
            return false;
    return true;
}

/* ---- check ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
    int count; /* values: 1, or 3 for the axes */
    int64_t min;
} size_fields[] = {
#define FIELD(name, count, min)                                                                    \
    {                                                                                              \
#name, offsetof(struct qv_conv3d_desc, name), count, min                                   \
    }
    FIELD(n, 1, 1),           FIELD(d, 1, 1),         FIELD(h, 1, 1),        FIELD(w, 1, 1),
    FIELD(c, 1, 1),           FIELD(o, 1, 1),         FIELD(kernel, 3, 1),   FIELD(stride, 3, 1),
    FIELD(dilation, 3, 1),    FIELD(pad_front, 3, 0), FIELD(pad_back, 3, 0), FIELD(groups, 1, 1),
    FIELD(addend_rows, 1, 0),
#undef FIELD
};

static qv_status
check_sizes(const struct qv_conv3d_desc *d, qv_error *err)
{
    for (size_t f = 0; f < sizeof size_fields / sizeof *size_fields; f++)
        for (int a = 0; a < size_fields[f].count; a++) {
            int64_t v;
            memcpy(&v, (const char *)d + size_fields[f].offset + (size_t)a * sizeof v, sizeof v);
            if (v < size_fields[f].min)
                return qv_fail(err, QV_EINVAL, "conv3d: %s%s%s is %lld, must be %lld or more",
                               size_fields[f].name, size_fields[f].count > 1 ? " on axis " : "",
                               size_fields[f].count > 1 ? axis_names[a] : "", (long long)v,
                               (long long)size_fields[f].min);
        }
    if (d->c % d->groups || d->o % d->groups)
        return qv_fail(err, QV_EINVAL, "conv3d: groups %lld must divide c %lld and o %lld",
                       (long long)d->groups, (long long)d->c, (long long)d->o);
    return QV_OK;
}

static qv_status
check_choices(const struct qv_conv3d_desc *d, qv_error *err)
{
    const struct {
        const char *name;
        unsigned value, count;
    } choices[] = { { "layout", (unsigned)d->layout, QV_LAYOUT_COUNT },
                    { "causal", (unsigned)d->causal, QV_CAUSAL_COUNT },
                    { "act", (unsigned)d->act, QV_ACT_COUNT } };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].value >= choices[i].count)
            return qv_fail(err, QV_EINVAL, "conv3d: %s %u is not one of the %u known",
                           choices[i].name, choices[i].value, choices[i].count);
    if (d->dtype != QV_F32 && d->dtype != QV_BF16)
        return qv_fail(err, QV_EINVAL, "conv3d: dtype %d, must be f32 or bf16", (int)d->dtype);
    if (!isfinite(d->alpha) || d->alpha == 0)
        return qv_fail(err, QV_EINVAL, "conv3d: alpha is %g; 1 leaves the product as it is",
                       d->alpha);
    if (d->causal != QV_CAUSAL_NONE && d->pad_back[0])
        return qv_fail(err, QV_EINVAL,
                       "conv3d: pad_back on axis depth is %lld, but causal padding"
                       " (%s) is all in front",
                       (long long)d->pad_back[0], causal_names[d->causal]);
    return QV_OK;
}

/* Padded sizes, kernel extents and what comes out, without overflow. */
static qv_status
check_axes(const struct qv_conv3d_desc *d, int64_t out[3], qv_error *err)
{
    const int64_t sizes[3] = { d->d, d->h, d->w };
    for (int a = 0; a < 3; a++) {
        int64_t padded, extent;
        if (__builtin_add_overflow(sizes[a], d->pad_front[a], &padded) ||
            __builtin_add_overflow(padded, d->pad_back[a], &padded))
            return qv_fail(err, QV_EINVAL,
                           "conv3d: %s %lld with padding %lld and %lld is beyond"
                           " 63 bits",
                           axis_names[a], (long long)sizes[a], (long long)d->pad_front[a],
                           (long long)d->pad_back[a]);
        if (__builtin_mul_overflow(d->kernel[a] - 1, d->dilation[a], &extent) ||
            __builtin_add_overflow(extent, 1, &extent) || extent > padded)
            return qv_fail(err, QV_EINVAL,
                           "conv3d: kernel %lld with dilation %lld is larger than"
                           " the padded input %lld on the %s axis",
                           (long long)d->kernel[a], (long long)d->dilation[a], (long long)padded,
                           axis_names[a]);
        out[a] = (padded - extent) / d->stride[a] + 1;
    }
    return QV_OK;
}

/* Bytes of every tensor fit into 63 bits. */
static qv_status
check_products(const struct qv_conv3d_desc *d, const int64_t out[3], qv_error *err)
{
    const int64_t *k = d->kernel, es = (int64_t)qv_dtype_bytes(d->dtype);
    const struct {
        const char *name;
        int64_t factors[6];
    } products[] = {
        { "the input", { d->n, d->d, d->h, d->w, d->c, es } },
        { "the weight", { d->o, d->c / d->groups, k[0], k[1], k[2], es } },
        { "the output", { d->n, out[0], out[1], out[2], d->o, es } },
    };
    for (size_t p = 0; p < sizeof products / sizeof *products; p++) {
        int64_t product = 1;
        for (int i = 0; i < 6; i++)
            if (__builtin_mul_overflow(product, products[p].factors[i], &product))
                return qv_fail(err, QV_EINVAL, "conv3d: the size of %s is beyond 63 bits",
                               products[p].name);
    }
    int64_t rows = d->n * out[0] * out[1] * out[2];
    if (d->addend_rows && rows % d->addend_rows)
        return qv_fail(err, QV_EINVAL, "conv3d: addend_rows %lld does not divide %lld output rows",
                       (long long)d->addend_rows, (long long)rows);
    return QV_OK;
}

/* Layouts that hold patches are of use for patches only. */
static qv_status
check_patches(const struct qv_conv3d_desc *d, const int64_t out[3], qv_error *err)
{
    char why[QV_CONV3D_REASON];
    const struct qv_caps caps = { 0 };
    const struct question q = { d, &caps, why, sizeof why };
    if (!holds_patches(d))
        return QV_OK;
    if (!guards_hold(&q, QV_LOWERING_PATCHIFY))
        return qv_fail(err, QV_EINVAL, "conv3d: layout %s needs whole patches: %s",
                       layout_names[d->layout], why);
    if (d->layout == QV_LAYOUT_PATCH_ROWS)
        return QV_OK;
    if (d->kernel[1] != d->kernel[2] || d->c > 3)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: byte frames need square patches of at most 3"
                       " channels, not %lldx%lld of %lld",
                       (long long)d->kernel[1], (long long)d->kernel[2], (long long)d->c);
    if (d->merge < 1 || out[1] % d->merge || out[2] % d->merge)
        return qv_fail(err, QV_EINVAL, "conv3d: merge %lld does not divide the grid %lldx%lld",
                       (long long)d->merge, (long long)out[1], (long long)out[2]);
    for (int i = 0; i < d->c; i++)
        if (!isfinite(d->pixel_scale[i]) || !isfinite(d->pixel_shift[i]) || d->pixel_scale[i] == 0)
            return qv_fail(err, QV_EINVAL,
                           "conv3d: pixel_scale[%d] %g and pixel_shift[%d] %g must"
                           " be finite and the scale not 0",
                           i, d->pixel_scale[i], i, d->pixel_shift[i]);
    return QV_OK;
}

qv_status
qv_conv3d_check(const struct qv_conv3d_desc *desc, qv_error *err)
{
    int64_t out[3];
    qv_status st = check_sizes(desc, err);
    if (!st)
        st = check_choices(desc, err);
    if (!st)
        st = check_axes(desc, out, err);
    if (!st)
        st = check_products(desc, out, err);
    return st ? st : check_patches(desc, out, err);
}

void
qv_conv3d_output(const struct qv_conv3d_desc *desc, int64_t out[3])
{
    const int64_t sizes[3] = { desc->d, desc->h, desc->w };
    for (int a = 0; a < 3; a++) {
        int64_t extent = (desc->kernel[a] - 1) * desc->dilation[a] + 1;
        int64_t padded = sizes[a] + desc->pad_front[a] + desc->pad_back[a];
        out[a] = (padded - extent) / desc->stride[a] + 1;
    }
}

double
qv_conv3d_flops(const struct qv_conv3d_desc *desc)
{
    double k = (double)(desc->c / desc->groups) * (double)kernel_volume(desc);
    return 2 * (double)output_rows(desc) * (double)desc->o * k;
}

/* ---- decide ---------------------------------------------------------------------------------- */

/*
 * Placeholders from first principles, not measured: each depth tap of by depth reads and writes the
 * f32 sums once more, which a short kernel repays through faster 2D routines. `qwenvit bench
 * conv3d` and --tune bring measured ones.
 */
static const struct {
    const char *backend;
    struct qv_conv3d_thresholds thresholds;
} threshold_table[] = {
    { "cpu", { .by_depth_max_kd = 3, .by_depth_min_flops = 1e7 } },
    { "ref", { .by_depth_max_kd = 3, .by_depth_min_flops = 0 } },
};

const struct qv_conv3d_thresholds *
qv_conv3d_thresholds_of(const char *backend)
{
    for (size_t i = 0; i < sizeof threshold_table / sizeof *threshold_table; i++)
        if (strcmp(backend, threshold_table[i].backend) == 0)
            return &threshold_table[i].thresholds;
    return &threshold_table[0].thresholds;
}

bool
qv_conv3d_legal(const struct qv_conv3d_desc *desc, const struct qv_caps *caps,
                enum qv_lowering lowering, char *text, size_t size)
{
    const struct question q = { desc, caps, text, size };
    qv_error bad;
    if ((unsigned)lowering >= QV_LOWERING_COUNT)
        return forbid(&q, "no such lowering");
    if (qv_conv3d_check(desc, &bad))
        return forbid(&q, "%s", bad.text);
    if (!guards_hold(&q, lowering))
        return false;
    lowerings[lowering].gist(desc, text, size);
    return true;
}

/* Cuts what does not fit. */
static void
append(char text[QV_CONV3D_REASON], const char *words)
{
    size_t used = strlen(text), n = strlen(words), room = QV_CONV3D_REASON - 1 - used;
    n = n < room ? n : room;
    memcpy(text + used, words, n);
    text[used + n] = '\0';
}

/* By depth against direct, where both are legal; text says why it loses. */
static bool
by_depth_pays(const struct qv_conv3d_desc *d, const struct qv_conv3d_thresholds *t, char *text,
              size_t size)
{
    const struct question q = { d, NULL, text, size };
    double flops = qv_conv3d_flops(d) / (double)d->kernel[0];
    if (d->kernel[0] > t->by_depth_max_kd)
        return forbid(&q, "kernel depth %lld is above %lld, where by depth stops paying here",
                      (long long)d->kernel[0], (long long)t->by_depth_max_kd);
    if (flops < t->by_depth_min_flops)
        return forbid(&q,
                      "%.3g FLOPs in a depth tap are below %.3g, where by depth starts paying"
                      " here",
                      flops, t->by_depth_min_flops);
    return true;
}

/* The first legal one; only by depth has to pay, and only against direct. note[QV_CONV3D_REASON]:
 * what decided between these two, where one of them is chosen. */
static enum qv_lowering
choose(const struct qv_conv3d_desc *d, unsigned legal, const struct qv_conv3d_thresholds *t,
       const char *why_not_direct, char *note)
{
    static const enum qv_lowering best_first[] = { QV_LOWERING_STILL, QV_LOWERING_POINTWISE,
                                                   QV_LOWERING_PATCHIFY, QV_LOWERING_FRAMES };
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (legal >> best_first[i] & 1)
            return best_first[i];
    if (legal >> QV_LOWERING_DIRECT & 1)
        return by_depth_pays(d, t, note, QV_CONV3D_REASON) ? QV_LOWERING_BY_DEPTH
                                                           : QV_LOWERING_DIRECT;
    append(note, "not direct: ");
    append(note, why_not_direct);
    return QV_LOWERING_BY_DEPTH;
}

/* Adds an operation and what its operands are; operands[5] is in the order of ops.inc. */
static void
add_op(struct qv_conv3d_decision *out, const struct qv_op *op,
       const enum qv_conv3d_operand operands[QV_MAX_OPERANDS])
{
    out->ops[out->n_ops] = *op;
    memcpy(out->operands[out->n_ops], operands, sizeof out->operands[0]);
    out->n_ops++;
}

static void
add_rows(const struct qv_conv3d_desc *d, struct qv_conv3d_decision *out)
{
    struct qv_op op;
    memset(&op, 0, sizeof op); /* operations are compared by value */
    op.kind = QV_OP_rows;
    op.u.rows = (struct qv_op_rows){
        .pairs = d->n * out->out[0],
        .grid_h = out->out[1],
        .grid_w = out->out[2],
        .patch = d->kernel[1],
        .temporal = d->kernel[0],
        .merge = d->merge,
        .channels = d->c,
        .still = out->lowering == QV_LOWERING_STILL,
        .scale0 = d->pixel_scale[0],
        .scale1 = d->pixel_scale[1],
        .scale2 = d->pixel_scale[2],
        .shift0 = d->pixel_shift[0],
        .shift1 = d->pixel_shift[1],
        .shift2 = d->pixel_shift[2],
        .dtype = d->dtype,
    };
    add_op(out, &op,
           (const enum qv_conv3d_operand[QV_MAX_OPERANDS]){ QV_CONV3D_INPUT, QV_CONV3D_ROWS });
}

static void
add_gemm(const struct qv_conv3d_desc *d, struct qv_conv3d_decision *out)
{
    struct qv_op op;
    int64_t k = d->c * kernel_volume(d);
    memset(&op, 0, sizeof op);
    op.kind = QV_OP_gemm;
    op.u.gemm = (struct qv_op_gemm){
        .m = out->rows,
        .n = d->o,
        .k = out->weight == QV_CONV3D_DEPTH_SUMMED ? k / d->kernel[0] : k,
        .alpha = d->alpha,
        .bias = d->bias,
        .act = d->act,
        .addend_rows = d->addend_rows,
        .dtype = d->dtype,
    };
    add_op(out, &op,
           (const enum qv_conv3d_operand[QV_MAX_OPERANDS]){
               out->n_ops ? QV_CONV3D_ROWS : QV_CONV3D_INPUT, QV_CONV3D_WEIGHT,
               d->bias ? QV_CONV3D_BIAS : QV_CONV3D_NONE,
               d->addend_rows ? QV_CONV3D_ADDEND : QV_CONV3D_NONE, QV_CONV3D_OUTPUT });
}

static void
list_operations(const struct qv_conv3d_desc *d, struct qv_conv3d_decision *out)
{
    if (!lowerings[out->lowering].product)
        return;
    if (d->layout == QV_LAYOUT_FRAMES_U8)
        add_rows(d, out);
    else if (!input_is_rows(d))
        return;
    add_gemm(d, out);
}

qv_status
qv_conv3d_decide(const struct qv_conv3d_desc *desc, const struct qv_caps *caps,
                 const struct qv_conv3d_thresholds *thresholds, int forced,
                 struct qv_conv3d_decision *out, qv_error *err)
{
    struct qv_conv3d_decision it;
    char reasons[QV_LOWERING_COUNT][QV_CONV3D_REASON], note[QV_CONV3D_REASON] = "";
    qv_status st = qv_conv3d_check(desc, err);
    if (st)
        return st;
    if (forced < -1 || forced >= QV_LOWERING_COUNT)
        return qv_fail(err, QV_EINVAL, "conv3d: no lowering has the number %d", forced);
    memset(&it, 0, sizeof it);
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        if (qv_conv3d_legal(desc, caps, (enum qv_lowering)i, reasons[i], sizeof reasons[i]))
            it.legal |= 1u << i;
    if (forced >= 0 && !(it.legal >> forced & 1))
        return qv_fail(err, QV_EINVAL, "conv3d: lowering \"%s\" is not legal here: %s",
                       lowering_names[forced], reasons[forced]);
    it.lowering = forced >= 0
                      ? (enum qv_lowering)forced
                      : choose(desc, it.legal, thresholds, reasons[QV_LOWERING_DIRECT], note);
    append(it.reason, forced >= 0 ? "forced; " : "");
    append(it.reason, reasons[it.lowering]);
    append(it.reason, *note ? "; " : "");
    append(it.reason, note);
    it.weight = it.lowering == QV_LOWERING_STILL ? QV_CONV3D_DEPTH_SUMMED : QV_CONV3D_CANONICAL;
    qv_conv3d_output(desc, it.out);
    it.rows = output_rows(desc);
    list_operations(desc, &it);
    *out = it;
    return QV_OK;
}

qv_status
qv_conv3d_built(const struct qv_conv3d_desc *desc, const struct qv_conv3d_decision *decision,
                qv_error *err)
{
    bool product = lowerings[decision->lowering].product;
    if (decision->n_ops)
        return QV_OK;
    return qv_fail(err, QV_EUNSUPPORTED, "conv3d: the %s lowering is not built yet%s%s%s",
                   lowering_names[decision->lowering], product ? " for " : "",
                   product ? layout_names[desc->layout] : "", product ? " input" : "");
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Element i*khw + j is written after everything at or before it has been read: out may be w. */
void
qv_conv3d_sum_depth(const void *w, int64_t from, int64_t o, int64_t c, int64_t kd, int64_t khw,
                    int64_t to, void *out)
{
    for (int64_t i = 0; i < o * c; i++)
        for (int64_t j = 0; j < khw; j++) {
            double sum = 0;
            for (int64_t t = 0; t < kd; t++)
                sum += qv_load(w, from, (i * kd + t) * khw + j);
            qv_store(out, to, i * khw + j, sum);
        }
}

void
qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                 size_t element_bytes, void *out)
{
    const char *from = w;
    char *to = out;
    for (int64_t i = 0; i < o; i++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t t = 0; t < taps; t++, to += element_bytes)
                memcpy(to, from + (size_t)((i * taps + t) * c + j) * element_bytes, element_bytes);
}
