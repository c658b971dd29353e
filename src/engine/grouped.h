/* SPDX-License-Identifier: MIT */
/*
 * Matrices quantised in groups. A value is code * scale + offset in f32, with the scale and the
 * offset of its group in the row. MLX's affine groups have this form.
 *
 * The canonical form of a matrix [n,k], which lay_out() accepts, is row by row: k codes of 4 or 8
 * bits, with the lower half of a byte first, as in MLX; then k/group scales; then as many offsets.
 * Scales and offsets have the matrix's dtype (f32, f16 or bf16). Devices may convert it to any
 * layout.
 */
#pragma once

#include "dtype.h"

/* gemm_few accepts up to QV_FEW_ROWS rows, since for more rows a widened w is faster, and a w in
 * groups of QV_FEW_GROUP. On a GPU, QV_FEW_AT_ONCE rows share reading and unpacking the codes. */
enum { QV_FEW_AT_ONCE = 16, QV_FEW_ROWS = 64, QV_FEW_GROUP = 64 };

struct qv_groups {
    /* 4 or 8 bits; 32, 64 or 128 values. bits 0: the matrix is not quantised */
    int64_t bits, group;
    qv_dtype dtype; /* dtype of scales and offsets */
};

static inline size_t
qv_grouped_row_bytes(const struct qv_groups *g, int64_t k)
{
    if (!g->bits || !g->group)
        return 0;
    return (size_t)(g->bits == 8 ? k : k / 2) +
           2 * (size_t)(k / g->group) * qv_dtype_bytes(g->dtype);
}

static inline uint8_t
qv_grouped_code(const struct qv_groups *g, const void *row, int64_t i)
{
    const uint8_t *codes = (const uint8_t *)row; /* written so that C++ can include this */
    return g->bits == 8 ? codes[i] : (uint8_t)(codes[i / 2] >> (i % 2 * 4) & 15);
}

/* Returns the scale (which 0) or the offset (1) of group i in a row of k values. */
static inline float
qv_grouped_factor(const struct qv_groups *g, const void *row, int64_t k, int which, int64_t i)
{
    const char *factors = (const char *)row + (g->bits == 8 ? k : k / 2);
    return (float)qv_load(factors, g->dtype, which * (k / g->group) + i);
}

/* Returns value i of a row of k. */
static inline float
qv_grouped_value(const struct qv_groups *g, const void *row, int64_t k, int64_t i)
{
    const float scaled =
        (float)qv_grouped_code(g, row, i) * qv_grouped_factor(g, row, k, 0, i / g->group);
    return scaled + qv_grouped_factor(g, row, k, 1, i / g->group);
}
