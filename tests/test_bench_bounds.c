/* SPDX-License-Identifier: MIT */
/* Tests which results `qwenvit bench` trusts: scattered times are not trusted, and impossible
 * figures are withheld. Also tests its prediction of its own duration. */

#include "test.h"

#include "bench/bench.h"

double __wrap_qv_seconds(void);
static double now_s;
double
__wrap_qv_seconds(void)
{
    return now_s;
}

TEST(what_scatters_is_told)
{
    assert_true(bench_scatter(10, 14.9) == 0);
    assert_true(bench_scatter(10, 31) == 3.1);
    assert_true(bench_scatter(0.001, 0.01) == 0); /* The clock itself scatters by that much. */
    assert_true(bench_scatter(0, 0) == 0);
}

/* A short run is repeated until the times can be compared, and a long one is not repeated
 * endlessly. */
TEST(how_long_it_takes)
{
    const double ms[] = { 1, 100, 8000 };
    assert_true(bench_rest_s(ms, 1, 7) == 0.21);
    assert_true(bench_rest_s(ms, 2, 10) == 1.3);
    assert_true(bench_rest_s(ms + 2, 1, 7) == 38);
    assert_true(bench_rest_s(ms + 2, 1, 1) == 8);
}

struct slow {
    double takes_s;
    int runs, whole; /* whole: runs that are done; the budget ends the others */
};

static qv_status
run_slowly(void *user, double *ms, qv_error *err)
{
    struct slow *slow = user;
    now_s += slow->takes_s;
    slow->runs++;
    *ms = slow->runs > slow->whole ? INFINITY : slow->takes_s * 1e3;
    return QV_OK;
}

/* Times three works of the given seconds; the second one's first `whole` runs are done. Expects
 * that so many works are timed, in so many runs of all three. */
static void
expect_timed(double takes_s, double budget_s, int whole, int timed, int runs)
{
    const struct tool_options o = { .budget = budget_s, .repeats = 5, .to.quiet = true };
    const struct bench b = { .o = &o, .name = "tower", .began_s = now_s };
    struct slow slow[3] = { { takes_s, 0, 1000 }, { takes_s, 0, whole }, { takes_s, 0, 1000 } };
    struct bench_run works[4] = { { .work = run_slowly, .user = &slow[0] },
                                  { .work = NULL },
                                  { .work = run_slowly, .user = &slow[1] },
                                  { .work = run_slowly, .user = &slow[2] } };
    int n = 0;
    assert_int_equal(bench_time(&b, works, 4, NULL), QV_OK);
    for (int i = 0; i < 4; i++)
        n += works[i].times.repeats > 0;
    assert_int_equal(n, timed);
    assert_int_equal(slow[0].runs + slow[1].runs + slow[2].runs, runs);
}

/* A budget that slow first works spend leaves the others out; quick works are all timed. */
TEST(a_budget_ends_slow_works)
{
    expect_timed(60, 20, 1000, 1, 1);
    expect_timed(60, 100, 1000, 2, 2);
    expect_timed(0.1, 0.01, 1000, 3, 3);
    expect_timed(1, 0, 1000, 3, 18);
}

/* A run that the budget ended has no time, and is not repeated: here the first one, which warms up,
 * the one after it, and the third. */
TEST(a_run_that_was_not_done_is_left_out)
{
    expect_timed(0.1, 0.05, 0, 2, 3);
    expect_timed(1, 3.5, 1, 2, 6);
    expect_timed(1, 7.5, 2, 3, 8);
}

/* ---- figures --------------------------------------------------------------------------------- */

TEST(a_rate_is_known_once_two_measurements_agree)
{
    static const struct {
        double per_s[BENCH_MOST_RATES];
        int n;
        double highest;
        bool known;
    } cases[] = {
        { { 0 }, 0, 0, false },
        { { 0 }, 1, 0, false },
        { { 4e9 }, 1, 4e9, false }, /* one alone may be of a busy machine */
        { { 4e9, 9e11 }, 2, 9e11, false },
        { { 4e9, 4.1e9 }, 2, 4.1e9, true },
        { { 4e9, 4.1e9, 9e11 }, 3, 9e11, false }, /* a higher one says that both were too low */
        { { 4e9, 9e11, 8.7e11 }, 3, 9e11, true },
        { { 1e9, 2e9, 4e9, 8e9, 16e9, 32e9 }, 6, 32e9, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct bench_rate rate = bench_rate_of(cases[i].per_s, cases[i].n);
        if (rate.per_s != cases[i].highest || rate.known != cases[i].known)
            fail_msg("case %zu: %g, %d", i, rate.per_s, rate.known);
    }
}

/* Expects a value (within rounding), or words of the reason for which it is withheld. */
static void
expect_figure(size_t i, struct bench_figure got, double value, const char *withheld)
{
    const double apart = got.value > value ? got.value - value : value - got.value;
    if (withheld ? !got.withheld || !strstr(got.withheld, withheld)
                 : got.withheld || apart > 1e-9 * (value + 1))
        fail_msg("case %zu: %g, withheld: %s", i, got.value, got.withheld ? got.withheld : "no");
}

/* The first roof is of a machine that was busy, where attention came out at 439.9 % of it. */
TEST(no_share_is_above_one)
{
    const struct bench_rate peak = { 1e12, true }, memory = { 1e10, true }, none = { 0 },
                            busy = { 4e9, true }, doubtful = { 1e12, false };
    const struct {
        struct bench_roof roof;
        double flops, bytes, ms, value;
        bool streams;
        const char *withheld;
    } cases[] = {
        { { busy, memory }, 4.399 * 4e9, 0, 1000, 0, false, "faster than the roofline" },
        { { peak, memory }, 5e11, 0, 1000, 0.5, false, NULL },
        { { peak, memory }, 1.04e12, 0, 1000, 1, false, NULL }, /* as near as the roof is known */
        { { peak, memory }, 1.06e12, 0, 1000, 0, false, "faster than the roofline" },
        { { peak, memory }, 5e11, 8e9, 1000, 0.8, false, NULL },  /* bound by memory */
        { { peak, memory }, 5e11, 2e10, 1000, 0.5, false, NULL }, /* from a cache */
        { { peak, memory }, 5e11, 2e10, 1000, 0, true, "faster than the roofline" },
        { { doubtful, memory }, 5e11, 0, 1000, 0, false, "the roofline is unknown" },
        { { peak, doubtful }, 5e11, 1, 1000, 0, false, "the roofline is unknown" },
        { { doubtful, memory }, 0, 5e9, 1000, 0.5, false, NULL }, /* it needs no FLOPs */
        { { none, memory }, 5e11, 5e9, 1000, 0.5, false, NULL },
        { { peak, memory }, 5e11, 0, 0, 0, false, NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_figure(i,
                      bench_share(&cases[i].roof, cases[i].flops, cases[i].bytes, cases[i].streams,
                                  cases[i].ms),
                      cases[i].value, cases[i].withheld);
}

/* Of a busy machine too: 0.619 times the limit, and -41 ms between the operations of the limit. */
TEST(nothing_is_faster_than_its_bound)
{
    static const struct {
        double ms, bound_ms, over, beyond_ms;
        bool known;
        const char *withheld;
    } cases[] = {
        { 66.6, 107.6, 0, 0, true, "faster than its bound" },
        { 125, 100, 1.25, 25, true, NULL },
        { 100, 100, 1, 0, true, NULL },
        { 98, 100, 1, 0, true, NULL }, /* times scatter by as much */
        { 96, 100, 0, 0, true, "faster than its bound" },
        { 10, 0, 0, 0, true, "faster than its bound" },
        { 125, 100, 0, 25, false, "the roofline is unknown" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double ms = cases[i].ms, bound_ms = cases[i].bound_ms;
        expect_figure(i, bench_over(ms, bound_ms, cases[i].known), cases[i].over,
                      cases[i].withheld);
        if (cases[i].known)
            expect_figure(i, bench_beyond_ms(ms, bound_ms), cases[i].beyond_ms, cases[i].withheld);
    }
}
