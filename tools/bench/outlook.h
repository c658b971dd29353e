/* SPDX-License-Identifier: MIT */
/* How long timing takes, and whether its times are to be trusted: pure functions. */
#ifndef QV_TOOLS_BENCH_OUTLOOK_H
#define QV_TOOLS_BENCH_OUTLOOK_H

#include <stdint.h>

/* A work is timed for so long a repeat at least, and in all no longer than that and a run. */
enum { BENCH_LEAST_MS = 30, BENCH_MOST_MS = 10000 };

/* Seconds that n works take to be timed, by how long a run of each took. */
double bench_rest_s(const double *first_ms, int n, int64_t repeats);

/* How many medians the 90th percentile is, where that is far more than one; else 0. */
double bench_scatter(double median_ms, double p90_ms);

#endif
