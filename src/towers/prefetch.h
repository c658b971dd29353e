/* SPDX-License-Identifier: MIT */
/*
 * Items that several threads prepare ahead, and one takes in their order. The user keeps a ring of
 * `slots` places: items i and i + slots are never in use at once. With one thread, the caller's,
 * each item is prepared when it is asked for.
 */
#ifndef QV_TOWERS_PREFETCH_H
#define QV_TOWERS_PREFETCH_H

#include "qwenvit.h"

struct qv_prefetch_work {
    size_t n; /* items */
    int slots;
    int threads; /* with the caller's; no more are made than are of use */
    void *user;
    /* By any of the threads, for several items at once. After a failure none is begun. */
    qv_status (*prepare)(void *user, size_t i, qv_error *err);
    /* What needs the items' order, for each before a failure: by any of the threads, one at a time. */
    void (*follow)(void *user, size_t i);
};

struct qv_prefetch;

qv_status qv_prefetch_open(const struct qv_prefetch_work *work, struct qv_prefetch **out,
                           qv_error *err);
void qv_prefetch_close(struct qv_prefetch *p); /* NULL is accepted */

/* The next item, which is the caller's until the next call; n when all were taken and followed. The
 * first failure in the items' order ends it. */
qv_status qv_prefetch_next(struct qv_prefetch *p, size_t *i, qv_error *err);

#endif
