/* SPDX-License-Identifier: MIT */
/* Statistics of samples. */
#ifndef QV_SAMPLES_H
#define QV_SAMPLES_H

#include <stdlib.h>

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

#endif
