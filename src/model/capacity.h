/* SPDX-License-Identifier: MIT */
/*
 * Decides capacities: what a plan is made for. They are rounded up to buckets, so that a handful of
 * plans serves every size. Which bucket an item goes to depends on that item alone. All of these
 * are pure functions.
 */
#pragma once

#include "engine/backend.h"
#include "towers/config.h"

/*
 * The numbers by which chunks are filled and their capacities chosen, and what each was measured to
 * gain on an H200, with tower M in chunks of 12,288 patches unless a comment says otherwise
 * (docs/devices.md).
 */
enum {
    /* On some devices room for segments costs time even where it is empty. There a chunk has room
     * for usual images, which have 256 patches or more; smaller pairs get a bucket with room for
     * the smallest (pack_for). Attention over 8 segments of 760 patches takes 64 us with room for
     * 8, 72 us with room for 64, and 151 us with room for 512. */
    QV_USUAL_SEGMENT_ROWS = 96,
    /* A chunk of clips' frames, which are large, has room for few: it takes 17.1 ms with room for
     * 32 segments, 17.9 with 128. */
    QV_LARGE_SEGMENT_ROWS = 384,
    /* The least room for segments. With room for exactly 3, a chunk took 0.25 ms less of 20 to 26
     * ms. */
    QV_LEAST_SEGMENTS = 8,
    /* A bucket exceeds the one below by at most 1/8, or 1/32 from half of the device's chunk on:
     * in a large chunk empty rows cost more than another plan does. Not measured apart. */
    QV_SMALL_STEPS = 8,
    QV_LARGE_STEPS = 32,
    /* A chunk filled to this many tenths counts as full. A less full chunk, computed whole, wastes
     * 1 to 3 ms; a plan takes 50 to 130 ms to make, or 370 if cuDNN must compile. */
    QV_FULL_TENTHS = 9,
    /* Where plans are slow to make, this many alike chunks that are less full must come before one
     * gets a plan, because two may come by chance. A first job of 42 clips of seven sizes takes
     * 1.384 s instead of 1.64. */
    QV_FEW_ALIKE = 2,
    /* Not measured apart. QV_ITEM_CHUNKS: how many chunks the waiting pairs of one item may amount
     * to. QV_CHUNK_PIECES: the shares of a chunk in which a clip is read, so that its pairs wait
     * early and a job's last clips leave the device little to do. */
    QV_ITEM_CHUNKS = 2,
    QV_CHUNK_PIECES = 8,
};
/* Returns whether all four numbers are equal, so that plans of both capacities compute alike. */
bool qv_capacity_equal(const struct qv_capacity *a, const struct qv_capacity *b);

/* Returns how many of this size fit into a chunk together, by patches, segments and windows; 0: not
 * even one. segment_rows does not count. */
int64_t qv_capacity_fits(const struct qv_capacity *chunk, const struct qv_capacity *size);

/* Returns what an item of this grid takes. */
struct qv_capacity qv_capacity_of(const struct qv_config *c, const int64_t grid_thw[3]);

/* Adds `one` to `all`. */
void qv_capacity_count(struct qv_capacity *all, const struct qv_capacity *one);

/* Returns the smallest bucket that holds `rows` patches. Each bucket is at most an eighth larger
 * than the one before; from half of what the device packs on, at most a thirty-second. */
int64_t qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows);

/* Returns the capacity of a chunk that frame pairs of any size are packed into. With `rows` 0 it
 * has the device's own size. */
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
 * `rows` patches were asked for. It depends on the pair alone. It is the pack's, with two
 * exceptions: a pair that does not fit the pack has the bucket of its own patches; and a pair that
 * leaves more than a tenth of the pack empty has the bucket that it fills best, if a smaller bucket
 * (qv_capacity_for_fill) would have other bits. */
struct qv_capacity qv_capacity_for_pairs(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits, int64_t rows,
                                         const struct qv_capacity *pair);

/* Returns the capacity of a single item: the smallest bucket that it fits. An item that fills
 * chunks has dense chunks of its frame pairs, if these give the bits of packs. An image above the
 * largest bucket has a chunk of its own. */
struct qv_capacity qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                                     const struct qv_capacity_bits *bits,
                                     const int64_t grid_thw[3]);

/* Returns the capacity for a pack that is not full: the smallest bucket that holds `used` and has
 * the pack's bits (bits NULL: any bits), or the pack itself if there is none. */
struct qv_capacity qv_capacity_for_fill(const struct qv_caps *caps, const struct qv_config *c,
                                        const struct qv_capacity_bits *bits,
                                        const struct qv_capacity *pack,
                                        const struct qv_capacity *used);

/* Returns the capacity for a chunk of which `used` is filled. Where plans are slow to make, a plan
 * must serve several chunks. `repeats` is the number of chunks like this one right before it. If
 * `more` chunks follow, a chunk that leaves more than a tenth empty gets the capacity that suits it
 * from the third alike chunk on; if none follow, the rest gets a half, a quarter and so on of the
 * pack. used->segment_rows is the number of patches of the chunk's pairs if all have the same, else
 * 0: such pairs get dense attention from the third chunk on if that gives the pack's bits.
 * Otherwise a chunk of few segments gets a plan with room for few, on devices where room costs
 * time. */
struct qv_capacity qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits,
                                         const struct qv_capacity *pack,
                                         const struct qv_capacity *used, bool more,
                                         int64_t repeats);
