/* SPDX-License-Identifier: MIT */
/* Tests that the emulator catches each fault that is planted in faults.metal, and accepts the
 * correct twin. That it computes what Metal would, checkop tests with the kernels that ship. */
#include "test.h"

#include "emulator.h"

#include <math.h>

enum { N = 128, SEEDS = 8, THREADS = 64, APART = 64 };

/* x is at buffer 0 and y at buffer 1, each with separate memory. */
struct probe {
    struct emulator_dispatch dispatch;
    float *x, *y;
    char error[512];
};

static void
bind(struct probe *p, int index, void *base, size_t bytes)
{
    p->dispatch.buffers[index] = (struct emulator_buffer){ .base = base, .bytes = bytes };
}

/* x is 1/2, -1, 3/2, ... and y is NaN; neither begins where the other ends. The groups have
 * `threads` threads and threadgroup memory of one float per thread. */
static struct probe
probe(const char *kernel, size_t n_x, size_t n_y, uint32_t groups, uint32_t threads)
{
    struct probe p = { .x = malloc((n_x + APART) * sizeof(float)),
                       .y = malloc((n_y + APART) * sizeof(float)) };
    assert_true(p.x && p.y);
    for (size_t i = 0; i < n_x; i++)
        p.x[i] = (float)(i + 1) / (i % 2 ? -2 : 2);
    for (size_t i = 0; i < n_y; i++)
        p.y[i] = NAN;
    p.dispatch.kernel = emulator_find("faults", kernel);
    if (!p.dispatch.kernel)
        fail_msg("no kernel %s", kernel);
    bind(&p, 0, p.x, n_x * sizeof(float));
    bind(&p, 1, p.y, n_y * sizeof(float));
    p.dispatch.has_constant[0] = p.dispatch.has_constant[1] = true;
    p.dispatch.groups[0] = groups;
    p.dispatch.threads[0] = threads;
    p.dispatch.groups[1] = p.dispatch.groups[2] = 1;
    p.dispatch.threads[1] = p.dispatch.threads[2] = 1;
    p.dispatch.threadgroup_bytes = threads * sizeof(float);
    return p;
}

static void
free_probe(struct probe *p)
{
    free(p->x);
    free(p->y);
}

static bool
run(struct probe *p, uint32_t wrong)
{
    p->dispatch.constants[0] = wrong;
    return emulator_run(&p->dispatch, p->error, sizeof p->error);
}

static void
assert_runs(struct probe *p)
{
    if (!run(p, 0))
        fail_msg("%s", p->error);
}

/* ---- faults ---------------------------------------------------------------------------------- */

TEST(test_faults)
{
    static const struct {
        const char *kernel;
        uint32_t groups;
        const char *words;
    } cases[] = {
        { "read_outside", 2, "reads 4 bytes at 512 of buffer 0, which has 512" },
        { "read_in_front", 2, "reads 4 bytes at -4 of buffer 0" },
        { "write_constant", 2, "of buffer 0, which has 512 and is constant" },
        { "read_unbound", 2, "which is in no buffer" },
        { "misaligned", 2, "is not a multiple of 16" },
        { "nothing_written", 2, "where nothing was written" },
        { "no_barrier", 2, "threadgroup memory at" },
        { "barrier_of_none", 2, "threadgroup memory at" },
        { "no_second_barrier", 2, "and no barrier" },
        { "beyond_threadgroup", 2, "writes 4 bytes at 256 of threadgroup memory, which has 256" },
        { "barrier_not_by_all", 1, "which not all threads reach: thread 5 has returned" },
        { "two_barriers", 1, "where others are in threadgroup_barrier of line" },
        { "sum_not_by_all", 1, "in simd_sum of line" },
        { "lane_outside", 1, "a lane outside" },
        { "deep", 1, "no stack left" },
        { "index_outside", 1, "is outside of an array" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct probe p = probe(cases[i].kernel, N, N, cases[i].groups, THREADS);
            emulator_seed(seed);
            if (run(&p, 1))
                fail_msg("%s passed", cases[i].kernel);
            if (!strstr(p.error, cases[i].words) || !strstr(p.error, cases[i].kernel))
                fail_msg("%s: no '%s' in: %s", cases[i].kernel, cases[i].words, p.error);
            assert_runs(&p); /* The next run is not affected. */
            free_probe(&p);
        }
}

/* An argument begins where it is bound, and ends with the buffer. */
TEST(test_offset)
{
    struct probe p = probe("read_in_front", 2 * N, N, 2, THREADS);
    p.dispatch.buffers[0].offset = N * sizeof(float);
    assert_runs(&p);
    assert_true(p.y[0] == p.x[N] && p.y[N - 1] == p.x[2 * N - 1]);
    assert_false(run(&p, 1));
    p.dispatch.buffers[0].offset += sizeof(float);
    assert_false(run(&p, 0));
    assert_non_null(strstr(p.error, "of buffer 0, which has 508"));
    p.dispatch.buffers[0].offset = 2 * N * sizeof(float) + 1;
    assert_false(run(&p, 0));
    assert_non_null(strstr(p.error, "is bound at"));
    /* Memory that another argument may write can be written. */
    struct probe q = probe("write_constant", N, N, 2, THREADS);
    q.dispatch.buffers[0] = q.dispatch.buffers[1];
    assert_true(run(&q, 1));
    assert_true(q.y[5] == 1);
    free_probe(&p);
    free_probe(&q);
}

TEST(test_refusals)
{
    struct probe p = probe("fill", N, N, 1, THREADS), good = p;
    struct {
        uint32_t n;
    } args = { N };
    bind(&p, 0, &args, sizeof args);
    good = p;
    assert_runs(&p);
    p.dispatch.has_constant[1] = false;
    assert_false(run(&p, 0));
    assert_non_null(strstr(p.error, "function constant 1 (FACTOR) is not set"));
    p = good;
    p.dispatch.threadgroup_bytes = EMULATOR_THREADGROUP_BYTES;
    assert_runs(&p);
    p.dispatch.threadgroup_bytes += 16;
    assert_false(run(&p, 0));
    assert_non_null(strstr(p.error, "bytes of threadgroup memory"));
    p.dispatch.threadgroup_bytes = 12;
    assert_false(run(&p, 0));
    p = good;
    for (uint32_t threads = 0; threads <= 288; threads += 16) {
        p.dispatch.threads[0] = threads;
        if (run(&p, 0) != (threads && threads % 32 == 0 && threads <= 256))
            fail_msg("%u threads of at most 256: %s", threads, p.error);
    }
    p = good;
    p.dispatch.groups[1] = 0;
    assert_false(run(&p, 0));
    free_probe(&good);
}

TEST(test_set_bytes)
{
    static uint32_t bytes[EMULATOR_SET_BYTES / 4 + 1] = { N };
    struct probe p = probe("fill", N, N, 1, THREADS);
    bind(&p, 0, bytes, EMULATOR_SET_BYTES);
    p.dispatch.buffers[0].is_set = true;
    assert_runs(&p);
    p.dispatch.buffers[0].bytes += 4;
    assert_false(run(&p, 0));
    assert_non_null(strstr(p.error, "setBytes of 4100 bytes at 0; at most 4096 are allowed"));
    p.dispatch.buffers[0].is_set = false; /* a buffer may be larger */
    assert_runs(&p);
    free_probe(&p);
}

/* Runs a dispatch so often in one command buffer. */
static bool
run_times(struct probe *p, int times, struct emulator_commands *c)
{
    *c = (struct emulator_commands){ 0 };
    for (int i = 0; i < times; i++)
        if (!emulator_run_in(c, &p->dispatch, p->error, sizeof p->error))
            return false;
    return true;
}

/* A command buffer may not have too many dispatches, nor compute for too long; one threadgroup that
 * is run stands for all. */
TEST(test_long_commands)
{
    struct emulator_commands c;
    struct {
        uint32_t n;
    } args = { N };
    struct probe few = probe("fill", N, N, 1, 32), p = probe("square", 64, 64, 1, 32);
    bind(&few, 0, &args, sizeof args);
    assert_true(run_times(&few, EMULATOR_MOST_DISPATCHES, &c) && c.flops == 0);
    assert_false(run_times(&few, EMULATOR_MOST_DISPATCHES + 1, &c));
    assert_non_null(strstr(few.error, "more than 512 dispatches in a command buffer"));
    assert_true(run_times(&p, 3, &c) && c.flops == 3 * 1024);
    emulator_samples = true;
    p.dispatch.groups[0] = 1 << 28;
    assert_true(run_times(&p, 3, &c) && c.flops == 3 * 1024 * (double)(1 << 28));
    assert_false(run_times(&p, 4, &c));
    assert_non_null(
        strstr(p.error, "1.1e+12 FLOPs in a command buffer; at most 1e+12 are allowed"));
    p.dispatch.groups[0] = 1 << 30; /* one dispatch alone */
    assert_false(run_times(&p, 1, &c));
    emulator_samples = false;
    free_probe(&few);
    free_probe(&p);
}

/* ---- order ----------------------------------------------------------------------------------- */

static bool
reversed(const float *y)
{
    for (int i = 0; i < THREADS; i++)
        if (y[i] != (float)(THREADS - 1 - i))
            return false;
    return true;
}

TEST(test_order)
{
    int right = 0;
    float last = 0;
    bool differ = false;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        emulator_seed(seed);
        struct probe p = probe("no_order", 1, 2 * THREADS, 1, THREADS);
        assert_runs(&p);
        assert_true(reversed(p.y + THREADS));
        for (int i = 0; i < 2 * THREADS; i++)
            p.y[i] = NAN;
        assert_true(run(&p, 1));
        right += reversed(p.y + THREADS);
        free_probe(&p);
        struct probe q = probe("group_order", 1, 1, 5, THREADS);
        q.y[0] = 0;
        assert_runs(&q);
        differ |= seed > 1 && q.y[0] != last;
        last = q.y[0];
        q.y[0] = 0;
        assert_runs(&q);
        assert_true(q.y[0] == last); /* The same seed gives the same order. */
        free_probe(&q);
    }
    assert_true(right < SEEDS);
    assert_true(differ);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A kernel that takes another layout of lanes for Metal's gives another product. */
TEST(test_layout)
{
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        struct probe p = probe("square", 64, 64, 1, 32);
        bool right = true;
        assert_true(run(&p, wrong));
        for (int i = 0; i < 64; i++) {
            double sum = 0;
            for (int k = 0; k < 8; k++)
                sum += (double)p.x[i / 8 * 8 + k] * (double)p.x[k * 8 + i % 8];
            right &= fabs((double)p.y[i] - sum) <= 1e-5 * (fabs(sum) + 1);
        }
        assert_true(right != wrong);
        free_probe(&p);
    }
}
