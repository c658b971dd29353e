/* SPDX-License-Identifier: MIT */
/* Operations bound by memory: vectors of 16 bytes, several on their way per thread. */
#include "device.cuh"

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
    return launch(stream, ceil_div(warps, THREADS / WARP), dim3(THREADS),
                  fast ? rows16_kernel<T> : rows_kernel<T>, s, (const uint8_t *)frames, (T *)y);
}

cudaError_t
qv_rows_cuda(cudaStream_t stream, const struct qv_op_rows *op, const void *frames, void *y)
{
    return op->dtype == QV_F32 ? rows_typed<float>(stream, op, frames, y)
                               : rows_typed<bf16>(stream, op, frames, y);
}

/* ---- convert, add ---------------------------------------------------------------------------- */

/* A vector fills a word of the wider type, so that neighbours write side by side; a thread loads
 * four before it stores. */
template <typename From, typename To> struct convert_size {
    static constexpr int N = sizeof(From) > sizeof(To) ? LANES<From> : LANES<To>;
    static constexpr int AHEAD = 4;
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
    return launch(stream, ceil_div(n, THREADS * size::AHEAD * size::N), dim3(THREADS),
                  convert_kernel<From, To>, n, (const From *)x, (To *)y);
}

cudaError_t
qv_convert_cuda(cudaStream_t stream, const struct qv_op_convert *op, const void *x, void *y)
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
qv_add_cuda(cudaStream_t stream, int64_t n, const void *x, void *y)
{
    return launch(stream, ceil_div(n, THREADS * ADD_AHEAD * LANES<float>), dim3(THREADS),
                  add_kernel, n, (const float *)x, (float *)y);
}

/* ---- norm ------------------------------------------------------------------------------------ */

/* The sum over a warp, or with WIDE over the block, in every thread and in a fixed order. */
template <bool WIDE>
static __device__ __forceinline__ float
total(float v)
{
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    if constexpr (WIDE) {
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

struct norm_shape {
    int64_t rows;
    int cols;
    float share, eps; /* share: 1 / cols */
    bool rms;
    const float *weight, *bias;
};

/* Those of N columns. */
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
 * A row in the registers of a warp, or with WIDE of a block: VECTORS of it per thread. Few rows
 * take as long as one does: then weights are loaded EARLY, beside x. Many are bound by memory: then
 * the registers are better spent on more rows at once.
 */
template <typename T, int VECTORS, bool WIDE, bool EARLY>
static __global__ void
norm_kernel(const struct norm_shape s, const T *x, T *y)
{
    constexpr int N = LANES<T>, KEPT = EARLY ? VECTORS : 1;
    const int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    const int step = WIDE ? blockDim.x : WARP, vectors = s.cols / N;
    raw<T, N> in[VECTORS];
    float by[KEPT][N], plus[KEPT][N], mean = 0, square = 0;
    if (row >= s.rows)
        return;
    x += row * s.cols;
    y += row * s.cols;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int i = threadIdx.x + k * step;
        in[k] = {};
        if (i < vectors)
            in[k] = fetch<N>(x + i * N);
    }
    if constexpr (EARLY) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            norm_weights(s, min((int)threadIdx.x + k * step, vectors - 1) * N, by[k], plus[k]);
    }
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
        if constexpr (!EARLY)
            norm_weights(s, i * N, by[0], plus[0]);
        unpack(v, in[k]);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = fmaf((v[j] - mean) * scale, by[k % KEPT][j], plus[k % KEPT][j]);
        store(y + i * N, v);
    }
}

/* Any number of rows and columns. */
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

/* Rows of VECTORS per lane of a warp. */
template <typename T, int VECTORS>
static cudaError_t
norm_narrow(cudaStream_t stream, const struct norm_shape &s, const T *x, T *y)
{
    enum { FEW = 2048, WARPS = 4 }; /* up to few an H200 holds a warp for each at once */
    if (s.rows <= FEW)
        return launch(stream, s.rows, dim3(WARP), norm_kernel<T, VECTORS, false, true>, s, x, y);
    return launch(stream, ceil_div(s.rows, WARPS), dim3(WARP, WARPS),
                  norm_kernel<T, VECTORS, false, false>, s, x, y);
}

template <typename T>
static cudaError_t
norm_typed(cudaStream_t stream, const struct qv_op_norm *op, const float *weight, const float *bias,
           const void *px, void *py)
{
    enum { WIDE_VECTORS = 2, MOST_THREADS = 1024, FEW = 512 };
    const T *x = (const T *)px;
    T *y = (T *)py;
    int64_t vectors = op->cols / LANES<T>;
    const struct norm_shape s = {
        op->rows, (int)op->cols, 1 / (float)op->cols, (float)op->eps, op->rms != 0, weight, bias
    };
    if (op->cols % LANES<T> || vectors > WIDE_VECTORS * MOST_THREADS || op->rows > INT32_MAX)
        return launch(stream, op->rows, dim3(THREADS), norm_any_kernel<T>, s, op->cols, x, y);
    if (vectors <= 2 * WARP)
        return norm_narrow<T, 2>(stream, s, x, y);
    if (vectors <= 4 * WARP)
        return norm_narrow<T, 4>(stream, s, x, y);
    if (vectors <= 5 * WARP)
        return norm_narrow<T, 5>(stream, s, x, y);
    unsigned threads = (unsigned)ceil_div(ceil_div(vectors, WIDE_VECTORS), WARP) * WARP;
    return launch(stream, op->rows, dim3(threads),
                  op->rows <= FEW ? norm_kernel<T, WIDE_VECTORS, true, true>
                                  : norm_kernel<T, WIDE_VECTORS, true, false>,
                  s, x, y);
}

cudaError_t
qv_norm_cuda(cudaStream_t stream, const struct qv_op_norm *op, const void *x, const void *weight,
             const void *bias, void *y)
{
    const float *w = (const float *)weight, *b = (const float *)bias;
    return op->dtype == QV_F32 ? norm_typed<float>(stream, op, w, b, x, y)
                               : norm_typed<bf16>(stream, op, w, b, x, y);
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
    return launch(stream, ceil_div(op->rows, y), dim3(x, y), rope_kernel<T, N>, s,
                  (const float *)cosines, (const float *)sines, (T *)qkv);
}

cudaError_t
qv_rope_cuda(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines,
             const void *sines, void *qkv)
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
    return launch(stream, ceil_div(vectors, THREADS), dim3(THREADS), taps_kernel<T, N>, vectors,
                  divisor_of(op->cols / N), (const T *)table, (const int4 *)index,
                  (const float4 *)weight, (T *)y);
}

cudaError_t
qv_taps_cuda(cudaStream_t stream, const struct qv_op_taps *op, const void *table, const void *index,
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
    return launch(stream, ceil_div(s.vectors, THREADS * FINISH_AHEAD), dim3(THREADS),
                  finish_kernel<T, N>, s, (const float *)x, (const T *)bias, (const T *)addend,
                  (T *)y);
}

cudaError_t
qv_finish_cuda(cudaStream_t stream, const struct qv_op_finish *op, const void *x, const void *bias,
               const void *addend, void *y)
{
    if (op->dtype == QV_F32)
        return op->cols % 4 ? finish_vectors<float, 1>(stream, op, x, bias, addend, y)
                            : finish_vectors<float, 4>(stream, op, x, bias, addend, y);
    return op->cols % 8 ? finish_vectors<bf16, 1>(stream, op, x, bias, addend, y)
                        : finish_vectors<bf16, 8>(stream, op, x, bias, addend, y);
}
