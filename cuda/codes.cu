/* SPDX-License-Identifier: MIT */
/*
 * Kernels on a quantised w in the layout of cuda/codes.h: few rows times w, where few.cu's tensor
 * cores do not compute them; and widening w to values, for cuBLASLt.
 */
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

/* ---- widening -------------------------------------------------------------------------------- */

/* Matrices that one launch widens. */
struct widening {
    struct codes_shape s;
    struct divisor per_tile; /* slices */
    uint32_t first;          /* block */
    int bits, group_shift;   /* a group has 1 << group_shift values */
    void *y;
};
struct widenings {
    struct widening list[QV_MOST_WIDENED];
};

/* Threads that share a slice: for each row, the 4 lanes that have its codes. */
enum { SLICE_THREADS = TILE_COLS * 4, BLOCK_SLICES = THREADS / SLICE_THREADS };

/* Returns (word & mask) | power, in one instruction; a constant operand would make two. */
static __device__ __forceinline__ uint32_t
put_into(uint32_t word, uint32_t mask, uint32_t power)
{
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(power));
    return out;
}

/* Returns 8 neighbours' codes as f32. A code is put into the mantissa of a power of two, which is
 * then subtracted. Codes of 4 bits are in one word, of 8 bits in two. */
template <int BITS>
static __device__ __forceinline__ void
codes_as_floats(float (&codes)[8], const uint32_t *words)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t word = words[j * BITS / 32];
        const int shift = qv_code_at_cuda(BITS, 0, j).shift, at = shift % 16;
        const uint32_t half = word >> (shift - at);
        const uint32_t power = (uint32_t)(127 + 23 - at) << 23;
        codes[j] = __uint_as_float(put_into(half, ((1u << BITS) - 1) << at, power)) -
                   __uint_as_float(power);
    }
}

/* Turns codes into values: a product, then a sum, each rounded, as when a checkpoint is loaded.
 * With a scale of 16 bits the product is exact unless it overflows, so rounding once gives the
 * same. */
template <int DTYPE>
static __device__ __forceinline__ void
scale_codes(float (&v)[8], const float2 &f)
{
    if (DTYPE != QV_F32 && fabsf(f.x) < 0x1p119f) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = fmaf(v[j], f.x, f.y);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __fadd_rn(__fmul_rn(v[j], f.x), f.y);
    }
}

/* Widens a thread's part of a slice: 8 neighbours of each quarter, of one row. Everything is loaded
 * before the first store, because the compiler would not move loads across it. */
template <int BITS, int DTYPE, typename T>
static __device__ __forceinline__ void
widen(const struct widening &m, uint32_t in_matrix, int in_slice, T *y)
{
    const struct codes_shape &s = m.s;
    int64_t at;
    const int64_t tile = divide(in_matrix, m.per_tile, &at);
    const int lane = in_slice % WARP, upper = in_slice / WARP, in_tile = upper * 8 + lane / 4;
    const int64_t row = tile * TILE_COLS + in_tile, col = at * SLICE + lane % 4 * 8;
    if (tile >= s.tiles || row >= s.n)
        return;
    const uint8_t *slice = s.at + in_matrix * s.per_slice;
    uint32_t words[BITS];
    float2 factors[4];
#pragma unroll
    for (int i = 0; i < BITS / 4; i++) {
        const uint4 loaded = __ldg((const uint4 *)slice + (upper * BITS / 4 + i) * WARP + lane);
        memcpy(words + 4 * i, &loaded, sizeof loaded);
    }
#pragma unroll
    for (int q = 0; q < 4; q++)
        factors[q] = factors_of(DTYPE, slice + CODES<BITS>,
                                qv_pair_at_cuda(1u << m.group_shift, in_tile, q * QUARTER));
    y += row * s.k + col;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float values[8];
        codes_as_floats<BITS>(values, words + q * BITS / 4);
        scale_codes<DTYPE>(values, factors[q]);
        if (col + q * QUARTER < s.k)
            store(y + q * QUARTER, values);
    }
}

template <int BITS, typename T>
static __device__ __forceinline__ void
widen_bits(const struct widening &m, uint32_t in_matrix, int in_slice, T *y)
{
    if (m.s.dtype == QV_BF16)
        widen<BITS, QV_BF16>(m, in_matrix, in_slice, y);
    else if (m.s.dtype == QV_F16)
        widen<BITS, QV_F16>(m, in_matrix, in_slice, y);
    else
        widen<BITS, QV_F32>(m, in_matrix, in_slice, y);
}

template <typename T>
static __global__ BLOCK void
widen_kernel(const __grid_constant__ struct widenings w, int n)
{
    int at = 0;
    while (at + 1 < n && blockIdx.x >= w.list[at + 1].first)
        at++;
    const struct widening &m = w.list[at];
    const uint32_t in_matrix = (blockIdx.x - m.first) * BLOCK_SLICES + threadIdx.x / SLICE_THREADS;
    if (m.bits == 4)
        widen_bits<4>(m, in_matrix, threadIdx.x % SLICE_THREADS, (T *)m.y);
    else
        widen_bits<8>(m, in_matrix, threadIdx.x % SLICE_THREADS, (T *)m.y);
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize(); /* work that waits for this kernel needs the previous one
                                      * too */
#endif
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

cudaError_t
qv_widen_cuda(cudaStream_t stream, const struct widening_cuda *list, int n, int64_t dtype,
              bool early)
{
    struct widenings w = {};
    int64_t blocks = 0;
    for (int i = 0; i < n; i++) {
        const struct qv_matrix_cuda *m = &list[i].matrix;
        struct widening *to = &w.list[i];
        to->s = shape_of(m->n, m->k, &m->groups, list[i].w);
        to->per_tile = divisor_of(to->s.slices);
        to->first = (uint32_t)blocks;
        to->bits = (int)m->groups.bits;
        while (1 << to->group_shift < m->groups.group)
            to->group_shift++;
        to->y = list[i].y;
        blocks += ceil_div(to->s.tiles * to->s.slices, BLOCK_SLICES);
    }
    if (blocks > INT32_MAX / BLOCK_SLICES) /* slices are counted in 32 bits */
        return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    const cudaError_t error = typed(dtype, [&](auto t) {
        return cudaLaunchKernelEx(&config, widen_kernel<decltype(t)>, w, n);
    });
    if (error)
        (void)cudaGetLastError(); /* returned here, so the next caller must not find it again */
    return error;
}
