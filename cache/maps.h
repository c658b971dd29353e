/* SPDX-License-Identifier: MIT */
/*
 * Parts of a cache in memory. A part is mapped while somebody holds it; of those that nobody holds some
 * stay mapped, and the one that was given back first is dropped first. Several threads may use them.
 */
#ifndef QV_CACHE_MAPS_H
#define QV_CACHE_MAPS_H

#include <pthread.h>

#include "qwenvit.h"

struct qv_part_map {
    void *at;               /* NULL: not mapped */
    uint64_t bytes;         /* of the file */
    uint32_t held;          /* by so many */
    uint32_t before, after; /* among those that nobody holds: a number above 0 is a part's plus 1 */
};

struct qv_part_maps {
    size_t most, most_idle; /* mapped at once; of these, held by nobody */
    bool writable;          /* a process may write to its own copy of a page */
    /* under the lock */
    struct qv_part_map *at; /* [n] */
    size_t n, n_mapped, n_idle;
    uint32_t first, last; /* that nobody holds: the one that was given back first, and last */
    bool has_lock;
    pthread_mutex_t lock;
};

/* n parts, none of them mapped. What stands in `most`, `most_idle` and `writable` stays. QV_ENOMEM. */
qv_status qv_part_maps_open(struct qv_part_maps *maps, size_t n, qv_error *err);
void qv_part_maps_close(struct qv_part_maps *maps);
/* *out: where part i begins, which is the file at `path`, until it is released. QV_EIO where it cannot
 * be mapped or has other than its bytes; QV_ENOMEM where as many are held as may be. */
qv_status qv_part_maps_hold(struct qv_part_maps *maps, size_t i, const char *path, const char **out,
                            qv_error *err);
void qv_part_maps_release(struct qv_part_maps *maps, size_t i);

#endif
