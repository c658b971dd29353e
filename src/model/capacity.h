/* SPDX-License-Identifier: MIT */
/*
 * Decides the capacities of plans. They are rounded up to buckets, so that a few plans serve every
 * size. Which bucket an item goes to depends on that item alone. All of these are pure functions.
 */
#pragma once

#include "engine/backend.h"
#include "towers/config.h"

/*
 * The numbers that decide how chunks are filled and their capacities chosen, with the measured gain
 * of each on an H200, for tower M in chunks of 12,288 patches unless a comment says otherwise
 * (docs/devices.md).
 */
enum {
    /* On some devices room for segments costs time even if it is empty. There a chunk has room for
     * usual images, which have 256 patches or more; smaller pairs get a bucket with room for the
     * smallest (pack_for). Attention over 8 segments of 760 patches takes 64 us with room for 8, 72
     * us with room for 64, and 151 us with room for 512. */
    QV_USUAL_SEGMENT_ROWS = 96,
    /* A chunk of clips' frames, which are large, has room for few segments: it takes 17.1 ms with
     * room for 32, and 17.9 ms with room for 128. */
    QV_LARGE_SEGMENT_ROWS = 384,
    /* The least room for segments. With room for exactly 3, a chunk of 20 to 26 ms took 0.25 ms
     * less. */
    QV_LEAST_SEGMENTS = 8,
    /* A bucket exceeds the one below by at most 1/8, or 1/32 from half of the device's chunk on:
     * in a large chunk empty rows cost more than an additional plan. Not measured separately. */
    QV_SMALL_STEPS = 8,
    QV_LARGE_STEPS = 32,
    /* A chunk filled to this many tenths counts as full. A less full chunk, computed whole, wastes
     * 1 to 3 ms; a plan takes 50 to 130 ms to make, or 370 if cuDNN must compile. */
    QV_FULL_TENTHS = 9,
    /* Where plans are slow to make, this many similar chunks that are less full must occur before
     * they get a plan, because two may occur by chance. A first job of 42 clips of seven sizes
     * takes 1.384 s instead of 1.64. */
    QV_FEW_ALIKE = 2,
    /* Not measured separately. QV_ITEM_CHUNKS: how many chunks' worth of one item's pairs may wait.
     * QV_CHUNK_PIECES: into how many pieces per chunk a clip is read, so that its pairs are
     * available early and a job's last clips leave the device little to do. */
    QV_ITEM_CHUNKS = 2,
    QV_CHUNK_PIECES = 8,
};
/* Returns whether all four numbers are equal, so that plans of both capacities compute the same. */
bool qv_capacity_equal(const struct qv_capacity *a, const struct qv_capacity *b);

/* Returns how many of this size fit into one chunk, by patches, segments and windows; 0: not even
 * one. segment_rows is ignored. */
int64_t qv_capacity_fits(const struct qv_capacity *chunk, const struct qv_capacity *size);

/* Returns the capacity that an item of this grid needs. */
struct qv_capacity qv_capacity_of(const struct qv_config *c, const int64_t grid_thw[3]);

/* Adds n times `one` to `all`; n may be negative. */
void qv_capacity_count(struct qv_capacity *all, int64_t n, const struct qv_capacity *one);

/* Returns the smallest bucket that holds `rows` patches. Each bucket is at most an eighth larger
 * than the previous one; from half of the device's pack on, at most a thirty-second. */
int64_t qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows);

/* Returns the capacity of a chunk that frame pairs of any size are packed into. With `rows` 0 it
 * has the device's default size. */
struct qv_capacity qv_capacity_pack(const struct qv_caps *caps, const struct qv_config *c,
                                    int64_t rows);

/* Which capacities give a tower's tokens the same bits, derived from the device's caps. */
struct qv_capacity_bits {
    int64_t gemm_rows; /* GEMMs with fewer rows may round differently; 0: none does */
    /* capacities with fewer rows may round differently; 0: none does; QV_NOT_SEEN: any may */
    int64_t rows;
    bool dense; /* attention may round differently in chunks of equal segments and in packs */
};
struct qv_capacity_bits qv_capacity_bits(const struct qv_caps *caps, qv_dtype dtype, int64_t merge,
                                         int64_t head_dim);
bool qv_capacity_same_bits(const struct qv_capacity_bits *bits, const struct qv_capacity *a,
                           const struct qv_capacity *b);

/* Returns the capacity of the chunks that frame pairs of a size are packed into, if chunks of
 * `rows` patches were requested. It depends on the pair alone. It is the pack's, with two
 * exceptions: a pair that does not fit the pack gets the bucket for its own patches; and a pair
 * that leaves more than a tenth of the pack empty gets the bucket that it fills best, if a smaller
 * bucket (qv_capacity_for_fill) would give different bits. */
struct qv_capacity qv_capacity_for_pairs(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits, int64_t rows,
                                         const struct qv_capacity *pair);

/* Returns the capacity of a single item: the smallest bucket that it fits. An item that fills
 * chunks gets dense chunks of its frame pairs, if these give the same bits as packs. An image above
 * the largest bucket gets a chunk of its own size. */
struct qv_capacity qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                                     const struct qv_capacity_bits *bits,
                                     const int64_t grid_thw[3]);

/* Returns the capacity for a pack that is not full: the smallest bucket that holds `used` and gives
 * the pack's bits (bits NULL: any bits), or the pack itself if there is no such bucket. */
struct qv_capacity qv_capacity_for_fill(const struct qv_caps *caps, const struct qv_config *c,
                                        const struct qv_capacity_bits *bits,
                                        const struct qv_capacity *pack,
                                        const struct qv_capacity *used);

/* Returns the capacity for a chunk that is filled to `used`. Where plans are slow to make, a plan
 * must serve several chunks. `repeats` is the number of chunks like this one right before it. If
 * `more` chunks follow, a chunk that leaves more than a tenth empty gets a capacity that suits it
 * from the third similar chunk on; if none follow, the rest gets half of the pack, a quarter and so
 * on. used->segment_rows is the number of patches per pair if all pairs of the chunk have the same,
 * else 0: equal pairs get dense attention from the third chunk on if that gives the pack's bits.
 * Otherwise, on devices where room for segments costs time, a chunk of few segments gets a plan
 * with room for few. */
struct qv_capacity qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits,
                                         const struct qv_capacity *pack,
                                         const struct qv_capacity *used, bool more,
                                         int64_t repeats);
