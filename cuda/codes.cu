/* SPDX-License-Identifier: MIT */
/* Widens a quantised w in the layout of cuda/codes.h to values, for cuBLASLt. */
#include "codes.cuh"

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
