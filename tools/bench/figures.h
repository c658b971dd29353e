/* SPDX-License-Identifier: MIT */
/*
 * Decides which figures can be true: pure functions of measured times. On a machine that other
 * programs use, a bound may be measured slower than the work that it bounds; shares, ratios and
 * differences computed from it are withheld, with the reason.
 */
#pragma once

#include "qwenvit.h"

/* A rate of the device. It is known once the two highest of its measurements agree. */
enum { BENCH_MOST_RATES = 6 };
struct bench_rate {
    double per_s; /* the highest; 0: not measured */
    bool known;
};
struct bench_rate bench_rate_of(const double *per_s, int n);

/* A figure, and why it is withheld (NULL if it is not). */
struct bench_figure {
    double value;
    const char *withheld;
};

/* The roofline: FLOP/s of a dtype, and bytes per second of memory. */
struct bench_roof {
    struct bench_rate flops, bytes;
};

/* The least time that the roofline allows, as a share of the time. Bytes that moved faster than
 * memory can move them came from a cache and set no bound, unless `streams` says that all come from
 * memory. */
struct bench_figure bench_share(const struct bench_roof *roof, double flops, double bytes,
                                bool streams, double ms);

/* A value computed from a rate that may be unknown. */
struct bench_figure bench_by_rate(double value, struct bench_rate rate);

/* A time as a multiple of its bound, at least 1; and its excess over the bound, at least 0 ms.
 * known: whether the bound is known. */
struct bench_figure bench_over(double ms, double bound_ms, bool known);
struct bench_figure bench_beyond_ms(double ms, double bound_ms);

/* ---- the outlook: how long timing takes, and whether times can be trusted -------------------- */

/* A work is timed for at least BENCH_LEAST_MS per repeat, and for at most BENCH_MOST_MS and one
 * run. */
enum { BENCH_LEAST_MS = 30, BENCH_MOST_MS = 30000 };

/* Returns the seconds that timing n works takes, given the time of one run of each. */
double bench_rest_s(const double *first_ms, int n, int64_t repeats);

/* Returns the 90th percentile as a multiple of the median if it is far above it; else 0. */
double bench_scatter(double median_ms, double p90_ms);
