/* SPDX-License-Identifier: MIT */
/* On a GPU: compares the results for all triples of Y, U and V, in both ranges and three matrices,
 * and for all kinds of sizes, with the CPU's. */
#include <stdio.h>

#include "../decoder/nvcuvid.h"
#include "colours.h"

/* Returns the number of U values with a differing triple. */
static int
compare_colours(const qvm_nvdec *gpu, int kind)
{
    AVFrame *f = new_colours(kind);
    int different = 0;
    for (int u = 0; u < COLOUR_SETS; u++) {
        set_u(f, u);
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
        AVFrame *f = new_frame(width, height, i % COLOUR_KINDS);
        draw_samples(f, &seed);
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
    for (int kind = 0; kind < COLOUR_KINDS; kind++)
        different += compare_colours(gpu, kind);
    printf("all colours: %d of %d sets differ\n", different, COLOUR_KINDS * COLOUR_SETS);
    const int sizes = compare_sizes(gpu);
    printf("sizes: %d of 300 differ\n", sizes);
    return different || sizes;
}
