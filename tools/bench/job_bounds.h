/* SPDX-License-Identifier: MIT */
/* The ways that `qwenvit bench job` times, and which of them bound which: pure functions. */
#ifndef QV_TOOLS_BENCH_JOB_BOUNDS_H
#define QV_TOOLS_BENCH_JOB_BOUNDS_H

#include "qwenvit.h"

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

#endif
