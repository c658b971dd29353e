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
 * (docs/found.md).
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
    /* Alike chunks that are nearly full get a dense plan once this many came, or segments^2 / 3,
     * where the plan pays: attention in a pack takes 1.6 ms more per chunk with 3 segments, 0.35
     * with 6, and 0.25 with 16. */
    QV_NEARLY_FULL_ALIKE = 4,
    QV_SEGMENTS_SQUARED_ALIKE = 3,
    /* After this many alike chunks, the next one's plan is made while the device computes. With the
     * two QV_..._ALIKE above, pairs of 4,096 patches take 2 % less time. */
    QV_ALIKE_BEFORE = 2,
    /* One row per this many patches may be left empty for lack of a plan. It is part of
     * QV_FEW_ALIKE's 1.384 s; not measured apart. */
    QV_MANY_ROWS = 16,
    /* If at most this share of a chunk is left empty, nothing better is searched for. QV_MOST_SUMS:
     * the grains that the search divides a chunk into. 42 clips of seven large sizes fill 0.975 of
     * their chunks by it, and 0.959 by the largest that fit. QV_FEEDER_PIECES (qwenvit.h) bounds
     * the search: images of 64 sizes fill 0.76 of chunks of 6,144 patches in the order given, and
     * 0.97 if the best of 16 are taken; but 24,576 patches hold a hundred small images. */
    QV_WORTH_A_SEARCH = 128,
    QV_MOST_SUMS = 4096,
    /* Not measured apart. QV_CHOICE_CHUNKS: how many chunks a pack's waiting pairs must amount to
     * before one is filled, so that there is a choice. QV_ITEM_CHUNKS: how many those of one item
     * may amount to. QV_CHUNK_PIECES: the shares of a chunk in which a clip is read, so that its
     * pairs wait early and a job's last clips leave the device little to do. */
    QV_CHOICE_CHUNKS = 2,
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

/* Returns the capacity for a chunk on a device where plans are slow to make, so that a plan must
 * serve several chunks. `repeats` is the number of chunks like this one right before it. If `more`
 * chunks follow, a chunk that leaves more than a tenth empty gets the capacity that suits it from
 * the third alike chunk on; if none follow, the rest gets a half, a quarter and so on of the pack.
 * used->segment_rows is the number of patches of the chunk's pairs if all have the same, else 0.
 * Pairs of one size get dense attention if that gives the pack's bits and enough such chunks came
 * to be worth a plan. Otherwise a chunk of few segments gets a plan with room for few, on devices
 * where room costs time. */
struct qv_capacity qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                                         const struct qv_capacity_bits *bits,
                                         const struct qv_capacity *pack,
                                         const struct qv_capacity *used, bool more,
                                         int64_t repeats);
