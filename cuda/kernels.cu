/* SPDX-License-Identifier: MIT */
/* Operations bound by memory: vectors of 16 bytes, several on their way per thread. */
#include "kernels.cuh"

enum { WARP = 32 };

/* ---- rows ------------------------------------------------------------------------------------ */

struct rows_shape {
    int64_t items, row_dim, frame_patches, frames; /* frames: per pair */
    struct divisor grid_w, grid_h, per_pair, merge, patch;
    int64_t blocks_w, channels;
    float scale[3], shift[3];
};

static struct rows_shape
rows_shape_of(const struct qv_op_rows *op)
{
    int64_t frames = op->still ? 1 : op->temporal;
    return (struct rows_shape){
        op->pairs * op->grid_h * op->grid_w,
        op->channels * frames * op->patch * op->patch,
        op->grid_h * op->grid_w,
        frames,
        divisor_of(op->grid_w),
        divisor_of(op->grid_h),
        divisor_of(frames),
        divisor_of(op->merge),
        divisor_of(op->patch),
        op->grid_w / op->merge,
        op->channels,
        { (float)op->scale0, (float)op->scale1, (float)op->scale2 },
        { (float)op->shift0, (float)op->shift1, (float)op->shift2 },
    };
}

/* As qv_geometry_row_of(). */
static __device__ __forceinline__ int64_t
row_of(const struct rows_shape &s, int64_t row, int64_t col)
{
    int64_t y, x, merge = s.merge.by;
    int64_t block_row = divide(row, s.merge, &y), block_col = divide(col, s.merge, &x);
    return ((block_row * s.blocks_w + block_col) * merge + y) * merge + x;
}

/*
 * Patches of 16x16 pixels of 3 channels: a warp per patch and frame, a lane per half line of 8
 * pixels: 24 bytes, aligned to 8 because every line has 48 * grid_w of them. Warps of a block are
 * neighbours in the picture: their lines share cache lines.
 */
template <typename T>
static __global__ BLOCK void
rows16_kernel(const struct rows_shape s, const uint8_t *frames, T *y)
{
    int64_t item = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP, col, row, t;
    if (item >= s.items * s.frames)
        return;
    int lane = threadIdx.x % WARP;
    int64_t line = divide(item, s.grid_w, &col), frame = divide(line, s.grid_h, &row);
    int64_t pair = divide(frame, s.per_pair, &t);
    int64_t in = ((line * 16 + lane / 2) * s.grid_w.by + col) * 48 + lane % 2 * 24;
    int64_t out = (pair * s.frame_patches + row_of(s, row, col)) * s.row_dim + t * 256 + lane * 8;
    wait_for_earlier();

    uint32_t bytes[6];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint2 word = reinterpret_cast<const uint2 *>(frames + in)[i];
        bytes[2 * i] = word.x;
        bytes[2 * i + 1] = word.y;
    }
#pragma unroll
    for (int ch = 0; ch < 3; ch++) {
        float v[8];
#pragma unroll
        for (int x = 0; x < 8; x++) {
            uint32_t u = bytes[(3 * x + ch) / 4] >> (3 * x + ch) % 4 * 8 & 255;
            v[x] = fmaf((float)u, s.scale[ch], s.shift[ch]);
        }
        store(y + out + ch * s.frames * 256, v);
    }
}

/* Any patch: a warp per row of y. */
template <typename T>
static __global__ BLOCK void
rows_kernel(const struct rows_shape s, const uint8_t *frames, T *y)
{
    int64_t item = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP, row, col;
    if (item >= s.items)
        return;
    int64_t size = s.patch.by, width = s.grid_w.by * size, height = s.grid_h.by * size;
    int64_t line = divide(item, s.grid_w, &col), pair = divide(line, s.grid_h, &row);
    int64_t first = (pair * s.frames * height + row * size) * width + col * size;
    int64_t out = (pair * s.frame_patches + row_of(s, row, col)) * s.row_dim;
    wait_for_earlier();

    for (int64_t i = threadIdx.x % WARP; i < s.row_dim; i += WARP) {
        int64_t x, below, t;
        int64_t ch = divide(divide(divide(i, s.patch, &x), s.patch, &below), s.per_pair, &t);
        int64_t at = first + (t * height + below) * width + x;
        float scale = ch == 0 ? s.scale[0] : ch == 1 ? s.scale[1] : s.scale[2];
        float shift = ch == 0 ? s.shift[0] : ch == 1 ? s.shift[1] : s.shift[2];
        set(y + out + i, fmaf((float)frames[at * s.channels + ch], scale, shift));
    }
}

template <typename T>
static cudaError_t
rows_typed(cudaStream_t stream, const struct qv_op_rows *op, const void *frames, void *y)
{
    struct rows_shape s = rows_shape_of(op);
    bool fast = op->patch == 16 && op->channels == 3;
    int64_t warps = fast ? s.items * s.frames : s.items;
    return launch(stream, DEPENDENT, ceil_div(warps, THREADS / WARP), dim3(THREADS),
                  fast ? rows16_kernel<T> : rows_kernel<T>, s, (const uint8_t *)frames, (T *)y);
}

cudaError_t
rows_cuda(cudaStream_t stream, const struct qv_op_rows *op, const void *frames, void *y)
{
    return op->dtype == QV_F32 ? rows_typed<float>(stream, op, frames, y)
                               : rows_typed<bf16>(stream, op, frames, y);
}

/* ---- convert, add ---------------------------------------------------------------------------- */

/* A vector fills a word of the narrower type; a thread loads 64 bytes before it stores. */
template <typename From, typename To> struct convert_size {
    static constexpr int N = sizeof(From) < sizeof(To) ? LANES<From> : LANES<To>;
    static constexpr int AHEAD = 64 / (N * (int)sizeof(From));
};

/* Between equal types all bits are kept. */
template <typename From, typename To>
static __global__ BLOCK void
convert_kernel(int64_t n, const From *x, To *y)
{
    constexpr bool COPY = sizeof(From) == sizeof(To);
    constexpr int N = convert_size<From, To>::N, AHEAD = convert_size<From, To>::AHEAD;
    int64_t first = blockIdx.x * (int64_t)(THREADS * AHEAD) + threadIdx.x, vectors = n / N;
    raw<From, N> in[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (first + k * THREADS < vectors)
            in[k] = fetch<N>(x + (first + k * THREADS) * N);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (first + k * THREADS >= vectors)
            break;
        To *to = y + (first + k * THREADS) * N;
        if constexpr (COPY) {
            put(to, in[k]);
        } else {
            float v[N];
            unpack(v, in[k]);
            store(to, v);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < n % N) {
        int64_t i = vectors * N + threadIdx.x;
        if constexpr (COPY)
            y[i] = x[i];
        else
            set(y + i, value(x + i));
    }
}

template <typename From, typename To>
static cudaError_t
convert_typed(cudaStream_t stream, int64_t n, const void *x, void *y)
{
    typedef convert_size<From, To> size;
    return launch(stream, ORDERED, ceil_div(n, THREADS * size::AHEAD * size::N), dim3(THREADS),
                  convert_kernel<From, To>, n, (const From *)x, (To *)y);
}

cudaError_t
convert_cuda(cudaStream_t stream, const struct qv_op_convert *op, const void *x, void *y)
{
    if (op->from == QV_F32)
        return op->dtype == QV_F32 ? convert_typed<float, float>(stream, op->n, x, y)
                                   : convert_typed<float, bf16>(stream, op->n, x, y);
    return op->dtype == QV_F32 ? convert_typed<bf16, float>(stream, op->n, x, y)
                               : convert_typed<bf16, bf16>(stream, op->n, x, y);
}

enum { ADD_AHEAD = 2 };

static __global__ BLOCK void
add_kernel(int64_t n, const float *x, float *y)
{
    constexpr int N = LANES<float>;
    int64_t first = blockIdx.x * (int64_t)(THREADS * ADD_AHEAD) + threadIdx.x, vectors = n / N;
    float a[ADD_AHEAD][N], b[ADD_AHEAD][N];
#pragma unroll
    for (int k = 0; k < ADD_AHEAD; k++)
        if (first + k * THREADS < vectors) {
            load(a[k], x + (first + k * THREADS) * N);
            load(b[k], y + (first + k * THREADS) * N);
        }
#pragma unroll
    for (int k = 0; k < ADD_AHEAD; k++)
        if (first + k * THREADS < vectors) {
#pragma unroll
            for (int j = 0; j < N; j++)
                b[k][j] += a[k][j];
            store(y + (first + k * THREADS) * N, b[k]);
        }
    if (blockIdx.x == 0 && threadIdx.x < n % N)
        y[vectors * N + threadIdx.x] += x[vectors * N + threadIdx.x];
}

cudaError_t
add_cuda(cudaStream_t stream, int64_t n, const void *x, void *y)
{
    return launch(stream, ORDERED, ceil_div(n, THREADS * ADD_AHEAD * LANES<float>), dim3(THREADS),
                  add_kernel, n, (const float *)x, (float *)y);
}

/* ---- norm ------------------------------------------------------------------------------------ */

enum { NORM_THREADS = 128, NORM_WIDE = 512 }; /* of a block; of one row's, at most */
#define NORM_BLOCK __launch_bounds__(WIDE ? NORM_WIDE : NORM_THREADS)

/* The sum over a warp, or with WIDE over the block, in every thread; always in the same order. */
template <bool WIDE>
static __device__ __forceinline__ float
total(float v)
{
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    if (WIDE) {
        __shared__ float sums[WARP];
        __syncthreads(); /* those of the call before are read */
        if (threadIdx.x % WARP == 0)
            sums[threadIdx.x / WARP] = v;
        __syncthreads();
        v = 0;
        for (int i = 0; i < (int)blockDim.x / WARP; i++)
            v += sums[i];
    }
    return v;
}

/* sum / cols by way of share = 1 / cols, rounded as a division's: equal values have no variance. */
static __device__ __forceinline__ float
average(float sum, int64_t cols, float share)
{
    float mean = sum * share;
    return fmaf(fmaf(-mean, (float)cols, sum), share, mean);
}

static __device__ __forceinline__ void
prefetch(const float *p, int64_t n, int thread, int threads)
{
    for (int64_t i = thread * 32; i < n; i += threads * 32) { /* 128 bytes */
#ifdef __CUDA_ARCH__
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i));
#endif
    }
}

template <int FOURS>
static __device__ __forceinline__ void
load_weights(float4 (&w)[FOURS], float4 (&b)[FOURS], const float *weight, const float *bias,
             bool rms, int vector)
{
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        w[j] = reinterpret_cast<const float4 *>(weight)[vector * FOURS + j];
        b[j] = {};
        if (!rms)
            b[j] = reinterpret_cast<const float4 *>(bias)[vector * FOURS + j];
    }
}

/*
 * A row in the registers of a warp, or with WIDE of a block: VECTORS per thread. Few rows take as
 * long as one does: so no branches but around loads and stores of x and y, and weights are asked
 * for AHEAD vectors before they are needed, the first ones before x. share: 1 / cols.
 */
template <typename T, int VECTORS, bool WIDE>
static __global__ NORM_BLOCK void
norm_kernel(int64_t rows, int cols, float share, float eps, bool rms, const T *x,
            const float *weight, const float *bias, T *y)
{
    constexpr int N = LANES<T>, AHEAD = 2;
    int step = blockDim.x, vectors = cols / N, thread_x = threadIdx.x;
    int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    prefetch(weight, cols, thread, threads);
    prefetch(bias, rms ? 0 : cols, thread, threads);
    float4 w[VECTORS][N / 4], b[VECTORS][N / 4];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        load_weights(w[k], b[k], weight, bias, rms, min(thread_x + k * step, vectors - 1));
    wait_for_earlier();

    for (int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y; row < rows;
         row += gridDim.x * (int64_t)blockDim.y) {
        raw<T, N> in[VECTORS];
        float mean = 0, var = 0;
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = thread_x + k * step;
            in[k] = {};
            if (i < vectors)
                in[k] = fetch<N>(x + row * cols + i * N);
        }
        if (!rms) {
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                float v[N];
                unpack(v, in[k]);
#pragma unroll
                for (int j = 0; j < N; j++)
                    mean += v[j];
            }
            mean = average(total<WIDE>(mean), cols, share);
        }
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            float v[N], centre = thread_x + k * step < vectors ? mean : 0;
            unpack(v, in[k]);
#pragma unroll
            for (int j = 0; j < N; j++)
                var = fmaf(v[j] - centre, v[j] - centre, var);
        }
        float scale = __frsqrt_rn(fmaf(total<WIDE>(var), share, eps));
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            int i = thread_x + k * step;
            float v[N], by[N], plus[N];
            if (k + AHEAD < VECTORS)
                load_weights(w[k + AHEAD], b[k + AHEAD], weight, bias, rms,
                             min(i + AHEAD * step, vectors - 1));
            unpack(v, in[k]);
            memcpy(by, w[k], sizeof by);
            memcpy(plus, b[k], sizeof plus);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = fmaf((v[j] - mean) * scale, by[j], plus[j]);
            if (i < vectors)
                store(y + row * cols + i * N, v);
        }
    }
}

/* Any number of columns. */
template <typename T>
static __global__ BLOCK void
norm_any_kernel(int64_t rows, int64_t cols, float share, float eps, bool rms, const T *x,
                const float *weight, const float *bias, T *y)
{
    wait_for_earlier();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        float mean = 0, var = 0;
        for (int64_t i = threadIdx.x; i < cols && !rms; i += THREADS)
            mean += value(from + i);
        mean = average(total<true>(mean), cols, share);
        for (int64_t i = threadIdx.x; i < cols; i += THREADS) {
            float d = value(from + i) - mean;
            var = fmaf(d, d, var);
        }
        float scale = __frsqrt_rn(fmaf(total<true>(var), share, eps));
        for (int64_t i = threadIdx.x; i < cols; i += THREADS)
            set(y + row * cols + i,
                fmaf((value(from + i) - mean) * scale, weight[i], rms ? 0 : bias[i]));
    }
}

template <typename T>
static cudaError_t
norm_typed(cudaStream_t stream, const struct qv_op_norm *op, const void *px, const float *weight,
           const float *bias, void *py)
{
    enum { ROWS = NORM_THREADS / WARP, WIDE = 4 };
    const T *x = (const T *)px;
    T *y = (T *)py;
    float eps = (float)op->eps, share = 1 / (float)op->cols;
    const int lanes = LANES<T>, cols = (int)op->cols, vectors = cols / lanes;
    if (op->cols % lanes || op->cols / lanes > NORM_WIDE * WIDE)
        return launch(stream, DEPENDENT, op->rows, dim3(THREADS), norm_any_kernel<T>, op->rows,
                      op->cols, share, eps, op->rms != 0, x, weight, bias, y);
    if (vectors > 8 * WARP) {
        int threads = (int)ceil_div(ceil_div(vectors, WIDE), WARP) * WARP;
        return launch(stream, DEPENDENT, op->rows, dim3((unsigned)threads),
                      norm_kernel<T, WIDE, true>, op->rows, cols, share, eps, op->rms != 0, x,
                      weight, bias, y);
    }
    return launch(stream, DEPENDENT, ceil_div(op->rows, ROWS), dim3(WARP, ROWS),
                  vectors <= 2 * WARP   ? norm_kernel<T, 2, false>
                  : vectors <= 4 * WARP ? norm_kernel<T, 4, false>
                  : vectors <= 5 * WARP ? norm_kernel<T, 5, false>
                                        : norm_kernel<T, 8, false>,
                  op->rows, cols, share, eps, op->rms != 0, x, weight, bias, y);
}

cudaError_t
norm_cuda(cudaStream_t stream, const struct qv_op_norm *op, const void *x, const void *weight,
          const void *bias, void *y)
{
    const float *w = (const float *)weight, *b = (const float *)bias;
    return op->dtype == QV_F32 ? norm_typed<float>(stream, op, x, w, b, y)
                               : norm_typed<bf16>(stream, op, x, w, b, y);
}

/* ---- rope ------------------------------------------------------------------------------------ */

enum { ROPE_HEADS = 4 }; /* that share a thread's cosines and sines */

struct rope_shape {
    int64_t rows, width; /* of a row of qkv */
    int64_t heads, half; /* heads of q and k together */
    int64_t groups, items;
    struct divisor period, vectors;
};

/* A thread turns N values in every groups-th head. */
template <typename T, int N>
static __global__ BLOCK void
rope_kernel(const struct rope_shape s, const float *cosines, const float *sines, T *qkv)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y, angle;
    if (row >= s.rows)
        return;
    divide(row, s.period, &angle);
    for (int64_t item = threadIdx.x; item < s.items; item += blockDim.x) {
        int64_t at;
        int64_t group = divide(item, s.vectors, &at);
        float c[N], sn[N];
        load(c, cosines + angle * s.half + at * N);
        load(sn, sines + angle * s.half + at * N);
        T *first = qkv + row * s.width + group * 2 * s.half + at * N;
        int64_t step = s.groups * 2 * s.half;
        wait_for_earlier();

        raw<T, N> in[ROPE_HEADS][2];
#pragma unroll
        for (int k = 0; k < ROPE_HEADS; k++)
            if (group + k * s.groups < s.heads) {
                in[k][0] = fetch<N>(first + k * step);
                in[k][1] = fetch<N>(first + k * step + s.half);
            }
#pragma unroll
        for (int k = 0; k < ROPE_HEADS; k++)
            if (group + k * s.groups < s.heads) {
                float a[N], b[N], turned[N];
                unpack(a, in[k][0]);
                unpack(b, in[k][1]);
#pragma unroll
                for (int j = 0; j < N; j++)
                    turned[j] = a[j] * c[j] - b[j] * sn[j];
                store(first + k * step, turned);
#pragma unroll
                for (int j = 0; j < N; j++)
                    turned[j] = b[j] * c[j] + a[j] * sn[j];
                store(first + k * step + s.half, turned);
            }
    }
}

template <typename T, int N>
static cudaError_t
rope_vectors(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines,
             const void *sines, void *qkv)
{
    enum { AIM = 128 }; /* threads of a block: few, so that 760 rows fill the device */
    int64_t half = op->head_dim / 2, groups = ceil_div(2 * op->heads, ROPE_HEADS);
    int64_t items = half / N * groups;
    struct rope_shape s = {
        op->rows, 3 * op->heads * op->head_dim, 2 * op->heads,       half, groups,
        items,    divisor_of(op->period),       divisor_of(half / N)
    };
    unsigned x = (unsigned)(items < THREADS ? items : (int64_t)THREADS);
    unsigned y = x < AIM ? (AIM + x / 2) / x : 1;
    return launch(stream, DEPENDENT, ceil_div(op->rows, y), dim3(x, y), rope_kernel<T, N>, s,
                  (const float *)cosines, (const float *)sines, (T *)qkv);
}

cudaError_t
rope_cuda(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines, const void *sines,
          void *qkv)
{
    int64_t half = op->head_dim / 2;
    if (op->dtype == QV_F32)
        return half % 4 ? rope_vectors<float, 1>(stream, op, cosines, sines, qkv)
                        : rope_vectors<float, 4>(stream, op, cosines, sines, qkv);
    return half % 4   ? rope_vectors<bf16, 1>(stream, op, cosines, sines, qkv)
           : half % 8 ? rope_vectors<bf16, 4>(stream, op, cosines, sines, qkv)
                      : rope_vectors<bf16, 8>(stream, op, cosines, sines, qkv);
}

/* ---- taps ------------------------------------------------------------------------------------ */

template <typename T, int N>
static __global__ BLOCK void
taps_kernel(int64_t vectors, const struct divisor per_row, const T *table, const int4 *index,
            const float4 *weight, T *y)
{
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, at;
    if (i >= vectors)
        return;
    int64_t row = divide(i, per_row, &at);
    int4 taps = index[row];
    float4 weights = weight[row];
    const int from[4] = { taps.x, taps.y, taps.z, taps.w };
    const float by[4] = { weights.x, weights.y, weights.z, weights.w };
    float v[4][N], sum[N] = {};
#pragma unroll
    for (int t = 0; t < 4; t++)
        load(v[t], table + (from[t] * per_row.by + at) * N);
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] = fmaf(by[t], v[t][j], sum[j]);
    store(y + i * N, sum);
}

template <typename T, int N>
static cudaError_t
taps_vectors(cudaStream_t stream, const struct qv_op_taps *op, const void *table, const void *index,
             const void *weight, void *y)
{
    int64_t vectors = op->rows * (op->cols / N);
    return launch(stream, ORDERED, ceil_div(vectors, THREADS), dim3(THREADS), taps_kernel<T, N>,
                  vectors, divisor_of(op->cols / N), (const T *)table, (const int4 *)index,
                  (const float4 *)weight, (T *)y);
}

cudaError_t
taps_cuda(cudaStream_t stream, const struct qv_op_taps *op, const void *table, const void *index,
          const void *weight, void *y)
{
    if (op->dtype == QV_F32)
        return op->cols % 4 ? taps_vectors<float, 1>(stream, op, table, index, weight, y)
                            : taps_vectors<float, 4>(stream, op, table, index, weight, y);
    return op->cols % 8 ? taps_vectors<bf16, 1>(stream, op, table, index, weight, y)
                        : taps_vectors<bf16, 8>(stream, op, table, index, weight, y);
}

/* ---- finish ---------------------------------------------------------------------------------- */

enum { FINISH_AHEAD = 2 };

struct finish_shape {
    int64_t vectors; /* in all */
    struct divisor per_row, addend_rows;
    float alpha;
    int act;
    bool bias, addend;
};

/* addend may be y: each thread reads its values before it writes them. */
template <typename T, int N>
static __global__ BLOCK void
finish_kernel(const struct finish_shape s, const float *x, const T *bias, const T *addend, T *y)
{
    int64_t first = blockIdx.x * (int64_t)(THREADS * FINISH_AHEAD) + threadIdx.x;
    raw<float, N> in[FINISH_AHEAD];
    raw<T, N> shift[FINISH_AHEAD], plus[FINISH_AHEAD];
    wait_for_earlier();
#pragma unroll
    for (int k = 0; k < FINISH_AHEAD; k++) {
        int64_t i = first + k * THREADS, at, from;
        shift[k] = plus[k] = {};
        if (i < s.vectors) {
            int64_t row = divide(i, s.per_row, &at);
            in[k] = fetch<N>(x + i * N);
            if (s.bias)
                shift[k] = fetch<N>(bias + at * N);
            if (s.addend) {
                divide(row, s.addend_rows, &from);
                plus[k] = fetch<N>(addend + (from * s.per_row.by + at) * N);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < FINISH_AHEAD; k++) {
        int64_t i = first + k * THREADS;
        if (i < s.vectors) {
            float v[N], b[N], a[N];
            unpack(v, in[k]);
            unpack(b, shift[k]);
            unpack(a, plus[k]);
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = activate(s.act, fmaf(s.alpha, v[j], b[j])) + a[j];
            store(y + i * N, v);
        }
    }
}

template <typename T, int N>
static cudaError_t
finish_vectors(cudaStream_t stream, const struct qv_op_finish *op, const void *x, const void *bias,
               const void *addend, void *y)
{
    struct finish_shape s = { op->rows * (op->cols / N),
                              divisor_of(op->cols / N),
                              divisor_of(op->addend_rows ? op->addend_rows : 1),
                              (float)op->alpha,
                              (int)op->act,
                              op->bias != 0,
                              op->addend_rows != 0 };
    return launch(stream, DEPENDENT, ceil_div(s.vectors, THREADS * FINISH_AHEAD), dim3(THREADS),
                  finish_kernel<T, N>, s, (const float *)x, (const T *)bias, (const T *)addend,
                  (T *)y);
}

cudaError_t
finish_cuda(cudaStream_t stream, const struct qv_op_finish *op, const void *x, const void *bias,
            const void *addend, void *y)
{
    if (op->dtype == QV_F32)
        return op->cols % 4 ? finish_vectors<float, 1>(stream, op, x, bias, addend, y)
                            : finish_vectors<float, 4>(stream, op, x, bias, addend, y);
    return op->cols % 8 ? finish_vectors<bf16, 1>(stream, op, x, bias, addend, y)
                        : finish_vectors<bf16, 8>(stream, op, x, bias, addend, y);
}

/* ---- pad_rows -------------------------------------------------------------------------------- */

/* Out: a word of y; In: the widest word that divides it and a row of x. Both counts are of In. */
template <typename In, typename Out>
static __global__ BLOCK void
pad_rows_kernel(int64_t n, int64_t from, const struct divisor per_row, const In *x, Out *y)
{
    constexpr int PARTS = sizeof(Out) / sizeof(In);
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, col;
    if (i >= n)
        return;
    int64_t row = divide(i, per_row, &col);
    In parts[PARTS] = {};
    Out word;
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        if (col * PARTS + k < from)
            parts[k] = x[row * from + col * PARTS + k];
    memcpy(&word, parts, sizeof word);
    put_word(y + i, word);
}

template <typename In, typename Out>
static cudaError_t
pad_rows(cudaStream_t stream, int64_t rows, int64_t from_bytes, int64_t to_bytes, const void *x,
         void *y)
{
    int64_t words = to_bytes / (int64_t)sizeof(Out);
    return launch(stream, ORDERED, ceil_div(rows * words, THREADS), dim3(THREADS),
                  pad_rows_kernel<In, Out>, rows * words, from_bytes / (int64_t)sizeof(In),
                  divisor_of(words), (const In *)x, (Out *)y);
}

/* The widest word, in bytes, in which both can be counted. */
static int
common_word(int64_t a, int64_t b)
{
    int width = 16;
    while (a % width || b % width)
        width /= 2;
    return width;
}

cudaError_t
pad_rows_cuda(cudaStream_t stream, int64_t rows, int64_t from, int64_t to, int64_t dtype,
              const void *x, void *y)
{
    int64_t element = dtype == QV_F32 ? 4 : 2, a = from * element, b = to * element;
    int width = common_word(a, b);
    if (b % 16 == 0)
        return width == 2   ? pad_rows<uint16_t, uint4>(stream, rows, a, b, x, y)
               : width == 4 ? pad_rows<uint32_t, uint4>(stream, rows, a, b, x, y)
               : width == 8 ? pad_rows<uint2, uint4>(stream, rows, a, b, x, y)
                            : pad_rows<uint4, uint4>(stream, rows, a, b, x, y);
    return width == 2   ? pad_rows<uint16_t, uint16_t>(stream, rows, a, b, x, y)
           : width == 4 ? pad_rows<uint32_t, uint32_t>(stream, rows, a, b, x, y)
                        : pad_rows<uint2, uint2>(stream, rows, a, b, x, y);
}

/* ---- unfold ---------------------------------------------------------------------------------- */

enum { UNFOLD_AHEAD = 4 };

/* Where a value of y comes from is the sum of what its row and its column say. Words of the width
 * at which runs (what is contiguous in both) can be moved; a line is one of w in x. */
struct unfold_shape {
    int64_t rows, words;         /* of y */
    int64_t line, plane, volume; /* of x: w, h*w, d*h*w, in words */
    int64_t step_d, step_h, step_w, sample;
    struct divisor tiles, run, kh, kd, hs, ws, ds;
};

template <typename W>
static __global__ BLOCK void
unfold_kernel(const struct unfold_shape s, const W *x, W *y)
{
    __shared__ int64_t from[THREADS * UNFOLD_AHEAD]; /* of each row of the tile */
    int64_t tile, within, i, j, z, r, q;
    int64_t row = divide(blockIdx.x, s.tiles, &tile) * (blockDim.y * UNFOLD_AHEAD);
    int64_t col = tile * blockDim.x + threadIdx.x;
    for (int k = threadIdx.y * blockDim.x + threadIdx.x; k < (int)blockDim.y * UNFOLD_AHEAD;
         k += blockDim.x * blockDim.y)
        if (row + k < s.rows) {
            int64_t n = divide(divide(divide(row + k, s.ws, &q), s.hs, &r), s.ds, &z);
            from[k] = n * s.sample + z * s.step_d + r * s.step_h + q * s.step_w;
        }
    int64_t c = divide(divide(divide(col, s.run, &within), s.kh, &j), s.kd, &i);
    int64_t below = c * s.volume + i * s.plane + j * s.line + within;
    __syncthreads();

    W word[UNFOLD_AHEAD];
#pragma unroll
    for (int k = 0; k < UNFOLD_AHEAD; k++) {
        int at = threadIdx.y + k * blockDim.y;
        if (col < s.words && row + at < s.rows)
            word[k] = x[from[at] + below];
    }
#pragma unroll
    for (int k = 0; k < UNFOLD_AHEAD; k++) {
        int at = threadIdx.y + k * blockDim.y;
        if (col < s.words && row + at < s.rows)
            put_word(y + (row + at) * s.words + col, word[k]);
    }
}

template <typename W>
static cudaError_t
unfold_words(cudaStream_t stream, const struct qv_op_unfold *op, const void *x, void *y)
{
    int64_t element = op->dtype == QV_F32 ? 4 : 2, planes = op->channels_first ? op->c : 1;
    int64_t pixel = (op->channels_first ? 1 : op->c) * element, word = sizeof(W);
    int64_t ds = (op->d - op->kd) / op->sd + 1, hs = (op->h - op->kh) / op->sh + 1;
    int64_t ws = (op->w - op->kw) / op->sw + 1, run = op->kw * pixel / word;
    int64_t rows = op->n * ds * hs * ws, words = planes * op->kd * op->kh * run;
    int64_t line = op->w * pixel / word, plane = op->h * line, volume = op->d * plane;
    int64_t tiles = ceil_div(words, THREADS), width = ceil_div(words, tiles);
    int64_t height = THREADS / width;
    struct unfold_shape s = { rows,
                              words,
                              line,
                              plane,
                              volume,
                              op->sd * plane,
                              op->sh * line,
                              op->sw * pixel / word,
                              planes * volume,
                              divisor_of(tiles),
                              divisor_of(run),
                              divisor_of(op->kh),
                              divisor_of(op->kd),
                              divisor_of(hs),
                              divisor_of(ws),
                              divisor_of(ds) };
    return launch(stream, ORDERED, ceil_div(rows, height * UNFOLD_AHEAD) * tiles,
                  dim3((unsigned)width, (unsigned)height), unfold_kernel<W>, s, (const W *)x,
                  (W *)y);
}

/* A kernel of one makes channels last: x[n, c, positions] -> y[n, positions, c]. */
struct transpose_shape {
    int64_t c, positions, plane; /* positions of y, plane: all of x, per sample and channel */
    int64_t tiles, step_d, step_h, step_w;
    bool dense; /* every position of x is one of y */
    struct divisor c_tiles, p_tiles, ws, hs;
};

/* Tiles of 128 bytes of channels by 64 positions, turned in shared memory, whose rows are one word
 * longer than a multiple of 32 so that columns lie in different banks. WIDE: 16 bytes at once. */
template <typename E, bool WIDE_IN, bool WIDE_OUT>
static __global__ BLOCK void
transpose_kernel(const struct transpose_shape s, const E *x, E *y)
{
    constexpr int N = LANES<E>, CHANNELS = 128 / (int)sizeof(E), POSITIONS = 64;
    constexpr int WORDS = POSITIONS * (int)sizeof(E) / 4 + 1, PITCH = WORDS * 4 / (int)sizeof(E);
    constexpr int VECTORS = CHANNELS * POSITIONS / N / THREADS; /* of a thread */
    constexpr int SINGLES = CHANNELS * POSITIONS / THREADS;
    __shared__ uint32_t words[CHANNELS * WORDS];
    E *elements = reinterpret_cast<E *>(words);
    int thread = threadIdx.x;

    for (int64_t tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
        int64_t c0, p0, n = divide(divide(tile, s.c_tiles, &c0), s.p_tiles, &p0);
        c0 *= CHANNELS;
        p0 *= POSITIONS;
        const E *sample = x + n * s.c * s.plane;
        if (WIDE_IN) {
            uint4 in[VECTORS];
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                int v = thread + k * THREADS, c = v / (POSITIONS / N), p = v % (POSITIONS / N) * N;
                in[k] = {};
                if (c0 + c < s.c && p0 + p < s.positions)
                    in[k] = *reinterpret_cast<const uint4 *>(sample + (c0 + c) * s.plane + p0 + p);
            }
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                int v = thread + k * THREADS, c = v / (POSITIONS / N), p = v % (POSITIONS / N) * 4;
                words[c * WORDS + p] = in[k].x;
                words[c * WORDS + p + 1] = in[k].y;
                words[c * WORDS + p + 2] = in[k].z;
                words[c * WORDS + p + 3] = in[k].w;
            }
        } else {
            E in[SINGLES];
            int c = thread / POSITIONS, p = thread % POSITIONS;
            int64_t from = p0 + p, r, q;
            if (!s.dense) {
                int64_t z = divide(divide(from, s.ws, &q), s.hs, &r);
                from = z * s.step_d + r * s.step_h + q * s.step_w;
            }
#pragma unroll
            for (int k = 0; k < SINGLES; k++) {
                int64_t channel = c0 + c + k * (THREADS / POSITIONS);
                in[k] = 0;
                if (channel < s.c && p0 + p < s.positions)
                    in[k] = sample[channel * s.plane + from];
            }
#pragma unroll
            for (int k = 0; k < SINGLES; k++)
                elements[(c + k * (THREADS / POSITIONS)) * PITCH + p] = in[k];
        }
        __syncthreads();
        if (WIDE_OUT) {
#pragma unroll
            for (int k = 0; k < VECTORS; k++) {
                int v = thread + k * THREADS, c = v % (CHANNELS / N) * N, p = v / (CHANNELS / N);
                E out[N];
                raw<E, N> word;
#pragma unroll
                for (int j = 0; j < N; j++)
                    out[j] = elements[(c + j) * PITCH + p];
                memcpy(&word, out, sizeof word);
                if (c0 + c < s.c && p0 + p < s.positions)
                    put(y + (n * s.positions + p0 + p) * s.c + c0 + c, word);
            }
        } else {
            int c = thread % CHANNELS, p = thread / CHANNELS;
#pragma unroll
            for (int k = 0; k < SINGLES; k++, p += THREADS / CHANNELS)
                if (c0 + c < s.c && p0 + p < s.positions)
                    y[(n * s.positions + p0 + p) * s.c + c0 + c] = elements[c * PITCH + p];
        }
        __syncthreads();
    }
}

template <typename E>
static cudaError_t
transpose(cudaStream_t stream, const struct qv_op_unfold *op, const void *x, void *y)
{
    int64_t ds = (op->d - 1) / op->sd + 1, hs = (op->h - 1) / op->sh + 1;
    int64_t ws = (op->w - 1) / op->sw + 1, positions = ds * hs * ws;
    int64_t plane = op->d * op->h * op->w;
    int64_t c_tiles = ceil_div(op->c, 128 / (int)sizeof(E)), p_tiles = ceil_div(positions, 64);
    bool dense = positions == plane;
    struct transpose_shape s = {
        op->c,          positions,     plane, op->n * c_tiles * p_tiles, op->sd * op->h * op->w,
        op->sh * op->w, op->sw,        dense, divisor_of(c_tiles),       divisor_of(p_tiles),
        divisor_of(ws), divisor_of(hs)
    };
    bool in = dense && plane % LANES<E> == 0, out = op->c % LANES<E> == 0;
    return launch(stream, ORDERED, s.tiles, dim3(THREADS),
                  in ? (out ? transpose_kernel<E, true, true> : transpose_kernel<E, true, false>)
                     : (out ? transpose_kernel<E, false, true> : transpose_kernel<E, false, false>),
                  s, (const E *)x, (E *)y);
}

cudaError_t
unfold_cuda(cudaStream_t stream, const struct qv_op_unfold *op, const void *x, void *y)
{
    int64_t element = op->dtype == QV_F32 ? 4 : 2;
    int64_t pixel = (op->channels_first ? 1 : op->c) * element;
    if (op->channels_first && op->kd * op->kh * op->kw == 1)
        return op->dtype == QV_F32 ? transpose<uint32_t>(stream, op, x, y)
                                   : transpose<uint16_t>(stream, op, x, y);
    /* steps count only where there are several: the last one taken along w is sw * (w' - 1) */
    int64_t step = op->w - op->kw < op->sw ? 0 : op->sw * pixel;
    int width = common_word(common_word(op->kw * pixel, op->w * pixel), step);
    return width == 2   ? unfold_words<uint16_t>(stream, op, x, y)
           : width == 4 ? unfold_words<uint32_t>(stream, op, x, y)
           : width == 8 ? unfold_words<uint2>(stream, op, x, y)
                        : unfold_words<uint4>(stream, op, x, y);
}
