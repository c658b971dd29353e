/* SPDX-License-Identifier: MIT */
/* Operations bound by memory: vectors of 16 bytes, several on their way per thread. */
#include "device.cuh"

/* ---- rows ------------------------------------------------------------------------------------ */

struct rows_shape {
    int64_t rows, row_dim;
    int patch, temporal, channels;
    struct divisor by_line, by_patch, by_frames; /* values of a line, lines, frames of a row */
    const int4 *places, *coords;
    const float2 *norms; /* 3 of an item */
};

/* Where a row's patch begins in its first frame, and how its bytes become values. */
struct patch_place {
    int64_t first, line, frame; /* bytes, to the next line and to the next frame */
    float scale[3], shift[3];
};

static __device__ __forceinline__ struct patch_place
patch_of(const struct rows_shape &s, int64_t row)
{
    const int4 at = s.coords[row], place = s.places[at.x];
    const float2 *norm = s.norms + 3 * (int64_t)at.x;
    const float2 a = norm[0], b = norm[1], c = norm[2];
    int64_t size = s.patch, bytes = size * size * s.channels;
    int64_t line = place.w * size * s.channels;
    int64_t patches = place.x + (int64_t)at.y * place.y;
    return { patches * bytes + at.z * size * line + at.w * size * s.channels,
             line,
             place.z * bytes,
             { a.x, a.y, b.x },
             { b.y, c.x, c.y } };
}

/* 8 pixels of 3 channels -> 8 values of each channel, `plane` values apart. */
template <typename T>
static __device__ __forceinline__ void
store_pixels(const struct patch_place &at, const uint2 (&words)[3], T *y, int64_t plane)
{
    const uint32_t bytes[6] = { words[0].x, words[0].y, words[1].x,
                                words[1].y, words[2].x, words[2].y };
#pragma unroll
    for (int ch = 0; ch < 3; ch++) {
        float v[8];
#pragma unroll
        for (int x = 0; x < 8; x++) {
            uint32_t u = bytes[(3 * x + ch) / 4] >> (3 * x + ch) % 4 * 8 & 255;
            v[x] = fmaf((float)u, at.scale[ch], at.shift[ch]);
        }
        store(y + ch * plane, v);
    }
}

/*
 * Two frames of 16x16 pixels of 3 channels: a warp per row, a lane per half line of 8 pixels, of
 * which both frames' are on their way at once: 24 bytes, aligned to 8 because lines are multiples of
 * 48. Warps of a block have patches that lie side by side: their lines share sectors.
 */
template <typename T>
static __global__ BLOCK void
rows16_kernel(const struct rows_shape s, const uint8_t *frames, T *y)
{
    constexpr int PIXELS = 16 * 16, FRAMES = 2;
    int64_t row = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
    if (row >= s.rows)
        return;
    const int lane = threadIdx.x % WARP;
    const struct patch_place at = patch_of(s, row);
    const uint8_t *from = frames + at.first + lane / 2 * at.line + lane % 2 * 24;
    uint2 words[FRAMES][3];
#pragma unroll
    for (int t = 0; t < FRAMES; t++)
#pragma unroll
        for (int i = 0; i < 3; i++)
            words[t][i] = reinterpret_cast<const uint2 *>(from + t * at.frame)[i];
#pragma unroll
    for (int t = 0; t < FRAMES; t++)
        store_pixels(at, words[t], y + row * (3 * FRAMES * PIXELS) + t * PIXELS + lane * 8,
                     FRAMES * PIXELS);
}

/* Any patch: a warp per row, a lane per N values of it, which may be of two lines or planes. */
template <typename T, int N>
static __global__ BLOCK void
rows_kernel(const struct rows_shape s, const uint8_t *frames, T *y)
{
    int64_t row = blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
    if (row >= s.rows)
        return;
    const struct patch_place at = patch_of(s, row);
    for (int64_t i = threadIdx.x % WARP * N; i < s.row_dim; i += WARP * N) {
        int64_t x, below, t;
        int64_t ch = divide(divide(divide(i, s.by_line, &x), s.by_patch, &below), s.by_frames, &t);
        float v[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            float scale = ch == 0 ? at.scale[0] : ch == 1 ? at.scale[1] : at.scale[2];
            float shift = ch == 0 ? at.shift[0] : ch == 1 ? at.shift[1] : at.shift[2];
            int64_t from = at.first + t * at.frame + below * at.line + x * s.channels + ch;
            v[j] = fmaf((float)frames[from], scale, shift);
            if (++x == s.patch) {
                x = 0;
                if (++below == s.patch) {
                    below = 0;
                    if (++t == s.temporal) {
                        t = 0;
                        ch++;
                    }
                }
            }
        }
        store(y + row * s.row_dim + i, v);
    }
}

template <typename T>
static cudaError_t
rows_typed(cudaStream_t stream, const struct rows_shape &s, const uint8_t *frames, T *y)
{
    bool fast = s.patch == 16 && s.channels == 3 && s.temporal == 2;
    return launch(stream, ceil_div(s.rows, THREADS / WARP), dim3(THREADS),
                  fast                   ? rows16_kernel<T>
                  : s.row_dim % LANES<T> ? rows_kernel<T, 1>
                                         : rows_kernel<T, LANES<T>>,
                  s, frames, y);
}

cudaError_t
qv_patchify_cuda(cudaStream_t stream, const struct qv_op_patchify *op, const void *frames,
                 const void *places, const void *norms, const void *coords, void *y)
{
    const struct rows_shape s = { op->rows,
                                  op->channels * op->temporal * op->patch * op->patch,
                                  (int)op->patch,
                                  (int)op->temporal,
                                  (int)op->channels,
                                  divisor_of(op->patch),
                                  divisor_of(op->patch),
                                  divisor_of(op->temporal),
                                  (const int4 *)places,
                                  (const int4 *)coords,
                                  (const float2 *)norms };
    return typed(op->y_dtype, [&](auto t) {
        return rows_typed(stream, s, (const uint8_t *)frames, (decltype(t) *)y);
    });
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
    return typed(op->x_dtype, [&](auto from) {
        return typed(op->y_dtype, [&](auto to) {
            return convert_typed<decltype(from), decltype(to)>(stream, op->n, x, y);
        });
    });
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
    return typed(op->y_dtype,
                 [&](auto t) { return norm_typed<decltype(t)>(stream, op, w, b, x, y); });
}

/* ---- rope ------------------------------------------------------------------------------------ */

enum { ROPE_HEADS = 4 }; /* that share a thread's cosines and sines */

struct rope_shape {
    int64_t rows, stride, heads, half;
    int64_t groups, items;
    struct divisor vectors;
    const float *cosines, *sines; /* [positions, half/2] */
    const int4 *coords;
};

/* N of a row's angles: those of its patch's row, then those of its column. Vectors of more than one
 * value begin at multiples of 4 in a half of as many, so that two are always of one table's row. */
template <int N>
static __device__ __forceinline__ void
load_angles(float (&to)[N], const float *table, const int4 &at, int64_t quarter, int64_t first)
{
    constexpr int EACH = N > 1 ? 2 : 1;
#pragma unroll
    for (int j = 0; j < N; j += EACH) {
        int64_t d = first + j;
        const float *from = table + (d < quarter ? at.z * quarter + d : (at.w - 1) * quarter + d);
        float v[EACH];
        load(v, from);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            to[j + k] = v[k];
    }
}

/* A thread turns N values in every groups-th head. */
template <typename T, int N>
static __global__ BLOCK void
rope_kernel(const struct rope_shape s, T *x)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    if (row >= s.rows)
        return;
    const int4 coords = s.coords[row];
    for (int64_t item = threadIdx.x; item < s.items; item += blockDim.x) {
        int64_t at;
        int64_t group = divide(item, s.vectors, &at);
        float c[N], sn[N];
        load_angles(c, s.cosines, coords, s.half / 2, at * N);
        load_angles(sn, s.sines, coords, s.half / 2, at * N);
        T *first = x + row * s.stride + group * 2 * s.half + at * N;
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
             const void *sines, const void *coords, void *x)
{
    enum { AIM = 128 }; /* threads of a block: few, so that 760 rows fill the device */
    int64_t half = op->head_dim / 2, groups = ceil_div(op->heads, ROPE_HEADS);
    int64_t items = half / N * groups;
    struct rope_shape s = { op->rows,
                            qv_row_stride(op->x_stride, op->heads * op->head_dim),
                            op->heads,
                            half,
                            groups,
                            items,
                            divisor_of(half / N),
                            (const float *)cosines,
                            (const float *)sines,
                            (const int4 *)coords };
    unsigned width = (unsigned)(items < THREADS ? items : (int64_t)THREADS);
    unsigned height = width < AIM ? (AIM + width / 2) / width : 1;
    return launch(stream, ceil_div(op->rows, height), dim3(width, height), rope_kernel<T, N>, s,
                  (T *)x);
}

/* The widest vectors in which halves of heads, and so columns, and rows can be counted. */
template <typename T>
static cudaError_t
rope_typed(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines, const void *sines,
           const void *coords, void *x)
{
    int64_t half = op->head_dim / 2;
    if (half % 4 || op->x_stride % 4)
        return rope_vectors<T, 1>(stream, op, cosines, sines, coords, x);
    if (half % LANES<T> || op->x_stride % LANES<T>)
        return rope_vectors<T, 4>(stream, op, cosines, sines, coords, x);
    return rope_vectors<T, LANES<T>>(stream, op, cosines, sines, coords, x);
}

cudaError_t
qv_rope_cuda(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines,
             const void *sines, const void *coords, void *x)
{
    return typed(op->x_dtype, [&](auto t) {
        return rope_typed<decltype(t)>(stream, op, cosines, sines, coords, x);
    });
}

/* ---- interpolate ------------------------------------------------------------------------------------ */

template <typename T, int N>
static __global__ BLOCK void
interpolate_kernel(int64_t vectors, const struct divisor per_row, int quads, const T *table,
                   const int4 *index, const float4 *weight, T *y)
{
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, at;
    if (i >= vectors)
        return;
    int64_t row = divide(i, per_row, &at);
    float v[4][N], sum[N] = {};
    for (int64_t quad = row * quads; quad < (row + 1) * quads; quad++) {
        int4 taps = index[quad];
        float4 weights = weight[quad];
        const int from[4] = { taps.x, taps.y, taps.z, taps.w };
        const float by[4] = { weights.x, weights.y, weights.z, weights.w };
#pragma unroll
        for (int t = 0; t < 4; t++)
            load(v[t], table + (from[t] * per_row.by + at) * N);
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] = fmaf(by[t], v[t][j], sum[j]);
    }
    store(y + i * N, sum);
}

template <typename T, int N>
static cudaError_t
interpolate_vectors(cudaStream_t stream, const struct qv_op_interpolate *op, const void *table,
                    const void *index, const void *weight, void *y)
{
    int64_t vectors = op->rows * (op->cols / N);
    return launch(stream, ceil_div(vectors, THREADS), dim3(THREADS), interpolate_kernel<T, N>,
                  vectors, divisor_of(op->cols / N), (int)(op->taps / 4), (const T *)table,
                  (const int4 *)index, (const float4 *)weight, (T *)y);
}

cudaError_t
qv_interpolate_cuda(cudaStream_t stream, const struct qv_op_interpolate *op, const void *table,
                    const void *index, const void *weight, void *y)
{
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        return op->cols % LANES<T>
                   ? interpolate_vectors<T, 1>(stream, op, table, index, weight, y)
                   : interpolate_vectors<T, LANES<T>>(stream, op, table, index, weight, y);
    });
}

/* ---- epilogue ---------------------------------------------------------------------------------- */

enum { FINISH_AHEAD = 2 };

struct epilogue_shape {
    int64_t vectors; /* in all */
    struct divisor per_row, residual_rows;
    float alpha;
    int act;
    bool bias, residual;
};

/* residual may be y: each thread reads its values before it writes them. */
template <typename T, int N>
static __global__ BLOCK void
epilogue_kernel(const struct epilogue_shape s, const float *x, const T *bias, const T *residual,
                T *y)
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
            if (s.residual) {
                divide(row, s.residual_rows, &from);
                plus[k] = fetch<N>(residual + (from * s.per_row.by + at) * N);
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
                v[j] = activate<T>(s.act, fmaf(s.alpha, v[j], b[j])) + a[j];
            store(y + i * N, v);
        }
    }
}

template <typename T, int N>
static cudaError_t
epilogue_vectors(cudaStream_t stream, const struct qv_op_epilogue *op, const void *x,
                 const void *bias, const void *residual, void *y)
{
    struct epilogue_shape s = { op->rows * (op->cols / N),
                                divisor_of(op->cols / N),
                                divisor_of(op->residual_rows ? op->residual_rows : 1),
                                (float)op->alpha,
                                (int)op->act,
                                op->bias != 0,
                                op->residual_rows != 0 };
    return launch(stream, ceil_div(s.vectors, THREADS * FINISH_AHEAD), dim3(THREADS),
                  epilogue_kernel<T, N>, s, (const float *)x, (const T *)bias, (const T *)residual,
                  (T *)y);
}

cudaError_t
qv_epilogue_cuda(cudaStream_t stream, const struct qv_op_epilogue *op, const void *x,
                 const void *bias, const void *residual, void *y)
{
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        return op->cols % LANES<T>
                   ? epilogue_vectors<T, 1>(stream, op, x, bias, residual, y)
                   : epilogue_vectors<T, LANES<T>>(stream, op, x, bias, residual, y);
    });
}
