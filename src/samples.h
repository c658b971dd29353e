/* SPDX-License-Identifier: MIT */
/* Samples of a time, or of anything else. */
#ifndef QV_SAMPLES_H
#define QV_SAMPLES_H

#include <stdlib.h>

/* For qsort. */
static inline int
qv_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The nearest of n samples to a quantile, 0.5 being the median; sorts them. */
static inline double
qv_quantile(double *samples, size_t n, double q)
{
    qsort(samples, n, sizeof *samples, qv_ascending);
    return samples[(size_t)(q * (double)(n - 1) + 0.5)];
}

#endif
