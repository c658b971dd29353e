/* SPDX-License-Identifier: MIT */
/*
 * gemm: y[m,n] = x[m,k] w[n,k]^T. A threadgroup of four simdgroups computes one tile of y. x and w
 * come through threadgroup memory unchanged, in steps of 64 bytes along k, and become float on
 * their way into fragments of 8 x 8. conv.metal uses the same tile. There are two more kernels: one
 * for few rows, and a naive one. Both also read a quantised w in its canonical form
 * (engine/grouped.h).
 *
 * Sums may be added in any order, and columns may be in any order in fragments. Both orders are
 * chosen so that a lane always reads and writes adjacent values: along k, fragments f = 0 and 1
 * take turns, and so do g = 0 and 1 along n. A lane at (row, col) holds (row, col) and
 * (row, col + 1) of a fragment:
 *     of x: row, at k = 2 col + f and 2 col + 2 + f
 *     of w: k = 2 row + f, at columns 2 col + 2 g and 2 col + 2 g + 1
 *     of y: row, at columns 2 col + 2 g and 2 col + 2 g + 1
 *
 * Constants of a tile:
 * - ALIGNED: k is a whole number of steps, and A is 2.
 * - A is 1 if rows of w begin at multiples of four elements, 2 if those of x do as well.
 * - B is 1 if rows of y do.
 * - C: log2 of the tiles below one another in a band; a band is walked column by column.
 * - D is not 0 if the epilogue only stores f32 sums: 1 writes them, 2 adds them to y.
 */

enum : uint {
    TILE_THREADS = 128,
    TILE_STEP = 64 / sizeof(real),  /* elements along k */
    TILE_PITCH = 96 / sizeof(real), /* from row to row; the gap keeps rows in different banks */
    TILE_VECTORS = TILE_STEP / 4,
    TILE_APART = TILE_THREADS / TILE_VECTORS, /* how many rows all threads fetch at once */
    FEW_ROWS = 16,                            /* of a threadgroup of gemm_rows */
    FEW_COLS = 4                              /* columns per simdgroup */
};

typedef vec<REAL, 2> real2;

static inline uint
tile_row(uint lane)
{
    return (lane / 4 & 4) + lane / 2 % 4;
}

static inline uint
tile_col(uint lane)
{
    return (lane / 4 & 2) * 2 + lane % 2 * 2;
}

/* Reads element `at` of a row's factors: its groups' scales, then their offsets. */
static inline float
group_factor(device const uchar *factors, uint at)
{
    const uint kind = GROUPED >> 16;
    if (kind == 0)
        return ((device const float *)factors)[at];
    const uint u = ((device const ushort *)factors)[at];
    if (kind == 2)
        return as_type<float>(u << 16);
    const uint magnitude = u & 0x7fff, sign = (u & 0x8000) << 16;
    const float f = magnitude < 0x400 ? float(magnitude) * 5.9604644775390625e-8f /* 2^-24 */
                                      : as_type<float>((magnitude << 13) + 0x38000000);
    return as_type<float>(as_type<uint>(f) | sign);
}

/* Reads four values from k on of a row of a quantised matrix, whose rows have `end` values. */
static inline float4
grouped_read(device const real *w, uint row, uint k, uint end)
{
    const uint bits = GROUPED & 255, group = GROUPED >> 8 & 255, element = GROUPED >> 16 ? 2 : 4;
    const uint codes = end / 8 * bits, groups = end / group;
    float4 v = float4(0);
    if (k >= end)
        return v;
    device const uchar *at = (device const uchar *)w + long(row) * (codes + 2 * groups * element);
    const float scale = group_factor(at + codes, k / group);
    const float offset = group_factor(at + codes, groups + k / group);
    const uint word =
        bits == 8 ? *(device const uint *)(at + k) : *(device const ushort *)(at + k / 2);
#pragma unroll
    for (uint i = 0; i < 4; i++)
        v[i] = float(word >> (i * bits) & ((1u << bits) - 1)) * scale + offset;
    return v;
}

/* Reads four values of a row from k on, with zeros past its end. */
static inline real4
tile_read(device const real *row, uint k, uint end, bool vectors)
{
    real4 v = real4(float4(0));
    if (ALIGNED || (vectors && k < end))
        v = *(device const real4 *)(row + k);
    else if (!vectors)
        for (uint i = 0; i < 4; i++)
            if (k + i < end)
                v[i] = row[k + i];
    return v;
}

/* Stages x for one step. Rows past the last repeat it, because their sums are never used. */
template <uint ROWS>
static inline void
tile_stage_x(threadgroup real *to, device const real *x, uint first, uint rows, uint k, uint end,
             uint thread_index)
{
    const uint at = thread_index % TILE_VECTORS * 4;
#pragma unroll
    for (uint i = 0; i < ROWS; i += TILE_APART) {
        uint place = i + thread_index / TILE_VECTORS;
        device const real *from = x + long(min(first + place, rows - 1)) * end;
        *(threadgroup real4 *)(to + place * TILE_PITCH + at) = tile_read(from, k + at, end, A == 2);
    }
}

/* Stages w for one step. Of 16 rows every fourth comes first, as these are read together. */
template <uint ROWS>
static inline void
tile_stage_w(threadgroup real *to, device const real *w, uint first, uint rows, uint k, uint end,
             uint thread_index)
{
    const uint at = thread_index % TILE_VECTORS * 4;
#pragma unroll
    for (uint i = 0; i < ROWS; i += TILE_APART) {
        uint place = i + thread_index / TILE_VECTORS;
        uint row = first + place / 16 * 16 + place % 4 * 4 + place / 4 % 4;
        device const real *from = w + long(min(row, rows - 1)) * end;
        if (ROWS % TILE_APART == 0 || place < ROWS)
            *(threadgroup real4 *)(to + place * TILE_PITCH + at) =
                tile_read(from, k + at, end, A != 0);
    }
}

template <uint DOWN, uint ACROSS>
static inline void
tile_clear(thread simdgroup_float8x8 (&sums)[DOWN][ACROSS])
{
#pragma unroll
    for (uint i = 0; i < DOWN; i++)
#pragma unroll
        for (uint j = 0; j < ACROSS; j++)
            sums[i][j] = simdgroup_float8x8(0);
}

/* Loads both fragments f of x: 8 rows, 16 along k. */
static inline void
tile_load_x(thread simdgroup_float8x8 (&x)[2], threadgroup const real *from)
{
    float4 v = float4(*(threadgroup const real4 *)from);
    x[0].thread_elements()[0] = v.x;
    x[1].thread_elements()[0] = v.y;
    x[0].thread_elements()[1] = v.z;
    x[1].thread_elements()[1] = v.w;
}

/* Loads all four fragments [f][g] of w: 16 columns, 16 along k. */
static inline void
tile_load_w(thread simdgroup_float8x8 (&w)[2][2], threadgroup const real *from)
{
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        float2 v = float2(*(threadgroup const real2 *)(from + i * 4 * TILE_PITCH));
        w[0][i / 2].thread_elements()[i % 2] = v.x;
        w[1][i / 2].thread_elements()[i % 2] = v.y;
    }
}

/* sums += x w^T over one step. x and w point to where the simdgroup's part begins. */
template <uint DOWN, uint ACROSS>
static inline void
tile_multiply(thread simdgroup_float8x8 (&sums)[DOWN][ACROSS], threadgroup const real *x,
              threadgroup const real *w, uint lane)
{
    x += tile_row(lane) * TILE_PITCH + tile_col(lane) * 2;
    w += tile_col(lane) / 2 * TILE_PITCH + tile_row(lane) * 2;
#pragma unroll
    for (uint k = 0; k < TILE_STEP; k += 16) {
        simdgroup_float8x8 xs[DOWN][2], ws[2][2];
#pragma unroll
        for (uint i = 0; i < DOWN; i++)
            tile_load_x(xs[i], x + i * 8 * TILE_PITCH + k);
#pragma unroll
        for (uint j = 0; j < ACROSS; j += 2) {
            tile_load_w(ws, w + j * 8 * TILE_PITCH + k);
#pragma unroll
            /* f is the outer loop, so that a sum rests between its two turns */
            for (uint i = 0; i < DOWN * 4; i++)
                simdgroup_multiply_accumulate(sums[i / 2 % DOWN][j + i % 2],
                                              xs[i / 2 % DOWN][i / (2 * DOWN)],
                                              ws[i / (2 * DOWN)][i % 2],
                                              sums[i / 2 % DOWN][j + i % 2]);
        }
    }
}

/* Stores four sums of one row; at least the first is inside y. */
static inline void
tile_store(constant epilogue_args &e, float4 v, uint row, uint col, uint n, device const real *bias,
           device const real *residual, device real *y)
{
    const long at = long(row) * n + col;
    device float *sums = (device float *)y + at; /* used if the sums stay bare */
    if (!D)
        for (uint i = 0; i < 4; i++)
            if (B || col + i < n)
                v[i] = epilogue_value(e, v[i], row, col + i, n, bias, residual);
    if (B && D)
        *(device float4 *)sums = D == 2 ? *(device float4 *)sums + v : v;
    else if (B)
        store4(y + at, v);
    else
        for (uint i = 0; i < 4; i++) {
            if (col + i < n && D)
                sums[i] = D == 2 ? sums[i] + v[i] : v[i];
            else if (col + i < n)
                y[at + i] = real(v[i]);
        }
}

template <uint DOWN, uint ACROSS>
static inline void
tile_epilogue(constant epilogue_args &e, thread simdgroup_float8x8 (&sums)[DOWN][ACROSS], uint row0,
              uint col0, uint m, uint n, device const real *bias, device const real *residual,
              device real *y, uint lane)
{
#pragma unroll
    for (uint i = 0; i < DOWN; i++)
#pragma unroll
        for (uint j = 0; j < ACROSS; j += 2) {
            uint row = row0 + i * 8 + tile_row(lane), col = col0 + j * 8 + tile_col(lane) * 2;
            float4 v =
                float4(sums[i][j].thread_elements()[0], sums[i][j].thread_elements()[1],
                       sums[i][j + 1].thread_elements()[0], sums[i][j + 1].thread_elements()[1]);
            if (row < m && col < n)
                tile_store(e, v, row, col, n, bias, residual, y);
        }
}

/* Returns a threadgroup's place in the band, in tiles. */
static inline uint2
tile_place(uint3 group)
{
    return uint2((group.y << C) + (group.x & ((1u << C) - 1)), group.x >> C);
}

/* Computes a tile of ROWS x COLS; each simdgroup has DOWN x ACROSS fragments of it. */
template <uint ROWS, uint COLS, uint DOWN, uint ACROSS>
static inline void
gemm_tile(constant gemm_args &a, device const real *x, device const real *w,
          device const real *bias, device const real *residual, device real *y,
          threadgroup uchar *shared, uint3 group, uint thread_index, uint lane, uint simd)
{
    threadgroup real *xs = (threadgroup real *)shared, *ws = xs + ROWS * TILE_PITCH;
    const uint row0 = tile_place(group).x * ROWS, col0 = tile_place(group).y * COLS;
    const uint down = simd / (COLS / 8 / ACROSS) * DOWN * 8;
    const uint across = simd % (COLS / 8 / ACROSS) * ACROSS * 8;
    simdgroup_float8x8 sums[DOWN][ACROSS];
    if (row0 >= a.m) /* the last band has fewer tiles */
        return;
    tile_clear(sums);
    for (uint k = 0; k < a.k; k += TILE_STEP) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        tile_stage_x<ROWS>(xs, x, row0, a.m, k, a.k, thread_index);
        tile_stage_w<COLS>(ws, w, col0, a.n, k, a.k, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        tile_multiply(sums, xs + down * TILE_PITCH, ws + across * TILE_PITCH, lane);
    }
    tile_epilogue(a.epilogue, sums, row0 + down, col0 + across, a.m, a.n, bias, residual, y, lane);
}

/* Defines a kernel of one tile size, with the parameters that GEMMs and convolutions share. */
#define TILE_KERNEL(NAME, TILE, ARGUMENTS, ROWS, COLS, DOWN, ACROSS)                               \
    kernel void NAME(constant ARGUMENTS &a [[buffer(0)]], device const real *x [[buffer(1)]],      \
                     device const real *w [[buffer(2)]], device const real *bias [[buffer(3)]],    \
                     device const real *residual [[buffer(4)]], device real *y [[buffer(5)]],      \
                     threadgroup uchar *shared [[threadgroup(0)]],                                 \
                     uint3 group [[threadgroup_position_in_grid]],                                 \
                     uint thread_index [[thread_index_in_threadgroup]],                            \
                     uint lane [[thread_index_in_simdgroup]],                                      \
                     uint simd [[simdgroup_index_in_threadgroup]])                                 \
    {                                                                                              \
        TILE<ROWS, COLS, DOWN, ACROSS>(a, x, w, bias, residual, y, shared, group, thread_index,    \
                                       lane, simd);                                                \
    }
TILE_KERNEL(gemm_64x64, gemm_tile, gemm_args, 64, 64, 4, 4)
TILE_KERNEL(gemm_64x32, gemm_tile, gemm_args, 64, 32, 4, 2)
TILE_KERNEL(gemm_32x64, gemm_tile, gemm_args, 32, 64, 4, 2)
TILE_KERNEL(gemm_32x32, gemm_tile, gemm_args, 32, 32, 2, 2)
TILE_KERNEL(gemm_128x16, gemm_tile, gemm_args, 128, 16, 4, 2)

/* Computes sums[row][col] of the simdgroup's columns. Each lane sums over its own part of k. */
static inline void
gemm_few_sums(thread float (&sums)[FEW_ROWS][FEW_COLS], constant gemm_args &a, device const real *x,
              device const real *w, uint rows, uint col0, uint lane)
{
    for (uint k = lane * 4; k < a.k; k += 128) {
        float4 ws[FEW_COLS];
#pragma unroll
        for (uint j = 0; j < FEW_COLS; j++)
            ws[j] = GROUPED
                        ? grouped_read(w, min(col0 + j, a.n - 1), k, a.k)
                        : float4(tile_read(w + long(min(col0 + j, a.n - 1)) * a.k, k, a.k, B != 0));
#pragma unroll
        for (uint i = 0; i < FEW_ROWS; i++)
            if (i < rows) {
                float4 v = float4(tile_read(x + long(i) * a.k, k, a.k, B != 0));
#pragma unroll
                for (uint j = 0; j < FEW_COLS; j++)
                    sums[i][j] += dot(v, ws[j]);
            }
    }
}

/* For few rows: a simdgroup computes four columns for up to 16 rows, so that w is read once for
 * them. A: the number of rows of y, if it is at most 16; else 0. B: rows begin at multiples of four
 * elements. */
kernel void
gemm_rows(constant gemm_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
          device const real *w [[buffer(2)]], device const real *bias [[buffer(3)]],
          device const real *residual [[buffer(4)]], device real *y [[buffer(5)]],
          uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
          uint simd [[simdgroup_index_in_threadgroup]])
{
    const uint col0 = (group.x * (TILE_THREADS / 32) + simd) * FEW_COLS;
    const uint row0 = group.y * FEW_ROWS, rows = A ? A : min(a.m - row0, uint(FEW_ROWS));
    float sums[FEW_ROWS][FEW_COLS] = {}, mine[FEW_ROWS * FEW_COLS / 32] = {};
    if (col0 >= a.n)
        return;
    gemm_few_sums(sums, a, x + long(row0) * a.k, w, rows, col0, lane);
#pragma unroll
    for (uint i = 0; i < FEW_ROWS * FEW_COLS; i++)
        if (i / FEW_COLS < rows) {
            float sum = simd_sum(sums[i / FEW_COLS][i % FEW_COLS]);
            mine[i / 32] = lane == i % 32 ? sum : mine[i / 32];
        }
#pragma unroll
    for (uint i = 0; i < FEW_ROWS * FEW_COLS / 32; i++) {
        uint row = (i * 32 + lane) / FEW_COLS, col = col0 + lane % FEW_COLS;
        if (row < rows && col < a.n)
            y[(row0 + row) * a.n + col] =
                real(epilogue_value(a.epilogue, mine[i], row0 + row, col, a.n, bias, residual));
    }
}

/* One thread per output. */
kernel void
gemm_naive(constant gemm_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
           device const real *w [[buffer(2)]], device const real *bias [[buffer(3)]],
           device const real *residual [[buffer(4)]], device real *y [[buffer(5)]],
           uint3 thread_position [[thread_position_in_grid]])
{
    const uint row = thread_position.x / a.n, col = thread_position.x % a.n;
    float sum = 0;
    if (row >= a.m)
        return;
    for (uint k = 0; k < a.k; k++)
        sum = fma(float(x[long(row) * a.k + k]),
                  GROUPED ? grouped_read(w, col, k - k % 4, a.k)[k % 4]
                          : float(w[long(col) * a.k + k]),
                  sum);
    y[thread_position.x] = real(epilogue_value(a.epilogue, sum, row, col, a.n, bias, residual));
}
