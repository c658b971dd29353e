/* SPDX-License-Identifier: MIT */
/*
 * Prefetching: several threads prepare items ahead, and one thread takes them in their order. The
 * user keeps a ring of `slots` places, as items i and i + slots are never in use at once. With one
 * thread, which is the caller's, each item is prepared when it is asked for.
 */
#ifndef QV_TOWERS_PREFETCH_H
#define QV_TOWERS_PREFETCH_H

#include "qwenvit.h"

struct qv_prefetch_work {
    size_t n; /* how many items there are */
    int slots;
    int threads; /* threads, the caller's among them; fewer are started if more are of no use */
    void *user;
    /* Prepares an item. Any thread calls it, several at once for different items. After a
     * failure no further item is begun. */
    qv_status (*prepare)(void *user, size_t i, qv_error *err);
    /* Does what must be done in the items' order. Any thread calls it, one at a time, for each
     * item before the first failure. */
    void (*follow)(void *user, size_t i);
};

struct qv_prefetch;

qv_status qv_prefetch_open(const struct qv_prefetch_work *work, struct qv_prefetch **out,
                           qv_error *err);
void qv_prefetch_close(struct qv_prefetch *p); /* NULL is accepted */

/* Gives the next item, which belongs to the caller until the next call; *i is n when all were
 * taken and followed. The first failure in the items' order ends it. */
qv_status qv_prefetch_next(struct qv_prefetch *p, size_t *i, qv_error *err);

#endif
