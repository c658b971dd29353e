/* SPDX-License-Identifier: MIT */
/*
 * qv_conv3d: a Conv3d as an object. The output depth is cut into chunks of one shape; a chunk's
 * input is a window of whole frames in which padding, frames kept from the call before and what
 * lies behind the end are frames like any other. So no operation pads depth, every chunk runs the
 * same kernels, and a stream of calls computes the same bits as one. object.c makes it, measure.c
 * times the ways to run it, run.c runs it.
 */
#ifndef QV_CONV3D_OBJECT_H
#define QV_CONV3D_OBJECT_H

#include "decide.h"
#include "ready.h"

/* How x is cut along depth: `planes` runs of frames. */
struct qv_conv3d_cut {
    int64_t planes, frames; /* of a call */
    size_t frame_bytes;
    int64_t window; /* frames that a chunk looks at */
    int64_t stride; /* frames from one output to the next */
    int64_t every;  /* 1; or the frames of which the window takes the first alone */
    int64_t pad;    /* frames in front of x */
};

struct qv_conv3d {
    qv_context *ctx;
    qv_conv3d_desc desc, chunk_desc;
    int64_t out[3], chunk;
    bool stream, begun;   /* begun: `front` holds frames of the call before */
    bool residual_varies; /* from chunk to chunk */
    struct qv_conv3d_decision decision;
    struct qv_conv3d_cut cut;
    char *front, *next_front, *zeros; /* [planes, pad, frame_bytes]; one frame of zeros */
    void *residual;
    bool weighted;
    struct qv_conv3d_ready way;
};

/* What the tune file calls this work. */
void qv_conv3d_work_text(const struct qv_conv3d *conv, char *text, size_t size);

/* A choice from the tune file, measured now or before, over what the thresholds say; one that is
 * not legal here is as if it were not there. */
qv_status qv_conv3d_choose(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err);

#endif
