/* SPDX-License-Identifier: MIT */
/*
 * conv as a GEMM without a matrix of windows: rows are outputs, columns their channels, and k goes
 * over (depth, height, width, channel), the order of w[o, taps, c] in memory, all into one
 * accumulator. The tile and its constants are gemm.metal's. Only x is fetched differently: each
 * thread steps along k by the digits of its position. Grouped convolutions run on conv_naive.
 */

/* A position along k, or the length of a step. */
struct conv_tap {
    uint c, w, h, d;
};

/* Where an output's window begins: its first value in x, and its image row and column, which may be
 * in the padding. */
struct conv_window {
    long at;
    int top, left;
};

static inline conv_tap
conv_tap_at(constant conv_args &a, uint k)
{
    conv_tap tap;
    uint taps = k / a.c;
    tap.c = k % a.c;
    tap.w = taps % a.taps[2];
    tap.h = taps / a.taps[2] % a.taps[1];
    tap.d = taps / a.taps[2] / a.taps[1];
    return tap;
}

/* Computes tap += by, digit by digit, without divisions. */
static inline void
conv_advance(thread conv_tap &tap, conv_tap by, constant conv_args &a)
{
    tap.c += by.c;
    bool carry = tap.c >= a.c;
    tap.c -= carry ? a.c : 0;
    tap.w += by.w + carry;
    carry = tap.w >= a.taps[2];
    tap.w -= carry ? a.taps[2] : 0;
    tap.h += by.h + carry;
    carry = tap.h >= a.taps[1];
    tap.h -= carry ? a.taps[1] : 0;
    tap.d += by.d + carry;
}

static inline uint
conv_rows(constant conv_args &a)
{
    return a.n * a.out[0] * a.out[1] * a.out[2];
}

/* Returns the window of an output; a window past the last output sees only padding. */
static inline conv_window
conv_window_of(constant conv_args &a, uint row)
{
    conv_window window;
    uint across = row % a.out[2], down = row / a.out[2] % a.out[1];
    uint frames = row / a.out[2] / a.out[1];
    long z = long(frames / a.out[0]) * a.x_depth + long(frames % a.out[0]) * a.stride[0];
    window.top = int(down * a.stride[1]) - int(a.top);
    window.left = int(across * a.stride[2]) - int(a.left);
    window.at = ((z * a.in[1] + window.top) * a.in[2] + window.left) * a.c;
    if (row >= conv_rows(a))
        window.top = -(1 << 30);
    return window;
}

/* Returns the offset of a tap from the first value of its window. */
static inline long
conv_offset(constant conv_args &a, conv_tap tap)
{
    long z = long(tap.d) * a.dilation[0];
    return ((z * a.in[1] + tap.h * a.dilation[1]) * a.in[2] + tap.w * a.dilation[2]) * a.c + tap.c;
}

/* Returns whether a tap of a window exists: it is neither past the end of k nor in the padding. */
static inline bool
conv_sees(constant conv_args &a, conv_window window, conv_tap tap)
{
    return tap.d < a.taps[0] && uint(window.top + int(tap.h * a.dilation[1])) < a.in[1] &&
           uint(window.left + int(tap.w * a.dilation[2])) < a.in[2];
}

/* The part of x that a thread fetches: four values along k, of every TILE_APART-th row. */
template <uint ROWS> struct conv_part {
    enum : uint { EACH = ROWS / TILE_APART };
    conv_window windows[EACH];
    conv_tap tap, step, one;
};

template <uint ROWS>
static inline void
conv_begin(thread conv_part<ROWS> &part, constant conv_args &a, uint row0, uint thread_index)
{
#pragma unroll
    for (uint i = 0; i < conv_part<ROWS>::EACH; i++)
        part.windows[i] = conv_window_of(a, row0 + thread_index / TILE_VECTORS + i * TILE_APART);
    part.tap = conv_tap_at(a, thread_index % TILE_VECTORS * 4);
    part.step = conv_tap_at(a, TILE_STEP);
    part.one = conv_tap_at(a, 1);
}

/* Fetches x for one step, in vectors of channels, or in elements if a vector would span more than
 * one tap. */
template <uint ROWS>
static inline void
conv_stage(threadgroup real *to, device const real *x, thread conv_part<ROWS> &part,
           constant conv_args &a, uint thread_index)
{
    conv_tap tap = part.tap;
    to += thread_index / TILE_VECTORS * TILE_PITCH + thread_index % TILE_VECTORS * 4;
    for (uint e = 0; e < (A == 2 ? 1 : 4); e++) {
        const long at = conv_offset(a, tap);
#pragma unroll
        for (uint i = 0; i < conv_part<ROWS>::EACH; i++) {
            const bool sees = conv_sees(a, part.windows[i], tap);
            device const real *from = x + (part.windows[i].at + at);
            threadgroup real *p = to + i * TILE_APART * TILE_PITCH;
            if (A == 2)
                *(threadgroup real4 *)p = sees ? *(device const real4 *)from : real4(float4(0));
            else
                p[e] = sees ? *from : real(0.0f);
        }
        conv_advance(tap, part.one, a);
    }
    conv_advance(part.tap, part.step, a);
}

template <uint ROWS, uint COLS, uint DOWN, uint ACROSS>
static inline void
conv_tile(constant conv_args &a, device const real *x, device const real *w,
          device const real *bias, device const real *residual, device real *y,
          threadgroup uchar *shared, uint3 group, uint thread_index, uint lane, uint simd)
{
    threadgroup real *xs = (threadgroup real *)shared, *ws = xs + ROWS * TILE_PITCH;
    const uint row0 = tile_place(group).x * ROWS, col0 = tile_place(group).y * COLS;
    const uint down = simd / (COLS / 8 / ACROSS) * DOWN * 8;
    const uint across = simd % (COLS / 8 / ACROSS) * ACROSS * 8;
    const uint end = a.taps[0] * a.taps[1] * a.taps[2] * a.c;
    simdgroup_float8x8 sums[DOWN][ACROSS];
    conv_part<ROWS> part;
    if (row0 >= conv_rows(a)) /* the last band has fewer tiles */
        return;
    conv_begin(part, a, row0, thread_index);
    tile_clear(sums);
    for (uint k = 0; k < end; k += TILE_STEP) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        conv_stage(xs, x, part, a, thread_index);
        tile_stage_w<COLS>(ws, w, col0, a.o, k, end, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        tile_multiply(sums, xs + down * TILE_PITCH, ws + across * TILE_PITCH, lane);
    }
    tile_epilogue(a.epilogue, sums, row0 + down, col0 + across, conv_rows(a), a.o, bias, residual,
                  y, lane);
}

TILE_KERNEL(conv_64x64, conv_tile, conv_args, 64, 64, 4, 4)
TILE_KERNEL(conv_64x32, conv_tile, conv_args, 64, 32, 4, 2)
TILE_KERNEL(conv_32x64, conv_tile, conv_args, 32, 64, 4, 2)
TILE_KERNEL(conv_32x32, conv_tile, conv_args, 32, 32, 2, 2)
TILE_KERNEL(conv_128x16, conv_tile, conv_args, 128, 16, 4, 2)

/* Returns the sum of one tap over the channels of a group. */
static inline float
conv_naive_tap(device const real *x, device const real *w, uint channels)
{
    float sum = 0;
    for (uint i = 0; i < channels; i++)
        sum = fma(float(x[i]), float(w[i]), sum);
    return sum;
}

/* Each thread computes one output of any group; neighbouring threads have neighbouring channels. */
kernel void
conv_naive(constant conv_args &a [[buffer(0)]], device const real *x [[buffer(1)]],
           device const real *w [[buffer(2)]], device const real *bias [[buffer(3)]],
           device const real *residual [[buffer(4)]], device real *y [[buffer(5)]],
           uint3 thread_position [[thread_position_in_grid]])
{
    const uint row = thread_position.x / a.o, col = thread_position.x % a.o;
    const uint channels = a.c / a.groups, first = col / (a.o / a.groups) * channels;
    float sum = 0;
    if (row >= conv_rows(a))
        return;
    const conv_window window = conv_window_of(a, row);
    device const real *wp = w + long(col) * a.taps[0] * a.taps[1] * a.taps[2] * channels;
    conv_tap tap;
    tap.c = first;
    for (tap.d = 0; tap.d < a.taps[0]; tap.d++)
        for (tap.h = 0; tap.h < a.taps[1]; tap.h++)
            for (tap.w = 0; tap.w < a.taps[2]; tap.w++, wp += channels)
                if (conv_sees(a, window, tap))
                    sum += conv_naive_tap(x + (window.at + conv_offset(a, tap)), wp, channels);
    if (D)
        ((device float *)y)[thread_position.x] =
            D == 2 ? ((device float *)y)[thread_position.x] + sum : sum;
    else
        y[thread_position.x] = real(epilogue_value(a.epilogue, sum, row, col, a.o, bias, residual));
}
