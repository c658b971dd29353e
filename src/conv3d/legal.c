/* SPDX-License-Identifier: MIT */
/* The guards that decide which lowerings may compute a Conv3d, and the table of lowerings with
 * their guards. */
#include "legal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "dtype.h"
#include "error.h"
#include "lower.h"

/* ---- guards ---------------------------------------------------------------------------------- */

/* A guard returns true if it holds; otherwise it writes the reason to q's text. */
typedef bool guard(const struct qv_conv3d_question *q);

bool
qv_conv3d_forbid(const struct qv_conv3d_question *q, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(q->text, q->size, format, ap);
    va_end(ap);
    return false;
}

static bool
kernel_is_stride(const struct qv_conv3d_question *q)
{
    const qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++)
        if (d->stride[a] != d->kernel[a])
            return qv_conv3d_forbid(q, "stride %lld differs from kernel %lld on the %s axis",
                                    (long long)d->stride[a], (long long)d->kernel[a],
                                    qv_conv3d_axis_names[a]);
    return true;
}

/* `patchify` and similar lowerings do not pad, so they cannot supply causal frames. A causal mode
 * that pads no frames is allowed. */
static bool
not_causal(const struct qv_conv3d_question *q)
{
    const qv_conv3d_desc *d = q->desc;
    if (d->causal != QV_CAUSAL_NONE && d->pad_front[0] > 0)
        return qv_conv3d_forbid(q, "causal padding (%s) of %lld on the depth axis",
                                qv_conv3d_causal_names[d->causal], (long long)d->pad_front[0]);
    return true;
}

static bool
no_padding(const struct qv_conv3d_question *q)
{
    const qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++) {
        if (d->pad_front[a])
            return qv_conv3d_forbid(q, "padding %lld at the front of the %s axis",
                                    (long long)d->pad_front[a], qv_conv3d_axis_names[a]);
        if (d->pad_back[a])
            return qv_conv3d_forbid(q, "padding %lld at the back of the %s axis",
                                    (long long)d->pad_back[a], qv_conv3d_axis_names[a]);
    }
    return true;
}

/* Dilation has no effect on an axis where the kernel has one tap. */
static bool
not_dilated(const struct qv_conv3d_question *q)
{
    const qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++)
        if (d->dilation[a] != 1 && d->kernel[a] > 1)
            return qv_conv3d_forbid(q, "dilation %lld on the %s axis", (long long)d->dilation[a],
                                    qv_conv3d_axis_names[a]);
    return true;
}

static bool
one_group(const struct qv_conv3d_question *q)
{
    return q->desc->groups == 1 || qv_conv3d_forbid(q, "%lld groups", (long long)q->desc->groups);
}

static bool
divisible(const struct qv_conv3d_question *q)
{
    const qv_conv3d_desc *d = q->desc;
    const int64_t sizes[3] = { d->d, d->h, d->w };
    for (int a = 0; a < 3; a++)
        if (sizes[a] % d->kernel[a])
            return qv_conv3d_forbid(q, "%s %lld is not a multiple of kernel %lld",
                                    qv_conv3d_axis_names[a], (long long)sizes[a],
                                    (long long)d->kernel[a]);
    return true;
}

static bool
frames_equal(const struct qv_conv3d_question *q)
{
    return q->desc->frames_equal || qv_conv3d_forbid(q, "frames_equal is not set");
}

static bool
kernel_has_depth(const struct qv_conv3d_question *q)
{
    return q->desc->kernel[0] > 1 || qv_conv3d_forbid(q, "kernel depth 1 leaves no frames to sum");
}

/* If the rows exist already, leaving frames out would need a copy, to save a cost that has already
 * been paid. */
static bool
rows_to_be_made(const struct qv_conv3d_question *q)
{
    return !qv_conv3d_input_is_rows(q->desc) ||
           qv_conv3d_forbid(q, "the input's rows already hold all %lld frames",
                            (long long)q->desc->kernel[0]);
}

static bool
kernel_is_one(const struct qv_conv3d_question *q)
{
    const int64_t *k = q->desc->kernel;
    return qv_conv3d_kernel_volume(q->desc) == 1 ||
           qv_conv3d_forbid(q, "kernel %lldx%lldx%lld is not 1x1x1", (long long)k[0],
                            (long long)k[1], (long long)k[2]);
}

static bool
kernel_depth_is_one(const struct qv_conv3d_question *q)
{
    return q->desc->kernel[0] == 1 ||
           qv_conv3d_forbid(q, "kernel depth %lld is not 1", (long long)q->desc->kernel[0]);
}

static bool
few_taps(const struct qv_conv3d_question *q)
{
    return q->desc->kernel[0] <= QV_CONV3D_MOST_TAPS ||
           qv_conv3d_forbid(q, "kernel depth %lld is more than %d depth taps",
                            (long long)q->desc->kernel[0], QV_CONV3D_MOST_TAPS);
}

/* Checks exactly the convolutions that the device would run. */
static bool
library_is_right(const struct qv_conv3d_question *q)
{
    struct qv_conv3d_list list;
    qv_conv3d_desc d = *q->desc;
    if (d.dtype != QV_BF16 || !q->caps->wrong_sparse_bf16)
        return true;
    d.d += d.pad_front[0] + d.pad_back[0]; /* by then padding frames are ordinary frames */
    d.pad_front[0] = d.pad_back[0] = 0;
    d.causal = QV_CAUSAL_NONE;
    qv_conv3d_lower(&d, q->lowering, &list);
    for (int i = 0; i < list.n; i++)
        if (list.steps[i].op.kind == QV_OP_conv && qv_op_conv_is_sparse(&list.steps[i].op.u.conv))
            return qv_conv3d_forbid(q,
                                    "this device library is known to be wrong in bf16 where a "
                                    "stride exceeds the kernel, or the kernel sees only padding");
    return true;
}

/* ---- lowerings ------------------------------------------------------------------------------- */

/* Describes how a legal lowering runs. */
static void
write_gist(const qv_conv3d_desc *d, qv_lowering lowering, char *text, size_t size)
{
    int64_t out[3];
    qv_conv3d_output(d, out);
    const long long depth = d->kernel[0], k = d->c * qv_conv3d_kernel_volume(d);
    const long long frames = d->n * out[0], rows = frames * out[1] * out[2];
    switch (lowering) {
    case QV_LOWERING_PATCHIFY:
        snprintf(text, size, "kernel = stride = %lldx%lldx%lld, no padding: one GEMM [%lld, %lld]",
                 depth, (long long)d->kernel[1], (long long)d->kernel[2], rows, k);
        break;
    case QV_LOWERING_STILL:
        snprintf(text, size,
                 "the %lld frames are one image, weights summed: one GEMM [%lld, %lld] in place of "
                 "%lld columns",
                 depth, rows, k / depth, k);
        break;
    case QV_LOWERING_POINTWISE:
        snprintf(text, size, "kernel 1x1x1, no padding: one GEMM over channels [%lld, %lld]", rows,
                 k);
        break;
    case QV_LOWERING_FRAMES:
        snprintf(text, size, "kernel depth 1: one 2D convolution over %lld frames", frames);
        break;
    case QV_LOWERING_BY_DEPTH:
        snprintf(text, size, "kernel depth %lld: as many 2D convolutions, summed in f32", depth);
        break;
    case QV_LOWERING_DIRECT:
        snprintf(text, size, "the device's own 3D convolution accepts every shape");
        break;
    case QV_LOWERING_COUNT: break;
    }
}

#define PATCHIFY_GUARDS not_causal, no_padding, kernel_is_stride, not_dilated, one_group, divisible

/* The guards of each lowering, in the order in which they are checked; each list ends with NULL. */
static guard *const guards[QV_LOWERING_COUNT][10] = {
    [QV_LOWERING_PATCHIFY] = { PATCHIFY_GUARDS },
    [QV_LOWERING_STILL] = { PATCHIFY_GUARDS, frames_equal, kernel_has_depth, rows_to_be_made },
    [QV_LOWERING_POINTWISE] = { kernel_is_one, not_causal, no_padding, one_group },
    [QV_LOWERING_FRAMES] = { kernel_depth_is_one, library_is_right },
    [QV_LOWERING_BY_DEPTH] = { few_taps, library_is_right },
    [QV_LOWERING_DIRECT] = { library_is_right },
};

static bool
guards_hold(const struct qv_conv3d_question *q)
{
    for (guard *const *g = guards[q->lowering]; *g; g++)
        if (!(*g)(q))
            return false;
    return true;
}

/* ---- check ----------------------------------------------------------------------------------- */

static qv_status
check_sizes(const qv_conv3d_desc *d, qv_error *err)
{
    const struct {
        const char *name;
        int count; /* 1, or 3 for the axes */
        int64_t least;
        const int64_t *values;
    } fields[] = {
        { "n", 1, 1, &d->n },
        { "d", 1, 1, &d->d },
        { "h", 1, 1, &d->h },
        { "w", 1, 1, &d->w },
        { "c", 1, 1, &d->c },
        { "o", 1, 1, &d->o },
        { "kernel", 3, 1, d->kernel },
        { "stride", 3, 1, d->stride },
        { "dilation", 3, 1, d->dilation },
        { "pad_front", 3, 0, d->pad_front },
        { "pad_back", 3, 0, d->pad_back },
        { "groups", 1, 1, &d->groups },
        { "residual_rows", 1, 0, &d->residual_rows },
    };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (int a = 0; a < fields[f].count; a++)
            if (fields[f].values[a] < fields[f].least)
                return qv_fail(err, QV_EINVAL, "conv3d: %s%s%s is %lld; it must be %lld or more",
                               fields[f].name, fields[f].count > 1 ? " on axis " : "",
                               fields[f].count > 1 ? qv_conv3d_axis_names[a] : "",
                               (long long)fields[f].values[a], (long long)fields[f].least);
    if (d->c % d->groups || d->o % d->groups)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: groups is %lld; it must divide c (%lld) and o (%lld)",
                       (long long)d->groups, (long long)d->c, (long long)d->o);
    return QV_OK;
}

static qv_status
check_choices(const qv_conv3d_desc *d, qv_error *err)
{
    const struct {
        const char *name;
        unsigned value, count;
    } choices[] = { { "layout", (unsigned)d->layout, QV_LAYOUT_COUNT },
                    { "causal", (unsigned)d->causal, QV_CAUSAL_COUNT },
                    { "act", (unsigned)d->act, QV_ACT_COUNT } };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].value >= choices[i].count)
            return qv_fail(err, QV_EINVAL, "conv3d: %s is %u; it must be less than %u",
                           choices[i].name, choices[i].value, choices[i].count);
    if (d->dtype != QV_F32 && d->dtype != QV_BF16)
        return qv_fail(err, QV_EINVAL, "conv3d: dtype is %d; it must be f32 or bf16",
                       (int)d->dtype);
    if (!isfinite(d->alpha) || d->alpha == 0)
        return qv_fail(err, QV_EINVAL, "conv3d: alpha is %g; it must be finite and not 0",
                       d->alpha);
    if (d->causal != QV_CAUSAL_NONE && d->pad_back[0])
        return qv_fail(err, QV_EINVAL,
                       "conv3d: pad_back on axis depth is %lld, but causal padding"
                       " (%s) is all in front",
                       (long long)d->pad_back[0], qv_conv3d_causal_names[d->causal]);
    return QV_OK;
}

/* Checks padded sizes, kernel extents and output sizes, without overflow. */
static qv_status
check_axes(const qv_conv3d_desc *d, int64_t out[3], qv_error *err)
{
    const int64_t sizes[3] = { d->d, d->h, d->w };
    for (int a = 0; a < 3; a++) {
        int64_t padded, extent;
        if (__builtin_add_overflow(sizes[a], d->pad_front[a], &padded) ||
            __builtin_add_overflow(padded, d->pad_back[a], &padded))
            return qv_fail(err, QV_EINVAL,
                           "conv3d: %s %lld with padding %lld and %lld exceeds 63 bits",
                           qv_conv3d_axis_names[a], (long long)sizes[a], (long long)d->pad_front[a],
                           (long long)d->pad_back[a]);
        if (__builtin_mul_overflow(d->kernel[a] - 1, d->dilation[a], &extent) ||
            __builtin_add_overflow(extent, 1, &extent) || extent > padded)
            return qv_fail(err, QV_EINVAL,
                           "conv3d: kernel %lld with dilation %lld is larger than"
                           " the padded input %lld on the %s axis",
                           (long long)d->kernel[a], (long long)d->dilation[a], (long long)padded,
                           qv_conv3d_axis_names[a]);
        out[a] = (padded - extent) / d->stride[a] + 1;
    }
    return QV_OK;
}

/* Checks that the bytes of every tensor fit into 63 bits. */
static qv_status
check_products(const qv_conv3d_desc *d, const int64_t out[3], qv_error *err)
{
    const int64_t *k = d->kernel, es = (int64_t)qv_dtype_bytes(d->dtype);
    const struct {
        const char *name;
        int64_t factors[6];
    } products[] = {
        { "the input", { d->n, d->d, d->h, d->w, d->c, es } },
        { "the padding in front", { d->n, d->pad_front[0], d->h, d->w, d->c, es } },
        { "the weight", { d->o, d->c / d->groups, k[0], k[1], k[2], es } },
        { "the output", { d->n, out[0], out[1], out[2], d->o, es } },
    };
    for (size_t p = 0; p < sizeof products / sizeof *products; p++) {
        int64_t product = 1;
        for (int i = 0; i < 6; i++)
            if (__builtin_mul_overflow(product, products[p].factors[i], &product))
                return qv_fail(err, QV_EINVAL, "conv3d: the size of %s exceeds 63 bits",
                               products[p].name);
    }
    int64_t rows = d->n * out[0] * out[1] * out[2];
    if (d->residual_rows && rows % d->residual_rows)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: residual_rows is %lld; it must divide %lld output rows",
                       (long long)d->residual_rows, (long long)rows);
    return QV_OK;
}

/* Checks that a layout of patches is used only with whole patches. */
static qv_status
check_patches(const qv_conv3d_desc *d, const int64_t out[3], qv_error *err)
{
    char why[QV_REASON_BYTES];
    const struct qv_caps caps = { 0 };
    const struct qv_conv3d_question q = { d, &caps, QV_LOWERING_PATCHIFY, why, sizeof why };
    if (d->layout != QV_LAYOUT_PATCH_ROWS && d->layout != QV_LAYOUT_FRAMES_U8)
        return QV_OK;
    if (!guards_hold(&q))
        return qv_fail(err, QV_EINVAL, "conv3d: layout %s needs whole patches: %s",
                       qv_conv3d_layout_names[d->layout], why);
    if (d->layout == QV_LAYOUT_PATCH_ROWS)
        return QV_OK;
    if (d->kernel[1] != d->kernel[2] || d->c > 3)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: byte frames need square patches of at most 3"
                       " channels, not %lldx%lld of %lld",
                       (long long)d->kernel[1], (long long)d->kernel[2], (long long)d->c);
    if (d->merge < 1 || out[1] % d->merge || out[2] % d->merge)
        return qv_fail(err, QV_EINVAL, "conv3d: merge is %lld; it must divide the grid, %lldx%lld",
                       (long long)d->merge, (long long)out[1], (long long)out[2]);
    for (int i = 0; i < d->c; i++)
        if (!isfinite(d->pixel_scale[i]) || !isfinite(d->pixel_shift[i]) || d->pixel_scale[i] == 0)
            return qv_fail(err, QV_EINVAL,
                           "conv3d: pixel_scale[%d] is %g and pixel_shift[%d] is %g; both must "
                           "be finite, and the scale must not be 0",
                           i, d->pixel_scale[i], i, d->pixel_shift[i]);
    return QV_OK;
}

qv_status
qv_conv3d_check(const qv_conv3d_desc *desc, qv_error *err)
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

bool
qv_conv3d_legal(const qv_conv3d_desc *desc, const struct qv_caps *caps, qv_lowering lowering,
                char *text, size_t size)
{
    const struct qv_conv3d_question q = { desc, caps, lowering, text, size };
    qv_error bad;
    if ((unsigned)lowering >= QV_LOWERING_COUNT)
        return qv_conv3d_forbid(&q, "no such lowering");
    if (qv_conv3d_check(desc, &bad))
        return qv_conv3d_forbid(&q, "%s", bad.text);
    if (!guards_hold(&q))
        return false;
    write_gist(desc, lowering, text, size);
    return true;
}
