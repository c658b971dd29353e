/* SPDX-License-Identifier: MIT */
/* Colour arithmetic and kernel arguments, shared by scale.cu and C. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define QVM_SCALE_FN static __device__ __forceinline__
#else
#define QVM_SCALE_FN static inline
#endif

/* The constants of a matrix and range. */
typedef struct qvm_colours {
    int32_t y_zero, y, v_red, v_green, u_green, u_blue;
} qvm_colours;

QVM_SCALE_FN int
qvm_to_byte(int v)
{
    return v < 0 ? 0 : v > 255 ? 255 : v;
}

/* Converts a pixel as swscale's vector code on x86-64 does. That differs from swscale's plain code:
 * each product is truncated to its upper 16 bits separately. */
QVM_SCALE_FN void
qvm_to_rgb(const qvm_colours *c, int y, int u, int v, int rgb[3])
{
    y = (8 * y - c->y_zero) * c->y >> 16;
    u = 8 * u - 1024;
    v = 8 * v - 1024;
    rgb[0] = qvm_to_byte(y + (v * c->v_red >> 16));
    rgb[1] = qvm_to_byte(y + (u * c->u_green >> 16) + (v * c->v_green >> 16));
    rgb[2] = qvm_to_byte(y + (u * c->u_blue >> 16));
}

/* An axis's tables in GPU memory, as in struct qv_axis. */
struct qvm_scale_axis {
    uint64_t start, weights; /* addresses */
    int32_t taps, precision;
};

/* Rows of NV12, whose planes' rows are `pitch` bytes apart, to dst[rows, outs, 3]. */
struct qvm_scale_across {
    struct qvm_scale_axis axis;
    uint64_t luma, chroma, dst; /* addresses */
    qvm_colours colours;
    uint32_t pitch, outs;
};

/* src[.., bytes] to dst[rows, bytes]. */
struct qvm_scale_down {
    struct qvm_scale_axis axis;
    uint64_t src, dst; /* addresses */
    uint32_t bytes;
};
