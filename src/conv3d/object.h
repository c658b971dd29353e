/* SPDX-License-Identifier: MIT */
/*
 * qv_conv3d: a Conv3d as an object. The output depth is cut into chunks of one shape. A chunk's
 * input is a window of whole frames, in which padding, frames kept from the call before and frames
 * past the end are frames like any other. So no operation pads depth, every chunk runs the same
 * kernels, and a stream of calls computes the same bits as one call. object.c creates it, run.c
 * runs it.
 */
#pragma once

#include "legal.h"
#include "lower.h"
#include "engine/context.h"

/* ---- ready.c: one lowering made ready to run ------------------------------------------------- */

/* Operations, kernels, and their buffers in one arena. */
struct qv_conv3d_ready {
    struct qv_conv3d_list list;
    size_t kernels[QV_CONV3D_MOST_STEPS]; /* entries of the context's cache */
    int n_kernels;                        /* the number of kernels held */
    size_t places[QV_CONV3D_BUFFERS];     /* offsets in the arena; the weight's buffer has all
                                           * pieces */
    size_t piece_places[QV_CONV3D_MOST_TAPS];
    size_t weight_bytes, between_bytes, kernel_scratch, arena_bytes;
    struct qv_memory *arena;
    struct qv_call calls[QV_CONV3D_MOST_STEPS];
};

/* Prepares kernels and computes sizes: all that can be known without weights. desc is a chunk,
 * whose depth is not padded. qv_conv3d_ready_free must be called whatever is returned. */
qv_status qv_conv3d_ready_prepare(qv_context *ctx, const qv_conv3d_desc *desc, qv_lowering lowering,
                                  struct qv_conv3d_ready *out, qv_error *err);

/* Allocates memory, lays out weights, uploads the bias and makes the calls: after it `calls` can
 * run. The caller must still upload the input and the residual, to their `places` in the arena. */
qv_status qv_conv3d_ready_load(qv_context *ctx, const qv_conv3d_desc *desc,
                               const qv_conv3d_weights *weights, struct qv_conv3d_ready *w,
                               qv_error *err);
void qv_conv3d_ready_free(qv_context *ctx, struct qv_conv3d_ready *w);

/* Returns the calls of one chunk of an object that has been run, for tools that measure. */
size_t qv_conv3d_calls(const qv_conv3d *conv, const struct qv_call **calls);

/* ---- object.c, run.c ------------------------------------------------------------------------- */

/* Says how x is cut along depth: into `planes` runs of frames. */
struct qv_conv3d_cut {
    int64_t planes, frames; /* frames of a call, in each plane */
    size_t frame_bytes;
    int64_t window; /* frames that a chunk reads */
    int64_t stride; /* frames from one output to the next */
    int64_t every;  /* 1; or how many equal frames there are, if the window takes only the first */
    int64_t pad;    /* frames in front of x */
};

struct qv_conv3d {
    qv_context *ctx;
    qv_conv3d_desc desc, chunk_desc;
    int64_t out[3], chunk;
    bool stream, begun;   /* begun: `front` holds frames of the previous call */
    bool residual_varies; /* its rows differ from chunk to chunk */
    struct qv_conv3d_decision decision;
    struct qv_conv3d_cut cut;
    char *front, *next_front, *zeros; /* [planes, pad, frame_bytes]; one frame of zeros */
    void *residual;
    bool weighted;
    struct qv_conv3d_ready way;
};
