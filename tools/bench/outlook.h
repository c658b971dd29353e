/* SPDX-License-Identifier: MIT */
/* Estimates how long timing takes, and whether its times can be trusted: pure functions. */
#ifndef QV_TOOLS_BENCH_OUTLOOK_H
#define QV_TOOLS_BENCH_OUTLOOK_H

#include <stdint.h>

/* A work is timed for at least BENCH_LEAST_MS per repeat, and for at most BENCH_MOST_MS and one
 * run. */
enum { BENCH_LEAST_MS = 30, BENCH_MOST_MS = 30000 };

/* Returns the seconds that timing n works takes, given the time of one run of each. */
double bench_rest_s(const double *first_ms, int n, int64_t repeats);

/* Returns the 90th percentile as a multiple of the median if it is far above it; else 0. */
double bench_scatter(double median_ms, double p90_ms);

#endif
