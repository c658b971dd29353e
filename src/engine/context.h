/* SPDX-License-Identifier: MIT */
/* A device that is open: its backend, what it can do, the kernels prepared on it. */
#ifndef QV_ENGINE_CONTEXT_H
#define QV_ENGINE_CONTEXT_H

#include "kernel_cache.h"
#include "kernel_files.h"
#include "tune.h"

struct qv_context {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    struct qv_kernel_cache kernels;
    struct qv_tune tune;
    struct qv_kernel_files kernel_files;
    struct qv_plan_cache plan_cache; /* over these */
    /* of the host, for what is done beside the device; 1, the caller's, where the device has several
     * of its own, which wait by spinning: in their way more would cost more than they give */
    int threads;
    bool in_order; /* on a stream of the caller's: work on its device memory is not waited for */
    char passed_over[512]; /* as in qv_context_info */
};

#endif
