/* SPDX-License-Identifier: MIT */
/* Converts NV12 to RGB, and resizes it with the arithmetic of pixels/resize.c. The build compiles
 * this to PTX, which NVIDIA's driver compiles when a GPU process starts (nvscale.c). */
#include "scale.h"

/* One thread per pixel; blockIdx.y is the row. */
extern "C" __global__ void
across(const struct qvm_scale_across s)
{
    const uint32_t x = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (x >= s.outs)
        return;
    const int start = ((const int32_t *)s.axis.start)[x];
    const int16_t *w = (const int16_t *)s.axis.weights + (size_t)x * s.axis.taps;
    const uint8_t *luma = (const uint8_t *)s.luma + (size_t)row * s.pitch;
    const uint8_t *chroma = (const uint8_t *)s.chroma + (size_t)(row / 2) * s.pitch;
    int sum[3];
    for (int c = 0; c < 3; c++)
        sum[c] = 1 << s.axis.precision >> 1;
    for (int k = 0; k < s.axis.taps; k++) {
        const int at = start + k;
        int rgb[3];
        qvm_to_rgb(&s.colours, luma[at], chroma[at & ~1], chroma[at | 1], rgb);
        for (int c = 0; c < 3; c++)
            sum[c] += w[k] * rgb[c];
    }
    uint8_t *to = (uint8_t *)s.dst + ((size_t)row * s.outs + x) * 3;
    for (int c = 0; c < 3; c++)
        to[c] = (uint8_t)qvm_to_byte(sum[c] >> s.axis.precision);
}

/* One thread per byte; blockIdx.y is the row. */
extern "C" __global__ void
down(const struct qvm_scale_down s)
{
    const uint32_t x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= s.bytes)
        return;
    const int start = ((const int32_t *)s.axis.start)[y];
    const int16_t *w = (const int16_t *)s.axis.weights + (size_t)y * s.axis.taps;
    const uint8_t *from = (const uint8_t *)s.src + (size_t)start * s.bytes + x;
    int sum = 1 << s.axis.precision >> 1;
    for (int k = 0; k < s.axis.taps; k++, from += s.bytes)
        sum += w[k] * *from;
    ((uint8_t *)s.dst)[(size_t)y * s.bytes + x] = (uint8_t)qvm_to_byte(sum >> s.axis.precision);
}
