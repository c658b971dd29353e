/* SPDX-License-Identifier: MIT */
/* Measures how far outputs lie from the truth. */
#pragma once

#include <math.h>
#include <stdint.h>

/* The mean and the worst of |x - truth| / |truth| over the rows. Both are NaN if any row has a
 * NaN. */
static inline void
row_distance(const float *x, const float *truth, int64_t rows, int64_t cols, double *mean,
             double *worst)
{
    *mean = *worst = 0;
    for (int64_t i = 0; i < rows; i++) {
        double off = 0, size = 0;
        for (int64_t j = i * cols; j < (i + 1) * cols; j++) {
            off += ((double)x[j] - truth[j]) * ((double)x[j] - truth[j]);
            size += (double)truth[j] * truth[j];
        }
        double d = sqrt(off / size);
        *mean += d / (double)rows;
        if (!isnan(*worst) && !(d <= *worst)) /* A NaN is not overwritten. */
            *worst = d;
    }
}
