/* SPDX-License-Identifier: MIT */
#include "job_bounds.h"

#include "error.h"

#define SCATTER 0.97

const struct bench_job_name bench_job_ways[BENCH_JOB_WAYS] = {
    [BENCH_JOB_DECODE] = { "decode", "decoding alone" },
    [BENCH_JOB_GPU] = { "gpu", "a GPU decoding alone" },
    [BENCH_JOB_BARE] = { "bare", "a bare loop, one process" },
    [BENCH_JOB_ONE] = { "one by one", "clips one by one" },
    [BENCH_JOB_DEVICE] = { "device", "one device alone" },
    [BENCH_JOB_DEVICES] = { "devices", "all devices alone" },
    [BENCH_JOB_BESIDE_OWN] = { "beside own", "beside 12 of one context" },
    [BENCH_JOB_BESIDE_1X4] = { "beside 1x4", "beside 1 x 4 streams" },
    [BENCH_JOB_BESIDE_1X12] = { "beside 1x12", "beside 1 x 12 streams" },
    [BENCH_JOB_BESIDE_2X6] = { "beside 2x6", "beside 2 x 6 streams" },
    [BENCH_JOB_BESIDE_4X3] = { "beside 4x3", "beside 4 x 3 streams" },
    [BENCH_JOB_FILES] = { "files", "a file a clip, alone" },
    [BENCH_JOB_PARTS] = { "parts", "parts of a cache, alone" },
    [BENCH_JOB_CPU] = { "cpu", "job, decoded by the CPU" },
    [BENCH_JOB_DISCARD] = { "discard", "job, tokens discarded" },
    [BENCH_JOB_ENCODE] = { "encode", "job, a file a clip" },
    [BENCH_JOB_CACHE] = { "cache", "job, parts of a cache" },
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
