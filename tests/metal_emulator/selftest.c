/* SPDX-License-Identifier: MIT */
/* Tests that the emulator catches each fault that is planted in faults.metal, accepts the correct
 * twin, and computes what Metal would. */
#include "test.h"

#include "emulator.h"

#include <math.h>

enum { N = 128, SEEDS = 8, THREADS = 64, APART = 64 };

/* x is at buffer 0 and y at buffer 1, each with memory of its own. */
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
        { "write_outside", 2, "writes 4 bytes at 512 of buffer 1, which has 512" },
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
    assert_null(emulator_find("faults", "nothing"));
    assert_null(emulator_find("nothing", "fill"));
    char none[1];
    p = good;
    p.dispatch.groups[0] = 0;
    assert_false(emulator_run(&p.dispatch, none, sizeof none));
    assert_int_equal(none[0], '\0');
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
    assert_non_null(strstr(p.error, "setBytes of 4100 bytes at 0, of which it takes 4096"));
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
        strstr(p.error, "1.1e+12 FLOPs in a command buffer, of which it may have 1e+12"));
    p.dispatch.groups[0] = 1 << 30; /* one dispatch alone */
    assert_false(run_times(&p, 1, &c));
    emulator_samples = false;
    free_probe(&few);
    free_probe(&p);
}

/* What a grid leaves out keeps its value. */
TEST(test_cover)
{
    struct {
        uint32_t n;
    } args = { 3 * 70 };
    const float factor = 3;
    for (uint32_t groups = 3; groups <= 4; groups++) {
        struct probe p = probe("fill", 1, args.n, groups, THREADS);
        bind(&p, 0, &args, sizeof args);
        memcpy(&p.dispatch.constants[1], &factor, sizeof factor);
        assert_runs(&p);
        for (uint32_t i = 0; i < args.n; i++)
            if (i >= groups * THREADS)
                assert_true(isnan(p.y[i]));
            else
                assert_true(p.y[i] == factor * (float)(1 << i % 4));
        free_probe(&p);
    }
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

/* Without its checks the emulator does not report a race. The result of the race depends on the
 * seed. */
TEST(test_no_checks)
{
    int right = 0;
    setenv("QV_EMULATOR_CHECKS", "0", 1);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct probe p = probe("no_barrier", 1, THREADS, 1, THREADS);
        emulator_seed(seed);
        assert_true(run(&p, 1));
        right += reversed(p.y);
        free_probe(&p);
    }
    unsetenv("QV_EMULATOR_CHECKS");
    assert_true(right < SEEDS);
}

/* ---- values ---------------------------------------------------------------------------------- */

TEST(test_simd_functions)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct probe p = probe("simd_functions", 32, 9 * 32, 1, 32);
        float sum = 0, most = -INFINITY, least = INFINITY;
        emulator_seed(seed);
        assert_runs(&p);
        for (int i = 0; i < 32; i++) {
            sum += p.x[i]; /* Halves of small numbers, so the sums are exact. */
            most = fmaxf(most, p.x[i]);
            least = fminf(least, p.x[i]);
        }
        for (int i = 0; i < 32; i++) {
            assert_true(p.y[i] == sum && p.y[32 + i] == most && p.y[64 + i] == least);
            assert_true(p.y[96 + i] == p.x[i * 5 % 32]);
            assert_true(p.y[128 + i] == p.x[i ^ 9]);
            assert_true(p.y[160 + i] == (i < 29 ? p.x[i + 3] : 0));
            assert_true(p.y[192 + i] == (i < 3 ? 0 : p.x[i - 3]));
            assert_true(p.y[224 + i] == p.x[17]);
            assert_true(p.y[256 + i] == 31 * 16);
        }
        free_probe(&p);
    }
}

TEST(test_places)
{
    const uint32_t groups[3] = { 3, 2, 5 }, threads[3] = { 4, 8, 3 };
    struct probe p = probe("places", 1, 30 * 96, 1, 96);
    memcpy(p.dispatch.groups, groups, sizeof groups);
    memcpy(p.dispatch.threads, threads, sizeof threads);
    assert_runs(&p);
    for (int i = 0; i < 30 * 96; i++) {
        uint32_t right;
        memcpy(&right, &p.y[i], sizeof right);
        assert_int_equal(right, 1);
    }
    free_probe(&p);
}

TEST(test_matrix_memory)
{
    struct probe p = probe("matrix_memory", 256, 256, 1, 32);
    p.dispatch.threadgroup_bytes = 96 * sizeof(float);
    assert_runs(&p);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) {
            float v = p.x[(4 + i) * 16 + 3 + j];
            assert_true(p.y[i * 8 + j] == v);
            assert_true(p.y[64 + j * 8 + i] == v);
            assert_true(p.y[128 + j * 8 + i] == v);
            assert_true(p.y[192 + i * 8 + j] == v);
        }
    p.dispatch.threadgroup_bytes -= 16; /* 8 rows of 12 need 92. */
    assert_runs(&p);
    p.dispatch.threadgroup_bytes -= 16;
    assert_false(run(&p, 0));
    free_probe(&p);
}

static uint16_t
bfloat_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (isnan(f))
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float
float_of(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* a b + c at (i, j), for matrices of 8 x 8. */
static double
product(const float *a, const float *b, int i, int j, double c)
{
    for (int k = 0; k < 8; k++)
        c += (double)a[i * 8 + k] * (double)b[k * 8 + j];
    return c;
}

static bool
is_close(float got, double want)
{
    return fabs((double)got - want) <= 1e-5 * (fabs(want) + 1);
}

TEST(test_matrix_product)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct probe p = probe("matrix_product", 64, 5 * 64, 1, 32);
        float b[128];
        uint16_t *bits = malloc(sizeof(uint16_t) * 128);
        assert_non_null(bits);
        for (int i = 0; i < 128; i++) {
            bits[i] = bfloat_of(sinf((float)i));
            b[i] = float_of(bits[i]);
        }
        bind(&p, 2, bits, sizeof(uint16_t) * 128);
        emulator_seed(seed);
        assert_runs(&p);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++) {
                const float *y = p.y + i * 8 + j;
                double mixed = product(b, p.x, i, j, 0);
                assert_true(is_close(y[0], product(p.x, p.x, i, j, 0.5)));
                assert_true(is_close(y[64], product(b, b + 64, i, j, 0.5)));
                assert_true(is_close(y[128], 2 * mixed + 0.5));
                assert_true(y[192] == 2 * p.x[i * 8 + j]);
                assert_true(y[256] == 2 * p.x[i * 8 + j]);
            }
        free(bits);
        free_probe(&p);
    }
}

/* A kernel that takes another layout of lanes for Metal's gives another product. */
TEST(test_layout)
{
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        struct probe p = probe("square", 64, 64, 1, 32);
        bool right = true;
        assert_true(run(&p, wrong));
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++)
                right &= is_close(p.y[i * 8 + j], product(p.x, p.x, i, j, 0));
        assert_true(right != wrong);
        free_probe(&p);
    }
}

TEST(test_bfloat)
{
    static const uint32_t bits[] = { 0,          0x80000000, 0x3f800000, 0x3f808000,
                                     0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff,
                                     0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000,
                                     0xff812345, 0x00000001, 0x00018000, 0x007fffff };
    enum { ALL = 65536, SOME = 128, KINDS = sizeof bits / sizeof bits[0] };
    struct probe from = probe("from_bfloat", ALL / 2, ALL, ALL / 4 / THREADS, THREADS);
    struct probe to = probe("to_bfloat", SOME, SOME / 2, 1, SOME / 4);
    uint16_t *b = (uint16_t *)from.x;
    for (int i = 0; i < ALL; i++)
        b[i] = (uint16_t)i;
    assert_runs(&from);
    for (int i = 0; i < ALL; i++) {
        float f = float_of((uint16_t)i);
        assert_true(isnan(f) ? isnan(from.y[i]) : !memcmp(&from.y[i], &f, sizeof f));
    }
    for (int i = 0; i < SOME; i++)
        memcpy(&to.x[i], &bits[i % KINDS], sizeof bits[0]);
    assert_runs(&to);
    for (int i = 0; i < SOME; i++) {
        uint16_t got;
        memcpy(&got, (char *)to.y + i * 2, sizeof got);
        if (got != bfloat_of(to.x[i]))
            fail_msg("%#x became %#x", bits[i % KINDS], got);
        assert_true(isnan(float_of(got)) == isnan(to.x[i]));
    }
    free_probe(&from);
    free_probe(&to);
}

TEST(test_arithmetic)
{
    struct probe p = probe("arithmetic", 32, 32 * 16, 1, 32);
    for (int i = 0; i < 32; i++)
        p.x[i] /= 4;
    assert_runs(&p);
    for (int i = 0; i < 32; i++) {
        float v = p.x[i], short_v = float_of(bfloat_of(v)), up = v > 0 ? v : 0;
        float third = float_of(bfloat_of(0.3f));
        const float want[16] = { fabsf(v),
                                 v * v - 1,
                                 expf(v),
                                 exp2f(v),
                                 logf(fabsf(v) + 1),
                                 1 / sqrtf(v * v + 1),
                                 tanhf(v),
                                 fmaxf(v, 0.25f) + fminf(v, 0.5f) + fmaxf(-1, fminf(v, 1)),
                                 (v < 0 ? -2 : 2) + floorf(v),
                                 v < 0 ? 3 : v,
                                 8 * v,
                                 -v,
                                 0.1f + 0.2f,
                                 float_of(bfloat_of(float_of(bfloat_of(short_v * 1.5f)) + third)),
                                 6 * up,
                                 truncf(v) + 3 + 3 };
        for (int j = 0; j < 16; j++)
            if (!is_close(p.y[i * 16 + j], (double)want[j]))
                fail_msg("arithmetic %d of %g: %g, not %g", j, (double)v, (double)p.y[i * 16 + j],
                         (double)want[j]);
    }
    free_probe(&p);
}
