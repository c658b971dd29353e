/* SPDX-License-Identifier: MIT */
/*
 * Tests the tolerance of qwenvit verify for chance between two honest bf16 towers, by drawing many
 * of them; and that a layer that rounds too much is still found.
 */

#include "test.h"

#include <math.h>

#include "verify/verify.h"

/* A nearly normal number of deviation 4: how many of 64 random bits are set. */
static double
draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (double)__builtin_popcountll(*random * 0x2545f4914f6cdd1du) - 32;
}

static double
norm_of(int64_t values, uint64_t *random)
{
    double sum = 0;
    for (int64_t i = 0; i < values; i++) {
        double x = draw(random);
        sum += x * x;
    }
    return sqrt(sum);
}

/* Distances of n rows of two honest towers. Row i is (1 + i)^unequal times as exact as the
 * first. */
struct pair {
    double worst[2], mean[2], squares; /* The squares of the yardstick, which is the second
                                        * tower. */
};

static struct pair
draw_pair(int64_t n, int64_t cols, double unequal, uint64_t *random)
{
    struct pair p = { 0 };
    for (int64_t i = 0; i < n; i++)
        for (int tower = 0; tower < 2; tower++) {
            double d = norm_of(cols, random) / pow((double)(1 + i), unequal);
            p.worst[tower] = d > p.worst[tower] ? d : p.worst[tower];
            p.mean[tower] += d;
            p.squares += tower ? d * d : 0;
        }
    return p;
}

/* The share of honest towers beyond the deviations for one in a thousand is one in a thousand, or
 * less. The rows are equal or unequal, one or many. */
TEST(chance_is_what_the_formula_says)
{
    static const struct {
        int64_t n, cols;
        double unequal;
        int draws;
    } cases[] = { { 1, 24, 0, 300000 }, { 1, 256, 0, 60000 }, { 2, 24, 0, 200000 },
                  { 16, 32, 0, 20000 }, { 16, 32, 1, 20000 }, { 16, 24, 0.3, 20000 },
                  { 190, 16, 0, 4000 }, { 190, 16, 1, 4000 }, { 190, 16, 0.1, 4000 },
                  { 1520, 16, 0, 1000 } };
    static const double thousandth = 3.0902, millionth = 4.7534;
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t n = cases[i].n, cols = cases[i].cols;
        int worst = 0, mean = 0, never = 0;
        for (int j = 0; j < cases[i].draws; j++) {
            struct pair p = draw_pair(n, cols, cases[i].unequal, &random);
            double alike = p.mean[1] * p.mean[1] / p.squares;
            double over[2] = { p.worst[0] / p.worst[1], p.mean[0] / p.mean[1] };
            worst += over[0] > verify_spread(cols, 1, thousandth);
            mean += over[1] > verify_spread(cols, alike, thousandth);
            never += over[0] > verify_spread(cols, 1, millionth);
            never += over[1] > verify_spread(cols, alike, millionth);
        }
        double expected = 1e-3 * cases[i].draws, most = expected + 3 * sqrt(expected);
        printf("%4lld rows of %3lld: %d and %d of %d, %d\n", (long long)n, (long long)cols, worst,
               mean, cases[i].draws, never);
        assert_true(worst <= most && mean <= most && never <= 1);
        if (n == 1) /* It is not much less either, if nothing else keeps it down. */
            assert_true(worst >= expected / 2);
    }
}

/* Judges a bf16 layer of n equal rows whose errors are `factor` times those of an ideal tower. */
static bool
layer_passes(int64_t n, int64_t cols, double factor, uint64_t *random)
{
    const size_t values = (size_t)(n * cols);
    float *truth = test_alloc(3 * values * sizeof *truth), *ideal = truth + values;
    float *found = ideal + values;
    for (size_t i = 0; i < values; i++) {
        truth[i] = (float)draw(random);
        ideal[i] = truth[i] + (float)(draw(random) / 256);
        found[i] = truth[i] + (float)(factor * draw(random) / 256);
    }
    struct verify_table table = { 0 };
    struct verify_layer l = { .name = "blocks.0", .rows = found, .n = n, .cols = cols };
    struct verify_held_to to = verify_held_to_ideal();
    to.truth = to.exact = truth;
    to.yardstick = ideal;
    assert_ok(verify_layer("rounding", QV_BF16, &l, &to, &table, ERR));
    bool ok = table.rows[0].ok;
    verify_table_free(&table);
    return ok;
}

/* An honest layer passes, with the one additional rounding that it may have. A layer that is 1.3
 * times as far does not pass at usual sizes, and one with the few values of a golden tower does not
 * if it is 3 times as far. */
TEST(a_layer_that_rounds_too_much_is_caught)
{
    static const int64_t sizes[][2] = { { 16, 1024 },  { 190, 768 },  { 190, 1024 },
                                        { 190, 2560 }, { 760, 1152 }, { 1520, 1024 } };
    uint64_t random = 7046029254386353131u;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_true(layer_passes(sizes[i][0], sizes[i][1], 1, &random));
        assert_true(layer_passes(sizes[i][0], sizes[i][1], 1.06, &random));
        assert_false(layer_passes(sizes[i][0], sizes[i][1], 1.3, &random));
    }
    assert_true(layer_passes(16, 32, 1.06, &random));
    assert_false(layer_passes(16, 32, 3, &random));
}
