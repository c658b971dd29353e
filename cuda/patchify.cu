/* SPDX-License-Identifier: MIT */
/* patchify: turns bytes of frames into patch rows. It is memory-bound, so it writes vectors of 16
 * bytes, with several loads per thread in flight. */
#include "device.cuh"

struct rows_shape {
    int64_t rows, row_dim;
    int patch, temporal, channels;
    struct divisor by_line, by_patch, by_frames; /* divide by the values of a line, the lines of a
                                                  * patch, the frames of a row */
    const int4 *places, *coords;
    const float2 *norms; /* 3 float2 per item */
};

/* Where a row's patch begins in its first frame, and how its bytes become values. */
struct patch_place {
    int64_t first, line, frame; /* bytes: offset of the patch, step to the next line, step to the
                                 * next frame */
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

/* Converts 8 pixels of 3 channels to 8 values of each channel, which are `plane` values apart. */
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
 * Handles two frames of 16x16 pixels of 3 channels: a warp per row, a lane per half line of 8
 * pixels. Each lane loads its pixels of both frames at once: 24 bytes each, aligned to 8 because
 * lines are multiples of 48. The warps of a block have adjacent patches, whose lines share sectors.
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

/* Handles any patch: a warp per row, a lane per N values of it, which may span two lines or
 * planes. */
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
    const bool fast = s.patch == 16 && s.channels == 3 && s.temporal == 2;
    return typed(op->y_dtype, [&](auto t) {
        typedef decltype(t) T;
        return launch(stream, ceil_div(s.rows, THREADS / WARP), dim3(THREADS),
                      fast                   ? rows16_kernel<T>
                      : s.row_dim % LANES<T> ? rows_kernel<T, 1>
                                             : rows_kernel<T, LANES<T>>,
                      s, (const uint8_t *)frames, (T *)y);
    });
}
