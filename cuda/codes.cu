/* SPDX-License-Identifier: MIT */
/* Few rows times a quantised w in the layout of cuda/codes.h, where few.cu's tensor cores do not
 * compute them. */
#include "codes.cuh"

static __device__ __forceinline__ const uint8_t *
slice_of(const struct codes_shape &s, int64_t row, int64_t k)
{
    return s.at + (row / TILE_COLS * s.slices + k / SLICE) * s.per_slice;
}

/* Computes up to QV_FEW_AT_ONCE rows of a column, from first_row on. */
template <int BITS, typename T>
static __device__ __forceinline__ void
few_simple_rows(const struct codes_shape &s, const struct few_epilogue &e, int64_t group,
                const T *x, T *y, int64_t col, int64_t first_row)
{
    const int lane = threadIdx.x % WARP, row = (int)(col % TILE_COLS);
    const int m = (int)min(e.m - first_row, (int64_t)QV_FEW_AT_ONCE);
    float sums[QV_FEW_AT_ONCE] = {};
    x += first_row * s.k;
    for (int64_t k = lane; k < s.k; k += WARP) {
        const uint8_t *slice = slice_of(s, col, k);
        const struct qv_code_at_cuda at = qv_code_at_cuda(BITS, row, (int)(k % SLICE));
        const float2 f =
            factors_of(s.dtype, slice + CODES<BITS>, qv_pair_at_cuda(group, row, (int)(k % SLICE)));
        const uint32_t word = *(const uint32_t *)(slice + at.word);
        const uint32_t code = word >> at.shift & ((1 << BITS) - 1);
        const float w = __fadd_rn(__fmul_rn((float)code, f.x), f.y);
#pragma unroll
        for (int i = 0; i < QV_FEW_AT_ONCE; i++)
            if (i < m)
                sums[i] = fmaf(value(x + i * s.k + k), w, sums[i]);
    }
#pragma unroll
    for (int i = 0; i < QV_FEW_AT_ONCE; i++) {
        for (int apart = WARP / 2; apart; apart /= 2)
            sums[i] += __shfl_xor_sync(0xffffffff, sums[i], apart);
        if (lane == i && i < m)
            finish(e, first_row + i, col, sums[i], y);
    }
}

/* Few rows of f32, or with scales of f32: correct, not fast. A warp has one column, and each lane
 * every 32nd k. */
template <int BITS, typename T>
static __global__ BLOCK void
few_simple_kernel(const struct codes_shape s, const struct few_epilogue e, int64_t group,
                  const T *x, T *y)
{
    const int64_t col = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
    for (int64_t row = 0; row < e.m && col < s.n; row += QV_FEW_AT_ONCE)
        few_simple_rows<BITS>(s, e, group, x, y, col, row);
}

cudaError_t
qv_gemm_few_cuda(cudaStream_t stream, const struct qv_op_gemm_few *op, const void *x, const void *w,
                 const void *bias, const void *residual, void *y)
{
    const struct qv_groups groups = { op->w_bits, op->w_group, (qv_dtype)op->w_dtype };
    const struct codes_shape s = shape_of(op->n, op->k, &groups, w);
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
