/* SPDX-License-Identifier: MIT */
/*
 * attention with online softmax (Milakov and Gimelshein, arXiv:1805.02867; Dao et al.,
 * arXiv:2205.14135): a threadgroup takes a block of queries of one head and iterates over its
 * segment's keys block by block. Scores never leave the registers.
 *
 * There are four simdgroups, each with a strip of 8 queries: Q, S and O are fragments of 8 x 8 in
 * registers, K and V lie in threadgroup memory. A lane holds two neighbours of one row of a
 * fragment (tile_row and tile_col of gemm.metal), and the four lanes of a row differ in bits 0 and
 * 3 of their number. The softmax works on that layout, and P has the layout that the second product
 * needs, rounded to real.
 */

enum { ATTENTION_THREADS = 128, ATTENTION_PLAIN_DIMS = 128 };

/* Below every score, and finite, so that its difference from itself is not NaN. */
constant float ATTENTION_NONE = -3.4e38f;
constant float ATTENTION_LOG2E = 1.44269504f; /* exp(x) = exp2(x log2(e)) */

/* KEYS is the keys of a block, PITCH the elements from one key to the next in threadgroup memory:
 * an odd multiple of 16 bytes, so that the rows of a fragment lie in different banks. */
template <uint HEAD_DIM> struct attention_tile {
    enum : uint {
        KEYS = sizeof(real) == 2 ? 32 : 16,
        VECTOR = 16 / sizeof(real),
        PITCH = (HEAD_DIM / VECTOR | 1) * VECTOR,
        FRAGMENTS = HEAD_DIM / 8,
        BLOCKS = KEYS / 8
    };
};

typedef simdgroup_matrix<real, 8, 8> attention_factor;
typedef simdgroup_matrix<float, 8, 8> attention_sums;

/* The state of a simdgroup for 8 queries; each lane sums its own columns. */
template <uint HEAD_DIM> struct attention_strip {
    attention_factor q[HEAD_DIM / 8];
    attention_sums o[HEAD_DIM / 8];
    float most, sum;
};

/* Loads this lane's part of one query. */
template <uint HEAD_DIM>
static inline void
attention_begin(thread attention_strip<HEAD_DIM> &strip, device const real *query, uint lane)
{
    strip.most = ATTENTION_NONE;
    strip.sum = 0;
#pragma unroll
    for (uint f = 0; f < HEAD_DIM / 8; f++) {
        strip.q[f].thread_elements()[0] = query[f * 8 + tile_col(lane)];
        strip.q[f].thread_elements()[1] = query[f * 8 + tile_col(lane) + 1];
        strip.o[f] = attention_sums(0);
    }
}

/* Copies rows of keys or values into threadgroup memory, with zeros after the last. */
template <uint HEAD_DIM>
static inline void
attention_stage(device const real *from, long step, uint rows, threadgroup real *to,
                uint thread_index)
{
    typedef attention_tile<HEAD_DIM> tile;
    const uint vectors = HEAD_DIM / 4;
    for (uint i = thread_index; i < tile::KEYS * vectors; i += ATTENTION_THREADS) {
        uint row = i / vectors, col = i % vectors * 4;
        real4 v = real4(float4(0));
        if (row < rows)
            v = *(device const real4 *)(from + row * step + col);
        *(threadgroup real4 *)(to + row * tile::PITCH + col) = v;
    }
}

/* Computes S = Q K^T. */
template <uint HEAD_DIM>
static inline void
attention_scores(thread attention_strip<HEAD_DIM> &strip, threadgroup const real *keys,
                 thread attention_sums (&s)[attention_tile<HEAD_DIM>::BLOCKS])
{
    typedef attention_tile<HEAD_DIM> tile;
#pragma unroll
    for (uint j = 0; j < tile::BLOCKS; j++) {
        s[j] = attention_sums(0);
#pragma unroll
        for (uint f = 0; f < tile::FRAGMENTS; f++) {
            attention_factor k;
            simdgroup_load(k, keys + j * 8 * tile::PITCH + f * 8, tile::PITCH, ulong2(0), true);
            simdgroup_multiply_accumulate(s[j], strip.q[f], k, s[j]);
        }
    }
}

/* Computes P = exp2(S - most) of a strip with `keys` valid columns. most becomes the greatest score
 * of all blocks so far; earlier sums are scaled down. */
template <uint HEAD_DIM>
static inline void
attention_softmax(thread attention_strip<HEAD_DIM> &strip,
                  thread attention_sums (&s)[attention_tile<HEAD_DIM>::BLOCKS],
                  thread attention_factor (&p)[attention_tile<HEAD_DIM>::BLOCKS], float scale,
                  uint keys, uint lane)
{
    typedef attention_tile<HEAD_DIM> tile;
    float most = strip.most, sum = 0;
#pragma unroll
    for (uint i = 0; i < 2 * tile::BLOCKS; i++) {
        bool counts = i / 2 * 8 + tile_col(lane) + i % 2 < keys;
        float v = counts ? s[i / 2].thread_elements()[i % 2] * scale : ATTENTION_NONE;
        s[i / 2].thread_elements()[i % 2] = v;
        most = max(most, v);
    }
    most = max(most, simd_shuffle_xor(most, 1));
    most = max(most, simd_shuffle_xor(most, 8));
#pragma unroll
    for (uint i = 0; i < 2 * tile::BLOCKS; i++) {
        float v = exp2(s[i / 2].thread_elements()[i % 2] - most);
        p[i / 2].thread_elements()[i % 2] = real(v);
        sum += v;
    }
    const float shrink = exp2(strip.most - most);
#pragma unroll
    for (uint f = 0; f < tile::FRAGMENTS; f++) {
        strip.o[f].thread_elements()[0] *= shrink;
        strip.o[f].thread_elements()[1] *= shrink;
    }
    strip.sum = strip.sum * shrink + sum;
    strip.most = most;
}

/* Computes O += P V. */
template <uint HEAD_DIM>
static inline void
attention_values(thread attention_strip<HEAD_DIM> &strip,
                 thread attention_factor (&p)[attention_tile<HEAD_DIM>::BLOCKS],
                 threadgroup const real *values)
{
    typedef attention_tile<HEAD_DIM> tile;
#pragma unroll
    for (uint f = 0; f < tile::FRAGMENTS; f++)
#pragma unroll
        for (uint j = 0; j < tile::BLOCKS; j++) {
            attention_factor v;
            simdgroup_load(v, values + j * 8 * tile::PITCH + f * 8, tile::PITCH);
            simdgroup_multiply_accumulate(strip.o[f], p[j], v, strip.o[f]);
        }
}

/* Writes y = O / sum, if there is such a query. */
template <uint HEAD_DIM>
static inline void
attention_end(thread attention_strip<HEAD_DIM> &strip, bool is_query, device real *y, uint lane)
{
    float sum = strip.sum;
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 8);
    const float share = 1 / sum;
#pragma unroll
    for (uint f = 0; f < HEAD_DIM / 8; f++)
        if (is_query) {
            y[f * 8 + tile_col(lane)] = real(strip.o[f].thread_elements()[0] * share);
            y[f * 8 + tile_col(lane) + 1] = real(strip.o[f].thread_elements()[1] * share);
        }
}

/* The place of a block of queries: its first query in the segment, the segment's first row and its
 * number of rows. */
struct attention_place {
    uint query, first, rows;
};

/* Finds the block of a threadgroup. For segments of one length it is block group.x of segment
 * group.z. Otherwise segment s has the blocks from first/queries + s on. These suffice, because
 * adding s gives each segment a block for its last rows. In a surplus block, and in a block before
 * the first segment (where the number wraps), `query` is past the segment's rows. */
static inline attention_place
attention_find(constant attention_args &a, device const int *list, uint3 group, uint queries)
{
    if (a.segment_rows)
        return { group.x * queries, group.z * a.segment_rows, a.segment_rows };
    uint s = 0;
    for (uint end = a.segments; end - s > 1;) {
        uint middle = (s + end) / 2;
        if (uint(list[middle]) / queries + middle <= group.x)
            s = middle;
        else
            end = middle;
    }
    const uint first = list[s], rows = list[a.segments + 1 + s];
    return { (group.x - first / queries - s) * queries, first, rows };
}

/* Computes one block of queries of head group.y: the whole work of a threadgroup. */
template <uint HEAD_DIM>
static inline void
attention_block(constant attention_args &a, device const int *list, device const real *q,
                device const real *k, device const real *v, device real *y,
                threadgroup uchar *shared, uint3 group, uint thread_index, uint lane, uint simd)
{
    typedef attention_tile<HEAD_DIM> tile;
    group += uint3(a.first_block, a.first_head, 0);
    const attention_place at = attention_find(a, list, group, 4 * 8);
    const uint query = at.query + simd * 8 + tile_row(lane), n_keys = tile::KEYS;
    const long width = long(a.heads) * HEAD_DIM, row = at.first;
    threadgroup real *keys = (threadgroup real *)shared, *values = keys + n_keys * tile::PITCH;
    attention_strip<HEAD_DIM> strip;
    attention_sums s[tile::BLOCKS];
    attention_factor p[tile::BLOCKS];

    if (at.query >= at.rows) /* the whole threadgroup returns */
        return;
    q += row * a.q_stride + group.y * HEAD_DIM;
    k += row * a.k_stride + group.y * HEAD_DIM;
    v += row * a.v_stride + group.y * HEAD_DIM;
    y += row * width + group.y * HEAD_DIM;
    /* queries past the last are copies of it */
    attention_begin<HEAD_DIM>(strip, q + min(query, at.rows - 1) * a.q_stride, lane);
    for (uint first = 0; first < at.rows; first += n_keys) {
        const uint n = min(n_keys, at.rows - first);
        threadgroup_barrier(mem_flags::mem_threadgroup); /* until the previous block was read */
        attention_stage<HEAD_DIM>(k + first * a.k_stride, a.k_stride, n, keys, thread_index);
        attention_stage<HEAD_DIM>(v + first * a.v_stride, a.v_stride, n, values, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        attention_scores<HEAD_DIM>(strip, keys, s);
        attention_softmax<HEAD_DIM>(strip, s, p, a.scale * ATTENTION_LOG2E, n, lane);
        attention_values<HEAD_DIM>(strip, p, values);
    }
    attention_end<HEAD_DIM>(strip, query < at.rows, y + query * width, lane);
}

/* Defines a kernel for one head size. */
#define ATTENTION_KERNEL(NAME, HEAD_DIM)                                                           \
    kernel void NAME(constant attention_args &a [[buffer(0)]],                                     \
                     device const int *list [[buffer(1)]], device const real *q [[buffer(2)]],     \
                     device const real *k [[buffer(3)]], device const real *v [[buffer(4)]],       \
                     device real *y [[buffer(5)]], threadgroup uchar *shared [[threadgroup(0)]],   \
                     uint3 group [[threadgroup_position_in_grid]],                                 \
                     uint thread_index [[thread_index_in_threadgroup]],                            \
                     uint lane [[thread_index_in_simdgroup]],                                      \
                     uint simd [[simdgroup_index_in_threadgroup]])                                 \
    {                                                                                              \
        attention_block<HEAD_DIM>(a, list, q, k, v, y, shared, group, thread_index, lane, simd);   \
    }
ATTENTION_KERNEL(attention_64, 64)
ATTENTION_KERNEL(attention_72, 72)
ATTENTION_KERNEL(attention_80, 80)

/* Handles any head size: one simdgroup per query iterates over its keys once per 128 dims. */
kernel void
attention_naive(constant attention_args &a [[buffer(0)]], device const int *list [[buffer(1)]],
                device const real *q [[buffer(2)]], device const real *k [[buffer(3)]],
                device const real *v [[buffer(4)]], device real *y [[buffer(5)]],
                uint3 group [[threadgroup_position_in_grid]],
                uint lane [[thread_index_in_simdgroup]],
                uint simd [[simdgroup_index_in_threadgroup]])
{
    group += uint3(a.first_block, a.first_head, 0);
    const attention_place at = attention_find(a, list, group, ATTENTION_THREADS / 32);
    const long width = long(a.heads) * a.head_dim, query = long(at.first) + at.query + simd;
    if (at.query + simd >= at.rows)
        return;
    q += query * a.q_stride + group.y * a.head_dim;
    k += at.first * a.k_stride + group.y * a.head_dim;
    v += at.first * a.v_stride + group.y * a.head_dim;
    y += query * width + group.y * a.head_dim;
    for (uint begin = 0; begin < a.head_dim; begin += ATTENTION_PLAIN_DIMS) {
        float most = ATTENTION_NONE, sum = 0;
        float4 o = float4(0);
        for (uint key = 0; key < at.rows; key++) {
            float s = 0;
            for (uint d = lane; d < a.head_dim; d += 32)
                s += float(q[d]) * float(k[key * a.k_stride + d]);
            s = simd_sum(s) * (a.scale * ATTENTION_LOG2E);
            float former = most, p;
            most = max(most, s);
            p = exp2(s - most);
            sum = sum * exp2(former - most) + p;
            o *= exp2(former - most);
            for (uint i = 0; i < 4; i++)
                if (begin + i * 32 + lane < a.head_dim)
                    o[i] += p * float(v[key * a.v_stride + begin + i * 32 + lane]);
        }
        for (uint i = 0; i < 4; i++)
            if (begin + i * 32 + lane < a.head_dim)
                y[begin + i * 32 + lane] = real(o[i] / sum);
    }
}
