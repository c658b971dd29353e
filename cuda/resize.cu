/* SPDX-License-Identifier: MIT */
/* Resizes frames of RGB bytes as pixels/resize.c does, bit for bit: across, rounded to bytes, then
 * down. */
#include "device.cuh"

/* Rows of one column that a thread resizes across, so that a weight is loaded once for all. */
enum { ROWS = 4 };

struct pass_shape {
    int64_t n;                        /* threads that have work */
    struct divisor by_line, by_frame; /* divide by the threads of a row, the rows of a frame */
    int64_t step[4];                  /* of the source: see qv_frames_view */
    int in, out, taps, precision;
    const int32_t *start;
    const int16_t *weights;
};

static __device__ __forceinline__ uint32_t
to_byte(int sum, int precision)
{
    return (uint32_t)min(max(sum >> precision, 0), 255);
}

/* A thread makes a pixel of ROWS rows of a frame. */
static __global__ BLOCK void
across_kernel(const struct pass_shape s, int height, const uint8_t *src, uint8_t *dst)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i >= s.n)
        return;
    int64_t x, y;
    const int64_t frame = divide(divide(i, s.by_line, &x), s.by_frame, &y);
    const int start = s.start[x], taps = min(s.taps, s.in - start);
    const int16_t *w = s.weights + x * s.taps;
    const uint8_t *rows[ROWS];
    int sum[ROWS][3];
    y *= ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t row = min(y + r, (int64_t)height - 1);
        rows[r] = src + frame * s.step[0] + row * s.step[1] + start * s.step[2];
#pragma unroll
        for (int c = 0; c < 3; c++)
            sum[r][c] = 1 << s.precision >> 1;
    }
    for (int k = 0; k < taps; k++) {
        const int weight = w[k];
        const int64_t at = k * s.step[2];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 3; c++)
                sum[r][c] += weight * rows[r][at + c * s.step[3]];
    }
    uint8_t *to = dst + ((frame * height + y) * s.out + x) * 3;
#pragma unroll
    for (int r = 0; r < ROWS && y + r < height; r++, to += (int64_t)s.out * 3)
#pragma unroll
        for (int c = 0; c < 3; c++)
            to[c] = (uint8_t)to_byte(sum[r][c], s.precision);
}

/* A thread makes N bytes of a row; rows are `row` bytes. */
template <int N>
static __global__ BLOCK void
down_kernel(const struct pass_shape s, int64_t row, const uint8_t *src, uint8_t *dst)
{
    typedef typename word_of<N>::type word;
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (i >= s.n)
        return;
    int64_t x, y;
    const int64_t frame = divide(divide(i, s.by_line, &x), s.by_frame, &y);
    const int start = s.start[y], taps = min(s.taps, s.in - start);
    const int16_t *w = s.weights + y * s.taps;
    const uint8_t *from = src + (frame * s.in + start) * row + x * N;
    int sum[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        sum[j] = 1 << s.precision >> 1;
    for (int k = 0; k < taps; k++, from += row) {
        const uint32_t bytes = *reinterpret_cast<const word *>(from);
        const int weight = w[k];
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] += weight * (int)(bytes >> 8 * j & 255);
    }
    uint32_t made = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
        made |= to_byte(sum[j], s.precision) << 8 * j;
    *reinterpret_cast<word *>(dst + i * N) = (word)made;
}

static struct pass_shape
pass_of(const struct qv_axis *axis, int64_t frames, int64_t rows, int64_t line)
{
    struct pass_shape s = {};
    s.n = frames * rows * line;
    s.by_line = divisor_of(line);
    s.by_frame = divisor_of(rows);
    s.in = axis->in;
    s.out = axis->out;
    s.taps = axis->taps;
    s.precision = axis->precision;
    s.start = axis->start;
    s.weights = axis->weights;
    return s;
}

cudaError_t
qv_resize_across_cuda(cudaStream_t stream, const struct qv_axis *axis,
                      const struct qv_frames_view *src, int64_t height, void *dst)
{
    struct pass_shape s = pass_of(axis, src->n, ceil_div(height, ROWS), axis->out);
    memcpy(s.step, src->step, sizeof s.step);
    return launch(stream, ceil_div(s.n, THREADS), dim3(THREADS), across_kernel, s, (int)height,
                  (const uint8_t *)src->data, (uint8_t *)dst);
}

cudaError_t
qv_resize_down_cuda(cudaStream_t stream, const struct qv_axis *axis, int64_t frames, int64_t row,
                    const void *src, void *dst)
{
    const bool fast = row % 4 == 0;
    const struct pass_shape s = pass_of(axis, frames, axis->out, fast ? row / 4 : row);
    return launch(stream, ceil_div(s.n, THREADS), dim3(THREADS),
                  fast ? down_kernel<4> : down_kernel<1>, s, row, (const uint8_t *)src,
                  (uint8_t *)dst);
}
