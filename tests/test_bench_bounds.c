/* SPDX-License-Identifier: MIT */
/* Tests what `qwenvit bench` believes: a job that is quicker than one of its stages alone is no
 * record, and times that scatter are not to be trusted. Also tests how long it says that it
 * takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/job_bounds.h"
#include "bench/outlook.h"

/* Times of 2000 clips on a GPU. Writing alone came out slower here than in the job. */
static const double times[BENCH_JOB_WAYS] = {
    [BENCH_JOB_DECODE] = 1577,  [BENCH_JOB_ONE] = 9000,     [BENCH_JOB_DEVICE] = 6494,
    [BENCH_JOB_DEVICES] = 6494, [BENCH_JOB_FILES] = 12000,  [BENCH_JOB_PARTS] = 10000,
    [BENCH_JOB_DISCARD] = 6561, [BENCH_JOB_ENCODE] = 12435, [BENCH_JOB_CACHE] = 10683,
};

static void
expect(enum bench_job_way way, double ms, const char *stage)
{
    double changed[BENCH_JOB_WAYS];
    qv_error err = { 0 };
    memcpy(changed, times, sizeof changed);
    changed[way] = ms;
    const qv_status status = bench_job_check(changed, &err);
    assert_int_equal(status, stage ? QV_ESTATE : QV_OK);
    if (stage && (!strstr(err.text, stage) || !strstr(err.text, "measured wrongly")))
        fail_msg("%s", err.text);
}

static void
a_stage_alone_is_a_bound(void **state)
{
    (void)state;
    expect(BENCH_JOB_DECODE, 1577, NULL);
    expect(BENCH_JOB_PARTS, 22614, "\"parts of a cache, alone\", 22614.0 ms");
    expect(BENCH_JOB_FILES, 14000, "a file a clip, alone");
    expect(BENCH_JOB_DECODE, 6800, "decoding alone");
    expect(BENCH_JOB_DEVICES, 6800, "all devices alone");
    expect(BENCH_JOB_DECODE, 6700, NULL); /* Times scatter by as much as that. */
    expect(BENCH_JOB_CACHE, 0, NULL);     /* It was not timed. */
    expect(BENCH_JOB_PARTS, 0, NULL);
}

static void
the_slowest_stage_is_named(void **state)
{
    (void)state;
    const struct bench_job_bounds b = bench_job_bounds_of(times, BENCH_JOB_ENCODE);
    assert_int_equal(b.slowest, BENCH_JOB_FILES);
    assert_true(b.slowest_ms == 12000 && b.sum_ms == 1577 + 6494 + 12000);
    assert_true(bench_job_bounds_of(times, BENCH_JOB_DECODE).sum_ms == 0);
}

static void
what_scatters_is_told(void **state)
{
    (void)state;
    assert_true(bench_scatter(10, 14.9) == 0);
    assert_true(bench_scatter(10, 31) == 3.1);
    assert_true(bench_scatter(0.001, 0.01) == 0); /* The clock itself scatters by that much. */
    assert_true(bench_scatter(0, 0) == 0);
}

/* A short run is repeated until the times can be compared, and a long one is not repeated
 * endlessly. */
static void
how_long_it_takes(void **state)
{
    (void)state;
    const double ms[] = { 1, 100, 8000 };
    assert_true(bench_rest_s(ms, 1, 7) == 0.21);
    assert_true(bench_rest_s(ms, 2, 10) == 1.3);
    assert_true(bench_rest_s(ms + 2, 1, 7) == 38);
    assert_true(bench_rest_s(ms + 2, 1, 1) == 8);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_alone_is_a_bound),
        cmocka_unit_test(the_slowest_stage_is_named),
        cmocka_unit_test(what_scatters_is_told),
        cmocka_unit_test(how_long_it_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
