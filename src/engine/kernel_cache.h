/* SPDX-License-Identifier: MIT */
/* Prepared kernels, remembered by their operation's value, and shared by all objects that a context
 * makes. */
#ifndef QV_ENGINE_KERNEL_CACHE_H
#define QV_ENGINE_KERNEL_CACHE_H

#include "backend.h"

struct qv_kernel_entry {
    struct qv_op op;
    struct qv_kernel *kernel;
    size_t scratch_bytes;
    int users; /* number of plans that hold it; 0: it may be dropped */
    uint64_t used_at;
};
struct qv_kernel_cache {
    struct qv_kernel_entry *entries;
    size_t n, capacity;
    uint64_t clock;
};

/* Finds the kernel of an operation in the cache or prepares it; give it back with qv_kernel_put.
 * *index names the entry and stays valid while it is held. */
qv_status qv_kernel_get(qv_context *ctx, const struct qv_op *op, size_t *index, qv_error *err);
void qv_kernel_put(qv_context *ctx, size_t index);
void qv_kernels_free(qv_context *ctx);

/* Chooses which of a device's ways of running an operation to prepare (kernel_tune.c): the tune
 * file's, or the one measured here if the context tunes, else the device's own first choice. */
qv_status qv_kernel_choice(qv_context *ctx, const struct qv_op *op, int *choice, qv_error *err);
/* Runs the calls, or their recording if it is not NULL, and measures how long that takes. */
qv_status qv_time_calls(qv_context *ctx, const struct qv_call *calls, size_t n,
                        struct qv_recording *recording, double *ms, qv_error *err);

#endif
