/* SPDX-License-Identifier: MIT */
/* Estimates how long a bench will take, and whether its times can be trusted. */
#include "outlook.h"

double
bench_rest_s(const double *first_ms, int n, int64_t repeats)
{
    double ms = 0;
    for (int i = 0; i < n; i++) {
        const double least = BENCH_LEAST_MS * (double)repeats, all = first_ms[i] * (double)repeats,
                     wanted = all > least ? all : least, most = BENCH_MOST_MS + first_ms[i];
        ms += wanted < most ? wanted : most;
    }
    return ms * 1e-3;
}

double
bench_scatter(double median_ms, double p90_ms)
{
    const double far = 1.5, clock_ms = 0.02; /* below this the clocks themselves differ */
    return p90_ms > far * median_ms && p90_ms - median_ms > clock_ms ? p90_ms / median_ms : 0;
}
