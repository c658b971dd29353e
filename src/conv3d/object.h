/* SPDX-License-Identifier: MIT */
/*
 * qv_conv3d: a Conv3d as an object. The output depth is cut into chunks of one shape. A chunk's
 * input is a window of whole frames, in which padding, frames kept from the previous call and
 * frames past the end are ordinary frames. So no operation pads depth, every chunk runs the same
 * kernels, and a stream of calls computes the same bits as one call. object.c creates it, run.c
 * runs it.
 */
#pragma once

#include "legal.h"
#include "lower.h"

/* How x is cut along depth: into `planes` runs of frames. */
struct qv_conv3d_cut {
    int64_t planes, frames; /* frames of a call, in each plane */
    size_t frame_bytes;
    int64_t window; /* frames that a chunk reads */
    int64_t stride; /* frames from one output to the next */
    int64_t every;  /* 1; or the number of equal frames, if the window has only the first */
    int64_t pad;    /* frames in front of x */
};

struct qv_conv3d {
    qv_context *ctx;
    qv_conv3d_desc desc, chunk_desc;
    int64_t out[3], chunk;
    bool stream, begun;   /* begun: `front` holds frames from the previous call */
    bool residual_varies; /* its rows differ between chunks */
    struct qv_conv3d_decision decision;
    struct qv_conv3d_cut cut;
    char *front, *next_front, *zeros; /* [planes, pad, frame_bytes]; one frame of zeros */
    void *residual;
    struct qv_download *parts; /* [desc.n] */
    bool weighted;
    struct qv_conv3d_form weight;
    struct qv_program program;
};
