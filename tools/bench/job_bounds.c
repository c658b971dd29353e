/* SPDX-License-Identifier: MIT */
#include "job_bounds.h"

#include "error.h"

#define SCATTER 0.97

const struct bench_job_name bench_job_ways[BENCH_JOB_WAYS] = {
    [BENCH_JOB_DECODE] = { .name = "decode", .label = "decoding alone" },
    [BENCH_JOB_GPU] = { .name = "gpu", .label = "a GPU decoding alone" },
    [BENCH_JOB_ONE] = { .name = "one by one", .label = "clips one by one" },
    [BENCH_JOB_DEVICE] = { .name = "device", .label = "one device alone" },
    [BENCH_JOB_DEVICES] = { .name = "devices", .label = "all devices alone" },
    [BENCH_JOB_FILES] = { .name = "files", .label = "a file a clip, alone" },
    [BENCH_JOB_PARTS] = { .name = "parts", .label = "parts of a cache, alone" },
    [BENCH_JOB_CPU] = { .name = "cpu", .label = "job, decoded by the CPU" },
    [BENCH_JOB_DISCARD] = { .name = "discard", .label = "job, tokens discarded" },
    [BENCH_JOB_ENCODE] = { .name = "encode", .label = "job, a file a clip" },
    [BENCH_JOB_CACHE] = { .name = "cache", .label = "job, parts of a cache" },
};

struct bench_job_bounds
bench_job_bounds_of(const double ms[BENCH_JOB_WAYS], enum bench_job_way way)
{
    static const struct {
        enum bench_job_way way, of;
    } stages[] = {
        { BENCH_JOB_DISCARD, BENCH_JOB_DECODE }, { BENCH_JOB_DISCARD, BENCH_JOB_DEVICES },
        { BENCH_JOB_ENCODE, BENCH_JOB_DECODE },  { BENCH_JOB_ENCODE, BENCH_JOB_DEVICES },
        { BENCH_JOB_ENCODE, BENCH_JOB_FILES },   { BENCH_JOB_CACHE, BENCH_JOB_DECODE },
        { BENCH_JOB_CACHE, BENCH_JOB_DEVICES },  { BENCH_JOB_CACHE, BENCH_JOB_PARTS },
    };
    struct bench_job_bounds b = { 0 };
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (stages[i].way == way && !(ms[stages[i].of] > 0)) {
            return (struct bench_job_bounds){ 0 }; /* it was not timed */
        } else if (stages[i].way == way) {
            b.sum_ms += ms[stages[i].of];
            if (ms[stages[i].of] > b.slowest_ms) {
                b.slowest_ms = ms[stages[i].of];
                b.slowest = stages[i].of;
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
            return qv_fail(
                err, QV_ESTATE,
                "\"%s\" took %.1f ms, %.3f of \"%s\", %.1f ms: a stage alone is a bound, so "
                "that was measured wrongly; nothing is recorded",
                bench_job_ways[way].label, ms[way], ms[way] / b.slowest_ms,
                bench_job_ways[b.slowest].label, b.slowest_ms);
    }
    return QV_OK;
}
