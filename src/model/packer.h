/* SPDX-License-Identifier: MIT */
/* Which items go into the next chunk: pure functions. */
#ifndef QV_MODEL_PACKER_H
#define QV_MODEL_PACKER_H

#include "capacity.h"

/* How many items are looked at for one chunk, and so the most that are in one. Images of 64 sizes
 * fill 0.76 of a chunk of 6144 rows in the order given, 0.97 if the best of 16 are taken; but 24576 rows
 * hold a hundred small ones. */
enum { QV_LOOK_AHEAD = 256 };

/* An item that waits for a chunk. */
struct qv_waiting {
    int64_t rows, segments, windows;
    size_t item; /* its number among the caller's */
};

static inline struct qv_waiting
qv_waiting_of(const struct qv_config *c, const int64_t g[3], size_t item)
{
    return (struct qv_waiting){ g[0] * g[1] * g[2], g[0], qv_capacity_windows(c, g), item };
}

/*
 * Chooses of waiting[n], oldest first, each of which fits by itself: the oldest always, so that none
 * waits for ever, then the largest that still fit. chosen[QV_LOOK_AHEAD] are their places in
 * `waiting`, rising; returns how many.
 */
size_t qv_packer_choose(const struct qv_capacity *capacity, const struct qv_waiting *waiting,
                        size_t n, size_t chosen[QV_LOOK_AHEAD]);

#endif
