/* SPDX-License-Identifier: MIT */
/*
 * What a plan is made for. Capacities stand on a ladder of buckets, so that a handful of plans serve
 * every size; which bucket an item goes to is a function of that item alone. Pure functions.
 */
#ifndef QV_MODEL_CAPACITY_H
#define QV_MODEL_CAPACITY_H

#include "engine/backend.h"
#include "towers/config.h"

/* What an item of this grid takes. */
struct qv_capacity qv_capacity_of(const struct qv_config *c, const int64_t grid_thw[3]);

/* Counts one more among those that are together, or (sign -1) one less. */
void qv_capacity_count(struct qv_capacity *all, const struct qv_capacity *one, int sign);

/* The smallest bucket that holds so many rows: each is at most an eighth above the one before, and at most
 * a thirty-second of those that fill half of what the device packs. */
int64_t qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows);

/* That of a chunk into which frame pairs of any size are packed: `rows` 0 takes the device's own size. */
struct qv_capacity qv_capacity_pack(const struct qv_caps *caps, const struct qv_config *c,
                                    int64_t rows);

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

/* That of the chunks into which frame pairs of a size are packed, where chunks of so many rows were asked
 * for: a function of the pair alone. It is the pack's; but a pair that does not fit it has the bucket of its
 * own rows, and one that leaves more than a tenth of it empty the bucket that it fills best, if a part of the
 * pack (below) would have other bits. */
struct qv_capacity qv_capacity_for_pairs(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits, int64_t rows,
                                         const struct qv_capacity *pair);

/* That of an item by itself: the smallest bucket that serves; one that fills chunks has its frame
 * pairs, dense, where that gives the bits of packs; an image above the largest bucket a chunk of its own. */
struct qv_capacity qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                                     const struct qv_capacity_bits *bits,
                                     const int64_t grid_thw[3]);

/* Of a pack that is not full: the smallest bucket that holds what `used` says and has the pack's bits
 * (NULL: it may have others); the pack where none does. */
struct qv_capacity qv_capacity_for_part(const struct qv_caps *caps, const struct qv_config *c,
                                        const struct qv_capacity_bits *bits,
                                        const struct qv_capacity *pack,
                                        const struct qv_capacity *used);

/* The same for one of many chunks, where a plan that is slow to make must serve several of them: for pairs of
 * a size that leaves more than a tenth empty (more wait that did not fit), or of a half, a quarter and so on.
 * used->segment_rows: of pairs that are all of this size, else 0; so many chunks before this one were the same.
 * They are dense where that has the pack's bits, and enough of them come to be worth a plan; but what is left at the
 * end, a chunk of few segments has room for no more where room costs. */
struct qv_capacity qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits,
                                         const struct qv_capacity *pack,
                                         const struct qv_capacity *used, bool more,
                                         int64_t repeats);

#endif
