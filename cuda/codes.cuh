/* SPDX-License-Identifier: MIT */
/* Part of few.cu: the layout of a quantised matrix (codes.h), its scales and offsets, and the
 * epilogue. */
#pragma once

#include <cuda_fp16.h>

#include "device.cuh"
#include "codes.h"

enum {
    SLICE = QV_CODES_SLICE_CUDA,
    QUARTER = SLICE / 4,           /* of columns: two products' worth */
    TILE_COLS = QV_CODES_ROWS_CUDA /* of y */
};

struct codes_shape {
    int64_t n, k;
    int64_t tiles, slices, per_slice; /* of codes.h */
    int dtype;                        /* of scales and offsets */
    const uint8_t *at;
};

static inline struct codes_shape
shape_of(int64_t n, int64_t k, const struct qv_groups *groups, const void *w)
{
    const struct qv_codes_cuda p = qv_codes_cuda(n, k, groups);
    return { n, k, p.tiles, p.slices, p.per_slice, (int)groups->dtype, (const uint8_t *)w };
}

/* Bytes of a slice's codes; its pairs of a scale and an offset. */
template <int BITS> constexpr int CODES = TILE_COLS *SLICE *BITS / 8;
template <int GROUP> constexpr int PAIRS = SLICE / GROUP *TILE_COLS;

/* Returns a 16-bit scale and offset, packed in one word, as f32. */
static __device__ __forceinline__ float2
pair_as_floats(uint32_t both, bool is_half)
{
    return is_half ? make_float2(__half2float(__ushort_as_half((unsigned short)both)),
                                 __half2float(__ushort_as_half((unsigned short)(both >> 16))))
                   : make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
}

/* The epilogue: turns a sum into y[row, col]. */
struct few_epilogue {
    int64_t m, n, residual_rows;
    float alpha;
    int act;
    const void *bias, *residual; /* NULL: none */
};

template <typename T>
static __device__ __forceinline__ void
finish(const struct few_epilogue &e, int64_t row, int64_t col, float sum, T *y)
{
    const T *bias = (const T *)e.bias, *residual = (const T *)e.residual;
    float v = activate<T>(e.act, e.alpha * sum + (bias ? value(bias + col) : 0));
    if (residual)
        v += value(residual + row % e.residual_rows * e.n + col);
    set(y + row * e.n + col, v);
}
