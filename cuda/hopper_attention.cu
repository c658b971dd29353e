/* SPDX-License-Identifier: MIT */
/*
 * Attention for Hopper (compute capability 9.0): bf16, heads of 64, 72 and 80, segments of any
 * length. A block has a warpgroup that copies (with one active warp) and two or three that compute.
 * It processes one tile after another: up to 64 queries per computing warpgroup, of one head of one
 * segment, whose keys and values arrive in steps of 128. Products use wgmma, and copies the tensor
 * memory accelerator. While a warpgroup turns scores into exponentials, the tensor cores multiply
 * its previous ones by v, and another warpgroup's q by k (FlashAttention-3, Shah et al.,
 * arXiv:2407.08608). Heads of 72 are multiplied as 80 for scores, with zeros, and as 72 for values.
 * A row's sums depend only on its segment: not on the segment's position, its neighbours, the
 * number of queries in a tile, or whether all segments have equal length.
 */
#include "hopper.cuh"

#include <math.h>

enum {
    STEP_KEYS = 128, /* keys and values of a step */
    GROUP = 128,     /* threads of a warpgroup */
    GROUP_ROWS = 64, /* queries of a warpgroup */
    STAGES = 2,      /* steps whose keys and values shared memory holds */
    TILES = 2,       /* tiles whose queries it holds */
    WIDE = 64,       /* columns of a head in rows of 128 bytes; */
    NARROW = 16,     /* the rest, in rows of 32 bytes */
    NARROW_BYTES = 32,
    WIDE_BYTES = 128,
    ALIGNMENT = 1024, /* of swizzled rows */
    SUM_KEYS = 16,    /* keys of one wgmma by v; columns of one by k */
    BARRIER_VALUES = 1,
    BARRIER_TURN = 2 /* one per computing warpgroup */
};

/* Where things lie in a block's shared memory. q and k: WIDE columns of all rows, then NARROW ones,
 * if the head has more than WIDE. v: the same for heads of WIDE columns, else NARROW columns of all
 * rows five times, so that one wgmma takes them all. */
template <int HEAD_DIM> struct room {
    /* computing warpgroups; three of a head of 80 do not fit the registers */
    static constexpr int GROUPS = HEAD_DIM == 80 ? 2 : 3, ROWS = GROUPS * GROUP_ROWS;
    static constexpr bool MORE = HEAD_DIM > WIDE;
    static constexpr int PANELS = MORE ? (HEAD_DIM + NARROW - 1) / NARROW : 1; /* of v */
    static constexpr int PANEL_BYTES = MORE ? NARROW_BYTES : WIDE_BYTES;       /* of a row */
    static constexpr int ROW_BYTES = WIDE_BYTES + MORE * NARROW_BYTES;
    static constexpr int Q_BYTES = ROWS * ROW_BYTES, K_BYTES = STEP_KEYS * ROW_BYTES;
    static constexpr int V_BYTES = STEP_KEYS * PANELS * PANEL_BYTES;
    static constexpr int Q = 0, K = Q + TILES * Q_BYTES, V = K + STAGES * K_BYTES;
    static constexpr int SIGNALS = V + STAGES * V_BYTES;
};

struct tile_of {
    int first_query, first, rows,
        head;    /* the segment's first row and rows; rows 0: no more tiles */
    int queries; /* of the tile, in the segment */
};

/* mbarriers: a copy is complete, or its place may be written again */
struct signals {
    uint64_t q_full[TILES], q_empty[TILES];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    struct tile_of tiles[TILES]; /* written before q_full */
};

struct attention_maps {
    CUtensorMap q, more_q, k, more_k, v; /* more_: columns from WIDE on */
};

struct hopper_shape {
    int segments, segment_rows, heads, tile_rows;
    const int32_t *first, *n_rows; /* the list, for segments of different lengths */
    int64_t y_stride;
    float scale; /* for exponents of 2 */
};

/* ---- the warp that copies -------------------------------------------------------------------- */

/* Tiles are numbered by segment, head, and place in the segment, so that blocks that run at one
 * time read the same keys. A warp examines 32 segments at once, one per lane. */
struct finder {
    int at;            /* the first of the 32 segments */
    int before;        /* tiles before them */
    int first, rows;   /* of the lane's segment */
    int tiles, behind; /* of one of its heads; of the segments up to it, among the 32 */
    bool end;          /* the 32, and all later ones, are empty */

    __device__ __forceinline__ void
    look_at(const struct hopper_shape &s, int segment)
    {
        const int lane = threadIdx.x % WARP, own = segment + lane;
        at = segment;
        first = own * s.segment_rows;
        rows = own < s.segments ? s.segment_rows : 0;
        if (!s.segment_rows && own < s.segments) {
            first = s.first[own];
            rows = s.n_rows[own];
        }
        end = at >= s.segments || (!s.segment_rows && s.first[at] == s.first[s.segments]);
        tiles = (rows + s.tile_rows - 1) / s.tile_rows;
        behind = tiles * s.heads;
        for (int far = 1; far < WARP; far *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, behind, far);
            behind += lane >= far ? other : 0;
        }
    }

    /* Returns tile n, which must not precede the last requested tile. */
    __device__ __forceinline__ struct tile_of
    find(const struct hopper_shape &s, int n)
    {
        int all = __shfl_sync(0xffffffffu, behind, WARP - 1);
        while (n >= before + all) {
            before += all;
            look_at(s, at + WARP);
            if (end)
                return {};
            all = __shfl_sync(0xffffffffu, behind, WARP - 1);
        }
        const int lane = __ffs(__ballot_sync(0xffffffffu, n - before < behind)) - 1;
        const int per_head = __shfl_sync(0xffffffffu, tiles, lane);
        const int in_segment =
            n - before - __shfl_sync(0xffffffffu, behind, lane) + per_head * s.heads;
        const int from = __shfl_sync(0xffffffffu, first, lane);
        const int all_rows = __shfl_sync(0xffffffffu, rows, lane);
        /* the segment's queries are divided evenly, by whole warpgroups */
        const int groups = (all_rows + GROUP_ROWS - 1) / GROUP_ROWS;
        const int each = (groups + per_head - 1) / per_head * GROUP_ROWS,
                  skip = in_segment % per_head * each;
        return { from + skip, from, all_rows, in_segment / per_head, min(each, all_rows - skip) };
    }
};

template <int HEAD_DIM>
static __device__ __forceinline__ void
copy_tile(char *shared, struct signals *signals, const struct attention_maps &maps,
          const struct tile_of &tile, int *step)
{
    typedef room<HEAD_DIM> room;
    for (int row = (tile.rows - 1) / STEP_KEYS * STEP_KEYS; row >= 0; row -= STEP_KEYS, ++*step) {
        const int stage = *step % STAGES, empty = *step / STAGES % 2 ^ 1;
        char *const k = shared + room::K + stage * room::K_BYTES;
        char *const v = shared + room::V + stage * room::V_BYTES;
        await(&signals->k_empty[stage], empty);
        expect(&signals->k_full[stage], room::K_BYTES);
        copy_box(k, &maps.k, &signals->k_full[stage], 0, tile.head, tile.first + row);
        if (room::MORE)
            copy_box(k + STEP_KEYS * WIDE_BYTES, &maps.more_k, &signals->k_full[stage], WIDE,
                     tile.head, tile.first + row);
        await(&signals->v_empty[stage], empty);
        expect(&signals->v_full[stage], room::V_BYTES);
#pragma unroll
        for (int i = 0; i < room::PANELS; i++)
            copy_box(v + i * STEP_KEYS * NARROW_BYTES, &maps.v, &signals->v_full[stage], i * NARROW,
                     tile.head, tile.first + row);
    }
}

template <int HEAD_DIM>
static __device__ __forceinline__ void
copy_tiles(char *shared, struct signals *signals, const struct attention_maps &maps,
           const struct hopper_shape &s)
{
    typedef room<HEAD_DIM> room;
    struct finder finder = {};
    int step = 0, turn = 0;
    struct tile_of tile;
    finder.look_at(s, 0);
    for (int n = blockIdx.x;; n += gridDim.x, turn++) {
        tile = finder.find(s, n);
        if (threadIdx.x == 0) {
            uint64_t *const full = &signals->q_full[turn % TILES];
            char *const q = shared + room::Q + turn % TILES * room::Q_BYTES;
            await(&signals->q_empty[turn % TILES], turn / TILES % 2 ^ 1);
            signals->tiles[turn % TILES] = tile;
            expect(full, tile.rows ? room::Q_BYTES : 0);
            if (tile.rows) {
                copy_box(q, &maps.q, full, 0, tile.head, tile.first_query);
                if (room::MORE)
                    copy_box(q + room::ROWS * WIDE_BYTES, &maps.more_q, full, WIDE, tile.head,
                             tile.first_query);
                copy_tile<HEAD_DIM>(shared, signals, maps, tile, &step);
            }
        }
        __syncwarp();
        if (!tile.rows)
            return;
    }
}

/* ---- the warpgroups that compute ------------------------------------------------------------- */

/* A warpgroup's part of a tile. Arrays of two are for a thread's two rows. */
template <int HEAD_DIM> struct attender {
    typedef room<HEAD_DIM> room;
    float scores[STEP_KEYS / 2], out[HEAD_DIM / 2];
    uint32_t weights[STEP_KEYS / 4]; /* rounded exponentials, a factor of the second product */
    float most[2], sums[2], shrink[2];

    /* The warpgroups that have queries, the first `groups`, begin their products in turn, so that
     * one's exponentials fall into another's products. */
    __device__ __forceinline__ void
    await_turn(int group)
    {
        sync_threads(BARRIER_TURN + group, 2 * GROUP);
    }

    __device__ __forceinline__ void
    end_turn(int group, int groups)
    {
        arrive_threads(BARRIER_TURN + (group + 1 < groups ? group + 1 : 0), 2 * GROUP);
    }

    __device__ __forceinline__ void
    begin_scores(uint32_t q, uint32_t more_q, uint32_t k)
    {
        begin_products();
#pragma unroll
        for (int i = 0; i < WIDE / SUM_KEYS; i++)
            multiply_keys(scores, matrix_at(q + i * NARROW_BYTES, 0, 8 * WIDE_BYTES, SWIZZLE_128),
                          matrix_at(k + i * NARROW_BYTES, 0, 8 * WIDE_BYTES, SWIZZLE_128), i > 0);
        if (room::MORE)
            multiply_keys(scores, matrix_at(more_q, 0, 8 * NARROW_BYTES, SWIZZLE_32),
                          matrix_at(k + STEP_KEYS * WIDE_BYTES, 0, 8 * NARROW_BYTES, SWIZZLE_32),
                          1);
        commit_products();
    }

    __device__ __forceinline__ void
    begin_values(uint32_t v)
    {
        begin_products();
#pragma unroll
        for (int i = 0; i < STEP_KEYS / SUM_KEYS; i++)
            multiply_values(out, weights + 4 * i,
                            matrix_at(v + i * SUM_KEYS * room::PANEL_BYTES,
                                      STEP_KEYS * room::PANEL_BYTES, 8 * room::PANEL_BYTES,
                                      room::MORE ? SWIZZLE_32 : SWIZZLE_128));
        commit_products();
    }

    /* Scores past the segment become -infinity. */
    __device__ __forceinline__ void
    mask(int keys)
    {
#pragma unroll
        for (int i = 0; i < STEP_KEYS / 2; i++)
            if (i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2 >= keys)
                scores[i] = -INFINITY;
    }

    /* Turns scores into exponentials of their difference from the row's maximum so far. shrink: the
     * factor by which older ones are too large. */
    __device__ __forceinline__ void
    exponentiate(float scale)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float highest = most[h], sum = 0;
#pragma unroll
            for (int i = 2 * h; i < STEP_KEYS / 2; i += 4)
                highest = fmaxf(highest, fmaxf(scores[i], scores[i + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            const float offset = highest * scale;
            shrink[h] = power_of_2(most[h] * scale - offset);
            most[h] = highest;
#pragma unroll
            for (int i = 2 * h; i < STEP_KEYS / 2; i += 4)
#pragma unroll
                for (int j = i; j < i + 2; j++) {
                    scores[j] = power_of_2(scores[j] * scale - offset);
                    sum += scores[j];
                }
            sums[h] = sums[h] * shrink[h] + sum;
        }
    }

    __device__ __forceinline__ void
    round_weights(void)
    {
#pragma unroll
        for (int i = 0; i < STEP_KEYS / 4; i++)
            weights[i] = pair(scores[2 * i], scores[2 * i + 1]);
    }

    /* y: of the warpgroup's first row and the tile's head */
    __device__ __forceinline__ void
    store(bf16 *y, int64_t stride, int rows)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = sums[h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float share = 1 / sum;
            const int row = threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4 + 8 * h;
            bf16 *const to = y + row * stride + threadIdx.x % 4 * 2;
            if (row < rows)
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 8; i++)
                    *reinterpret_cast<uint32_t *>(to + 8 * i) =
                        pair(out[4 * i + 2 * h] * share, out[4 * i + 2 * h + 1] * share);
        }
    }
};

/* Overwrites values past the segment with zeros: they may be NaN, and 0 * NaN is not 0. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
clear_values(char *v, int keys, int group, int groups)
{
    typedef room<HEAD_DIM> room;
    const int from = keys * room::PANEL_BYTES, to = STEP_KEYS * room::PANEL_BYTES;
    const int own = (group * GROUP + (int)threadIdx.x % GROUP) * (int)sizeof(uint4);
    for (int panel = 0; panel < room::PANELS; panel++)
        for (int at = from + own; at < to; at += groups * GROUP * (int)sizeof(uint4))
            *reinterpret_cast<uint4 *>(v + panel * to + at) = uint4{};
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* before wgmma reads them */
    sync_threads(BARRIER_VALUES, groups * GROUP);
}

/* Steps go from the segment's end, which may be in the middle of a step, to its begin. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
compute_tile(struct attender<HEAD_DIM> &a, char *shared, struct signals *signals, float scale,
             int turn, int group, int *step)
{
    typedef room<HEAD_DIM> room;
    const struct tile_of &tile = signals->tiles[turn % TILES];
    const uint32_t q_tile = shared_address(shared + room::Q + turn % TILES * room::Q_BYTES);
    const uint32_t q = q_tile + group * GROUP_ROWS * WIDE_BYTES;
    const uint32_t more_q = q_tile + room::ROWS * WIDE_BYTES + group * GROUP_ROWS * NARROW_BYTES;
    const uint32_t k = shared_address(shared + room::K), v = shared_address(shared + room::V);
    const int steps = (tile.rows + STEP_KEYS - 1) / STEP_KEYS;
    const int keys = tile.rows - (steps - 1) * STEP_KEYS; /* of the first step */
    const int groups = (tile.queries + GROUP_ROWS - 1) / GROUP_ROWS;
    int stage = *step % STAGES, full = *step / STAGES % 2;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++)
        a.out[i] = 0;
    a.most[0] = a.most[1] = -INFINITY;
    a.sums[0] = a.sums[1] = 0;
    await(&signals->k_full[stage], full);
    a.await_turn(group);
    a.begin_scores(q, more_q, k + stage * room::K_BYTES);
    a.end_turn(group, groups);
    await_products<0>(a.scores);
    arrive(&signals->k_empty[stage]);
    if (keys < STEP_KEYS) {
        a.mask(keys);
        await(&signals->v_full[stage], full);
        clear_values<HEAD_DIM>(shared + room::V + stage * room::V_BYTES, keys, group, groups);
    }
    a.exponentiate(scale);
    a.round_weights();
    for (const int end = ++*step + steps - 1; *step < end; ++*step) {
        const int old = stage, old_full = full;
        stage = *step % STAGES;
        full = *step / STAGES % 2;
        await(&signals->k_full[stage], full);
        a.await_turn(group);
        a.begin_scores(q, more_q, k + stage * room::K_BYTES);
        await(&signals->v_full[old], old_full);
        a.begin_values(v + old * room::V_BYTES);
        a.end_turn(group, groups);
        await_products<1>(a.scores);
        arrive(&signals->k_empty[stage]);
        a.exponentiate(scale);
        await_products<0>(a.out);
        arrive(&signals->v_empty[old]);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            a.out[i] *= a.shrink[i / 2 % 2];
        a.round_weights();
    }
    await(&signals->v_full[stage], full);
    a.begin_values(v + stage * room::V_BYTES);
    await_products<0>(a.out);
    arrive(&signals->v_empty[stage]);
}

template <int HEAD_DIM>
static __device__ __forceinline__ void
compute_tiles(char *shared, struct signals *signals, const struct hopper_shape &s, int group,
              bf16 *y)
{
    struct attender<HEAD_DIM> attender;
    int step = 0;
    if (group == room<HEAD_DIM>::GROUPS - 1)
        attender.end_turn(group, room<HEAD_DIM>::GROUPS); /* the first warpgroup begins */
    for (int turn = 0;; turn++) {
        const struct tile_of &tile = signals->tiles[turn % TILES];
        const int skip = group * GROUP_ROWS;
        await(&signals->q_full[turn % TILES], turn / TILES % 2);
        if (!tile.rows)
            return;
        if (skip >= tile.queries) {
            /* it waits for the others' copies, so that it does not run ahead */
            for (int rows = 0; rows < tile.rows; rows += STEP_KEYS, step++) {
                const int stage = step % STAGES, full = step / STAGES % 2;
                await(&signals->k_full[stage], full);
                arrive(&signals->k_empty[stage]);
                await(&signals->v_full[stage], full);
                arrive(&signals->v_empty[stage]);
            }
        } else {
            compute_tile<HEAD_DIM>(attender, shared, signals, s.scale, turn, group, &step);
            attender.store(y + (tile.first_query + skip) * s.y_stride + tile.head * HEAD_DIM,
                           s.y_stride, tile.queries - skip);
        }
        arrive(&signals->q_empty[turn % TILES]);
    }
}

template <int HEAD_DIM>
static __global__ void __launch_bounds__((room<HEAD_DIM>::GROUPS + 1) * GROUP, 1)
    hopper_kernel(const __grid_constant__ struct attention_maps maps, const struct hopper_shape s,
                  bf16 *y)
{
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    __trap(); /* never launched there */
#else
    typedef room<HEAD_DIM> room;
    extern __shared__ __align__(ALIGNMENT) char shared[];
    struct signals *const signals = reinterpret_cast<struct signals *>(shared + room::SIGNALS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            open_signal(&signals->q_full[i], 1);
            open_signal(&signals->q_empty[i], room::GROUPS * GROUP / WARP);
        }
        for (int i = 0; i < STAGES; i++) {
            open_signal(&signals->k_full[i], 1);
            open_signal(&signals->v_full[i], 1);
            open_signal(&signals->k_empty[i], room::GROUPS * GROUP / WARP);
            open_signal(&signals->v_empty[i], room::GROUPS * GROUP / WARP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    await_launch();
    /* moves registers from the copying warpgroup to the computing warpgroups */
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(room::GROUPS == 2 ? 40 : 32));
        if (threadIdx.x < WARP)
            copy_tiles<HEAD_DIM>(shared, signals, maps, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(room::GROUPS == 2 ? 232 : 160));
        compute_tiles<HEAD_DIM>(shared, signals, s, threadIdx.x / GROUP - 1, y);
    }
#endif
}

/* ---- the launch ------------------------------------------------------------------------------ */

/* Returns the number of tiles of up to `groups` warpgroups of queries, if segments fill them. */
static int64_t
tiles_of(const struct qv_op_attention *op, int groups)
{
    const int64_t rows = groups * GROUP_ROWS;
    return op->heads * (op->segment_rows ? op->segments * ceil_div(op->segment_rows, rows)
                                         : ceil_div(op->rows, rows));
}

template <int HEAD_DIM>
static cudaError_t
attend(cudaStream_t stream, const struct qv_op_attention *op, const void *list, const void *q,
       const void *k, const void *v, void *y, int blocks)
{
    typedef room<HEAD_DIM> room;
    const int64_t width = op->heads * op->head_dim;
    const int32_t *lists = (const int32_t *)list;
    /* a tile of g warpgroups takes about as long as g + 1 */
    int groups = room::GROUPS;
    for (int g = groups - 1; g > 0; g--)
        if (ceil_div(tiles_of(op, g), blocks) * (g + 1) <
            ceil_div(tiles_of(op, groups), blocks) * (groups + 1))
            groups = g;
    const struct hopper_shape s = { (int)op->segments,
                                    (int)op->segment_rows,
                                    (int)op->heads,
                                    groups * GROUP_ROWS,
                                    lists,
                                    lists ? lists + op->segments + 1 : NULL,
                                    width,
                                    (float)(op->scale * M_LOG2E) };
    /* columns past the head are zeros */
    const auto boxes = [&](int64_t stride, int cols, int rows) {
        const int64_t apart = qv_row_stride(stride, width);
        return (struct boxes){ op->rows, op->heads, op->head_dim, apart, rows, cols };
    };
    struct attention_maps maps;
    if (!describe_boxes(&maps.q, q, boxes(op->q_stride, WIDE, room::ROWS)) ||
        !describe_boxes(&maps.k, k, boxes(op->k_stride, WIDE, STEP_KEYS)) ||
        !describe_boxes(&maps.more_q, q, boxes(op->q_stride, NARROW, room::ROWS)) ||
        !describe_boxes(&maps.more_k, k, boxes(op->k_stride, NARROW, STEP_KEYS)) ||
        !describe_boxes(&maps.v, v, boxes(op->v_stride, room::MORE ? NARROW : WIDE, STEP_KEYS)))
        return cudaErrorInvalidValue;
    return launch_shared(stream, blocks, dim3((room::GROUPS + 1) * GROUP),
                         room::SIGNALS + sizeof(struct signals), true, hopper_kernel<HEAD_DIM>,
                         maps, s, (bf16 *)y);
}

bool
qv_attention_is_hopper_cuda(const struct qv_op_attention *op)
{
    const int64_t vectors = op->q_stride | op->k_stride | op->v_stride;
    return op->q_dtype == QV_BF16 && vectors % LANES<bf16> == 0 && op->scale > 0 &&
           (op->head_dim == 64 || op->head_dim == 72 || op->head_dim == 80) &&
           op->segments < INT32_MAX - WARP &&
           (op->rows / GROUP_ROWS + op->segments) < INT32_MAX / 2 / op->heads;
}

cudaError_t
qv_attention_hopper_cuda(cudaStream_t stream, const struct qv_op_attention *op, const void *list,
                         const void *q, const void *k, const void *v, void *y, int blocks)
{
    switch (op->head_dim) {
    case 64: return attend<64>(stream, op, list, q, k, v, y, blocks);
    case 72: return attend<72>(stream, op, list, q, k, v, y, blocks);
    case 80: return attend<80>(stream, op, list, q, k, v, y, blocks);
    }
    return cudaErrorNotSupported;
}
