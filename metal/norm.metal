/* SPDX-License-Identifier: MIT */
/*
 * norm and rope, and code shared by all memory-bound kernels. D: threads of a threadgroup. Values
 * are float or, if ALIGNED, float4; the functions are templates over the two.
 */

/* ---- values, one or four at a time ----------------------------------------------------------- */

static inline void
fetch(device const real *p, thread float &v)
{
    v = float(*p);
}

static inline void
fetch(device const real *p, thread float4 &v)
{
    v = load4(p);
}

static inline void
fetch_float(device const float *p, thread float &v)
{
    v = *p;
}

static inline void
fetch_float(device const float *p, thread float4 &v)
{
    v = *(device const float4 *)p;
}

static inline void
put(device real *p, float v)
{
    *p = real(v);
}

static inline void
put(device real *p, float4 v)
{
    store4(p, v);
}

static inline void
put_float(device float *p, float v)
{
    *p = v;
}

static inline void
put_float(device float *p, float4 v)
{
    *(device float4 *)p = v;
}

/* Returns how many items threadgroup `group` of `groups` has, out of `rows` rows of `items` items,
 * and sets `first` to its first row. A thread takes every D-th item of that run, which needs few
 * 32-bit divisions instead of many 64-bit ones. */
static inline uint
items_of_group(uint rows, uint items, uint group, uint groups, thread uint &first)
{
    uint most = (rows + groups - 1) / groups;
    first = group * most;
    return first < rows ? min(most, rows - first) * items : 0;
}

/* ---- norm ------------------------------------------------------------------------------------ */

enum { NORM_VECTORS = 9 }; /* the most vectors of a row that a thread keeps */

/* Sums over the C simdgroups of a row. All of their threads get the sum, which is added in a fixed
 * order. */
static inline float
norm_total(float v, threadgroup float *sums, uint lane, uint simd)
{
    v = simd_sum(v);
    if (C == 1)
        return v;
    threadgroup_barrier(mem_flags::mem_threadgroup); /* the previous sums have been read */
    if (lane == 0)
        sums[simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = 0;
    for (uint i = 0; i < C; i++)
        v += sums[i];
    return v;
}

/* Normalises a row of vectors. Each of its threads keeps B of them in registers; `at` is this
 * thread's first. */
static inline void
norm_row(constant norm_args &a, device const real *x, device const float *weight,
         device const float *bias, device real *y, threadgroup float *sums, uint at, uint lane,
         uint simd)
{
    const uint vectors = a.cols / 4, step = 32 * C;
    float4 v[NORM_VECTORS], sum = float4(0), square = float4(0);
#pragma unroll
    for (uint k = 0; k < NORM_VECTORS; k++)
        if (k < B && at + k * step < vectors) {
            v[k] = load4(x + 4 * (at + k * step));
            sum += v[k];
        }
    float mean = A ? 0 : norm_total(dot(sum, float4(1)), sums, lane, simd) / a.cols;
#pragma unroll
    for (uint k = 0; k < NORM_VECTORS; k++)
        if (k < B && at + k * step < vectors) {
            v[k] -= mean;
            square = fma(v[k], v[k], square);
        }
    float variance = norm_total(dot(square, float4(1)), sums, lane, simd) / a.cols;
    const float scale = rsqrt(variance + a.eps);
#pragma unroll
    for (uint k = 0; k < NORM_VECTORS; k++)
        if (k < B && at + k * step < vectors) {
            uint col = 4 * (at + k * step);
            float4 by = *(device const float4 *)(weight + col), plus = float4(0);
            if (!A)
                plus = *(device const float4 *)(bias + col);
            store4(y + col, fma(v[k] * scale, by, plus));
        }
}

/* A: rms. B: vectors per thread, up to NORM_VECTORS. C: simdgroups of a row, 1 or all of a
 * threadgroup. */
kernel void
norm(constant norm_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
     device const float *weight [[buffer(2)]], device const float *bias [[buffer(3)]],
     device real *y [[buffer(4)]], threadgroup uchar *shared [[threadgroup(0)]],
     uint3 group [[threadgroup_position_in_grid]],
     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
     uint simd [[simdgroup_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    const uint at_once = D / 32 / C; /* rows that a threadgroup computes at once */
    for (uint row = group.x * at_once + simd / C; row < a.rows; row += groups.x * at_once)
        norm_row(a, x + long(row) * a.cols, weight, bias, y + long(row) * a.cols,
                 (threadgroup float *)shared, thread_index % (32 * C), lane, simd);
}

/* For any number of columns: a simdgroup reads its row three times. A: rms. */
kernel void
norm_naive(constant norm_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
           device const float *weight [[buffer(2)]], device const float *bias [[buffer(3)]],
           device real *y [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
           uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
           uint3 groups [[threadgroups_per_grid]])
{
    for (uint row = group.x * (D / 32) + simd; row < a.rows; row += groups.x * (D / 32)) {
        const long at = long(row) * a.cols;
        float mean = 0, square = 0;
        for (uint i = lane; i < a.cols && !A; i += 32)
            mean += float(x[at + i]);
        mean = simd_sum(mean) / a.cols;
        for (uint i = lane; i < a.cols; i += 32) {
            float d = float(x[at + i]) - mean;
            square = fma(d, d, square);
        }
        const float scale = rsqrt(simd_sum(square) / a.cols + a.eps);
        for (uint i = lane; i < a.cols; i += 32)
            y[at + i] = real(fma((float(x[at + i]) - mean) * scale, weight[i], A ? 0 : bias[i]));
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

enum { ROPE_HEADS = 4 }; /* heads that share a thread's cosines and sines */

/* Returns where angle `at` of half a head is in table[positions, quarter]. The first half of the
 * angles belongs to the patch's row, the second to its column. patch: the row's coordinates. */
static inline long
rope_angle(int4 patch, uint quarter, uint at)
{
    return at < quarter ? long(patch.z) * quarter + at : long(patch.w) * quarter + at - quarter;
}

static inline void
rope_angles(device const float *table, int4 patch, uint quarter, uint at, thread float &v)
{
    v = table[rope_angle(patch, quarter, at)];
}

/* Reads pairs, because a quarter may not be whole vectors: it is 18 for heads of 72. */
static inline void
rope_angles(device const float *table, int4 patch, uint quarter, uint at, thread float4 &v)
{
    v.xy = *(device const float2 *)(table + rope_angle(patch, quarter, at));
    v.zw = *(device const float2 *)(table + rope_angle(patch, quarter, at + 2));
}

/* Rotates the pairs (a, b) of all heads up to `end`; a and b lie `reach` apart. */
template <typename F>
static inline void
rope_heads(device real *head, device real *end, uint reach, F c, F s)
{
    for (; head < end; head += 2 * reach) {
        F a, b;
        fetch(head, a);
        fetch(head + reach, b);
        put(head, a * c - b * s);
        put(head + reach, b * c + a * s);
    }
}

template <typename F>
static inline void
rope_rows(constant rope_args &a, device const float *cosines, device const float *sines,
          device const int4 *coords, device real *x, uint3 group, uint thread_index, uint3 groups)
{
    const uint size = sizeof(F) / sizeof(float), reach = a.head_dim / 2, vectors = reach / size;
    const uint items = (a.heads + ROPE_HEADS - 1) / ROPE_HEADS * vectors;
    uint first, n = items_of_group(a.rows, items, group.x, groups.x, first);
    for (uint i = thread_index; i < n; i += D) {
        uint row = first + i / items, item = i % items, at = item % vectors * size;
        uint head = item / vectors * ROPE_HEADS, end = min(head + ROPE_HEADS, a.heads);
        F c, s;
        rope_angles(cosines, coords[row], reach / 2, at, c);
        rope_angles(sines, coords[row], reach / 2, at, s);
        device real *to = x + row * a.stride + long(head) * a.head_dim + at;
        rope_heads<F>(to, to + long(end - head) * a.head_dim, reach, c, s);
    }
}

/* ALIGNED: half a head is whole vectors, and so is the distance between rows. */
kernel void
rope(constant rope_args &a [[buffer(0)]], device const float *cosines [[buffer(1)]],
     device const float *sines [[buffer(2)]], device const int4 *coords [[buffer(3)]],
     device real *x [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
     uint thread_index [[thread_index_in_threadgroup]], uint3 groups [[threadgroups_per_grid]])
{
    if (ALIGNED)
        rope_rows<float4>(a, cosines, sines, coords, x, group, thread_index, groups);
    else
        rope_rows<float>(a, cosines, sines, coords, x, group, thread_index, groups);
}
