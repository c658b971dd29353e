/* SPDX-License-Identifier: MIT */
/*
 * A gemm's quantised w, as cuda/packed.c lays it: up to 16 rows of x by its codes, each of which is read
 * once for all of them; and its values, for cuBLASLt.
 *
 * Few rows of bf16: a warp has 16 columns of y, which are rows of w, on the tensor cores: codes are exact
 * in bf16, and of each group
 *     sum += scale * (codes . x) + offset * (ones . x)
 * in f32, so that no value of w is rounded. A block has 32 columns, for which four warps each share k.
 */
#include <cuda_fp16.h>

#include "mma.cuh"
#include "packed.h"

enum {
    CHUNK = QV_PACKED_CHUNK_CUDA,
    QUARTER = CHUNK / 4, /* of k: two products' worth */
    TILE_COLS = 16,      /* of y */
    ROW_TILE = 8,        /* rows of x in a product */
    COLS = 32,           /* of a block */
    SHARES = 4           /* of k */
};

struct packed_shape {
    int64_t n, k, code_row, groups; /* bytes of a row's codes; groups of a row */
    int dtype;                      /* of factors */
    const uint8_t *codes;
    const void *factors;
};

static struct packed_shape
shape_of(int64_t n, int64_t k, const struct qv_groups *groups, const void *w)
{
    const struct qv_packed_cuda sizes = qv_packed_cuda(n, k, groups);
    return { n,
             k,
             sizes.code_row,
             k / groups->group,
             (int)groups->dtype,
             (const uint8_t *)w,
             (const char *)w + sizes.code_bytes };
}

/* Scale and offset of a group of a row. */
static __device__ __forceinline__ float2
factors_of(const struct packed_shape &s, int64_t row, int64_t group)
{
    const int64_t at = row * s.groups + group;
    if (s.dtype == QV_F32)
        return ((const float2 *)s.factors)[at];
    const uint32_t both = ((const uint32_t *)s.factors)[at];
    if (s.dtype == QV_BF16)
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
    return make_float2(__half2float(__ushort_as_half((unsigned short)both)),
                       __half2float(__ushort_as_half((unsigned short)(both >> 16))));
}

/* The codes of a lane's 8 values of a quarter, as four pairs of bf16, first to last. A half of 0x4300 and
 * a code of 4 bits is 128 + code. Of 8 bits: 0x4b0000 and a code is 2^23 + code as a float, and a float of
 * 8 bits has nothing in its lower half. */
template <int BITS>
static __device__ __forceinline__ void
pairs_of(uint32_t (&pairs)[4], const uint32_t (&words)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (BITS == 4) {
            const uint32_t both = (words[0] >> (4 * i) & 0x000f000f) | 0x43004300;
            __nv_bfloat162 values;
            memcpy(&values, &both, sizeof both);
            values = __hsub2(values, __float2bfloat162_rn(128));
            memcpy(&pairs[i], &values, sizeof values);
        } else {
            const uint32_t word = words[i / 2], at = (uint32_t)(i % 2 * 2);
            const float low = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | at)) - 8388608;
            const float high =
                __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | (at + 1))) - 8388608;
            pairs[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
        }
    }
}

/* What a lane has of a row's chunk: 16 bytes of 4 bits, twice as many of 8. */
template <int BITS> struct chunk_codes {
    uint4 words[BITS / 4];
};

template <int BITS>
static __device__ __forceinline__ chunk_codes<BITS>
fetch_codes(const struct packed_shape &s, int64_t row, int64_t chunk, int t)
{
    chunk_codes<BITS> c;
    const uint8_t *from = s.codes + row * s.code_row + chunk * (CHUNK * BITS / 8) + 16 * t;
#pragma unroll
    for (int i = 0; i < BITS / 4; i++)
        c.words[i] = __ldg((const uint4 *)(from + 64 * i));
    return c;
}

/* The words of a quarter. */
template <int BITS>
static __device__ __forceinline__ void
words_of(uint32_t (&words)[2], const chunk_codes<BITS> &c, int quarter)
{
    uint32_t all[BITS];
    memcpy(all, &c, sizeof all);
    words[0] = BITS == 4 ? all[quarter] : all[2 * quarter];
    words[1] = BITS == 4 ? 0 : all[2 * quarter + 1];
}

/* sums[tile] += of 16 columns from `row` on (a lane: of row and row + 8), over every SHARES'th chunk. */
template <int BITS, int GROUP, int TILES>
static __device__ __forceinline__ void
few_sums(float (&sums)[TILES][4], const struct packed_shape &s, const bf16 *x, int64_t m,
         int64_t first, int share)
{
    const int lane = threadIdx.x % WARP, t = lane % 4;
    const int64_t row0 = min(first + lane / 4, s.n - 1), row1 = min(first + lane / 4 + 8, s.n - 1);
    const uint32_t ones[4] = { 0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80 };
    const int64_t chunks = (s.k + CHUNK - 1) / CHUNK;
    chunk_codes<BITS> next0, next1;
    if (share < chunks) {
        next0 = fetch_codes<BITS>(s, row0, share, t);
        next1 = fetch_codes<BITS>(s, row1, share, t);
    }
    for (int64_t chunk = share; chunk < chunks; chunk += SHARES) {
        const chunk_codes<BITS> codes0 = next0, codes1 = next1;
        if (chunk + SHARES < chunks) {
            next0 = fetch_codes<BITS>(s, row0, chunk + SHARES, t);
            next1 = fetch_codes<BITS>(s, row1, chunk + SHARES, t);
        }
        float products[TILES][4] = {}, plain[TILES][4] = {};
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
            const int64_t k = chunk * CHUNK + quarter * QUARTER;
            uint32_t words[2], pairs0[4], pairs1[4];
            if (k >= s.k) /* whole quarters are behind the end */
                break;
            words_of(words, codes0, quarter);
            pairs_of<BITS>(pairs0, words);
            words_of(words, codes1, quarter);
            pairs_of<BITS>(pairs1, words);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const int64_t row = tile * ROW_TILE + lane / 4;
                uint4 b = make_uint4(0, 0, 0, 0);
                if (row < m)
                    b = __ldg((const uint4 *)(x + row * s.k + k + 8 * t));
                const uint32_t a0[4] = { pairs0[0], pairs1[0], pairs0[1], pairs1[1] };
                const uint32_t a1[4] = { pairs0[2], pairs1[2], pairs0[3], pairs1[3] };
                multiply_blocks(products[tile], a0, b.x, b.y);
                multiply_blocks(products[tile], a1, b.z, b.w);
                multiply_blocks(plain[tile], ones, b.x, b.y);
                multiply_blocks(plain[tile], ones, b.z, b.w);
            }
            if ((quarter + 1) * QUARTER % GROUP && k + QUARTER < s.k)
                continue;
            const float2 f0 = factors_of(s, row0, k / GROUP), f1 = factors_of(s, row1, k / GROUP);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 f = i < 2 ? f0 : f1;
                    sums[tile][i] = fmaf(f.x, products[tile][i], sums[tile][i]);
                    sums[tile][i] = fmaf(f.y, plain[tile][i], sums[tile][i]);
                    products[tile][i] = plain[tile][i] = 0;
                }
        }
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

template <int BITS, int GROUP, int TILES>
static __global__ BLOCK void
few_kernel(const struct packed_shape s, const struct few_epilogue e, const bf16 *x, bf16 *y)
{
    __shared__ float all[SHARES][COLS][TILES * ROW_TILE];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int share = warp / (COLS / TILE_COLS), half = warp % (COLS / TILE_COLS) * TILE_COLS;
    for (int64_t col0 = blockIdx.x * (int64_t)COLS; col0 < s.n; col0 += gridDim.x * (int64_t)COLS) {
        float sums[TILES][4] = {};
        few_sums<BITS, GROUP, TILES>(sums, s, x, e.m, col0 + half, share);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[share][half + lane / 4 + i / 2 * 8][tile * ROW_TILE + lane % 4 * 2 + i % 2] =
                    sums[tile][i];
        __syncthreads();
        for (int i = threadIdx.x; i < COLS * TILES * ROW_TILE; i += THREADS) {
            const int col = i % COLS, row = i / COLS;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < SHARES; j++)
                sum += all[j][col][row];
            if (row < e.m && col0 + col < s.n)
                finish(e, row, col0 + col, sum, y);
        }
        __syncthreads();
    }
}

/* ---- f32, and values ------------------------------------------------------------------------- */

/* Where the code of k lies in its row: the byte, and of 4 bits how far up in it. */
template <int BITS>
static __device__ __forceinline__ int
code_at(const uint8_t *row, int64_t k)
{
    const struct qv_code_at_cuda at = qv_code_at_cuda(BITS, k);
    return row[at.byte] >> at.shift & ((1 << BITS) - 1);
}

/* Few rows of f32: right, not fast. A warp has a column, its lanes every 32nd k. */
template <int BITS>
static __global__ BLOCK void
few_f32_kernel(const struct packed_shape s, const struct few_epilogue e, int64_t group,
               const float *x, float *y)
{
    const int64_t col = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    float sums[QV_FEW_ROWS] = {};
    if (col >= s.n)
        return;
    for (int64_t k = lane; k < s.k; k += WARP) {
        const float2 f = factors_of(s, col, k / group);
        const float w =
            __fadd_rn(__fmul_rn((float)code_at<BITS>(s.codes + col * s.code_row, k), f.x), f.y);
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

/* 8 values a thread, in the order of k: a product, then a sum, as a checkpoint is loaded; rounded once
 * more to T. */
template <typename T, int BITS>
static __global__ BLOCK void
widen_kernel(const struct packed_shape s, const struct divisor per_row, int64_t group, T *y)
{
    int64_t at;
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i >= s.n * (s.k / 8))
        return;
    const int64_t row = divide(i, per_row, &at), k = 8 * at;
    const float2 f = factors_of(s, row, k / group);
    const uint8_t *from = s.codes + row * s.code_row + qv_code_at_cuda(BITS, k).byte;
    uint32_t words[BITS / 4];
    float values[8];
#pragma unroll
    for (int j = 0; j < BITS / 4; j++)
        words[j] = __ldg((const uint32_t *)from + j);
#pragma unroll
    for (int j = 0; j < 8; j++) { /* of 4 bits even ones come first */
        const int shift = BITS == 4 ? j % 2 * 16 + j / 2 * 4 : j % 4 * 8;
        const uint32_t code = words[BITS == 4 ? 0 : j / 4] >> shift & ((1 << BITS) - 1);
        values[j] = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
    }
    store(y + row * s.k + k, values);
}

/* ---- launches -------------------------------------------------------------------------------- */

template <int BITS, int GROUP>
static cudaError_t
launch_few(cudaStream_t stream, const struct packed_shape &s, const struct few_epilogue &e,
           const void *x, void *y)
{
    const int64_t blocks = ceil_div(s.n, COLS);
    return e.m <= ROW_TILE ? launch(stream, blocks, dim3(THREADS), few_kernel<BITS, GROUP, 1>, s, e,
                                    (const bf16 *)x, (bf16 *)y)
                           : launch(stream, blocks, dim3(THREADS), few_kernel<BITS, GROUP, 2>, s, e,
                                    (const bf16 *)x, (bf16 *)y);
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
    const struct divisor per_row = divisor_of(matrix->k / 8);
    const int64_t blocks = ceil_div(matrix->n * (matrix->k / 8), THREADS);
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    return typed(dtype, [&](auto t) {
        typedef decltype(t) T;
        return matrix->groups.bits == 4 ? launch(stream, blocks, dim3(THREADS), widen_kernel<T, 4>,
                                                 s, per_row, matrix->groups.group, (T *)y)
                                        : launch(stream, blocks, dim3(THREADS), widen_kernel<T, 8>,
                                                 s, per_row, matrix->groups.group, (T *)y);
    });
}
