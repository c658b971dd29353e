/* SPDX-License-Identifier: MIT */
/* Arithmetic and constants that several folders need. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

/* The size of the frame memory that a clip shares with its decoder. */
#define QV_RING_BYTES ((int64_t)64 << 20)

/* The pixel bounds of images and clips in published checkpoints of Qwen3-VL. */
enum {
    QV_QWEN3_LEAST_IMAGE = 65536,
    QV_QWEN3_MOST_IMAGE = 16777216,
    QV_QWEN3_LEAST_CLIP = 4096,
    QV_QWEN3_MOST_CLIP = 25165824
};

static inline int64_t
qv_at_least(int64_t x, int64_t least)
{
    return x < least ? least : x;
}

static inline int64_t
qv_at_most(int64_t x, int64_t most)
{
    return x > most ? most : x;
}

static inline int64_t
qv_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static inline int64_t
qv_round_up(int64_t n, int64_t multiple)
{
    return qv_ceil_div(n, multiple) * multiple;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Compares two doubles for qsort. */
static inline int
qv_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts n samples, and returns the one nearest to a quantile (0.5 is the median). */
static inline double
qv_quantile(double *samples, size_t n, double q)
{
    qsort(samples, n, sizeof *samples, qv_ascending);
    return samples[(size_t)(q * (double)(n - 1) + 0.5)];
}
