/* SPDX-License-Identifier: MIT */
/* One lowering of a Conv3d made ready to run on a device: the one that an object runs, or one that
 * is timed or asked for its cost. */
#ifndef QV_CONV3D_READY_H
#define QV_CONV3D_READY_H

#include "lower.h"
#include "engine/context.h"

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

#endif
