/* SPDX-License-Identifier: MIT */
#include "description.h"

#include <string.h>

const char *const qv_conv3d_axis_names[3] = { "depth", "height", "width" };
const char *const qv_conv3d_causal_names[QV_CAUSAL_COUNT] = { "none", "zeros", "first frame" };

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

bool
qv_conv3d_input_is_rows(const qv_conv3d_desc *d)
{
    switch (d->layout) {
    case QV_LAYOUT_PATCH_ROWS: return true;
    case QV_LAYOUT_CHANNELS_LAST:
        return qv_conv3d_kernel_volume(d) == 1 && d->stride[0] == 1 && d->stride[1] == 1 &&
               d->stride[2] == 1;
    case QV_LAYOUT_CHANNELS_FIRST:
        return d->d == d->kernel[0] && d->h == d->kernel[1] && d->w == d->kernel[2];
    default: return false;
    }
}
