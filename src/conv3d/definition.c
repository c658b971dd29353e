/* SPDX-License-Identifier: MIT */
/* Computes a Conv3d by its definition, slowly and plainly. All lowerings are compared with it. */
#include <stdlib.h>

#include "description.h"
#include "dtype.h"
#include "engine/op.h"
#include "error.h"

/* Returns x at (n, z, y, x, c) of the unpadded volume; desc->causal defines depth padding. */
static double
voxel(const qv_conv3d_desc *d, const void *x, const int64_t at[4], int64_t c)
{
    int64_t z = at[1], h = at[2], w = at[3];
    if (z < 0 && d->causal == QV_CAUSAL_FIRST)
        z = 0;
    if (z < 0 || z >= d->d || h < 0 || h >= d->h || w < 0 || w >= d->w)
        return 0;
    int64_t last = (((at[0] * d->d + z) * d->h + h) * d->w + w) * d->c + c;
    int64_t first = (((at[0] * d->c + c) * d->d + z) * d->h + h) * d->w + w;
    if (d->layout == QV_LAYOUT_FRAMES_U8)
        return ((const uint8_t *)x)[last] * d->pixel_scale[c] + d->pixel_shift[c];
    return qv_load(x, d->dtype, d->layout == QV_LAYOUT_CHANNELS_FIRST ? first : last);
}

/* Returns the value rounded to a dtype, as the device keeps it. */
static double
rounded(float value, qv_dtype dtype)
{
    uint64_t stored = 0;
    qv_store(&stored, dtype, 0, value);
    return qv_load(&stored, dtype, 0);
}

/* Finds the position n, d', h', w' that row `row` of y belongs to. */
static void
position_of(const qv_conv3d_desc *d, const int64_t out[3], int64_t row, int64_t at[4])
{
    int64_t frame = row / (out[1] * out[2]), in = row % (out[1] * out[2]);
    at[0] = frame / out[0];
    at[1] = frame % out[0];
    at[2] = in / out[2];
    at[3] = in % out[2];
    if (d->layout != QV_LAYOUT_FRAMES_U8)
        return;
    int64_t m = d->merge, block = in / (m * m);
    at[2] = block / (out[2] / m) * m + in % (m * m) / m;
    at[3] = block % (out[2] / m) * m + in % m;
}

/* Gathers the values of x under the kernel at a row, in the channels of a group: v[c/groups, kd,
 * kh, kw]. */
static void
look_below(const qv_conv3d_desc *d, const int64_t out[3], const void *x, int64_t row, int64_t group,
           double *v)
{
    const int64_t *k = d->kernel;
    int64_t cg = d->c / d->groups, at[4], i = 0;
    position_of(d, out, row, at);
    for (int64_t c = 0; c < cg; c++)
        for (int64_t kd = 0; kd < k[0]; kd++)
            for (int64_t kh = 0; kh < k[1]; kh++)
                for (int64_t kw = 0; kw < k[2]; kw++, i++) {
                    const int64_t tap[3] = { kd, kh, kw };
                    int64_t from[4] = { at[0] };
                    for (int a = 0; a < 3; a++)
                        from[1 + a] =
                            at[1 + a] * d->stride[a] + tap[a] * d->dilation[a] - d->pad_front[a];
                    v[i] = d->layout == QV_LAYOUT_PATCH_ROWS
                               ? qv_load(x, d->dtype, row * cg * k[0] * k[1] * k[2] + i)
                               : voxel(d, x, from, group * cg + c);
                }
}

qv_status
qv_conv3d_define(const qv_conv3d_desc *desc, const struct qv_conv3d_tensors *in, int64_t first,
                 int64_t count, double *y, qv_error *err)
{
    const qv_conv3d_desc *d = desc;
    int64_t out[3], k = d->c / d->groups * d->kernel[0] * d->kernel[1] * d->kernel[2];
    double *below = calloc((size_t)k, sizeof *below);
    if (!below)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld values", (long long)k);
    qv_conv3d_output(d, out);
    for (int64_t row = first; row < first + count; row++)
        for (int64_t o = 0; o < d->o; o++, y++) {
            int64_t group = o / (d->o / d->groups);
            double sum = 0;
            if (o % (d->o / d->groups) == 0)
                look_below(d, out, in->x, row, group, below);
            for (int64_t i = 0; i < k; i++)
                sum += below[i] * qv_load(in->weight, d->dtype, o * k + i);
            *y = qv_activate(d->act,
                             d->alpha * sum + (d->bias ? rounded(in->bias[o], d->dtype) : 0));
            if (d->residual_rows)
                *y += qv_load(in->residual, d->dtype, row % d->residual_rows * d->o + o);
        }
    free(below);
    return QV_OK;
}
