/* SPDX-License-Identifier: MIT */
/* Chooses which of the waiting frame pairs go into the next chunk. */
#pragma once

#include "capacity.h"
#include "feeder.h"

/* Frame pairs of one item that wait for a chunk. */
struct qv_pack_run {
    qv_capacity pair; /* what one pair needs */
    int64_t pairs;    /* at least 1 */
};

/*
 * Chooses which frame pairs go into the next chunk. waiting[n] begins with the oldest, and each of
 * its pairs fits the chunk by itself. As many pairs of the oldest run as fit go first, so that none
 * waits forever; then pairs of the largest runs that still fit. Of two equal runs the older goes
 * first. Only the first QV_FEEDER_PIECES runs are considered. taken[QV_FEEDER_PIECES] becomes the
 * number of pairs taken from each run. Returns how many runs pairs were taken from.
 */
size_t qv_pack_choose(const qv_capacity *chunk, const struct qv_pack_run *waiting, size_t n,
                      int64_t taken[QV_FEEDER_PIECES]);
