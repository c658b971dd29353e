/* SPDX-License-Identifier: MIT */
/*
 * Decides capacities: what a plan is made for. They are rounded up to buckets, so that a handful of
 * plans serves every size. Which bucket an item goes to depends on that item alone. All of these
 * are pure functions.
 */
#ifndef QV_MODEL_CAPACITY_H
#define QV_MODEL_CAPACITY_H

#include "engine/backend.h"
#include "towers/config.h"

/* Returns what an item of this grid takes. */
struct qv_capacity qv_capacity_of(const struct qv_config *c, const int64_t grid_thw[3]);

/* Adds `one` to `all`, or with sign -1 subtracts it. */
void qv_capacity_count(struct qv_capacity *all, const struct qv_capacity *one, int sign);

/* Returns the smallest bucket that holds so many rows. Each bucket is at most an eighth larger
 * than the one before; from half of what the device packs on, at most a thirty-second. */
int64_t qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows);

/* Returns the capacity of a chunk that frame pairs of any size are packed into. With `rows` 0 it
 * has the device's own size. */
struct qv_capacity qv_capacity_pack(const struct qv_caps *caps, const struct qv_config *c,
                                    int64_t rows);

/* Tells which capacities give a tower's tokens the same bits, by what the device says of its
 * operations. */
struct qv_capacity_bits {
    bool by_place;     /* an item's bits may depend on its place in a chunk */
    int64_t gemm_rows; /* GEMMs with fewer rows may round otherwise; 0: none does */
    /* capacities with fewer rows may round otherwise; 0: none does; QV_NOT_SEEN: any may */
    int64_t rows;
    bool dense; /* attention may round otherwise in chunks of equal segments than in packs */
};
struct qv_capacity_bits qv_capacity_bits(const struct qv_caps *caps, qv_dtype dtype, int64_t merge,
                                         int64_t head_dim);
bool qv_capacity_same_bits(const struct qv_capacity_bits *bits, const struct qv_capacity *a,
                           const struct qv_capacity *b);

/* Returns the capacity of the chunks that frame pairs of a size are packed into, if chunks of so
 * many rows were asked for. It depends on the pair alone. It is the pack's, with two exceptions:
 * a pair that does not fit the pack has the bucket of its own rows; and one that leaves more
 * than a tenth of it empty has the bucket that it fills best, if a part of the pack (below)
 * would have other bits. */
struct qv_capacity qv_capacity_for_pairs(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits, int64_t rows,
                                         const struct qv_capacity *pair);

/* Returns the capacity of an item by itself: the smallest bucket that serves. An item that fills
 * chunks has dense chunks of its frame pairs, if these give the bits of packs. An image above
 * the largest bucket has a chunk of its own. */
struct qv_capacity qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                                     const struct qv_capacity_bits *bits,
                                     const int64_t grid_thw[3]);

/* Returns the capacity for a pack that is not full: the smallest bucket that holds what `used`
 * says and has the pack's bits (bits NULL: it may have others); the pack itself if there is
 * none. */
struct qv_capacity qv_capacity_for_part(const struct qv_caps *caps, const struct qv_config *c,
                                        const struct qv_capacity_bits *bits,
                                        const struct qv_capacity *pack,
                                        const struct qv_capacity *used);

/* Returns the capacity for a chunk on a device where plans are slow to make, so that a plan must serve several chunks.
 * `repeats` is the number of chunks like this one right before it. If `more` chunks follow, a chunk that leaves more than
 * a tenth empty gets the capacity that suits it from the third alike chunk on; if none follow, the rest gets a half, a
 * quarter and so on of the pack.
 * used->segment_rows is the number of rows of the chunk's pairs if all have the same, else 0. Pairs of one size get
 * dense attention if that gives the pack's bits and enough such chunks came to be worth a plan. Until then, or without
 * that, a chunk of few segments gets a plan with room for few, on devices where room costs time. */
struct qv_capacity qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits,
                                         const struct qv_capacity *pack,
                                         const struct qv_capacity *used, bool more,
                                         int64_t repeats);

#endif
