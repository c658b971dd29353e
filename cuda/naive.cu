/* SPDX-License-Identifier: MIT */
/* Attention and convolutions without tensor cores: tiles of 64 x 64 products in f32, 4 x 4 of them
 * per thread. Both factors are in shared memory, ordered by the dimension of summation. */
#include "device.cuh"

#include <math.h>

enum {
    TILE = 64,
    STEP = 32,          /* dimensions in shared memory at once */
    SIDE = 16,          /* threads along a side of a tile */
    EACH = TILE / SIDE, /* rows, and columns, that a thread computes */
    PITCH = TILE + 4    /* floats of a row: vectors stay aligned, and writes go to different
                         * banks */
};

/* Return where element k of a thread's 8 elements of a 64 x 32 factor lies. A warp has 4 rows of 8
 * dimensions, so that its writes go to 32 banks and its reads are whole sectors. */
static __device__ __forceinline__ int
tile_row(int k)
{
    return (threadIdx.x / 32 + k % 2 * 8) * 4 + threadIdx.x % 32 / 8;
}

static __device__ __forceinline__ int
tile_dimension(int k)
{
    return k / 2 * 8 + threadIdx.x % 8;
}

/* Adds a^T b over `depth` dimensions to sums. */
static __device__ __forceinline__ void
multiply(float (&sums)[EACH][EACH], const float *a, const float *b, int depth)
{
    const int row = threadIdx.x / SIDE * EACH, col = threadIdx.x % SIDE * EACH;
#pragma unroll 8
    for (int d = 0; d < depth; d++) {
        float u[EACH], v[EACH];
        load(u, a + d * PITCH + row);
        load(v, b + d * PITCH + col);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sums[i][j] = fmaf(u[i], v[j], sums[i][j]);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_shape {
    int64_t tiles, heads, q_stride, k_stride, v_stride;
    int64_t segments, segment_rows;
    struct divisor per_head, per_segment; /* tiles in a head, tiles in a segment */
    const int32_t *first, *n_rows;        /* the list, for segments of any length */
    int head_dim;
    float scale;
};

/* Queries [q0, q0 + TILE) of a segment; the tile may go past the segment's `rows`. */
struct query_tile {
    int64_t first, rows, q0; /* rows 0: no such tile */
};

/* Finds the i-th tile of a head; tiles are counted segment by segment. Every warp counts them
 * independently, 32 segments at once. */
static __device__ __forceinline__ struct query_tile
tile_of(const struct attention_shape &s, int64_t i)
{
    struct query_tile t = { 0, s.segment_rows, 0 };
    if (s.segment_rows) {
        t.first = divide(i, s.per_segment, &t.q0) * s.segment_rows;
        t.q0 *= TILE;
        return t;
    }
    const int lane = threadIdx.x % WARP;
    for (int64_t s0 = 0; s0 < s.segments; s0 += WARP) {
        const int n = s0 + lane < s.segments ? s.n_rows[s0 + lane] : 0;
        const int own = n / TILE + (n % TILE != 0);
        int up_to = own; /* tiles up to and including this lane's */
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            int before = __shfl_up_sync(0xffffffffu, up_to, offset);
            up_to += lane >= offset ? before : 0;
        }
        const unsigned beyond = __ballot_sync(0xffffffffu, i < up_to);
        if (beyond) {
            const int at = __ffs(beyond) - 1;
            t.first = s.first[s0 + at];
            t.rows = __shfl_sync(0xffffffffu, n, at);
            t.q0 = (i - __shfl_sync(0xffffffffu, up_to - own, at)) * TILE;
            return t;
        }
        i -= __shfl_sync(0xffffffffu, up_to, WARP - 1);
    }
    return t;
}

/* Loads 64 rows by 32 dimensions of q or k, with zeros outside. */
template <typename T>
static __device__ __forceinline__ void
load_factor(float *to, const T *from, int64_t row0, int64_t rows, int64_t stride, int d0, int dims)
{
    float v[TILE * STEP / THREADS];
#pragma unroll
    for (int k = 0; k < TILE * STEP / THREADS; k++) {
        int64_t row = row0 + tile_row(k);
        int d = d0 + tile_dimension(k);
        v[k] = row < rows && d < dims ? value(from + row * stride + d) : 0;
    }
#pragma unroll
    for (int k = 0; k < TILE * STEP / THREADS; k++)
        to[tile_dimension(k) * PITCH + tile_row(k)] = v[k];
}

/*
 * A block takes 64 queries of one head, and iterates over the tiles of keys. As the largest score
 * grows, the sum of exponentials and the weighted values are rescaled (Milakov and Gimelshein,
 * arXiv:1805.02867). Each thread holds 4 queries by COLS values, every 16th of a head.
 */
template <typename T, int COLS>
static __global__ BLOCK void
attention_kernel(const struct attention_shape s, const T *all_q, const T *all_k, const T *all_v,
                 T *y)
{
    constexpr int WIDTH = COLS * SIDE; /* dimensions of a head, padded */
    /* keys whose values fit into shared memory at once */
    constexpr int KEYS = COLS <= 4 ? 64 : COLS <= 8 ? 32 : 16;
    static_assert(KEYS * WIDTH <= 2 * STEP * PITCH, "values lie where q and k did");
    __shared__ __align__(16) float factors[2 * STEP * PITCH];
    __shared__ __align__(16) float weights[TILE * PITCH]; /* ordered by key */
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const int64_t width = s.heads * s.head_dim;

    for (int64_t tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
        int64_t in_head, head = divide(tile, s.per_head, &in_head);
        const struct query_tile at = tile_of(s, in_head);
        const int64_t q0 = at.q0, rows = at.rows;
        if (!rows)
            continue;
        const T *q = all_q + at.first * s.q_stride + head * s.head_dim;
        const T *keys = all_k + at.first * s.k_stride + head * s.head_dim;
        const T *values = all_v + at.first * s.v_stride + head * s.head_dim;
        float largest[EACH], sum[EACH], out[EACH][COLS];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            largest[i] = -INFINITY;
            sum[i] = 0;
#pragma unroll
            for (int c = 0; c < COLS; c++)
                out[i][c] = 0;
        }

        for (int64_t k0 = 0; k0 < rows; k0 += TILE) {
            float p[EACH][EACH] = {};
            for (int d0 = 0; d0 < s.head_dim; d0 += STEP) {
                __syncthreads();
                load_factor(factors, q, q0, rows, s.q_stride, d0, s.head_dim);
                load_factor(factors + STEP * PITCH, keys, k0, rows, s.k_stride, d0, s.head_dim);
                __syncthreads();
                multiply(p, factors, factors + STEP * PITCH, min((int)STEP, s.head_dim - d0));
            }

#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float most = largest[i];
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    p[i][j] = k0 + tx * EACH + j < rows ? p[i][j] * s.scale : -INFINITY;
                    most = fmaxf(most, p[i][j]);
                }
#pragma unroll
                for (int offset = SIDE / 2; offset; offset /= 2)
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
                float shift = most == -INFINITY ? 0 : most; /* avoids -inf - -inf */
                float factor = expf(largest[i] - shift);
                largest[i] = most;
                sum[i] *= factor;
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    out[i][c] *= factor;
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    p[i][j] = expf(p[i][j] - shift);
                    sum[i] += p[i][j];
                }
            }
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                static_assert(EACH == 4, "a vector");
                float *to = weights + (tx * EACH + j) * PITCH + ty * EACH;
                *reinterpret_cast<float4 *>(to) = make_float4(p[0][j], p[1][j], p[2][j], p[3][j]);
            }

            for (int j0 = 0; j0 < TILE && k0 + j0 < rows; j0 += KEYS) {
                __syncthreads();
                for (int i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
                    int64_t key = k0 + j0 + i / WIDTH;
                    int d = i % WIDTH;
                    factors[i] =
                        key < rows && d < s.head_dim ? value(values + key * s.v_stride + d) : 0;
                }
                __syncthreads();
#pragma unroll 4
                for (int j = 0; j < KEYS; j++) {
                    float w[EACH];
                    load(w, weights + (j0 + j) * PITCH + ty * EACH);
#pragma unroll
                    for (int c = 0; c < COLS; c++) {
                        float v = factors[j * WIDTH + c * SIDE + tx];
#pragma unroll
                        for (int i = 0; i < EACH; i++)
                            out[i][c] = fmaf(w[i], v, out[i][c]);
                    }
                }
            }
        }

#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int64_t query = q0 + ty * EACH + i;
#pragma unroll
            for (int offset = SIDE / 2; offset; offset /= 2)
                sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                int d = c * SIDE + tx;
                if (query < rows && d < s.head_dim)
                    set(y + (at.first + query) * width + head * s.head_dim + d, out[i][c] / sum[i]);
            }
        }
    }
}

cudaError_t
qv_attention_naive_cuda(cudaStream_t stream, const struct qv_op_attention *op, const void *list,
                        const void *q, const void *k, const void *v, void *y)
{
    const int32_t *lists = (const int32_t *)list;
    int64_t width = op->heads * op->head_dim, per_segment = ceil_div(op->segment_rows, TILE);
    /* for segments of any length this is a bound: all whole tiles, and one partial tile per
     * segment */
    int64_t per_head =
        op->segment_rows ? op->segments * per_segment : op->rows / TILE + op->segments;
    struct attention_shape s = { op->heads * per_head,
                                 op->heads,
                                 qv_row_stride(op->q_stride, width),
                                 qv_row_stride(op->k_stride, width),
                                 qv_row_stride(op->v_stride, width),
                                 op->segments,
                                 op->segment_rows,
                                 divisor_of(per_head),
                                 divisor_of(per_segment ? per_segment : 1),
                                 lists,
                                 lists ? lists + op->segments + 1 : NULL,
                                 (int)op->head_dim,
                                 (float)op->scale };
    if (op->head_dim > 256)
        return cudaErrorNotSupported;
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        return launch(stream, s.tiles, dim3(THREADS),
                      op->head_dim <= 64    ? attention_kernel<T, 4>
                      : op->head_dim <= 80  ? attention_kernel<T, 5>
                      : op->head_dim <= 128 ? attention_kernel<T, 8>
                                            : attention_kernel<T, 16>,
                      s, (const T *)q, (const T *)k, (const T *)v, (T *)y);
    });
}

/* ---- convolution ----------------------------------------------------------------------------- */

struct conv_shape {
    struct qv_op_conv op;
    int64_t rows, depth, c, o; /* rows of y; length of a sum; channels of a group */
    int64_t tiles;
    float alpha;
    struct divisor ws, hs, ds, taps_c, taps_w, taps_h, o_tiles, groups, all_o, group_o,
        residual_rows;
};

/* Where the kernel begins for a row of y: its first frame, line and pixel; below 0 in padding. */
struct place {
    int64_t frame, line, pixel;
};

static __device__ __forceinline__ struct place
place_of(const struct conv_shape &s, int64_t row)
{
    int64_t z, r, q;
    int64_t n = divide(divide(divide(row, s.ws, &q), s.hs, &r), s.ds, &z);
    return { n * s.op.x_depth + z * s.op.sd, r * s.op.sh - s.op.top, q * s.op.sw - s.op.left };
}

/* Returns how far tap i lies from the kernel's first one, and its channel in the group. */
static __device__ __forceinline__ struct place
tap_of(const struct conv_shape &s, int64_t i, int64_t *c)
{
    int64_t kw, kh;
    int64_t kd = divide(divide(divide(i, s.taps_c, c), s.taps_w, &kw), s.taps_h, &kh);
    return { kd * s.op.dd, kh * s.op.dh, kw * s.op.dw };
}

/* Returns x under a tap; 0 in the padding. */
template <typename T>
static __device__ __forceinline__ float
value_below(const struct conv_shape &s, const T *x, const struct place &at, const struct place &tap,
            int64_t channel)
{
    int64_t line = at.line + tap.line, pixel = at.pixel + tap.pixel;
    if (line < 0 || line >= s.op.h || pixel < 0 || pixel >= s.op.w)
        return 0;
    return value(x + (((at.frame + tap.frame) * s.op.h + line) * s.op.w + pixel) * s.op.c +
                 channel);
}

template <typename T>
static __device__ __forceinline__ void
epilogue_sum(const struct conv_shape &s, const T *bias, const T *residual, void *y, int64_t row,
             int64_t o, float sum)
{
    int64_t at = row * s.op.o + o, from;
    if (s.op.sums) {
        float *sums = (float *)y;
        sums[at] = s.op.sums == 2 ? sums[at] + sum : sum;
        return;
    }
    sum = activate<T>((int)s.op.act, fmaf(s.alpha, sum, s.op.bias ? value(bias + o) : 0));
    if (s.op.residual_rows) {
        divide(row, s.residual_rows, &from);
        sum += value(residual + from * s.op.o + o);
    }
    set((T *)y + at, sum);
}

/* A block computes 64 rows by 64 channels of one group. */
template <typename T>
static __global__ BLOCK void
conv_kernel(const struct conv_shape s, const T *x, const T *w, const T *bias, const T *residual,
            void *y)
{
    __shared__ __align__(16) float a[STEP * PITCH], b[STEP * PITCH];
    for (int64_t tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
        int64_t o0, group;
        int64_t row0 = divide(divide(tile, s.o_tiles, &o0), s.groups, &group) * TILE;
        o0 *= TILE;
        const T *filters = w + group * s.o * s.depth;
        struct place at[2];
        for (int k = 0; k < 2; k++)
            at[k] = place_of(s, min(row0 + tile_row(k), s.rows - 1));
        float sums[EACH][EACH] = {};
        for (int64_t d0 = 0; d0 < s.depth; d0 += STEP) {
            float va[TILE * STEP / THREADS], vb[TILE * STEP / THREADS];
#pragma unroll
            for (int k = 0; k < TILE * STEP / THREADS; k += 2) {
                int64_t d = d0 + tile_dimension(k), c = 0;
                struct place tap = { 0, 0, 0 };
                if (d < s.depth)
                    tap = tap_of(s, d, &c);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int64_t o = o0 + tile_row(j);
                    bool inside = d < s.depth;
                    va[k + j] = inside ? value_below(s, x, at[j], tap, group * s.c + c) : 0;
                    vb[k + j] = inside && o < s.o ? value(filters + o * s.depth + d) : 0;
                }
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < TILE * STEP / THREADS; k++) {
                a[tile_dimension(k) * PITCH + tile_row(k)] = va[k];
                b[tile_dimension(k) * PITCH + tile_row(k)] = vb[k];
            }
            __syncthreads();
            multiply(sums, a, b, STEP);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int64_t row = row0 + threadIdx.x / SIDE * EACH + i;
                int64_t o = o0 + threadIdx.x % SIDE * EACH + j;
                if (row < s.rows && o < s.o)
                    epilogue_sum(s, bias, residual, y, row, group * s.o + o, sums[i][j]);
            }
    }
}

/* For groups with few output channels (depthwise: one): each thread computes one output. */
template <typename T>
static __global__ BLOCK void
conv_narrow_kernel(const struct conv_shape s, const T *x, const T *w, const T *bias,
                   const T *residual, void *y)
{
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, o, rest;
    int64_t row = divide(i, s.all_o, &o);
    if (row >= s.rows)
        return;
    const struct place at = place_of(s, row);
    const T *filter = w + o * s.depth;
    int64_t first = divide(o, s.group_o, &rest) * s.c;
    float sum = 0;
    for (int64_t kd = 0; kd < s.op.kd; kd++)
        for (int64_t kh = 0; kh < s.op.kh; kh++)
            for (int64_t kw = 0; kw < s.op.kw; kw++, filter += s.c) {
                struct place tap = { kd * s.op.dd, kh * s.op.dh, kw * s.op.dw };
                for (int64_t c = 0; c < s.c; c++)
                    sum = fmaf(value_below(s, x, at, tap, first + c), value(filter + c), sum);
            }
    epilogue_sum(s, bias, residual, y, row, o, sum);
}

cudaError_t
qv_conv_naive_cuda(cudaStream_t stream, const struct qv_op_conv *op, const void *x, const void *w,
                   const void *bias, const void *residual, void *y)
{
    enum { NARROW = 16 };
    int64_t ds = (op->d - op->dd * (op->kd - 1) - 1) / op->sd + 1;
    int64_t hs = (op->h + op->top + op->bottom - op->dh * (op->kh - 1) - 1) / op->sh + 1;
    int64_t ws = (op->w + op->left + op->right - op->dw * (op->kw - 1) - 1) / op->sw + 1;
    int64_t c = op->c / op->groups, o = op->o / op->groups, rows = op->n * ds * hs * ws;
    int64_t o_tiles = ceil_div(o, TILE);
    struct conv_shape s = { *op,
                            rows,
                            op->kd * op->kh * op->kw * c,
                            c,
                            o,
                            ceil_div(rows, TILE) * op->groups * o_tiles,
                            (float)op->alpha,
                            divisor_of(ws),
                            divisor_of(hs),
                            divisor_of(ds),
                            divisor_of(c),
                            divisor_of(op->kw),
                            divisor_of(op->kh),
                            divisor_of(o_tiles),
                            divisor_of(op->groups),
                            divisor_of(op->o),
                            divisor_of(o),
                            divisor_of(op->residual_rows ? op->residual_rows : 1) };
    bool narrow = o < NARROW;
    return typed(op->x_dtype, [&](auto t) {
        typedef decltype(t) T;
        return launch(stream, narrow ? ceil_div(rows * op->o, THREADS) : s.tiles, dim3(THREADS),
                      narrow ? conv_narrow_kernel<T> : conv_kernel<T>, s, (const T *)x,
                      (const T *)w, (const T *)bias, (const T *)residual, y);
    });
}
