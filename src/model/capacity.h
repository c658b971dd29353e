/* SPDX-License-Identifier: MIT */
/*
 * What a plan is made for. Capacities stand on a ladder of buckets, so that a handful of plans serve
 * every size; which bucket an item goes to is a function of that item alone. Pure functions.
 */
#ifndef QV_MODEL_CAPACITY_H
#define QV_MODEL_CAPACITY_H

#include "engine/backend.h"
#include "towers/config.h"

struct qv_capacity {
    int64_t rows;         /* patches in a chunk */
    int64_t segments;     /* most of them in a chunk */
    int64_t segment_rows; /* every segment has exactly so many; 0: they have any number */
    int64_t windows;      /* most of them in a chunk; 0: the family has none */
    /* most of one item that is packed, where that is fewer; 0: no fewer */
    int64_t item_segments, item_windows;
};

/* How many windows a grid has; 0: the family has none. */
int64_t qv_capacity_windows(const struct qv_config *c, const int64_t grid_thw[3]);

/* The smallest bucket that holds so many rows: each is at most an eighth above the one before. */
int64_t qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows);

/* That of a chunk into which items of any size are packed: `rows` 0 takes the device's own size. */
struct qv_capacity qv_capacity_pack(const struct qv_caps *caps, const struct qv_config *c,
                                    int64_t rows);

/* That of an item by itself: the smallest bucket that serves; one that fills chunks has its frame
 * pairs, dense; an image above the largest bucket a chunk of its own. */
struct qv_capacity qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                                     const int64_t grid_thw[3]);

/* Which capacities give a tower's tokens the same bits, by what the device says of its operations. */
struct qv_capacity_bits {
    bool by_place;     /* not even places in one chunk do */
    int64_t gemm_rows; /* GEMMs of fewer rows may round otherwise; 0: none does */
    int64_t rows; /* and so capacities of fewer rows than this; 0: none, QV_NOT_SEEN: any does */
    bool dense;   /* attention in chunks of equal segments may round otherwise than in packs */
};
struct qv_capacity_bits qv_capacity_bits(const struct qv_caps *caps, qv_dtype dtype, int64_t merge,
                                         int64_t head_dim);
bool qv_capacity_same_bits(const struct qv_capacity_bits *bits, const struct qv_capacity *a,
                           const struct qv_capacity *b);

/* Of a pack that is not full: the smallest bucket that holds what `used` says and has the pack's bits
 * (NULL: it may have others); the pack where none does. */
struct qv_capacity qv_capacity_for_part(const struct qv_caps *caps, const struct qv_config *c,
                                        const struct qv_capacity_bits *bits,
                                        const struct qv_capacity *pack,
                                        const struct qv_capacity *used);

/* Whether an item is packed with others, or has chunks to itself. */
bool qv_capacity_is_small(const struct qv_capacity *pack, const struct qv_config *c,
                          const int64_t grid_thw[3]);

#endif
