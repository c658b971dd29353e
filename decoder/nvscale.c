/* SPDX-License-Identifier: MIT */
/* Converts and resizes frames on the GPU (scale.cu), which saves CPU time and copies less data. A
 * test at startup checks that the bytes equal the CPU's, because swscale's results depend on its
 * build and on the CPU. */
#include "nvcuvid.h"

#include <libavutil/frame.h>
#include <stdlib.h>
#include <string.h>

#include "pixels/pixels.h"
#include "scale.h"
#include "scale_ptx.h"

enum { THREADS = 128 };

struct qvm_nvscaler {
    qvm_scaled size;
    CUdeviceptr memory; /* of all that follows */
    struct qvm_scale_axis across, down;
    CUdeviceptr between, out; /* [size.height, size.to_width, 3]; [size.to_height, .., 3] */
};

/* ---- tables ---------------------------------------------------------------------------------- */

void
qvm_nvscaler_free(const qvm_nvdec *g, struct qvm_nvscaler **scaler)
{
    if (*scaler)
        g->call.cuMemFree((*scaler)->memory);
    free(*scaler);
    *scaler = NULL;
}

/* Copies an axis's tables to *at, and moves *at past them. Returns false if that fails. */
static bool
copy_axis(const qvm_nvdec *g, const struct qv_axis *a, CUdeviceptr *at, struct qvm_scale_axis *to)
{
    *to = (struct qvm_scale_axis){ *at, *at + qv_axis_start_bytes(a), a->taps, a->precision };
    *at = to->weights + qv_axis_weight_bytes(a);
    *at += *at % sizeof *a->start;
    return !g->call.cuMemcpyHtoD(to->start, a->start, qv_axis_start_bytes(a)) &&
           !g->call.cuMemcpyHtoD(to->weights, a->weights, qv_axis_weight_bytes(a));
}

static bool
fill(const qvm_nvdec *g, struct qvm_nvscaler *s)
{
    struct qv_axis across = { .start = NULL }, down = { .start = NULL };
    const qvm_scaled *size = &s->size;
    const size_t between = 3 * (size_t)size->height * (size_t)size->to_width;
    bool done = qv_axis_make(&across, size->width, size->to_width) &&
                qv_axis_make(&down, size->height, size->to_height) && across.taps <= across.in &&
                down.taps <= down.in; /* the kernels read all taps */
    if (done) {
        const size_t tables = qv_axis_start_bytes(&across) + qv_axis_weight_bytes(&across) +
                              qv_axis_start_bytes(&down) + qv_axis_weight_bytes(&down) +
                              2 * sizeof *across.start;
        done = !g->call.cuMemAlloc(&s->memory, tables + between + (size_t)qvm_scaled_bytes(size));
    }
    if (done) {
        CUdeviceptr at = s->memory;
        done = copy_axis(g, &across, &at, &s->across) && copy_axis(g, &down, &at, &s->down);
        s->between = at;
        s->out = at + between;
    }
    qv_axis_free(&across);
    qv_axis_free(&down);
    return done;
}

bool
qvm_nvscaler_make(const qvm_nvdec *g, const qvm_scaled *size, struct qvm_nvscaler **scaler)
{
    if (*scaler && !memcmp(&(*scaler)->size, size, sizeof *size))
        return true;
    qvm_nvscaler_free(g, scaler);
    *scaler = g->across ? calloc(1, sizeof **scaler) : NULL;
    if (!*scaler)
        return false;
    (*scaler)->size = *size;
    if (fill(g, *scaler))
        return true;
    qvm_nvscaler_free(g, scaler);
    return false;
}

/* ---- kernels --------------------------------------------------------------------------------- */

CUresult
qvm_nvscaler_run(const qvm_nvdec *g, struct qvm_nvscaler *s, CUdeviceptr luma, CUdeviceptr chroma,
                 unsigned pitch, const qvm_colours *colours, CUstream queue, void *to)
{
    const qvm_scaled *size = &s->size;
    const unsigned outs = (unsigned)size->to_width;
    struct qvm_scale_across across = { s->across, luma, chroma, s->between, *colours, pitch, outs };
    struct qvm_scale_down down = { s->down, s->between, s->out, 3 * outs };
    CUresult code =
        g->call.cuLaunchKernel(g->across, (outs + THREADS - 1) / THREADS, (unsigned)size->height, 1,
                               THREADS, 1, 1, 0, queue, (void *[]){ &across }, NULL);
    if (!code)
        code = g->call.cuLaunchKernel(g->down, (3 * outs + THREADS - 1) / THREADS,
                                      (unsigned)size->to_height, 1, THREADS, 1, 1, 0, queue,
                                      (void *[]){ &down }, NULL);
    return code ? code
                : g->call.cuMemcpyDtoHAsync(to, s->out, (size_t)qvm_scaled_bytes(size), queue);
}

/* ---- the sample ------------------------------------------------------------------------------ */

/* Copies a planar frame to the GPU's memory as NV12, and runs the kernels on it. */
static bool
scale_there(const qvm_nvdec *g, const AVFrame *f, const qvm_scaled *size, uint8_t *to)
{
    const int width = f->width, height = f->height;
    const size_t luma = (size_t)width * (size_t)height, all = luma * 3 / 2;
    uint8_t *nv12 = malloc(all);
    struct qvm_nvscaler *s = NULL;
    qvm_colours colours;
    CUdeviceptr at = 0;
    bool done = nv12 && qvm_nvscaler_make(g, size, &s) && !g->call.cuMemAlloc(&at, all);
    qvm_find_colours(f->colorspace, f->color_range == AVCOL_RANGE_JPEG, &colours);
    for (int y = 0; done && y < height; y++)
        memcpy(nv12 + y * width, f->data[0] + y * f->linesize[0], (size_t)width);
    for (int i = 0; done && i < width * height / 4; i++) {
        const int x = i % (width / 2), y = i / (width / 2);
        nv12[luma + 2 * (size_t)i] = f->data[1][y * f->linesize[1] + x];
        nv12[luma + 2 * (size_t)i + 1] = f->data[2][y * f->linesize[2] + x];
    }
    done = done && !g->call.cuMemcpyHtoD(at, nv12, all) &&
           !qvm_nvscaler_run(g, s, at, at + luma, (unsigned)width, &colours, NULL, to) &&
           !g->call.cuStreamSynchronize(NULL);
    if (at)
        g->call.cuMemFree(at);
    qvm_nvscaler_free(g, &s);
    free(nv12);
    return done;
}

bool
qvm_nvscale_agrees(const qvm_nvdec *g, const AVFrame *frame, int to_width, int to_height)
{
    const qvm_scaled size = { frame->width, frame->height, to_width, to_height };
    const size_t bytes = (size_t)qvm_scaled_bytes(&size);
    qvm_converter converter = { .colour = QVM_CLIP };
    qvm_resizer *resizer = NULL;
    qvm_image rgb;
    uint8_t *here = malloc(bytes), *there = malloc(bytes);
    bool agrees = here && there &&
                  !qvm_convert(&converter, frame, (qvm_turn){ false, false, false }, &rgb, NULL) &&
                  !qvm_resizer_create(frame->height, frame->width, to_height, to_width, QVM_BEST,
                                      &resizer, NULL) &&
                  scale_there(g, frame, &size, there);
    if (agrees) {
        qvm_resizer_run(resizer, rgb.rgb, rgb.stride, here);
        agrees = !memcmp(here, there, bytes);
    }
    qvm_resizer_free(&resizer);
    qvm_converter_close(&converter);
    free(here);
    free(there);
    return agrees;
}

/* Compares random colours of both ranges and three matrices, resized and not. */
static bool
agrees(const qvm_nvdec *g)
{
    static const enum AVColorSpace spaces[] = { AVCOL_SPC_BT709, AVCOL_SPC_SMPTE170M,
                                                AVCOL_SPC_BT2020_NCL };
    AVFrame *f = av_frame_alloc();
    uint32_t seed = 1;
    bool same = f != NULL;
    if (f) {
        f->format = AV_PIX_FMT_YUV420P;
        f->width = 198;
        f->height = 66;
        same = av_frame_get_buffer(f, 0) >= 0;
    }
    for (int i = 0; same && i < 6; i++) {
        f->colorspace = spaces[i / 2];
        f->color_range = i % 2 ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
        for (int p = 0; p < 3; p++)
            for (int k = 0; k < f->linesize[p] * (p ? f->height / 2 : f->height); k++)
                f->data[p][k] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
        same = qvm_nvscale_agrees(g, f, f->width, f->height) && qvm_nvscale_agrees(g, f, 112, 28);
    }
    av_frame_free(&f);
    return same;
}

void
qvm_nvscale_open(qvm_nvdec *g)
{
    CUmodule kernels;
    if (g->call.cuModuleLoadData(&kernels, scale_ptx) ||
        g->call.cuModuleGetFunction(&g->across, kernels, "across") ||
        g->call.cuModuleGetFunction(&g->down, kernels, "down") || !agrees(g))
        g->across = NULL;
}
