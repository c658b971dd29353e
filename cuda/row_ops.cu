/* SPDX-License-Identifier: MIT */
/* Memory-bound operations: they use vectors of 16 bytes, with several loads per thread in
 * flight. */
#include "device.cuh"

/* ---- convert --------------------------------------------------------------------------------- */

/* A vector fills a word of the wider type, so that neighbouring threads write adjacent words; a
 * thread loads four vectors before it stores. */
template <typename From, typename To> struct convert_size {
    static constexpr int N = sizeof(From) > sizeof(To) ? LANES<From> : LANES<To>;
    static constexpr int AHEAD = 4;
};

/* Between equal types all bits are preserved. */
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

cudaError_t
qv_convert_cuda(cudaStream_t stream, const struct qv_op_convert *op, const void *x, void *y)
{
    return typed(op->x_dtype, [&](auto from) {
        return typed(op->y_dtype, [&](auto to) {
            typedef decltype(from) From;
            typedef decltype(to) To;
            typedef convert_size<From, To> size;
            return launch(stream, ceil_div(op->n, THREADS * size::AHEAD * size::N), dim3(THREADS),
                          convert_kernel<From, To>, op->n, (const From *)x, (To *)y);
        });
    });
}

/* ---- rope ------------------------------------------------------------------------------------ */

enum { ROPE_HEADS = 4 }; /* heads that share a thread's cosines and sines */

struct rope_shape {
    int64_t rows, stride, heads, half;
    int64_t groups, items;
    struct divisor vectors;
    const float *cosines, *sines; /* [positions, half/2] */
    const int4 *coords;
};

/* Loads N angles of a row: first the angles of its patch's row, then of its column. A vector of
 * more than one value begins at a multiple of 4 in a half that is a multiple of 4, so two adjacent
 * angles are always from the same row of the table. */
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

/* A thread rotates N values in every groups-th head. */
template <typename T, int N>
static __global__ BLOCK void
rope_kernel(const struct rope_shape s, T *x)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    await_launch();
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
             const void *sines, const void *coords, void *x, bool early)
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
    return launch_shared(stream, ceil_div(op->rows, height), dim3(width, height), 0, early,
                         rope_kernel<T, N>, s, (T *)x);
}

cudaError_t
qv_rope_cuda(cudaStream_t stream, const struct qv_op_rope *op, const void *cosines,
             const void *sines, const void *coords, void *x, bool early)
{
    /* the widest vectors that divide halves of heads (and so the columns) and rows */
    const int64_t sizes = op->head_dim / 2 | op->x_stride;
    return typed(op->x_dtype, [&](auto t) {
        typedef decltype(t) T;
        return sizes % 4 ? rope_vectors<T, 1>(stream, op, cosines, sines, coords, x, early)
               : sizes % LANES<T>
                   ? rope_vectors<T, 4>(stream, op, cosines, sines, coords, x, early)
                   : rope_vectors<T, LANES<T>>(stream, op, cosines, sines, coords, x, early);
    });
}

/* ---- interpolate ----------------------------------------------------------------------------- */

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

cudaError_t
qv_interpolate_cuda(cudaStream_t stream, const struct qv_op_interpolate *op, const void *table,
                    const void *index, const void *weight, void *y)
{
    return typed_vectors(op->y_dtype, op->cols, [&](auto t, auto n) {
        typedef decltype(t) T;
        constexpr int N = n;
        const int64_t vectors = op->rows * (op->cols / N);
        return launch(stream, ceil_div(vectors, THREADS), dim3(THREADS), interpolate_kernel<T, N>,
                      vectors, divisor_of(op->cols / N), (int)(op->taps / 4), (const T *)table,
                      (const int4 *)index, (const float4 *)weight, (T *)y);
    });
}

/* ---- epilogue -------------------------------------------------------------------------------- */

enum { FINISH_AHEAD = 2 };

struct epilogue_shape {
    int64_t vectors; /* number of vectors in all rows */
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

cudaError_t
qv_epilogue_cuda(cudaStream_t stream, const struct qv_op_epilogue *op, const void *x,
                 const void *bias, const void *residual, void *y)
{
    return typed_vectors(op->y_dtype, op->cols, [&](auto t, auto n) {
        typedef decltype(t) T;
        constexpr int N = n;
        const struct epilogue_shape s = { op->rows * (op->cols / N),
                                          divisor_of(op->cols / N),
                                          divisor_of(op->residual_rows ? op->residual_rows : 1),
                                          (float)op->alpha,
                                          (int)op->act,
                                          op->bias != 0,
                                          op->residual_rows != 0 };
        return launch(stream, ceil_div(s.vectors, THREADS * FINISH_AHEAD), dim3(THREADS),
                      epilogue_kernel<T, N>, s, (const float *)x, (const T *)bias,
                      (const T *)residual, (T *)y);
    });
}

/* ---- gate: act(a) * b ------------------------------------------------------------------------ */

struct gate_shape {
    int64_t vectors; /* number of vectors in all rows */
    struct divisor per_row;
    int64_t a_stride, b_stride;
    int act;
};

/* Each thread computes one vector: having more loads in flight was no faster. */
template <typename T, int N>
static __global__ BLOCK void
gate_kernel(const struct gate_shape s, const T *a, const T *b, T *y)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    int64_t at;
    float u[N], v[N];
    if (i >= s.vectors)
        return;
    const int64_t row = divide(i, s.per_row, &at);
    load(u, a + row * s.a_stride + at * N);
    load(v, b + row * s.b_stride + at * N);
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] *= activate<T>(s.act, u[j]);
    store(y + i * N, v);
}

cudaError_t
qv_gate_cuda(cudaStream_t stream, const struct qv_op_gate *op, const void *a, const void *b,
             void *y)
{
    const int64_t sizes = op->cols | op->a_stride | op->b_stride;
    return typed_vectors(op->y_dtype, sizes, [&](auto t, auto n) {
        typedef decltype(t) T;
        constexpr int N = n;
        const struct gate_shape s = { op->rows * (op->cols / N), divisor_of(op->cols / N),
                                      qv_row_stride(op->a_stride, op->cols),
                                      qv_row_stride(op->b_stride, op->cols), (int)op->act };
        return launch(stream, ceil_div(s.vectors, THREADS), dim3(THREADS), gate_kernel<T, N>, s,
                      (const T *)a, (const T *)b, (T *)y);
    });
}
