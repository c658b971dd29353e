/* SPDX-License-Identifier: MIT */
/* An open device: its backend, its capabilities, the kernels prepared on it. */
#pragma once

#include <pthread.h>

#include "backend.h"
#include "turns.h"

/* ---- kernel_cache.c -------------------------------------------------------------------------- */

/* Prepared kernels, remembered by their operation's value, and shared by all objects that a context
 * makes. */
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

/* Finds the kernel of an operation in the cache or prepares it; release it with qv_kernel_put.
 * *index identifies the entry and is valid while the kernel is held. */
qv_status qv_kernel_get(qv_context *ctx, const struct qv_op *op, size_t *index, qv_error *err);
void qv_kernel_put(qv_context *ctx, size_t index);
void qv_kernels_free(qv_context *ctx);

/* ---- kernel_files.c -------------------------------------------------------------------------- */

/*
 * Keeps in files what a device compiled for an operation, so that the next process need not compile
 * it. A file is specific to a backend, a device with its library versions, and a key that the
 * backend makes. Its name is a hash of these, and it contains
 *     qwenvit kernel 1
 *     DEVICE
 *     KEY
 *     XXH3-64 of the bytes in hexadecimal, and how many bytes
 *     the bytes
 * The folder may be removed at any time.
 */
struct qv_kernel_files {
    char *folder;     /* NULL: nothing is kept, nothing found */
    char device[256]; /* "cuda: NVIDIA H200, sm_90, ..., qwenvit 0.5.0" */
    /* A device may also look for kernels, and keep them, on threads of its own. */
    pthread_mutex_t lock;
    char warning[256]; /* guarded by the lock */
};

/* Does not access the folder yet, so it can fail only with QV_ENOMEM. */
qv_status qv_kernel_files_open(struct qv_kernel_files *files, const char *folder,
                               const char *backend, const struct qv_caps *caps, qv_error *err);
void qv_kernel_files_close(struct qv_kernel_files *files);

/* Writes a warning about the last file that was damaged or could not be written; "" if there was
 * none. */
void qv_kernel_files_warning(const struct qv_kernel_files *files, char *out, size_t size);

/* The callbacks of a qv_plan_cache over these files. A file that is damaged or not qwenvit's causes
 * a warning and counts as not found; keeping the same key again replaces it. Any thread may call
 * them. */
void *qv_kernel_files_find(void *files, const char *key, size_t *bytes);
void qv_kernel_files_keep(void *files, const char *key, const void *data, size_t bytes);

/* ---- locked_pages.c -------------------------------------------------------------------------- */

/* Page-locked memory for callers. A driver needs 0.4 ms per MB to lock pages, longer than a device
 * needs to compute their contents. So returned blocks are kept for the next caller. */

/* Enough for the 3 buffers that a job has per device, and one for another caller. */
enum { QV_IDLE_BLOCKS = 4 };
#define QV_IDLE_BYTES ((size_t)256 << 20)

struct qv_locked_block; /* a size, followed by the caller's memory */

struct qv_locked_pages {
    pthread_mutex_t lock;
    struct qv_locked_block *idle[QV_IDLE_BLOCKS];
    int n_idle;
    size_t idle_bytes;
};

void qv_locked_pages_open(struct qv_locked_pages *pages);
void qv_locked_pages_close(struct qv_locked_pages *pages, struct qv_device *dev);

/* Returns the smallest idle block with at least this many bytes, or a new one. It is aligned for
 * every type. Any thread may call this function and the next. */
qv_status qv_locked_pages_take(struct qv_locked_pages *pages, struct qv_device *dev, size_t bytes,
                               void **out, qv_error *err);
/* Returns a block. The largest blocks are kept, up to QV_IDLE_BLOCKS and QV_IDLE_BYTES. */
void qv_locked_pages_give(struct qv_locked_pages *pages, struct qv_device *dev, void *p);

/* ---- context.c ------------------------------------------------------------------------------- */

struct qv_context {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    struct qv_kernel_cache kernels;
    struct qv_kernel_files kernel_files;
    struct qv_locked_pages locked_pages;
    struct qv_plan_cache plan_cache; /* callbacks over kernel_files */
    struct qv_turns turns;
    /* Host threads for work besides the device's. It is 1, the caller's thread, if the device
     * computes on its own threads: these wait by spinning, so more threads would slow them down
     * more than they help. */
    int threads;
    int device;    /* its index among the backend's devices */
    bool in_order; /* runs on the caller's stream: work on its device memory is not waited for */
    char passed_over[512]; /* as in qv_context_info */
};
