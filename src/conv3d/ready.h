/* SPDX-License-Identifier: MIT */
/* One lowering of a Conv3d made ready to run on a device: the object's, or one that is timed or
 * asked for its cost. */
#ifndef QV_CONV3D_READY_H
#define QV_CONV3D_READY_H

#include "lower.h"
#include "engine/context.h"

/* Operations, kernels, and buffers in one arena. */
struct qv_conv3d_ready {
    struct qv_conv3d_list list;
    size_t kernels[QV_CONV3D_MOST_STEPS]; /* entries of the context's cache */
    int n_kernels;                        /* held */
    size_t places[QV_CONV3D_BUFFERS];     /* in the arena; the weight's has all pieces */
    size_t piece_places[QV_CONV3D_MOST_TAPS];
    size_t weight_bytes, between_bytes, kernel_scratch, arena_bytes;
    struct qv_memory *arena;
    struct qv_call calls[QV_CONV3D_MOST_STEPS];
};

/* Kernels and sizes: all that can be said without weights. desc: a chunk, whose depth is not
 * padded. Whatever is returned, qv_conv3d_ready_free frees what there is. */
qv_status qv_conv3d_ready_prepare(qv_context *ctx, const qv_conv3d_desc *desc, qv_lowering lowering,
                                  struct qv_conv3d_ready *out, qv_error *err);

/* Memory, packed weights, bias, calls: after it `calls` can run. The input and the residual are still
 * to be uploaded, to their `places` in the arena. */
qv_status qv_conv3d_ready_load(qv_context *ctx, const qv_conv3d_desc *desc,
                               const qv_conv3d_weights *weights, struct qv_conv3d_ready *w,
                               qv_error *err);
void qv_conv3d_ready_free(qv_context *ctx, struct qv_conv3d_ready *w);

/* For tools that measure: the calls of one chunk of an object that has been run. */
size_t qv_conv3d_calls(const qv_conv3d *conv, const struct qv_call **calls);

#endif
