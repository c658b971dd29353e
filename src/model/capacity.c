/* SPDX-License-Identifier: MIT */
#include "capacity.h"

#include "numbers.h"

int64_t
qv_capacity_bucket(const struct qv_caps *caps, int64_t merge, int64_t rows)
{
    const int64_t least = qv_round_up(caps->bucket_rows, merge * merge);
    int64_t steps[2] = { least, least }; /* the second value is for buckets above half a chunk */
    rows = qv_at_least(rows, caps->least_rows);
    for (int i = 0; i < 2; i++)
        while (steps[i] * (i ? 2 * QV_LARGE_STEPS : 2 * QV_SMALL_STEPS) <= rows)
            steps[i] *= 2;
    const int64_t small = qv_round_up(rows, steps[0]);
    return 2 * small > caps->pack_rows ? qv_round_up(rows, steps[1]) : small;
}

bool
qv_capacity_equal(const qv_capacity *a, const qv_capacity *b)
{
    return a->patches == b->patches && a->segments == b->segments &&
           a->segment_rows == b->segment_rows && a->windows == b->windows;
}

int64_t
qv_capacity_fits(const qv_capacity *chunk, const qv_capacity *size)
{
    const int64_t each[3][2] = { { chunk->patches, size->patches },
                                 { chunk->segments, size->segments },
                                 { chunk->windows, size->windows } };
    int64_t n = INT64_MAX;
    for (int i = 0; i < 3; i++)
        if (each[i][1] > 0 && each[i][0] / each[i][1] < n)
            n = each[i][0] / each[i][1];
    return n > 0 ? n : 0;
}

struct qv_capacity
qv_capacity_of(const struct qv_config *c, const int64_t g[3])
{
    const int64_t cells = qv_config_window_cells(c), side = cells * c->merge;
    return (struct qv_capacity){
        .patches = g[0] * g[1] * g[2],
        .segments = g[0],
        .segment_rows = g[1] * g[2],
        .windows = cells ? g[0] * qv_ceil_div(g[1], side) * qv_ceil_div(g[2], side) : 0,
    };
}

void
qv_capacity_count(struct qv_capacity *all, int64_t n, const struct qv_capacity *one)
{
    all->patches += n * one->patches;
    all->segments += n * one->segments;
    all->windows += n * one->windows;
}

/* Windows at a frame's edges are smaller: 20x38 patches have 15 windows of 8x8, and 10x10 patches
 * have 4. So there is room for windows of half the full size. */
static int64_t
usual_windows(const struct qv_config *c, int64_t rows)
{
    const int64_t side = qv_config_window_cells(c) * c->merge, area = side * side;
    return area > 0 ? qv_at_least(2 * rows / area, QV_LEAST_SEGMENTS) : 0;
}

struct qv_capacity
qv_capacity_pack(const struct qv_caps *caps, const struct qv_config *c, int64_t rows)
{
    rows = qv_capacity_bucket(caps, c->merge, rows ? rows : caps->pack_rows);
    const int64_t segments = qv_at_least(rows / QV_USUAL_SEGMENT_ROWS, QV_LEAST_SEGMENTS);
    const int64_t windows = usual_windows(c, rows);
    const int64_t most = caps->free_segments ? rows / (c->merge * c->merge) : 0;
    return (struct qv_capacity){ .patches = rows,
                                 .segments = qv_at_least(segments, most),
                                 .windows = windows ? qv_at_least(windows, most) : 0 };
}

/* Returns the bucket for `rows` rows, with room for the segments and windows of `size`. */
static struct qv_capacity
pack_for(const struct qv_caps *caps, const struct qv_config *c, int64_t rows,
         const struct qv_capacity *size)
{
    struct qv_capacity bucket = qv_capacity_pack(caps, c, rows);
    const int64_t most = bucket.patches / (c->merge * c->merge);
    if (size->segments > bucket.segments)
        bucket.segments = most;
    if (size->windows > bucket.windows)
        bucket.windows = most;
    return bucket;
}

/* Returns the bucket in (most / 2, most] that pairs of `rows` rows fill best. */
static int64_t
best_bucket(const struct qv_caps *caps, int64_t merge, int64_t most, int64_t rows)
{
    int64_t best = most;
    for (int64_t r = qv_capacity_bucket(caps, merge, most / 2 + 1); r < most;
         r = qv_capacity_bucket(caps, merge, r + 1))
        if (r / rows * rows * best > best / rows * rows * r)
            best = r;
    return best;
}

/* Returns whether `rows` rows leave at most a tenth of a pack empty. */
static bool
is_nearly_full(const struct qv_capacity *pack, int64_t rows)
{
    return 10 * rows >= QV_FULL_TENTHS * pack->patches;
}

struct qv_capacity
qv_capacity_for_pairs(const struct qv_caps *caps, const struct qv_config *c,
                      const struct qv_capacity_bits *bits, int64_t rows,
                      const struct qv_capacity *pair)
{
    const struct qv_capacity pack = qv_capacity_pack(caps, c, rows);
    /* which chunks pairs go to must not depend on the cost of segments on this device */
    struct qv_caps costly = *caps;
    costly.free_segments = false;
    const struct qv_capacity room = qv_capacity_pack(&costly, c, rows);
    const bool fits = qv_capacity_fits(&room, pair) > 0;
    /* then a smaller bucket may hold them with the same bits */
    const bool others = bits->rows != QV_NOT_SEEN;
    if (fits && (others || is_nearly_full(&pack, pack.patches / pair->patches * pair->patches)))
        return pack;
    rows = fits ? best_bucket(caps, c->merge, pack.patches, pair->patches) : pair->patches;
    return pack_for(caps, c, rows, pair);
}

struct qv_capacity
qv_capacity_alone(const struct qv_caps *caps, const struct qv_config *c,
                  const struct qv_capacity_bits *bits, const int64_t grid_thw[3])
{
    const int64_t chunk = qv_capacity_bucket(caps, c->merge, caps->chunk_rows);
    const struct qv_capacity item = qv_capacity_of(c, grid_thw);
    if (item.patches <= chunk)
        return pack_for(caps, c, item.patches, &item);
    const int64_t pairs = qv_at_least(chunk / item.segment_rows, 1);
    const int64_t full[3] = { pairs, grid_thw[1], grid_thw[2] };
    const struct qv_capacity dense = qv_capacity_of(c, full);
    return bits->dense ? pack_for(caps, c, dense.patches, &dense) : dense;
}

struct qv_capacity_bits
qv_capacity_bits(const struct qv_caps *caps, qv_dtype dtype, int64_t merge, int64_t head_dim)
{
    const struct qv_same_bits *same = dtype == QV_BF16 ? &caps->same_bf16 : &caps->same_f32;
    struct qv_capacity_bits bits = { .gemm_rows = same->gemm_rows,
                                     .rows = same->gemm_rows,
                                     .dense =
                                         same->head_dims[1] && (head_dim < same->head_dims[0] ||
                                                                head_dim > same->head_dims[1]) };
    if (bits.rows > 0) /* a merger's GEMMs have one row for merge * merge patches */
        bits.rows *= merge * merge;
    if (bits.rows > 0 && bits.rows <= qv_capacity_bucket(caps, merge, 1))
        bits.rows = bits.gemm_rows = 0; /* no bucket has so few rows */
    return bits;
}

bool
qv_capacity_same_bits(const struct qv_capacity_bits *bits, const struct qv_capacity *a,
                      const struct qv_capacity *b)
{
    struct qv_capacity same_windows = *a; /* room for windows changes no bits */
    same_windows.windows = b->windows;
    if (qv_capacity_equal(&same_windows, b))
        return true;
    bool gemms = bits->rows != QV_NOT_SEEN && a->patches >= bits->rows && b->patches >= bits->rows;
    return (gemms || a->patches == b->patches) &&
           !(bits->dense && (a->segment_rows || b->segment_rows));
}

struct qv_capacity
qv_capacity_for_fill(const struct qv_caps *caps, const struct qv_config *c,
                     const struct qv_capacity_bits *bits, const struct qv_capacity *pack,
                     const struct qv_capacity *used)
{
    for (int64_t rows = used->patches; rows < pack->patches; rows++) {
        const struct qv_capacity bucket = qv_capacity_pack(caps, c, rows);
        rows = bucket.patches;
        if (bucket.patches < pack->patches && used->segments <= bucket.segments &&
            used->windows <= bucket.windows &&
            (!bits || qv_capacity_same_bits(bits, &bucket, pack)))
            return bucket;
    }
    return *pack;
}

struct qv_capacity
qv_capacity_for_chunk(const struct qv_caps *caps, const struct qv_config *c,
                      const struct qv_capacity_bits *bits, const struct qv_capacity *pack,
                      const struct qv_capacity *used, bool more, int64_t repeats)
{
    const bool alike = repeats >= QV_FEW_ALIKE;
    struct qv_capacity chunk = *pack, fill = *used;
    if (caps->quick_plans || (!is_nearly_full(pack, used->patches) && (alike || !more))) {
        if (used->segment_rows && alike && (!bits || qv_capacity_same_bits(bits, used, pack)))
            return *used;
        if (!caps->quick_plans && !more)
            for (fill.patches = pack->patches; fill.patches / 2 >= qv_at_least(used->patches, 1);)
                fill.patches /= 2;
        chunk = qv_capacity_for_fill(caps, c, bits, pack, &fill);
    }
    const int64_t few = qv_at_least(chunk.patches / QV_LARGE_SEGMENT_ROWS, QV_LEAST_SEGMENTS);
    if (!caps->free_segments && (more || chunk.patches == pack->patches) && used->segments <= few &&
        few < chunk.segments)
        chunk.segments = few;
    return chunk;
}
