/* SPDX-License-Identifier: MIT */
/* An open device: its backend, its capabilities, the kernels prepared on it. */
#ifndef QV_ENGINE_CONTEXT_H
#define QV_ENGINE_CONTEXT_H

#include "kernel_cache.h"
#include "kernel_files.h"
#include "locked_pages.h"
#include "tune.h"
#include "turns.h"

struct qv_context {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    struct qv_kernel_cache kernels;
    struct qv_tune tune;
    struct qv_kernel_files kernel_files;
    struct qv_locked_pages locked_pages;
    struct qv_plan_cache plan_cache; /* callbacks over kernel_files */
    struct qv_turns turns;
    /* Threads of the host for work beside the device. It is 1, the caller's own, if the device
     * computes on threads of its own: these wait by spinning, and more threads would slow them down
     * by more than they help. */
    int threads;
    int device;    /* its index among the backend's devices */
    bool in_order; /* runs on a stream of the caller's: work on its device memory is not waited
                    * for */
    char passed_over[512]; /* as in qv_context_info */
};

#endif
