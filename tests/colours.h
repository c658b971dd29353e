/* SPDX-License-Identifier: MIT */
/* Frames with all colours, of both ranges and three matrices, for test_colours.c and
 * gpu_scale.c. */
#pragma once

#include <string.h>

#include "../decoder/decoder.h"

enum { COLOUR_KINDS = 6, COLOUR_SETS = 256 }; /* a set has one U with each Y and V */

/* Returns NULL for lack of memory. */
static inline AVFrame *
new_frame(int width, int height, int kind)
{
    static const enum AVColorSpace spaces[] = { AVCOL_SPC_BT709, AVCOL_SPC_SMPTE170M,
                                                AVCOL_SPC_BT2020_NCL };
    AVFrame *f = av_frame_alloc();
    f->format = AV_PIX_FMT_YUV420P;
    f->width = width;
    f->height = height;
    f->colorspace = spaces[kind / 2];
    f->color_range = kind % 2 ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    return av_frame_get_buffer(f, 64) < 0 ? NULL : f;
}

/* Returns a frame with every Y and V, to which set_u gives a U. */
static inline AVFrame *
new_colours(int kind)
{
    AVFrame *f = new_frame(128, 512, kind);
    for (int y = 0; f && y < 512; y++)
        for (int x = 0; x < 128; x++) {
            f->data[0][y * f->linesize[0] + x] = (uint8_t)(x / 2 * 4 + x % 2 * 2 + y % 2);
            f->data[2][y / 2 * f->linesize[2] + x / 2] = (uint8_t)(y / 2);
        }
    return f;
}

static inline void
set_u(AVFrame *f, int u)
{
    for (int y = 0; y < f->height / 2; y++)
        memset(f->data[1] + y * f->linesize[1], u, (size_t)f->width / 2);
}

/* Fills a frame with the next numbers of a sequence. */
static inline void
draw_samples(AVFrame *f, uint32_t *seed)
{
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < f->linesize[p] * (p ? f->height / 2 : f->height); i++)
            f->data[p][i] = (uint8_t)((*seed = *seed * 1664525 + 1013904223) >> 24);
}
