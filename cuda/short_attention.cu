/* SPDX-License-Identifier: MIT */
/*
 * Attention over segments of up to 64 rows, such as windows. A block works on one head of one
 * segment at a time, whose q, k and v all lie in shared memory and are read once. A warp has 16
 * queries and all of their scores in registers, so nothing is rescaled; exponentials become a
 * factor of the second product in place (as in FlashAttention-2, Dao, arXiv:2307.08691). Sums
 * depend only on the segment's own rows.
 */
#include "mma.cuh"

#include <math.h>

enum {
    MOST_ROWS = 64,
    STRIP = 16, /* queries of a warp; keys or dimensions of one step of a product */
    STRIPS = MOST_ROWS / STRIP,
    SHORT_THREADS = STRIPS * WARP,
    MOST_BLOCKS = 4096 /* several times as many as any device holds at once */
};

/* A head in shared memory: dimensions padded with zeros to a whole step, and 16 bytes more, so that
 * the 8 rows of a block lie in different banks. */
template <int HEAD_DIM> struct tile {
    static constexpr int STEPS = (HEAD_DIM + STRIP - 1) / STRIP, WIDTH = STEPS * STRIP;
    static constexpr int PITCH = WIDTH + LANES<bf16>, SIZE = MOST_ROWS * PITCH;
    static constexpr int BYTES = 3 * SIZE * (int)sizeof(bf16);
    static constexpr int BLOCKS = HEAD_DIM > 80 ? 3 : 4; /* blocks that should fit a multiprocessor
                                                          * at once */
};

struct short_shape {
    int64_t q_stride, k_stride, v_stride;
    int segments, step; /* segments from one slot of a block to the next */
    int segment_rows;
    struct divisor heads;
    const int32_t *first, *n_rows; /* the list, for segments of different lengths */
    float scale;                   /* scale for exponents of 2 */
};

/* Begins to copy one of q, k and v, with zeros up to a whole strip of rows. A thread copies one
 * column of vectors, or none. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
begin_tile(bf16 *to, const bf16 *from, int64_t stride, int rows)
{
    constexpr int VECTORS = tile<HEAD_DIM>::WIDTH / LANES<bf16>, AT_ONCE = SHORT_THREADS / VECTORS;
    const int top = threadIdx.x / VECTORS, col = threadIdx.x % VECTORS * LANES<bf16>;
#pragma unroll
    for (int k = 0; k < (MOST_ROWS + AT_ONCE - 1) / AT_ONCE; k++) {
        const int row = top + k * AT_ONCE;
        const bool there = row < rows && col < HEAD_DIM;
        if (top < AT_ONCE && row / STRIP * STRIP < rows)
            begin_copy(to + row * tile<HEAD_DIM>::PITCH + col,
                       there ? from + row * stride + col : from, there);
    }
}

/* Computes scores[16, 64] = q[16, .] k[64, .]^T, over the strips of keys that exist. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
multiply_keys(float (&scores)[MOST_ROWS / 8][4], const bf16 *q, const bf16 *k, int rows)
{
    constexpr int PITCH = tile<HEAD_DIM>::PITCH;
    const int lane = threadIdx.x % WARP;
    q += lane % 16 * PITCH + lane / 16 * 8;
    k += (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < tile<HEAD_DIM>::STEPS; step++) {
        uint32_t a[4];
        load_blocks(a, q + step * STRIP);
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++)
            if (strip * STRIP < rows) {
                uint32_t b[4]; /* blocks of 8 keys and 8 more */
                load_blocks(b, k + strip * STRIP * PITCH + step * STRIP);
                multiply_blocks(scores[2 * strip], a, b[0], b[1]);
                multiply_blocks(scores[2 * strip + 1], a, b[2], b[3]);
            }
    }
}

/* Turns scores into exponentials of their difference from their row's maximum, 0 past the segment.
 * sums: the sum of the lane's first row, and the sum of the row 8 below it. */
static __device__ __forceinline__ void
exponentiate(float (&scores)[MOST_ROWS / 8][4], float scale, int rows, float (&sums)[2])
{
    float most[2] = { -INFINITY, -INFINITY };
#pragma unroll
    for (int j = 0; j < MOST_ROWS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = 8 * j + threadIdx.x % 4 * 2 + i % 2;
            scores[j][i] = key < rows ? scores[j][i] * scale : -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], scores[j][i]);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) { /* four lanes share a row */
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 2));
        sums[h] = 0;
    }
#pragma unroll
    for (int j = 0; j < MOST_ROWS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scores[j][i] = exp2f(scores[j][i] - most[i / 2]);
            sums[i / 2] += scores[j][i];
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 1);
        sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 2);
    }
}

/* Computes out[16, .] = weights[16, 64] v[64, .]: two adjacent blocks of sums form one block of a
 * factor. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
multiply_values(float (&out)[tile<HEAD_DIM>::WIDTH / 8][4],
                const float (&weights)[MOST_ROWS / 8][4], const bf16 *v, int rows)
{
    constexpr int PITCH = tile<HEAD_DIM>::PITCH;
    const int lane = threadIdx.x % WARP;
    v += lane % 16 * PITCH + lane / 16 * 8;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++)
        if (strip * STRIP < rows) {
            const float(&low)[4] = weights[2 * strip], (&high)[4] = weights[2 * strip + 1];
            const uint32_t a[4] = { pair(low[0], low[1]), pair(low[2], low[3]),
                                    pair(high[0], high[1]), pair(high[2], high[3]) };
#pragma unroll
            for (int step = 0; step < tile<HEAD_DIM>::STEPS; step++) {
                uint32_t b[4]; /* blocks of 8 dimensions and 8 more */
                load_blocks_transposed(b, v + strip * STRIP * PITCH + step * STRIP);
                multiply_blocks(out[2 * step], a, b[0], b[1]);
                multiply_blocks(out[2 * step + 1], a, b[2], b[3]);
            }
        }
}

/* Writes out divided by sums, through `rows` rows of shared memory that belong to the warp, so that
 * whole vectors are written. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
store_strip(bf16 *to, int64_t stride, bf16 *own, const float (&out)[tile<HEAD_DIM>::WIDTH / 8][4],
            const float (&sums)[2], int rows)
{
    constexpr int PITCH = tile<HEAD_DIM>::PITCH, VECTORS = HEAD_DIM / LANES<bf16>;
    const int lane = threadIdx.x % WARP;
    __syncwarp(); /* the warp has read its rows */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float share = 1 / sums[h];
        bf16 *row = own + (lane / 4 + 8 * h) * PITCH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; j++) {
            const uint32_t word = pair(out[j][2 * h] * share, out[j][2 * h + 1] * share);
            *reinterpret_cast<uint32_t *>(row + 8 * j) = word;
        }
    }
    __syncwarp();
    for (int i = lane; i < rows * VECTORS; i += WARP) {
        const int row = i / VECTORS, col = i % VECTORS * LANES<bf16>;
        put(to + row * stride + col, fetch<LANES<bf16>>(own + row * PITCH + col));
    }
}

/* Computes one head of one segment. Each tensor is a separate parameter, as in a kernel, so there
 * are more than seven. */
template <int HEAD_DIM>
static __device__ __forceinline__ void
attend_segment(const struct short_shape &s, int first, int rows, int head, bf16 *own_q,
               const bf16 *q, const bf16 *k, const bf16 *v, bf16 *y)
{
    typedef tile<HEAD_DIM> tile;
    bf16 *const own_k = own_q + tile::SIZE, *const own_v = own_k + tile::SIZE;
    const int row = threadIdx.x / WARP * STRIP; /* the warp's first row */
    const int64_t width = s.heads.by * HEAD_DIM, from = head * HEAD_DIM, at = first;
    begin_tile<HEAD_DIM>(own_q, q + at * s.q_stride + from, s.q_stride, rows);
    begin_tile<HEAD_DIM>(own_k, k + at * s.k_stride + from, s.k_stride, rows);
    begin_tile<HEAD_DIM>(own_v, v + at * s.v_stride + from, s.v_stride, rows);
    await_copies();
    __syncthreads();
    if (row < rows) {
        float scores[MOST_ROWS / 8][4] = {}, out[tile::WIDTH / 8][4] = {}, sums[2];
        own_q += row * tile::PITCH;
        multiply_keys<HEAD_DIM>(scores, own_q, own_k, rows);
        exponentiate(scores, s.scale, rows, sums);
        multiply_values<HEAD_DIM>(out, scores, own_v, rows);
        store_strip<HEAD_DIM>(y + (at + row) * width + from, width, own_q, out, sums,
                              min(rows - row, (int)STRIP));
    }
    __syncthreads();
}

/* A block computes one head of every step-th slot. Most slots are empty if a chunk has few
 * segments, so every warp looks at 32 of them at once. */
template <int HEAD_DIM>
static __global__ void
__launch_bounds__(SHORT_THREADS, tile<HEAD_DIM>::BLOCKS)
    short_kernel(const struct short_shape s, const bf16 *q, const bf16 *k, const bf16 *v, bf16 *y)
{
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % WARP;
    await_launch();
    int64_t head, group = divide(blockIdx.x, s.heads, &head);
    for (int64_t slot = group; slot < s.segments; slot += WARP * s.step) {
        const int64_t own = slot + lane * s.step;
        int first = (int)own * s.segment_rows, rows = own < s.segments ? s.segment_rows : 0;
        if (!s.segment_rows && own < s.segments) {
            first = s.first[own];
            rows = s.n_rows[own];
        }
        for (unsigned left = __ballot_sync(0xffffffffu, rows > 0); left; left &= left - 1) {
            const int at = __ffs(left) - 1;
            attend_segment<HEAD_DIM>(s, __shfl_sync(0xffffffffu, first, at),
                                     __shfl_sync(0xffffffffu, rows, at), (int)head,
                                     reinterpret_cast<bf16 *>(shared), q, k, v, y);
        }
    }
}

template <int HEAD_DIM>
static cudaError_t
attend(cudaStream_t stream, const struct qv_op_attention *op, const struct short_shape &s,
       const void *q, const void *k, const void *v, void *y, bool early)
{
    return launch_shared(stream, s.step * op->heads, dim3(SHORT_THREADS), tile<HEAD_DIM>::BYTES,
                         early, short_kernel<HEAD_DIM>, s, (const bf16 *)q, (const bf16 *)k,
                         (const bf16 *)v, (bf16 *)y);
}

bool
qv_attention_is_short_cuda(const struct qv_op_attention *op)
{
    const bool vectors =
        !(op->q_stride % LANES<bf16> || op->k_stride % LANES<bf16> || op->v_stride % LANES<bf16>);
    return op->longest > 0 && op->longest <= MOST_ROWS && op->q_dtype == QV_BF16 && vectors &&
           (op->head_dim == 64 || op->head_dim == 72 || op->head_dim == 80 ||
            op->head_dim == 128) &&
           op->heads <= INT32_MAX / MOST_BLOCKS && op->rows <= INT32_MAX &&
           op->segments <= INT32_MAX / MOST_BLOCKS;
}

cudaError_t
qv_attention_short_cuda(cudaStream_t stream, const struct qv_op_attention *op, const void *list,
                        const void *q, const void *k, const void *v, void *y, bool early)
{
    const int64_t width = op->heads * op->head_dim, most = ceil_div(MOST_BLOCKS, op->heads);
    const int64_t step = op->segments < most ? op->segments : most;
    const int32_t *lists = (const int32_t *)list;
    const struct short_shape s = { qv_row_stride(op->q_stride, width),
                                   qv_row_stride(op->k_stride, width),
                                   qv_row_stride(op->v_stride, width),
                                   (int)op->segments,
                                   (int)step,
                                   (int)op->segment_rows,
                                   divisor_of(op->heads),
                                   lists,
                                   lists ? lists + op->segments + 1 : NULL,
                                   (float)(op->scale * M_LOG2E) };
    switch (op->head_dim) {
    case 64: return attend<64>(stream, op, s, q, k, v, y, early);
    case 72: return attend<72>(stream, op, s, q, k, v, y, early);
    case 80: return attend<80>(stream, op, s, q, k, v, y, early);
    case 128: return attend<128>(stream, op, s, q, k, v, y, early);
    }
    return cudaErrorNotSupported;
}
