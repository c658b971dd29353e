/* SPDX-License-Identifier: MIT */
/* Copies that rearrange data: padding rows with zeros, gathering rows, im2col, transposes. */
#include "device.cuh"

#include "dtype.h"

/* ---- pad_rows -------------------------------------------------------------------------------- */

/* Out is a word of y; In is the widest word that divides both it and a row of x. n and from count
 * words of Out and In. */
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

/* Calls f with a value of the widest word that divides some sizes in bytes, which are multiples of
 * 2. sizes: their bitwise or. */
template <typename F>
static cudaError_t
worded(int64_t sizes, F f)
{
    return sizes % 4    ? f(uint16_t())
           : sizes % 8  ? f(uint32_t())
           : sizes % 16 ? f(uint2())
                        : f(uint4());
}

cudaError_t
qv_pad_rows_cuda(cudaStream_t stream, int64_t rows, int64_t from, int64_t to, int64_t dtype,
                 const void *x, void *y)
{
    const int64_t element = (int64_t)qv_dtype_bytes(dtype), a = from * element, b = to * element;
    return worded(a | b, [&](auto in) {
        typedef decltype(in) In;
        const auto pad = [&](auto out) {
            typedef decltype(out) Out;
            const int64_t words = b / (int64_t)sizeof(Out);
            return launch(stream, ceil_div(rows * words, THREADS), dim3(THREADS),
                          pad_rows_kernel<In, Out>, rows * words, a / (int64_t)sizeof(In),
                          divisor_of(words), (const In *)x, (Out *)y);
        };
        return b % 16 ? pad(in) : pad(uint4());
    });
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* Between equal types all bits are preserved. */
template <typename From, typename To, int N>
static __global__ BLOCK void
gather_kernel(int64_t vectors, const struct divisor per_row, const From *x, const int32_t *index,
              To *y)
{
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, at;
    if (i >= vectors)
        return;
    int64_t row = divide(i, per_row, &at);
    const raw<From, N> in = fetch<N>(x + (index[row] * per_row.by + at) * N);
    if constexpr (sizeof(From) == sizeof(To)) {
        put(y + i * N, in);
    } else {
        float v[N];
        unpack(v, in);
        store(y + i * N, v);
    }
}

template <typename From, typename To, int N>
static cudaError_t
gather_vectors(cudaStream_t stream, const struct qv_op_gather *op, const void *x, const void *index,
               void *y)
{
    int64_t vectors = op->rows * (op->cols / N);
    return launch(stream, ceil_div(vectors, THREADS), dim3(THREADS), gather_kernel<From, To, N>,
                  vectors, divisor_of(op->cols / N), (const From *)x, (const int32_t *)index,
                  (To *)y);
}

cudaError_t
qv_gather_cuda(cudaStream_t stream, const struct qv_op_gather *op, const void *x, const void *index,
               void *y)
{
    return typed(op->x_dtype, [&](auto from) {
        return typed(op->y_dtype, [&](auto to) {
            typedef decltype(from) From;
            typedef decltype(to) To;
            constexpr int N = sizeof(From) > sizeof(To) ? LANES<From> : LANES<To>;
            return op->cols % N ? gather_vectors<From, To, 1>(stream, op, x, index, y)
                                : gather_vectors<From, To, N>(stream, op, x, index, y);
        });
    });
}

/* ---- im2col ---------------------------------------------------------------------------------- */

enum { IM2COL_AHEAD = 4 };

/* The place in x of a value of y is the sum of two parts, one from its row and one from its column.
 * Values are copied as words that divide the runs, which are contiguous in both; a line has w
 * positions of x. */
struct im2col_shape {
    int64_t rows, words;         /* size of y */
    int64_t line, plane, volume; /* strides of x as words: w, h*w, d*h*w */
    int64_t step_d, step_h, step_w, sample;
    struct divisor tiles, run, kh, kd, hs, ws, ds;
};

template <typename W>
static __global__ BLOCK void
im2col_kernel(const struct im2col_shape s, const W *x, W *y)
{
    __shared__ int64_t from[THREADS * IM2COL_AHEAD]; /* where each row of the tile comes from */
    int64_t tile, within, i, j, z, r, q;
    int64_t row = divide(blockIdx.x, s.tiles, &tile) * (blockDim.y * IM2COL_AHEAD);
    int64_t col = tile * blockDim.x + threadIdx.x;
    for (int k = threadIdx.y * blockDim.x + threadIdx.x; k < (int)blockDim.y * IM2COL_AHEAD;
         k += blockDim.x * blockDim.y)
        if (row + k < s.rows) {
            int64_t n = divide(divide(divide(row + k, s.ws, &q), s.hs, &r), s.ds, &z);
            from[k] = n * s.sample + z * s.step_d + r * s.step_h + q * s.step_w;
        }
    int64_t c = divide(divide(divide(col, s.run, &within), s.kh, &j), s.kd, &i);
    int64_t below = c * s.volume + i * s.plane + j * s.line + within;
    __syncthreads();

    W word[IM2COL_AHEAD];
#pragma unroll
    for (int k = 0; k < IM2COL_AHEAD; k++) {
        int at = threadIdx.y + k * blockDim.y;
        if (col < s.words && row + at < s.rows)
            word[k] = x[from[at] + below];
    }
#pragma unroll
    for (int k = 0; k < IM2COL_AHEAD; k++) {
        int at = threadIdx.y + k * blockDim.y;
        if (col < s.words && row + at < s.rows)
            put_word(y + (row + at) * s.words + col, word[k]);
    }
}

template <typename W>
static cudaError_t
im2col_words(cudaStream_t stream, const struct qv_op_im2col *op, const void *x, void *y)
{
    int64_t element = (int64_t)qv_dtype_bytes(op->x_dtype), planes = op->channels_first ? op->c : 1;
    int64_t pixel = (op->channels_first ? 1 : op->c) * element, word = sizeof(W);
    int64_t ds = (op->d - op->kd) / op->sd + 1, hs = (op->h - op->kh) / op->sh + 1;
    int64_t ws = (op->w - op->kw) / op->sw + 1, run = op->kw * pixel / word;
    int64_t rows = op->n * ds * hs * ws, words = planes * op->kd * op->kh * run;
    int64_t line = op->w * pixel / word, plane = op->h * line, volume = op->d * plane;
    int64_t tiles = ceil_div(words, THREADS), width = ceil_div(words, tiles);
    int64_t height = THREADS / width;
    struct im2col_shape s = { rows,
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
    return launch(stream, ceil_div(rows, height * IM2COL_AHEAD) * tiles,
                  dim3((unsigned)width, (unsigned)height), im2col_kernel<W>, s, (const W *)x,
                  (W *)y);
}

/* With a kernel of one, channels-first becomes channels-last: x[n, c, positions] -> y[n, positions,
 * c]. */
struct transpose_shape {
    int64_t c, positions, plane; /* positions: of y; plane: all positions of x, per sample and
                                  * channel */
    int64_t tiles, step_d, step_h, step_w;
    bool dense; /* every position of x is one of y */
    struct divisor c_tiles, p_tiles, ws, hs;
};

/* Transposes tiles of 128 bytes of channels by 64 positions in shared memory. A row there is one
 * word longer than a multiple of 32, so that a column's words lie in different banks. WIDE: 16
 * bytes at once. */
template <typename E, bool WIDE_IN, bool WIDE_OUT>
static __global__ BLOCK void
transpose_kernel(const struct transpose_shape s, const E *x, E *y)
{
    constexpr int N = LANES<E>, CHANNELS = 128 / (int)sizeof(E), POSITIONS = 64;
    constexpr int WORDS = POSITIONS * (int)sizeof(E) / 4 + 1, PITCH = WORDS * 4 / (int)sizeof(E);
    constexpr int VECTORS = CHANNELS * POSITIONS / N / THREADS; /* vectors per thread */
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
transpose(cudaStream_t stream, const struct qv_op_im2col *op, const void *x, void *y)
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
    return launch(stream, s.tiles, dim3(THREADS),
                  in ? (out ? transpose_kernel<E, true, true> : transpose_kernel<E, true, false>)
                     : (out ? transpose_kernel<E, false, true> : transpose_kernel<E, false, false>),
                  s, (const E *)x, (E *)y);
}

cudaError_t
qv_im2col_cuda(cudaStream_t stream, const struct qv_op_im2col *op, const void *x, void *y)
{
    int64_t element = (int64_t)qv_dtype_bytes(op->x_dtype);
    int64_t pixel = (op->channels_first ? 1 : op->c) * element;
    if (op->channels_first && op->kd * op->kh * op->kw == 1)
        return typed(op->x_dtype, [&](auto t) {
            return transpose<typename word_of<sizeof t>::type>(stream, op, x, y);
        });
    /* a step matters only if there are several windows: the last one along w is at sw * (w' - 1) */
    int64_t step = op->w - op->kw < op->sw ? 0 : op->sw * pixel;
    return worded(op->kw * pixel | op->w * pixel | step,
                  [&](auto w) { return im2col_words<decltype(w)>(stream, op, x, y); });
}
