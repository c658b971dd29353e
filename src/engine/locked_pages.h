/* SPDX-License-Identifier: MIT */
/* Page-locked memory for callers. A driver takes 0.4 ms a MB to lock pages, which is longer than a
 * device computes what fills them. So blocks that were given back are kept, for the next call that
 * asks. */
#ifndef QV_ENGINE_LOCKED_PAGES_H
#define QV_ENGINE_LOCKED_PAGES_H

#include <pthread.h>

#include "backend.h"

/* There are as many as a job has buffers, and one for a caller. */
enum { QV_IDLE_BLOCKS = 4 };
#define QV_IDLE_BYTES ((size_t)256 << 20)

struct qv_locked_block; /* its size lies before what the caller has of it */

struct qv_locked_pages {
    pthread_mutex_t lock;
    struct qv_locked_block *idle[QV_IDLE_BLOCKS];
    int n_idle;
    size_t idle_bytes;
};

void qv_locked_pages_open(struct qv_locked_pages *pages);
void qv_locked_pages_close(struct qv_locked_pages *pages, struct qv_device *dev);

/* Returns the smallest idle block with so many bytes, or a new one. It is aligned for every type.
 * Any thread may call this function and the next. */
qv_status qv_locked_pages_take(struct qv_locked_pages *pages, struct qv_device *dev, size_t bytes,
                               void **out, qv_error *err);
/* Gives a block back. The largest blocks are kept, up to QV_IDLE_BLOCKS and QV_IDLE_BYTES. */
void qv_locked_pages_give(struct qv_locked_pages *pages, struct qv_device *dev, void *p);

#endif
