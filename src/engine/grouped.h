/* SPDX-License-Identifier: MIT */
/*
 * Matrices quantised in groups: a value is code * scale + offset, in f32, of the scale and offset that
 * its group of a row has. MLX's affine groups are that; of GGUF's types Q8_0 is, with codes + 128 and an
 * offset of -128 scales, and Q4_0, with an offset of -8 scales: both without loss, as a product of a scale
 * of 16 bits with 8 or -128 is exact (one of f16 that overflows is stored in f32).
 *
 * Canonical form of a matrix [n,k], as files are read and as pack() takes it: row by row k codes of 4 or 8
 * bits, of a byte the lower half first, as MLX has them; then k/group scales, then as many offsets, in the
 * matrix's dtype (f32, f16 or bf16). What a device makes of it is the device's.
 */
#ifndef QV_ENGINE_GROUPED_H
#define QV_ENGINE_GROUPED_H

#include "dtype.h"

/* Rows up to which gemms may run on kernels that read packed weights once for all of them. */
enum { QV_FEW_ROWS = 16 };

struct qv_groups {
    int64_t bits, group; /* 4 or 8; 32, 64 or 128 values. bits 0: the matrix is not quantised */
    qv_dtype dtype;      /* of scales and offsets */
};

static inline size_t
qv_grouped_row_bytes(const struct qv_groups *g, int64_t k)
{
    return (size_t)(g->bits == 8 ? k : k / 2) +
           2 * (size_t)(k / g->group) * qv_dtype_bytes(g->dtype);
}

static inline uint8_t
qv_grouped_code(const struct qv_groups *g, const void *row, int64_t i)
{
    const uint8_t *codes = (const uint8_t *)row; /* C++ includes this */
    return g->bits == 8 ? codes[i] : (uint8_t)(codes[i / 2] >> (i % 2 * 4) & 15);
}

/* Scale (which 0) or offset (1) of group i of a row of k values. */
static inline float
qv_grouped_factor(const struct qv_groups *g, const void *row, int64_t k, int which, int64_t i)
{
    const char *factors = (const char *)row + (g->bits == 8 ? k : k / 2);
    return (float)qv_load(factors, g->dtype, which * (k / g->group) + i);
}

/* Value i of a row of k. */
static inline float
qv_grouped_value(const struct qv_groups *g, const void *row, int64_t k, int64_t i)
{
    const float scaled =
        (float)qv_grouped_code(g, row, i) * qv_grouped_factor(g, row, k, 0, i / g->group);
    return scaled + qv_grouped_factor(g, row, k, 1, i / g->group);
}

#endif
