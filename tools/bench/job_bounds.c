/* SPDX-License-Identifier: MIT */
/* Bounds the time of a job by those of its stages alone. */
#include "job_bounds.h"

#include "error.h"

#define SCATTER 0.97

const char *const bench_job_names[BENCH_JOB_WAYS] = { "decode", "device",  "devices", "files",
                                                      "parts",  "discard", "encode",  "cache" };

/* The stages of each way, as bits. */
static const unsigned stages[BENCH_JOB_WAYS] = {
    [BENCH_JOB_DISCARD] = 1 << BENCH_JOB_DECODE | 1 << BENCH_JOB_DEVICES,
    [BENCH_JOB_ENCODE] = 1 << BENCH_JOB_DECODE | 1 << BENCH_JOB_DEVICES | 1 << BENCH_JOB_FILES,
    [BENCH_JOB_CACHE] = 1 << BENCH_JOB_DECODE | 1 << BENCH_JOB_DEVICES | 1 << BENCH_JOB_PARTS,
};

struct bench_job_bounds
bench_job_bounds_of(const double ms[BENCH_JOB_WAYS], enum bench_job_way way)
{
    struct bench_job_bounds b = { 0 };
    for (int stage = 0; stage < BENCH_JOB_WAYS; stage++) {
        if (!(stages[way] & 1u << stage))
            continue;
        if (!(ms[stage] > 0)) /* it was not timed */
            return (struct bench_job_bounds){ 0 };
        b.sum_ms += ms[stage];
        if (ms[stage] > b.slowest_ms) {
            b.slowest_ms = ms[stage];
            b.slowest = (enum bench_job_way)stage;
        }
    }
    return b;
}

qv_status
bench_job_check(const double ms[BENCH_JOB_WAYS], qv_error *err)
{
    for (int way = 0; way < BENCH_JOB_WAYS; way++) {
        const struct bench_job_bounds b = bench_job_bounds_of(ms, (enum bench_job_way)way);
        if (ms[way] > 0 && ms[way] < SCATTER * b.slowest_ms)
            return qv_fail(err, QV_ESTATE,
                           "\"%s\" took %.1f ms, %.3f of \"%s\", %.1f ms: a stage alone is a "
                           "bound, so that was measured wrongly; nothing is recorded",
                           bench_job_names[way], ms[way], ms[way] / b.slowest_ms,
                           bench_job_names[b.slowest], b.slowest_ms);
    }
    return QV_OK;
}
