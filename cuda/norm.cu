/* SPDX-License-Identifier: MIT */
/* norm: a row that fits in the registers of a warp or of a block is read only once. */
#include "device.cuh"

/* Returns the sum over a warp, or with WIDE over the block, in every thread and in a fixed
 * order. */
template <bool WIDE>
static __device__ __forceinline__ float
total(float v)
{
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    if constexpr (WIDE) {
        __shared__ float sums[WARP];
        __syncthreads(); /* every thread has read the sums of the previous call */
        if (threadIdx.x % WARP == 0)
            sums[threadIdx.x / WARP] = v;
        __syncthreads();
        v = 0;
        for (int i = 0; i < (int)blockDim.x / WARP; i++)
            v += sums[i];
    }
    return v;
}

struct norm_shape {
    int64_t rows;
    int cols;
    float share, eps; /* share: 1 / cols */
    bool rms;
    const float *weight, *bias;
};

/* Loads weight and bias of N columns. */
template <int N>
static __device__ __forceinline__ void
norm_weights(const struct norm_shape &s, int i, float (&by)[N], float (&plus)[N])
{
    load(by, s.weight + i);
    if (!s.rms)
        load(plus, s.bias + i);
    else
        for (int j = 0; j < N; j++)
            plus[j] = 0;
}

/*
 * Normalises rows in the registers of a warp, or with WIDE of a block, with VECTORS vectors per
 * thread. With few rows latency matters, so weights are loaded EARLY, together with x. With many
 * rows bandwidth is the limit: a warp handles several, and loads the next one while it computes. A
 * WIDE kernel's registers are better spent on more blocks at once.
 */
template <typename T, int VECTORS, bool WIDE, bool EARLY>
static __global__ void
norm_kernel(const struct norm_shape s, const T *x, T *y)
{
    constexpr bool SEVERAL = !WIDE && !EARLY;
    constexpr int N = LANES<T>, KEPT = WIDE && !EARLY ? 1 : VECTORS;
    const int64_t apart = gridDim.x * (int64_t)blockDim.y;
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    const int step = WIDE ? blockDim.x : WARP, vectors = s.cols / N;
    raw<T, N> in[VECTORS], next[VECTORS];
    const auto fetch_row = [&](raw<T, N>(&to)[VECTORS], int64_t from) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int i = threadIdx.x + k * step;
            to[k] = {};
            if (i < vectors && from < s.rows)
                to[k] = fetch<N>(x + from * s.cols + i * N);
        }
    };
    await_launch();
    float by[KEPT][N], plus[KEPT][N];
    if (row >= s.rows)
        return;
    fetch_row(in, row);
    if constexpr (KEPT == VECTORS) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            norm_weights(s, min((int)threadIdx.x + k * step, vectors - 1) * N, by[k], plus[k]);
    }
    do {
        float mean = 0, square = 0;
        if constexpr (SEVERAL)
            fetch_row(next, row + apart);
        if (!s.rms) {
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                float v[N];
                unpack(v, in[k]);
#pragma unroll
                for (int j = 0; j < N; j++)
                    mean += v[j];
            }
            mean = total<WIDE>(mean) * s.share;
        }
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            float v[N], centre = (int)threadIdx.x + k * step < vectors ? mean : 0;
            unpack(v, in[k]);
#pragma unroll
            for (int j = 0; j < N; j++)
                square = fmaf(v[j] - centre, v[j] - centre, square);
        }
        const float scale = __frsqrt_rn(fmaf(total<WIDE>(square), s.share, s.eps));
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = threadIdx.x + k * step;
            float v[N];
            if (i >= vectors)
                break;
            if constexpr (KEPT < VECTORS)
                norm_weights(s, i * N, by[0], plus[0]);
            unpack(v, in[k]);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = fmaf((v[j] - mean) * scale, by[k % KEPT][j], plus[k % KEPT][j]);
            store(y + row * s.cols + i * N, v);
        }
        row += apart;
        if constexpr (SEVERAL)
            memcpy(in, next, sizeof in);
    } while (SEVERAL && row < s.rows);
}

/* Normalises any number of rows and columns. */
template <typename T>
static __global__ BLOCK void
norm_any_kernel(const struct norm_shape s, int64_t cols, const T *x, T *y)
{
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        const T *from = x + row * cols;
        float mean = 0, square = 0;
        for (int64_t i = threadIdx.x; i < cols && !s.rms; i += THREADS)
            mean += value(from + i);
        mean = total<true>(mean) * s.share;
        for (int64_t i = threadIdx.x; i < cols; i += THREADS) {
            float d = value(from + i) - mean;
            square = fmaf(d, d, square);
        }
        const float scale = __frsqrt_rn(fmaf(total<true>(square), s.share, s.eps));
        for (int64_t i = threadIdx.x; i < cols; i += THREADS)
            set(y + row * cols + i,
                fmaf((value(from + i) - mean) * scale, s.weight[i], s.rms ? 0 : s.bias[i]));
    }
}

/* Launches rows of VECTORS vectors per lane of a warp. */
template <typename T, int VECTORS>
static cudaError_t
norm_narrow(cudaStream_t stream, const struct norm_shape &s, bool early, int multiprocessors,
            const T *x, T *y)
{
    /* FEW: rows * VECTORS that an H200 holds at once. BLOCKS: per multiprocessor */
    enum { FEW = 8192, WARPS = 4, BLOCKS = 3 };
    if (s.rows * VECTORS <= FEW)
        return launch_shared(stream, s.rows, dim3(WARP), 0, early,
                             norm_kernel<T, VECTORS, false, true>, s, x, y);
    const int64_t blocks = ceil_div(s.rows, WARPS), at_once = (int64_t)multiprocessors * BLOCKS;
    return launch_shared(stream, blocks < at_once ? blocks : at_once, dim3(WARP, WARPS), 0, early,
                         norm_kernel<T, VECTORS, false, false>, s, x, y);
}

cudaError_t
qv_norm_cuda(cudaStream_t stream, const struct qv_op_norm *op, const void *x, const void *weight,
             const void *bias, void *y, bool early, int multiprocessors)
{
    enum { WIDE_VECTORS = 2, MOST_THREADS = 1024, FEW = 512 };
    const struct norm_shape s = { op->rows,           (int)op->cols, 1 / (float)op->cols,
                                  (float)op->eps,     op->rms != 0,  (const float *)weight,
                                  (const float *)bias };
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        const T *from = (const T *)x;
        T *to = (T *)y;
        int64_t vectors = op->cols / LANES<T>;
        if (op->cols % LANES<T> || vectors > WIDE_VECTORS * MOST_THREADS || op->rows > INT32_MAX)
            return launch(stream, op->rows, dim3(THREADS), norm_any_kernel<T>, s, op->cols, from,
                          to);
        if (vectors <= 2 * WARP)
            return norm_narrow<T, 2>(stream, s, early, multiprocessors, from, to);
        if (vectors <= 4 * WARP)
            return norm_narrow<T, 4>(stream, s, early, multiprocessors, from, to);
        if (vectors <= 5 * WARP)
            return norm_narrow<T, 5>(stream, s, early, multiprocessors, from, to);
        unsigned threads = (unsigned)ceil_div(ceil_div(vectors, WIDE_VECTORS), WARP) * WARP;
        return launch_shared(stream, op->rows, dim3(threads), 0, early,
                             op->rows <= FEW ? norm_kernel<T, WIDE_VECTORS, true, true>
                                             : norm_kernel<T, WIDE_VECTORS, true, false>,
                             s, from, to);
    });
}
