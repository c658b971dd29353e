/* SPDX-License-Identifier: MIT */
/*
 * A gemm's quantised w, as cuda/packed.h lays it: few rows by it, where they are not bf16 on the
 * tensor cores (few.cu); and its values, for cuBLASLt.
 */
#include "packed.cuh"

static __device__ __forceinline__ const uint8_t *
chunk_of(const struct packed_shape &s, int64_t row, int64_t k)
{
    return s.at + (row / TILE_COLS * s.chunks + k / CHUNK) * s.per_chunk;
}

/* Few rows of f32, or with scales of f32: right, not fast. A warp has a column, its lanes every
 * 32nd k. */
template <int BITS, typename T>
static __global__ BLOCK void
few_simple_kernel(const struct packed_shape s, const struct few_epilogue e, int64_t group,
                  const T *x, T *y)
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
        const uint32_t word = *(const uint32_t *)(chunk + at.word);
        const uint32_t code = __funnelshift_r(word, word, at.rotate) & ((1 << BITS) - 1);
        const float w = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
#pragma unroll
        for (int i = 0; i < QV_FEW_ROWS; i++)
            if (i < e.m)
                sums[i] = fmaf(value(x + i * s.k + k), w, sums[i]);
    }
#pragma unroll
    for (int i = 0; i < QV_FEW_ROWS; i++) {
        for (int apart = WARP / 2; apart; apart /= 2)
            sums[i] += __shfl_xor_sync(0xffffffff, sums[i], apart);
        if (lane == i && i < e.m)
            finish(e, i, col, sums[i], y);
    }
}

/* A thread has a chunk's 16 bytes of codes, 8 neighbours of every quarter of 4 bits and of two
 * quarters of 8. A value is a product, then a sum, as a checkpoint is loaded; rounded once more
 * to T. */
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
        for (int j = 0; j < 8; j++) { /* even ones come first, of 8 bits in each word */
            const int rotate =
                j % 2 * 16 + (BITS == 4 ? j / 2 * 4 + QV_ROTATED_CUDA : j % 4 / 2 * 8);
            const uint32_t word = words[BITS == 4 ? q : 2 * q + j / 4];
            const uint32_t code = __funnelshift_r(word, word, rotate) & ((1 << BITS) - 1);
            values[j] = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
        }
        store(y + row * s.k + at * CHUNK + col, values);
    }
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
    bool taken = false;
    if (op->x_dtype == QV_BF16) {
        const cudaError_t error = qv_few_bf16_cuda(stream, &groups, s, e, x, y, &taken);
        if (error || taken)
            return error;
    }
    return typed(op->x_dtype, [&](auto t) {
        typedef decltype(t) T;
        return op->w_bits == 4
                   ? launch(stream, ceil_div(op->n, THREADS / WARP), dim3(THREADS),
                            few_simple_kernel<4, T>, s, e, op->w_group, (const T *)x, (T *)y)
                   : launch(stream, ceil_div(op->n, THREADS / WARP), dim3(THREADS),
                            few_simple_kernel<8, T>, s, e, op->w_group, (const T *)x, (T *)y);
    });
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
