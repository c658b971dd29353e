/* SPDX-License-Identifier: MIT */
/* Tests the grid's pure functions against tables that were written by transformers 5.23 and torch
 * 2.11. */
#include "test.h"

#include <math.h>

#include "towers/geometry.h"

#define MAX_PATCHES (96 * 130)

static struct qv_coords coords[MAX_PATCHES];
static int32_t taps_index[MAX_PATCHES][4];
static float taps_weight[MAX_PATCHES][4];

/* get_vision_position_ids([[1, 4, 6]], 2) */
static const int32_t positions_4x6[24][2] = {
    { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 }, { 0, 2 }, { 0, 3 }, { 1, 2 }, { 1, 3 },
    { 0, 4 }, { 0, 5 }, { 1, 4 }, { 1, 5 }, { 2, 0 }, { 2, 1 }, { 3, 0 }, { 3, 1 },
    { 2, 2 }, { 2, 3 }, { 3, 2 }, { 3, 3 }, { 2, 4 }, { 2, 5 }, { 3, 4 }, { 3, 5 },
};

/* get_vision_interpolation_indices_and_weights: grid 4x6 of a table of side 6; grid 2x8 (one row of
 * blocks, corners meet) of a table of side 4. */
static const int32_t index_4x6[24][4] = {
    { 0, 1, 6, 7 },     { 1, 2, 7, 8 },     { 6, 7, 12, 13 },   { 7, 8, 13, 14 },
    { 2, 3, 8, 9 },     { 3, 4, 9, 10 },    { 8, 9, 14, 15 },   { 9, 10, 15, 16 },
    { 4, 5, 10, 11 },   { 5, 5, 11, 11 },   { 10, 11, 16, 17 }, { 11, 11, 17, 17 },
    { 18, 19, 24, 25 }, { 19, 20, 25, 26 }, { 30, 31, 30, 31 }, { 31, 32, 31, 32 },
    { 20, 21, 26, 27 }, { 21, 22, 27, 28 }, { 32, 33, 32, 33 }, { 33, 34, 33, 34 },
    { 22, 23, 28, 29 }, { 23, 23, 29, 29 }, { 34, 35, 34, 35 }, { 35, 35, 35, 35 },
};
static const int32_t index_2x8[16][4] = {
    { 0, 1, 4, 5 }, { 0, 1, 4, 5 }, { 12, 13, 12, 13 }, { 12, 13, 12, 13 },
    { 0, 1, 4, 5 }, { 1, 2, 5, 6 }, { 12, 13, 12, 13 }, { 13, 14, 13, 14 },
    { 1, 2, 5, 6 }, { 2, 3, 6, 7 }, { 13, 14, 13, 14 }, { 14, 15, 14, 15 },
    { 2, 3, 6, 7 }, { 3, 3, 7, 7 }, { 14, 15, 14, 15 }, { 15, 15, 15, 15 },
};
/* The weights of the upper taps. The lower ones are 0, because both rows fall on rows of the
 * table. */
static const float weight_2x8[8][2] = {
    { 0x1p+0f, 0 },
    { 0x1.249248p-1f, 0x1.b6db70p-2f },
    { 0x1.249248p-3f, 0x1.b6db6ep-1f },
    { 0x1.6db6dcp-1f, 0x1.249248p-2f },
    { 0x1.249248p-2f, 0x1.6db6dcp-1f },
    { 0x1.b6db70p-1f, 0x1.249240p-3f },
    { 0x1.b6db70p-2f, 0x1.249248p-1f },
    { 0x1p+0f, 0 },
};

TEST(positions_are_those_of_transformers)
{
    qv_block_coords(4, 6, 2, 7, 3, coords);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(coords[i].row, positions_4x6[i][0]);
        assert_int_equal(coords[i].col, positions_4x6[i][1]);
        assert_int_equal(coords[i].item, 7);
        assert_int_equal(coords[i].pair, 3);
    }
}

TEST(every_patch_has_one_row)
{
    static const int64_t grids[][3] = { { 2, 2, 2 }, { 2, 10, 2 }, { 10, 2, 2 }, { 6, 9, 3 },
                                        { 5, 7, 1 }, { 1, 1, 1 },  { 40, 62, 2 } };
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        int64_t h = grids[g][0], w = grids[g][1], merge = grids[g][2];
        memset(coords, 0xff, sizeof coords);
        qv_block_coords(h, w, merge, 0, 0, coords);
        for (int64_t i = 0; i < h * w; i++) {
            assert_in_range(coords[i].row, 0, h - 1);
            assert_in_range(coords[i].col, 0, w - 1);
            assert_int_equal(qv_block_row(w, merge, coords[i].row, coords[i].col), i);
            /* The patches of one token are neighbours. */
            int64_t first = i / (merge * merge) * merge * merge;
            assert_int_equal(coords[i].row / merge, coords[first].row / merge);
            assert_int_equal(coords[i].col / merge, coords[first].col / merge);
        }
        assert_int_equal(coords[h * w].row, -1);
    }
}

TEST(interpolation_is_that_of_transformers)
{
    qv_geometry_interpolation(QV_BILINEAR, 4, 6, 2, 6, *taps_index, *taps_weight);
    assert_memory_equal(taps_index, index_4x6, sizeof index_4x6);
    assert_true(taps_weight[2][0] == 0x1.555558p-2f && taps_weight[2][2] == 0x1.555554p-1f);
    assert_true(taps_weight[12][0] == 0x1.555558p-1f && taps_weight[12][2] == 0x1.555550p-2f);
    qv_geometry_interpolation(QV_BILINEAR, 2, 8, 2, 4, *taps_index, *taps_weight);
    assert_memory_equal(taps_index, index_2x8, sizeof index_2x8);
    for (int64_t r = 0; r < 2; r++)
        for (int64_t c = 0; c < 8; c++) {
            const float *weight = taps_weight[qv_block_row(8, 2, r, c)];
            assert_true(weight[0] == weight_2x8[c][0] && weight[1] == weight_2x8[c][1]);
            assert_true(weight[2] == 0 && weight[3] == 0);
        }
}

/* All bits of larger grids: FNV-1a over the int32 indices and then the f32 weights of transformers'
 * tensors (little endian). */
TEST(interpolation_of_large_grids_has_the_same_bits)
{
    static const struct {
        int64_t h, w, merge, side;
        uint64_t hash;
    } grids[] = {
        { 1, 1, 1, 6, UINT64_C(0xe8e7e8a4bfa25218) },
        { 1, 3, 1, 1, UINT64_C(0x15f32a8da2f16a18) },
        { 3, 9, 3, 5, UINT64_C(0x88468e8c62d43258) },
        { 10, 6, 2, 4, UINT64_C(0x063a2607d2e36e39) },
        { 20, 38, 2, 48, UINT64_C(0x0f8ee73b9aee40f8) },
        { 40, 62, 2, 48, UINT64_C(0xa12a63dedac510ed) },
        { 48, 48, 2, 48, UINT64_C(0x8164237d0e9b6a41) },
        { 96, 130, 2, 48, UINT64_C(0x312e3a2b60d61ac6) },
    };
    const uint32_t one = 1;
    if (*(const unsigned char *)&one != 1)
        skip();
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        size_t bytes = (size_t)(grids[g].h * grids[g].w) * sizeof taps_index[0];
        qv_geometry_interpolation(QV_BILINEAR, grids[g].h, grids[g].w, grids[g].merge,
                                  grids[g].side, *taps_index, *taps_weight);
        uint64_t hash = test_hash(TEST_HASH, taps_index, bytes);
        assert_int_equal(test_hash(hash, taps_weight, bytes), grids[g].hash);
    }
}

TEST(interpolation_is_weights_into_the_table)
{
    static const int64_t grids[][4] = { { 2, 2, 2, 48 },   { 2, 96, 2, 48 }, { 94, 96, 2, 48 },
                                        { 96, 130, 2, 7 }, { 6, 9, 3, 2 },   { 2, 2, 2, 1 } };
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        int64_t h = grids[g][0], w = grids[g][1], merge = grids[g][2], side = grids[g][3];
        qv_geometry_interpolation(QV_BILINEAR, h, w, merge, side, *taps_index, *taps_weight);
        for (int64_t i = 0; i < h * w; i++) {
            double sum = 0;
            for (int j = 0; j < 4; j++) {
                assert_in_range(taps_index[i][j], 0, side * side - 1);
                assert_true(taps_weight[i][j] >= 0 && taps_weight[i][j] <= 1);
                sum += taps_weight[i][j];
            }
            assert_true(fabs(sum - 1) <= 4 * 0x1p-24);
        }
        assert_int_equal(taps_index[0][0], 0);
        assert_int_equal(taps_index[h * w - 1][0], side * side - 1);
    }
}

/* The weights of grid_sample (bicubic, no align_corners, border) along one axis: 3 positions for 2
 * and for 6 patches, and 4 for 10. */
static const float cubic_2_of_3[2][4] = {
    { 0.77343750f, 0.26171875f, -0.03515625f },
    { -0.03515625f, 0.26171875f, 0.77343750f },
};
static const float cubic_6_of_3[6][4] = {
    { 1.10546875f, -0.10546875f, 0 },           { 0.77343750f, 0.26171875f, -0.03515625f },
    { 0.22656250f, 0.87890625f, -0.10546875f }, { -0.10546875f, 0.87890625f, 0.22656250f },
    { -0.03515625f, 0.26171875f, 0.77343750f }, { 0, -0.10546875f, 1.10546875f },
};
static const float cubic_10_of_4[10][4] = {
    { 1.11025012f, -0.11024978f, 0, 0 },
    { 0.91800022f, 0.08875011f, -0.00674987f, 0 },
    { 0.50000012f, 0.59375012f, -0.09375002f, 0 },
    { 0.08200024f, 0.97875023f, -0.06075002f, 0 },
    { -0.11024978f, 0.83125025f, 0.32624999f, -0.04725004f },
    { -0.04725004f, 0.32624999f, 0.83125025f, -0.11024978f },
    { 0, -0.06074978f, 0.97875035f, 0.08199977f },
    { 0, -0.09375002f, 0.59375012f, 0.50000012f },
    { 0, -0.00675011f, 0.08874988f, 0.91800058f },
    { 0, 0, -0.11024978f, 1.11025012f },
};

TEST(cubic_interpolation_is_that_of_torch)
{
    static const struct {
        int64_t h, w, merge, side;
        const float (*rows)[4], (*cols)[4];
    } grids[] = {
        { 2, 6, 2, 3, cubic_2_of_3, cubic_6_of_3 },
        { 6, 2, 1, 3, cubic_6_of_3, cubic_2_of_3 },
        { 10, 10, 2, 4, cubic_10_of_4, cubic_10_of_4 },
    };
    enum { TAPS = 16, MOST = 100 };
    static int32_t index[MOST * TAPS];
    static float weight[MOST * TAPS];
    assert_int_equal(qv_interpolation_taps(QV_BICUBIC), TAPS);
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        const int64_t h = grids[g].h, w = grids[g].w, side = grids[g].side;
        qv_geometry_interpolation(QV_BICUBIC, h, w, grids[g].merge, side, index, weight);
        for (int64_t i = 0; i < h * w; i++) {
            const int64_t first = TAPS * qv_block_row(w, grids[g].merge, i / w, i % w);
            double sums[TAPS] = { 0 }; /* The sum for each position; taps beyond the border lie on
                                        * the border. */
            for (int64_t j = first; j < first + TAPS; j++) {
                assert_in_range(index[j], 0, side * side - 1);
                sums[index[j]] += weight[j];
            }
            for (int64_t p = 0; p < side * side; p++) {
                const double by =
                    (double)grids[g].rows[i / w][p / side] * (double)grids[g].cols[i % w][p % side];
                assert_true(fabs(sums[p] - by) <= 1e-6);
            }
        }
    }
}

static int64_t
ulps(float a, float b)
{
    int32_t i, j;
    memcpy(&i, &a, sizeof i);
    memcpy(&j, &b, sizeof j);
    int64_t x = i < 0 ? (int64_t)INT32_MIN - i : i, y = j < 0 ? (int64_t)INT32_MIN - j : j;
    return x < y ? y - x : x - y;
}

/* torch: (position * inv_freq).cos(), .sin() in f32 */
TEST(angles_are_torchs_to_one_ulp)
{
    static const struct {
        int64_t head_dim, position, i;
        float cos, sin;
    } angles[] = {
        { 64, 0, 0, 0x1p+0f, 0x0p+0f },
        { 64, 1, 0, 0x1.14a282p-1f, 0x1.aed548p-1f },
        { 64, 7, 3, 0x1.47f174p-2f, 0x1.e50888p-1f },
        { 64, 47, 15, 0x1.fffb6cp-1f, 0x1.11de72p-7f },
        { 64, 129, 5, 0x1.2100e4p-1f, 0x1.a6a2c2p-1f },
        { 64, 399, 0, -0x1.ffeb64p-1f, -0x1.2285acp-6f },
        { 72, 1, 1, 0x1.a6b88cp-1f, 0x1.20e102p-1f },
        { 72, 23, 9, 0x1.f28468p-1f, 0x1.d2e5ep-3f },
        { 72, 95, 17, 0x1.ffef8ap-1f, 0x1.03a03p-6f },
        { 72, 399, 2, 0x1.be0e94p-2f, -0x1.ccdf0ap-1f },
        { 80, 3, 0, -0x1.fae04cp-1f, 0x1.210386p-3f },
        { 80, 63, 10, 0x1.9db5c8p-1f, 0x1.2da462p-1f },
        { 80, 111, 19, 0x1.ffebb8p-1f, 0x1.2037b8p-6f },
        { 80, 399, 1, 0x1.d28ba6p-1f, 0x1.a5cd64p-2f },
    };
    static float cos_table[400 * 20], sin_table[400 * 20];
    for (size_t a = 0; a < sizeof angles / sizeof *angles; a++) {
        int64_t at = angles[a].position * (angles[a].head_dim / 4) + angles[a].i;
        qv_geometry_angles(400, angles[a].head_dim, 10000, cos_table, sin_table);
        assert_true(ulps(cos_table[at], angles[a].cos) <= 1);
        assert_true(ulps(sin_table[at], angles[a].sin) <= 1);
    }
}

/* The angles are right whatever the number of positions, and lie on the circle. */
TEST(angles_follow_positions)
{
    enum { N = 100, HEAD = 24, QUARTER = HEAD / 4 };
    static float c[N * QUARTER], s[N * QUARTER], few[2][7 * QUARTER];
    qv_geometry_angles(N, HEAD, 10000, c, s);
    qv_geometry_angles(7, HEAD, 10000, few[0], few[1]);
    assert_memory_equal(few[0], c, sizeof few[0]);
    assert_memory_equal(few[1], s, sizeof few[1]);
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < QUARTER; j++) {
            double angle = (double)i * pow(10000, -4.0 * (double)j / HEAD);
            double x = c[i * QUARTER + j], y = s[i * QUARTER + j];
            /* The f32 frequency is off by 3 roundings at most, the angle by one more. */
            double tolerance = (angle * 4 + 1) * 0x1p-24;
            assert_true(fabs(x - cos(angle)) <= tolerance);
            assert_true(fabs(y - sin(angle)) <= tolerance);
            assert_true(fabs(x * x + y * y - 1) <= 4 * 0x1p-24);
        }
}
