/* SPDX-License-Identifier: MIT */
#include "conv3d/lower.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

static const char *const axis_names[3] = { "depth", "height", "width" };
static const char *const layout_names[QV_LAYOUT_COUNT] = { "channels-first", "channels-last",
                                                           "patch rows", "byte frames" };
static const char *const causal_names[QV_CAUSAL_COUNT] = { "none", "zeros", "first frame" };
static const char *const lowering_names[QV_LOWERING_COUNT] = {
#define QV_LOWERING_NAME(name, text) text,
    QV_LOWERING_LIST(QV_LOWERING_NAME)
#undef QV_LOWERING_NAME
};

const char *
qv_lowering_name(qv_lowering lowering)
{
    return (unsigned)lowering < QV_LOWERING_COUNT ? lowering_names[lowering] : "no lowering";
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
holds_patches(const qv_conv3d_desc *d)
{
    return d->layout == QV_LAYOUT_PATCH_ROWS || d->layout == QV_LAYOUT_FRAMES_U8;
}

static int64_t
kernel_volume(const qv_conv3d_desc *d)
{
    return d->kernel[0] * d->kernel[1] * d->kernel[2];
}

/* ---- guards ---------------------------------------------------------------------------------- */

struct question {
    const qv_conv3d_desc *desc;
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
    const qv_conv3d_desc *d = q->desc;
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
    const qv_conv3d_desc *d = q->desc;
    if (d->causal != QV_CAUSAL_NONE && d->pad_front[0] > 0)
        return forbid(q, "causal padding (%s) of %lld on the depth axis", causal_names[d->causal],
                      (long long)d->pad_front[0]);
    return true;
}

static bool
no_padding(const struct question *q)
{
    const qv_conv3d_desc *d = q->desc;
    for (int a = 0; a < 3; a++) {
        if (d->pad_front[a])
            return forbid(q, "padding %lld in front on the %s axis", (long long)d->pad_front[a],
                          axis_names[a]);
        if (d->pad_back[a])
            return forbid(q, "padding %lld behind on the %s axis", (long long)d->pad_back[a],
                          axis_names[a]);
    }
    return true;
}

/* One tap has nothing to dilate. */
static bool
not_dilated(const struct question *q)
{
    const qv_conv3d_desc *d = q->desc;
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
    const qv_conv3d_desc *d = q->desc;
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

/* Leaving frames out of rows that exist would be a copy to save what is paid already. */
static bool
rows_to_be_made(const struct question *q)
{
    return !qv_conv3d_input_is_rows(q->desc) ||
           forbid(q, "the input's rows already hold all %lld frames",
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
few_taps(const struct question *q)
{
    return q->desc->kernel[0] <= QV_CONV3D_MOST_TAPS ||
           forbid(q, "kernel depth %lld is more than %d depth taps", (long long)q->desc->kernel[0],
                  QV_CONV3D_MOST_TAPS);
}

static bool
right_in_bf16(const struct question *q)
{
    if (q->desc->dtype == QV_BF16 && q->caps->wrong_conv3d_bf16)
        return forbid(q, "this device library's Conv3d is known to be wrong in bf16");
    return true;
}

/* Looks at the very convolutions that the device would be given. */
static bool
library_is_right(const struct question *q, qv_lowering lowering)
{
    struct qv_conv3d_list list;
    qv_conv3d_desc d = *q->desc;
    if (d.dtype != QV_BF16 || !q->caps->wrong_sparse_bf16)
        return true;
    d.d += d.pad_front[0] + d.pad_back[0]; /* frames like any other */
    d.pad_front[0] = d.pad_back[0] = 0;
    d.causal = QV_CAUSAL_NONE;
    qv_conv3d_lower(&d, lowering, &list);
    for (int i = 0; i < list.n; i++)
        if (list.steps[i].op.kind == QV_OP_conv && qv_op_conv_is_sparse(&list.steps[i].op.u.conv))
            return forbid(q, "this device library is known to be wrong in bf16 where a stride "
                             "exceeds the kernel, or the kernel sees padding alone");
    return true;
}

static bool
frames_are_right(const struct question *q)
{
    return library_is_right(q, QV_LOWERING_FRAMES);
}

static bool
taps_are_right(const struct question *q)
{
    return library_is_right(q, QV_LOWERING_BY_DEPTH);
}

static bool
volumes_are_right(const struct question *q)
{
    return library_is_right(q, QV_LOWERING_DIRECT);
}

/* ---- lowerings ------------------------------------------------------------------------------- */

bool
qv_conv3d_input_is_rows(const qv_conv3d_desc *d)
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

/* What a legal lowering comes down to, in words. */
typedef void gist(const qv_conv3d_desc *d, char *text, size_t size);

static void
gist_patchify(const qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel = stride = %lldx%lldx%lld, no padding: one product [%lld, %lld]",
             (long long)d->kernel[0], (long long)d->kernel[1], (long long)d->kernel[2],
             (long long)qv_conv3d_rows(d), (long long)(d->c * kernel_volume(d)));
}

static void
gist_still(const qv_conv3d_desc *d, char *text, size_t size)
{
    int64_t k = d->c * kernel_volume(d);
    snprintf(text, size,
             "the %lld frames are one picture, weights summed: one product [%lld, %lld]"
             " in place of %lld columns",
             (long long)d->kernel[0], (long long)qv_conv3d_rows(d), (long long)(k / d->kernel[0]),
             (long long)k);
}

static void
gist_pointwise(const qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel 1x1x1, no padding: one product over channels [%lld, %lld]",
             (long long)qv_conv3d_rows(d), (long long)d->c);
}

static void
gist_frames(const qv_conv3d_desc *d, char *text, size_t size)
{
    int64_t out[3];
    qv_conv3d_output(d, out);
    snprintf(text, size, "kernel depth 1: one 2D convolution over %lld frames",
             (long long)(d->n * out[0]));
}

static void
gist_by_depth(const qv_conv3d_desc *d, char *text, size_t size)
{
    snprintf(text, size, "kernel depth %lld: as many 2D convolutions, summed in f32",
             (long long)d->kernel[0]);
}

static void
gist_direct(const qv_conv3d_desc *d, char *text, size_t size)
{
    (void)d;
    snprintf(text, size, "the device's own 3D convolution takes every shape");
}

#define PATCHIFY_GUARDS not_causal, no_padding, kernel_is_stride, not_dilated, one_group, divisible

/* What must hold for each lowering, in the order in which it is asked. */
static const struct lowering {
    guard *guards[10]; /* NULL ends */
    gist *gist;
} lowerings[QV_LOWERING_COUNT] = {
    [QV_LOWERING_PATCHIFY] = { { PATCHIFY_GUARDS }, gist_patchify },
    [QV_LOWERING_STILL] = { { PATCHIFY_GUARDS, frames_equal, kernel_has_depth, rows_to_be_made },
                            gist_still },
    [QV_LOWERING_POINTWISE] = { { kernel_is_one, not_causal, no_padding, one_group },
                                gist_pointwise },
    [QV_LOWERING_FRAMES] = { { kernel_depth_is_one, frames_are_right }, gist_frames },
    [QV_LOWERING_BY_DEPTH] = { { few_taps, taps_are_right }, gist_by_depth },
    [QV_LOWERING_DIRECT] = { { right_in_bf16, volumes_are_right }, gist_direct },
};

static bool
guards_hold(const struct question *q, qv_lowering lowering)
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
#name, offsetof(qv_conv3d_desc, name), count, min                                          \
    }
    FIELD(n, 1, 1),           FIELD(d, 1, 1),         FIELD(h, 1, 1),        FIELD(w, 1, 1),
    FIELD(c, 1, 1),           FIELD(o, 1, 1),         FIELD(kernel, 3, 1),   FIELD(stride, 3, 1),
    FIELD(dilation, 3, 1),    FIELD(pad_front, 3, 0), FIELD(pad_back, 3, 0), FIELD(groups, 1, 1),
    FIELD(addend_rows, 1, 0),
#undef FIELD
};

qv_conv3d_desc
qv_conv3d_defaults(const qv_conv3d_desc *desc, qv_dtype dtype)
{
    qv_conv3d_desc d = *desc;
    int64_t *const ones[] = { &d.n, &d.groups, &d.merge };
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        *ones[i] = *ones[i] ? *ones[i] : 1;
    for (int a = 0; a < 3; a++) {
        d.stride[a] = d.stride[a] ? d.stride[a] : 1;
        d.dilation[a] = d.dilation[a] ? d.dilation[a] : 1;
        d.pixel_scale[a] = d.pixel_scale[a] != 0 ? d.pixel_scale[a] : 1;
    }
    d.alpha = d.alpha != 0 ? d.alpha : 1;
    d.dtype = d.dtype ? d.dtype : dtype;
    return d;
}

static qv_status
check_sizes(const qv_conv3d_desc *d, qv_error *err)
{
    for (size_t f = 0; f < sizeof size_fields / sizeof *size_fields; f++)
        for (int a = 0; a < size_fields[f].count; a++) {
            int64_t v;
            memcpy(&v, (const char *)d + size_fields[f].offset + (size_t)a * sizeof v, sizeof v);
            if (v < size_fields[f].min) /* NOLINTNEXTLINE: copied from a whole description */
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
check_axes(const qv_conv3d_desc *d, int64_t out[3], qv_error *err)
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
check_patches(const qv_conv3d_desc *d, const int64_t out[3], qv_error *err)
{
    char why[QV_REASON_BYTES];
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

void
qv_conv3d_output(const qv_conv3d_desc *desc, int64_t out[3])
{
    const int64_t sizes[3] = { desc->d, desc->h, desc->w };
    for (int a = 0; a < 3; a++) {
        int64_t extent = (desc->kernel[a] - 1) * desc->dilation[a] + 1;
        int64_t padded = sizes[a] + desc->pad_front[a] + desc->pad_back[a];
        out[a] = (padded - extent) / desc->stride[a] + 1;
    }
}

int64_t
qv_conv3d_rows(const qv_conv3d_desc *desc)
{
    int64_t out[3];
    qv_conv3d_output(desc, out);
    return desc->n * out[0] * out[1] * out[2];
}

double
qv_conv3d_flops(const qv_conv3d_desc *desc)
{
    double k = (double)(desc->c / desc->groups) * (double)kernel_volume(desc);
    return 2 * (double)qv_conv3d_rows(desc) * (double)desc->o * k;
}

/* ---- decide ---------------------------------------------------------------------------------- */

/*
 * Measured by `qwenvit bench conv3d`, with tools/shapes/channels.txt (docs/measurements.md). Dense
 * layers: with AVX-512 alone direct and by depth are within 10% of each other, and direct needs no
 * scratch. On a Xeon with AMX direct loses ground as channels grow: it is ahead up to 96, level at
 * 128, and from 192 to 1024 by depth is 1.1 to 1.5 times faster. Depthwise, oneDNN's 2D routine is
 * 5 to 17 times faster than its 3D one, for depths of 3 to 15; not with 2 outputs a channel, nor
 * with groups of more channels. Rows of patches that must be copied together pay from 256 outputs
 * on, within 10% either way. On an H200 cuDNN's 3D convolution is 1.2 to 2.8 times faster than by
 * depth for dense layers (1.4 at 1024 channels); depthwise, by depth gains up to 1.2 times from a
 * depth of 7 on, and loses at 3. Metal's direct keeps one sum over all taps, and was not timed. ref is a definition, not fast.
 */
static const struct {
    const char *backend, *device; /* a word of the device's description; "": any */
    struct qv_conv3d_thresholds thresholds;
} threshold_table[] = {
    { "cpu", "AMX", { .by_depth_max_kd = 16, .by_depth_min_c = 192, .rows_min_o = 256 } },
    { "cpu", "", { .by_depth_max_kd = 16, .by_depth_min_c = INT64_MAX, .rows_min_o = 256 } },
    { "cuda", "", { .by_depth_max_kd = 0, .by_depth_min_c = INT64_MAX, .rows_min_o = 0 } },
    { "metal", "", { .by_depth_max_kd = 0, .by_depth_min_c = INT64_MAX, .rows_min_o = 0 } },
    { "ref", "", { .by_depth_max_kd = 0, .by_depth_min_c = INT64_MAX, .rows_min_o = 0 } },
};

const struct qv_conv3d_thresholds *
qv_conv3d_thresholds_of(const char *backend, const struct qv_caps *caps)
{
    size_t n = sizeof threshold_table / sizeof *threshold_table;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(backend, threshold_table[i].backend) &&
            strstr(caps->device, threshold_table[i].device))
            return &threshold_table[i].thresholds;
    return &threshold_table[n - 1].thresholds;
}

bool
qv_conv3d_legal(const qv_conv3d_desc *desc, const struct qv_caps *caps, qv_lowering lowering,
                char *text, size_t size)
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
append(char text[QV_REASON_BYTES], const char *words)
{
    size_t used = strlen(text), n = strlen(words), room = QV_REASON_BYTES - 1 - used;
    n = n < room ? n : room;
    memcpy(text + used, words, n);
    text[used + n] = '\0';
}

/* By depth against direct, where both are legal; text says why it loses. */
static bool
by_depth_pays(const struct question *q, const struct qv_conv3d_thresholds *t)
{
    const qv_conv3d_desc *d = q->desc;
    bool depthwise = d->groups == d->c && d->groups == d->o;
    if (d->kernel[0] > t->by_depth_max_kd)
        return forbid(q, "kernel depth %lld is above %lld, where by depth stops paying here",
                      (long long)d->kernel[0], (long long)t->by_depth_max_kd);
    if (!depthwise && (d->groups > 1 || d->c < t->by_depth_min_c))
        return forbid(q,
                      "neither depthwise nor dense with enough of its %lld channels for by depth "
                      "to pay here",
                      (long long)d->c);
    return true;
}

/* A product against a convolution that sees channels-last frames as they lie. */
static bool
rows_pay(const struct question *q, const struct qv_conv3d_thresholds *t)
{
    const qv_conv3d_desc *d = q->desc;
    if (d->layout != QV_LAYOUT_CHANNELS_LAST || qv_conv3d_input_is_rows(d) || d->o >= t->rows_min_o)
        return true;
    return forbid(q,
                  "%lld outputs are fewer than %lld, where copying rows for a product starts "
                  "paying here",
                  (long long)d->o, (long long)t->rows_min_o);
}

/* The first legal one that pays. note[QV_REASON_BYTES]: what decided, where something was close. */
static qv_lowering
choose(const qv_conv3d_desc *d, unsigned legal, const struct qv_conv3d_thresholds *t,
       const char *why_not_direct, char *note)
{
    char words[QV_REASON_BYTES] = "";
    const struct question q = { d, NULL, note, QV_REASON_BYTES };
    const struct question q_depth = { d, NULL, words, sizeof words };
    bool by_depth = legal >> QV_LOWERING_BY_DEPTH & 1, direct = legal >> QV_LOWERING_DIRECT & 1;
    if (legal >> QV_LOWERING_STILL & 1)
        return QV_LOWERING_STILL;
    if (legal >> QV_LOWERING_POINTWISE & 1 && (!direct || rows_pay(&q, t)))
        return QV_LOWERING_POINTWISE;
    if (legal >> QV_LOWERING_PATCHIFY & 1 && (!direct || rows_pay(&q, t)))
        return QV_LOWERING_PATCHIFY;
    if (legal >> QV_LOWERING_FRAMES & 1)
        return QV_LOWERING_FRAMES;
    if (direct && by_depth && by_depth_pays(&q_depth, t))
        return QV_LOWERING_BY_DEPTH;
    append(note, *note && *words ? "; " : "");
    append(note, words);
    if (direct)
        return QV_LOWERING_DIRECT;
    append(note, "not direct: ");
    append(note, why_not_direct);
    return QV_LOWERING_BY_DEPTH;
}

qv_status
qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps,
                 const struct qv_conv3d_thresholds *thresholds, int forced,
                 struct qv_conv3d_decision *out, qv_error *err)
{
    struct qv_conv3d_decision it;
    char reasons[QV_LOWERING_COUNT][QV_REASON_BYTES], note[QV_REASON_BYTES] = "";
    qv_status st = qv_conv3d_check(desc, err);
    if (st)
        return st;
    if (forced < -1 || forced >= QV_LOWERING_COUNT)
        return qv_fail(err, QV_EINVAL, "conv3d: no lowering has the number %d", forced);
    memset(&it, 0, sizeof it);
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        if (qv_conv3d_legal(desc, caps, (qv_lowering)i, reasons[i], sizeof reasons[i]))
            it.legal |= 1u << i;
    if (forced >= 0 && !(it.legal >> forced & 1))
        return qv_fail(err, QV_EINVAL, "conv3d: lowering \"%s\" is not legal here: %s",
                       lowering_names[forced], reasons[forced]);
    if (!it.legal)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "conv3d: no lowering is legal; direct: %s; by depth: %s",
                       reasons[QV_LOWERING_DIRECT], reasons[QV_LOWERING_BY_DEPTH]);
    it.lowering = forced >= 0
                      ? (qv_lowering)forced
                      : choose(desc, it.legal, thresholds, reasons[QV_LOWERING_DIRECT], note);
    append(it.reason, forced >= 0 ? "forced; " : "");
    append(it.reason, reasons[it.lowering]);
    append(it.reason, *note ? "; " : "");
    append(it.reason, note);
    *out = it;
    return QV_OK;
}
