/* SPDX-License-Identifier: MIT */
/* On a GPU: compares all triples of Y, U and V, of both ranges and three matrices, and widths and
 * sizes of all kinds, with what the CPU makes of them. */
#include <stdio.h>
#include <string.h>

#include "../decoder/nvcuvid.h"

static const enum AVColorSpace spaces[] = { AVCOL_SPC_BT709, AVCOL_SPC_SMPTE170M,
                                            AVCOL_SPC_BT2020_NCL };

static AVFrame *
new_frame(int width, int height, int which)
{
    AVFrame *f = av_frame_alloc();
    f->format = AV_PIX_FMT_YUV420P;
    f->width = width;
    f->height = height;
    f->colorspace = spaces[which / 2];
    f->color_range = which % 2 ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    return av_frame_get_buffer(f, 64) < 0 ? NULL : f;
}

/* Returns for how many U some triple differs. */
static int
compare_colours(const qvm_nvdec *gpu, int which)
{
    AVFrame *f = new_frame(128, 512, which);
    int different = 0;
    for (int y = 0; y < 512; y++)
        for (int x = 0; x < 128; x++) {
            f->data[0][y * f->linesize[0] + x] = (uint8_t)(x / 2 * 4 + x % 2 * 2 + y % 2);
            f->data[2][y / 2 * f->linesize[2] + x / 2] = (uint8_t)(y / 2);
        }
    for (int u = 0; u < 256; u++) {
        for (int y = 0; y < 256; y++)
            memset(f->data[1] + y * f->linesize[1], u, 64);
        different += !qvm_nvscale_agrees(gpu, f, 128, 512);
    }
    av_frame_free(&f);
    return different;
}

/* Returns how many of 300 random frames and sizes differ. */
static int
compare_sizes(const qvm_nvdec *gpu)
{
    uint32_t seed = 3;
    int different = 0;
#define DRAW ((seed = seed * 1664525 + 1013904223) >> 8)
    for (int i = 0; i < 300; i++) {
        const int width = 16 + 2 * (int)(DRAW % 700), height = 16 + 2 * (int)(DRAW % 400);
        const int to_width = 8 + (int)(DRAW % (unsigned)(width + QVM_SCALED_MORE - 7));
        const int to_height = 8 + (int)(DRAW % (unsigned)(height + QVM_SCALED_MORE - 7));
        AVFrame *f = new_frame(width, height, i % 6);
        for (int p = 0; p < 3; p++)
            for (int k = 0; k < f->linesize[p] * (p ? height / 2 : height); k++)
                f->data[p][k] = (uint8_t)(DRAW >> 16);
        if (!qvm_nvscale_agrees(gpu, f, to_width, to_height)) {
            printf("%dx%d to %dx%d differs\n", width, height, to_width, to_height);
            different++;
        }
        av_frame_free(&f);
    }
    return different;
}

int
main(void)
{
    qvm_nvdec *gpu = NULL;
    const char *why = qvm_nvdec_load(&gpu);
    int different = 0;
    if (!why)
        why = qvm_nvdec_open(gpu, 0);
    if (why || gpu->call.cuCtxPushCurrent(gpu->context)) {
        printf("no GPU: %s\n", why ? why : "");
        return 4;
    }
    if (!gpu->across) {
        printf("its sample differs from the CPU's\n");
        return 1;
    }
    for (int which = 0; which < 6; which++)
        different += compare_colours(gpu, which);
    printf("all colours: %d of 1536 sets differ\n", different);
    const int sizes = compare_sizes(gpu);
    printf("sizes: %d of 300 differ\n", sizes);
    return different || sizes;
}
