/* SPDX-License-Identifier: MIT */
/*
 * qv_conv3d: a Conv3d as an object. The output depth is cut into chunks of one shape. A chunk's
 * input is a window of whole frames, in which padding, frames kept from the call before and frames
 * past the end are frames like any other. So no operation pads depth, every chunk runs the same
 * kernels, and a stream of calls computes the same bits as one call. object.c creates it, measure.c
 * times the ways to run it, run.c runs it.
 */
#ifndef QV_CONV3D_OBJECT_H
#define QV_CONV3D_OBJECT_H

#include "decide.h"
#include "ready.h"

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

/* Prints the name of this work in the tune file. */
void qv_conv3d_work_text(const struct qv_conv3d *conv, char *text, size_t size);

/* Overrides the choice of the thresholds with one from the tune file, measured now or before. A
 * choice that is not legal here is ignored. */
qv_status qv_conv3d_choose(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err);

#endif
