/* SPDX-License-Identifier: MIT */
/*
 * A gemm's quantised w, as cuda/packed.h lays it: up to 16 rows of x by its codes, each of which is read
 * once for all of them; and its values, for cuBLASLt.
 *
 * Few rows of bf16: a warp has 16 columns of y, which are rows of w, on the tensor cores: codes are exact
 * in bf16, and of each group
 *     sum += scale * (codes . x) + offset * (ones . x)
 * in f32, so that no value of w is rounded. Codes of 4 bits are multiplied with 16 added, which saves a
 * subtraction, and offset - 16 scale takes them back. The warps of a block share k: each has every SHARES'th chunk of
 * 128 columns, and copies its next chunks to shared memory while it multiplies one, because only what is
 * under way keeps the memory busy. Bits of y do not depend on how many rows there are.
 */
#include <cuda_fp16.h>

#include "mma.cuh"
#include "packed.h"

enum {
    CHUNK = QV_PACKED_CHUNK_CUDA,
    QUARTER = CHUNK / 4,             /* of columns: two products' worth */
    TILE_COLS = QV_PACKED_ROWS_CUDA, /* of y */
    ROW_TILE = 8,                    /* rows of x in a product */
    SHARES = THREADS / WARP          /* of k */
};

struct packed_shape {
    int64_t n, k;
    int64_t tiles, chunks, per_chunk; /* of packed.h */
    int dtype;                        /* of scales and offsets */
    const uint8_t *at;
};

static struct packed_shape
shape_of(int64_t n, int64_t k, const struct qv_groups *groups, const void *w)
{
    const struct qv_packed_cuda p = qv_packed_cuda(n, k, groups);
    return { n, k, p.tiles, p.chunks, p.per_chunk, (int)groups->dtype, (const uint8_t *)w };
}

/* Bytes of a chunk's codes; its pairs of a scale and an offset. */
template <int BITS> constexpr int CODES = TILE_COLS *CHUNK *BITS / 8;
template <int GROUP> constexpr int PAIRS = CHUNK / GROUP *TILE_COLS;

/* Scale and offset: a chunk's pair `at`. */
static __device__ __forceinline__ float2
factors_of(int dtype, const void *pairs, int at)
{
    if (dtype == QV_F32)
        return ((const float2 *)pairs)[at];
    const uint32_t both = ((const uint32_t *)pairs)[at];
    if (dtype == QV_BF16)
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
    return make_float2(__half2float(__ushort_as_half((unsigned short)both)),
                       __half2float(__ushort_as_half((unsigned short)(both >> 16))));
}

/* pairs_of() adds this to codes of so many bits. */
template <int BITS> constexpr float BIAS = BITS == 4 ? 16 : 0;

/* The codes of a lane's 8 values of a quarter, as four pairs of bf16, first to last. Of 4 bits, 0x4180 with
 * a code in the upper bits of its fraction is 16 + code. Of 8 bits: 0x4b0000 and a code is 2^23 + code as a
 * float, and a float of 8 bits has nothing in its lower half. */
template <int BITS>
static __device__ __forceinline__ void
pairs_of(uint32_t (&pairs)[4], const uint32_t *words)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (BITS == 4) {
            const uint32_t word = i ? words[0] >> (4 * i - 3) : words[0] << 3;
            pairs[i] = (word & 0x00780078) | 0x41804180;
        } else {
            const uint32_t word = words[i / 2], at = (uint32_t)(i % 2 * 2);
            const float low = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | at)) - 8388608;
            const float high =
                __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | (at + 1))) - 8388608;
            pairs[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
        }
    }
}

/* A warp keeps here the chunks of DEPTH steps that are on their way to it, and the scales and offsets of the one
 * that it multiplies. */
template <int BITS, int GROUP, int DEPTH> struct few_ring {
    struct {
        uint4 codes[CODES<BITS> / 16];
        uint4 pairs[PAIRS<GROUP> / 2]; /* of f32; others take less */
    } chunks[DEPTH];
    float2 factors[PAIRS<GROUP>];
};

/* Begins to copy a chunk: a lane's first 16 bytes are at `from`, and so many lanes copy pairs. */
template <int BITS, typename C>
static __device__ __forceinline__ void
begin_chunk(C &to, const uint4 *from, int pairs)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < CODES<BITS> / 16; j += WARP)
        begin_copy(&to.codes[j + lane], from + j);
    if (lane < pairs)
        begin_copy(&to.pairs[lane], from + CODES<BITS> / 16);
}

/* Makes f32 of a chunk's scales and offsets, which take the bias back: a lane does some for all. */
template <int BITS, int GROUP>
static __device__ __forceinline__ void
unpack_factors(float2 (&to)[PAIRS<GROUP>], const void *pairs, int dtype)
{
    for (int i = threadIdx.x % WARP; i < PAIRS<GROUP>; i += WARP) {
        const float2 f = factors_of(dtype, pairs, i);
        to[i] = make_float2(f.x, fmaf(-BIAS<BITS>, f.x, f.y));
    }
}

/* sums[tile] += of a tile's 16 columns (a lane: of lane / 4 and lane / 4 + 8) with x's rows of a tile over
 * one chunk, of whose groups plain[group][tile] are x's sums. */
template <int BITS, int GROUP, int TILES>
static __device__ __forceinline__ void
multiply_chunk(float (&sums)[TILES][4], const uint4 *codes, const float2 *factors,
               const uint4 (&b)[TILES][4], const float (&plain)[CHUNK / GROUP][TILES][4])
{
    const int lane = threadIdx.x % WARP;
    uint32_t words[2][BITS]; /* of rows lane / 4 and lane / 4 + 8 */
    float products[TILES][4];
#pragma unroll
    for (int i = 0; i < BITS / 2; i++) {
        const uint4 part = codes[i * WARP + lane];
        memcpy(&words[i / (BITS / 4)][i % (BITS / 4) * 4], &part, sizeof part);
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint32_t pairs0[4], pairs1[4];
        pairs_of<BITS>(pairs0, &words[0][quarter * BITS / 4]);
        pairs_of<BITS>(pairs1, &words[1][quarter * BITS / 4]);
        const uint32_t a0[4] = { pairs0[0], pairs1[0], pairs0[1], pairs1[1] };
        const uint32_t a1[4] = { pairs0[2], pairs1[2], pairs0[3], pairs1[3] };
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (quarter * QUARTER % GROUP)
                multiply_blocks(products[tile], a0, b[tile][quarter].x, b[tile][quarter].y);
            else
                multiply_first_blocks(products[tile], a0, b[tile][quarter].x, b[tile][quarter].y);
            multiply_blocks(products[tile], a1, b[tile][quarter].z, b[tile][quarter].w);
        }
        if ((quarter + 1) * QUARTER % GROUP)
            continue;
        const int group = quarter * QUARTER / GROUP;
        const float2 f[2] = { factors[group * TILE_COLS + lane / 4],
                              factors[group * TILE_COLS + lane / 4 + 8] };
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sums[tile][j] = fmaf(f[j / 2].x, products[tile][j], sums[tile][j]);
                sums[tile][j] = fmaf(f[j / 2].y, plain[group][tile][j], sums[tile][j]);
            }
    }
}

/* plain[group][tile]: the sums of x's rows over each group of a chunk. */
template <int GROUP, int TILES>
static __device__ __forceinline__ void
add_groups(float (&plain)[CHUNK / GROUP][TILES][4], const uint4 (&b)[TILES][4])
{
    const uint32_t ones[4] = { 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80 };
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float(&sum)[4] = plain[quarter * QUARTER / GROUP][tile];
            if (quarter * QUARTER % GROUP)
                multiply_blocks(sum, ones, b[tile][quarter].x, b[tile][quarter].y);
            else
                multiply_first_blocks(sum, ones, b[tile][quarter].x, b[tile][quarter].y);
            multiply_blocks(sum, ones, b[tile][quarter].z, b[tile][quarter].w);
        }
}

/* A lane's part of x in a chunk, which has `left` columns: quarters behind the end are zeros. */
template <int TILES>
static __device__ __forceinline__ void
fetch_rows(uint4 (&b)[TILES][4], const bf16 *const (&rows)[TILES], int64_t k, int64_t left)
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++)
            if (left >= CHUNK || quarter * QUARTER < left)
                b[tile][quarter] = __ldg((const uint4 *)(rows[tile] + k + quarter * QUARTER));
            else
                b[tile][quarter] = make_uint4(0, 0, 0, 0);
}

/* sums += of a tile, over every SHARES'th chunk. Rows behind the last one of x are the last one, whose sums
 * nobody reads. */
template <int BITS, int GROUP, int TILES, int DEPTH>
static __device__ __forceinline__ void
few_sums(float (&sums)[TILES][4], few_ring<BITS, GROUP, DEPTH> &ring, const struct packed_shape &s,
         const bf16 *x, int64_t m, int64_t tile)
{
    const int share = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int pairs = PAIRS<GROUP> * (s.dtype == QV_F32 ? 8 : 4) / 16;
    const uint4 *from = (const uint4 *)(s.at + (tile * s.chunks + share) * s.per_chunk) + lane;
    const int64_t apart = SHARES * s.per_chunk / 16; /* of a share's chunks */
    const bf16 *rows[TILES];
    int to_copy = (int)((s.chunks - share + SHARES - 1) / SHARES), steps = to_copy;
    const auto copy_next = [&](int slot) {
        if (to_copy-- > 0)
            begin_chunk<BITS>(ring.chunks[slot], from, pairs);
        end_copies();
        from += apart;
    };
#pragma unroll
    for (int i = 0; i < TILES; i++)
        rows[i] = x + min((int64_t)(i * ROW_TILE + lane / 4), m - 1) * s.k + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++)
        copy_next(i);
    int64_t k = share * (int64_t)CHUNK;
    for (int slot = 0; steps-- > 0; k += SHARES * CHUNK, slot = slot + 1 < DEPTH ? slot + 1 : 0) {
        uint4 b[TILES][4];
        float plain[CHUNK / GROUP][TILES][4];
        fetch_rows(b, rows, k, s.k - k);
        copy_next(slot ? slot - 1 : DEPTH - 1);
        await_copies_but<DEPTH - 1>();
        __syncwarp(); /* lanes copied for each other, and have multiplied by the factors before these */
        unpack_factors<BITS, GROUP>(ring.factors, ring.chunks[slot].pairs, s.dtype);
        __syncwarp();
        add_groups<GROUP>(plain, b);
        multiply_chunk<BITS, GROUP>(sums, ring.chunks[slot].codes, ring.factors, b, plain);
    }
}

/* What follows the sums: y[row, col] of a sum. */
struct few_epilogue {
    int64_t m, n, residual_rows;
    float alpha;
    int act;
    const void *bias, *residual; /* NULL: none */
};

template <typename T>
static __device__ __forceinline__ void
finish(const struct few_epilogue &e, int64_t row, int64_t col, float sum, T *y)
{
    const T *bias = (const T *)e.bias, *residual = (const T *)e.residual;
    float v = activate<T>(e.act, e.alpha * sum + (bias ? value(bias + col) : 0));
    if (residual)
        v += value(residual + row % e.residual_rows * e.n + col);
    set(y + row * e.n + col, v);
}

/* BLOCKS: at least so many on a multiprocessor at once. */
template <int BITS, int GROUP, int TILES, int DEPTH, int BLOCKS>
static __global__
__launch_bounds__(THREADS, BLOCKS) void few_kernel(const struct packed_shape s,
                                                   const struct few_epilogue e, const bf16 *x,
                                                   bf16 *y)
{
    extern __shared__ uint4 shared[];
    __shared__ float all[SHARES][TILE_COLS][TILES * ROW_TILE];
    const int share = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    auto *rings = reinterpret_cast<few_ring<BITS, GROUP, DEPTH> *>(shared);
    float sums[TILES][4] = {};
    few_sums(sums, rings[share], s, x, e.m, blockIdx.x);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            all[share][lane / 4 + j / 2 * 8][tile * ROW_TILE + lane % 4 * 2 + j % 2] =
                sums[tile][j];
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_COLS * TILES * ROW_TILE; i += THREADS) {
        const int row = i / TILE_COLS;
        const int64_t col = blockIdx.x * (int64_t)TILE_COLS + i % TILE_COLS;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SHARES; j++)
            sum += all[j][i % TILE_COLS][row];
        if (row < e.m && col < s.n)
            finish(e, row, col, sum, y);
    }
}

/* ---- f32, and values ------------------------------------------------------------------------- */

static __device__ __forceinline__ const uint8_t *
chunk_of(const struct packed_shape &s, int64_t row, int64_t k)
{
    return s.at + (row / TILE_COLS * s.chunks + k / CHUNK) * s.per_chunk;
}

/* Few rows of f32: right, not fast. A warp has a column, its lanes every 32nd k. */
template <int BITS>
static __global__ BLOCK void
few_f32_kernel(const struct packed_shape s, const struct few_epilogue e, int64_t group,
               const float *x, float *y)
{
    const int64_t col = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, row = (int)(col % TILE_COLS);
    float sums[QV_FEW_ROWS] = {};
    if (col >= s.n)
        return;
    for (int64_t k = lane; k < s.k; k += WARP) {
        const uint8_t *chunk = chunk_of(s, col, k);
        const struct qv_code_at_cuda at = qv_code_at_cuda(BITS, row, (int)(k % CHUNK));
        const float2 f =
            factors_of(s.dtype, chunk + CODES<BITS>, qv_pair_at_cuda(group, row, (int)(k % CHUNK)));
        const int code = chunk[at.byte] >> at.shift & ((1 << BITS) - 1);
        const float w = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
#pragma unroll
        for (int i = 0; i < QV_FEW_ROWS; i++)
            if (i < e.m)
                sums[i] = fmaf(x[i * s.k + k], w, sums[i]);
    }
#pragma unroll
    for (int i = 0; i < QV_FEW_ROWS; i++) {
        for (int apart = WARP / 2; apart; apart /= 2)
            sums[i] += __shfl_xor_sync(0xffffffff, sums[i], apart);
        if (lane == i && i < e.m)
            finish(e, i, col, sums[i], y);
    }
}

/* A thread has a chunk's 16 bytes of codes, 8 neighbours of every quarter of 4 bits and of two quarters of
 * 8. A value is a product, then a sum, as a checkpoint is loaded; rounded once more to T. */
template <typename T, int BITS>
static __global__ BLOCK void
widen_kernel(const struct packed_shape s, const struct divisor per_tile, int64_t group, T *y)
{
    constexpr int PIECES = CODES<BITS> / 16, QUARTERS = 16 / BITS;
    int64_t at;
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int64_t tile = divide(i / PIECES, per_tile, &at);
    const int piece = (int)(i % PIECES), lane = piece % WARP, load = piece / WARP;
    const int in_tile = (BITS == 4 ? load : load / 2) * 8 + lane / 4;
    const int64_t row = tile * TILE_COLS + in_tile;
    if (tile >= s.tiles || row >= s.n)
        return;
    const uint8_t *chunk = s.at + (tile * s.chunks + at) * s.per_chunk;
    const uint4 codes = __ldg((const uint4 *)chunk + piece);
    uint32_t words[4];
    memcpy(words, &codes, sizeof words);
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
        const int col = (BITS == 4 ? q : load % 2 * 2 + q) * QUARTER + lane % 4 * 8;
        float values[8];
        if (at * CHUNK + col >= s.k)
            break;
        const float2 f =
            factors_of(s.dtype, chunk + CODES<BITS>, qv_pair_at_cuda(group, in_tile, col));
#pragma unroll
        for (int j = 0; j < 8; j++) { /* of 4 bits even ones come first */
            const int shift = BITS == 4 ? j % 2 * 16 + j / 2 * 4 : j % 4 * 8;
            const uint32_t word = words[BITS == 4 ? q : 2 * q + j / 4];
            const uint32_t code = word >> shift & ((1 << BITS) - 1);
            values[j] = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
        }
        store(y + row * s.k + at * CHUNK + col, values);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* One row takes as many products as 16, because a kernel of 8 rows, though a quarter faster, makes a step from 8
 * rows to 9. */
template <int BITS, int GROUP>
static cudaError_t
launch_few(cudaStream_t stream, const struct packed_shape &s, const struct few_epilogue &e,
           const void *x, void *y)
{
    constexpr int TILES = QV_FEW_ROWS / ROW_TILE, DEPTH = BITS == 4 ? 5 : 3, BLOCKS = 2;
    const auto kernel = few_kernel<BITS, GROUP, TILES, DEPTH, BLOCKS>;
    const size_t bytes = SHARES * sizeof(few_ring<BITS, GROUP, DEPTH>);
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error) {
        (void)cudaGetLastError(); /* returned here, so the next caller must not find it again */
        return error;
    }
    return launch_shared(stream, s.tiles, dim3(THREADS), bytes, kernel, s, e, (const bf16 *)x,
                         (bf16 *)y);
}

template <int BITS>
static cudaError_t
launch_group(cudaStream_t stream, int64_t group, const struct packed_shape &s,
             const struct few_epilogue &e, const void *x, void *y)
{
    return group == 32   ? launch_few<BITS, 32>(stream, s, e, x, y)
           : group == 64 ? launch_few<BITS, 64>(stream, s, e, x, y)
                         : launch_few<BITS, 128>(stream, s, e, x, y);
}

cudaError_t
qv_few_cuda(cudaStream_t stream, const struct qv_op_gemm *op, const void *x, const void *w,
            const void *bias, const void *residual, void *y)
{
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    const struct packed_shape s = shape_of(op->n, op->k, &groups, w);
    const struct few_epilogue e = { op->m,
                                    op->n,
                                    op->residual_rows,
                                    (float)op->alpha,
                                    (int)op->act,
                                    op->bias ? bias : NULL,
                                    op->residual_rows ? residual : NULL };
    if (op->x_dtype == QV_BF16)
        return op->w_bits == 4 ? launch_group<4>(stream, op->w_group, s, e, x, y)
                               : launch_group<8>(stream, op->w_group, s, e, x, y);
    const int64_t blocks = ceil_div(op->n, THREADS / WARP);
    return op->w_bits == 4 ? launch(stream, blocks, dim3(THREADS), few_f32_kernel<4>, s, e,
                                    op->w_group, (const float *)x, (float *)y)
                           : launch(stream, blocks, dim3(THREADS), few_f32_kernel<8>, s, e,
                                    op->w_group, (const float *)x, (float *)y);
}

cudaError_t
qv_widen_cuda(cudaStream_t stream, const struct qv_matrix_cuda *matrix, int64_t dtype,
              const void *w, void *y)
{
    const struct packed_shape s = shape_of(matrix->n, matrix->k, &matrix->groups, w);
    const struct divisor per_tile = divisor_of(s.chunks);
    const int64_t pieces = TILE_COLS * CHUNK / 8 * matrix->groups.bits / 16;
    const int64_t blocks = ceil_div(s.tiles * s.chunks * pieces, THREADS);
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    return typed(dtype, [&](auto t) {
        typedef decltype(t) T;
        return matrix->groups.bits == 4 ? launch(stream, blocks, dim3(THREADS), widen_kernel<T, 4>,
                                                 s, per_tile, matrix->groups.group, (T *)y)
                                        : launch(stream, blocks, dim3(THREADS), widen_kernel<T, 8>,
                                                 s, per_tile, matrix->groups.group, (T *)y);
    });
}
