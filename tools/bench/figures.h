/* SPDX-License-Identifier: MIT */
/*
 * Decides which figures can be true: pure functions of measured times. On a machine that others
 * use, a bound may come out slower than what it bounds; a share, a ratio or a rest that follows
 * from it is withheld, with the reason.
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

/* A figure, or why it is withheld (NULL: it is not). */
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

/* A value that follows from a rate, which may be known or not. */
struct bench_figure bench_by_rate(double value, struct bench_rate rate);

/* A time as a multiple of its bound, at least 1; and what it is more than its bound, at least 0 ms.
 * known: whether the bound is. */
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

/* ---- the ways that `qwenvit bench job` times, and which of them bound which ------------------ */

enum bench_job_way {
    BENCH_JOB_DECODE, /* stages alone; `device` is one of several devices */
    BENCH_JOB_DEVICE,
    BENCH_JOB_DEVICES,
    BENCH_JOB_FILES,
    BENCH_JOB_PARTS,
    BENCH_JOB_DISCARD, /* jobs */
    BENCH_JOB_ENCODE,
    BENCH_JOB_CACHE,
    BENCH_JOB_WAYS
};
extern const char *const bench_job_names[BENCH_JOB_WAYS];

/* The stages of a way: the slowest of them, and (for few cores) the sum of all. */
struct bench_job_bounds {
    double slowest_ms, sum_ms; /* 0: it has none, or not all of them were timed */
    enum bench_job_way slowest;
};
struct bench_job_bounds bench_job_bounds_of(const double ms[BENCH_JOB_WAYS],
                                            enum bench_job_way way);

/* Checks that no job is quicker than one of its stages alone by more than times scatter: a job does
 * all that its stages do, so the stage's measurement would be wrong. Returns QV_ESTATE, naming
 * both. 0 ms means that a way was not timed. */
qv_status bench_job_check(const double ms[BENCH_JOB_WAYS], qv_error *err);
