/* SPDX-License-Identifier: MIT */
#include "geometry.h"

#include <math.h>

void
qv_geometry_angles(int64_t n, int64_t head_dim, double theta, float *cos_out, float *sin_out)
{
    int64_t quarter = head_dim / 4;
    float base = (float)theta, spatial = (float)(2 * quarter);
    for (int64_t i = 0; i < quarter; i++) {
        float inv_freq = 1.0f / powf(base, (float)(2 * i) / spatial);
        for (int64_t position = 0; position < n; position++) {
            float angle = (float)position * inv_freq;
            cos_out[position * quarter + i] = (float)cos((double)angle);
            sin_out[position * quarter + i] = (float)sin((double)angle);
        }
    }
}

/* The table positions on both sides of a patch's position along one axis, with their weights. */
enum { MOST_NEIGHBOURS = 4 };
struct axis {
    int64_t at[MOST_NEIGHBOURS];
    float weight[MOST_NEIGHBOURS];
};

/* Finds the neighbours of position i of n, in f32 and in this order of operations, which gives the
 * same bits as transformers. */
static struct axis
linear_neighbours(int64_t i, int64_t n, int64_t side)
{
    struct axis axis = { 0 };
    float source = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1);
    float below = floorf(source);
    for (int j = 0; j < 2; j++) {
        int64_t t = (int64_t)below + j;
        axis.at[j] = t < side ? t : side - 1;
        axis.weight[j] = 1 - fabsf(source - below - (float)j);
    }
    return axis;
}

/* Keys' cubic convolution (1981) with a = -3/4, for distances below 1 and, in the next function,
 * from 1 to 2. */
static float
cubic_near(float x)
{
    const float a = -0.75f;
    return ((a + 2) * x - (a + 3)) * x * x + 1;
}

static float
cubic_far(float x)
{
    const float a = -0.75f;
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

/* The centres of n patches are aligned with the centres of `side` positions. Neighbours outside the
 * table are clamped to its border. */
static struct axis
cubic_neighbours(int64_t i, int64_t n, int64_t side)
{
    float normal = ((float)i + 0.5f) / (float)n * 2 - 1;
    float source = ((normal + 1) * (float)side - 1) / 2;
    float below = floorf(source), x = source - below;
    struct axis axis = { .weight = { cubic_far(x + 1), cubic_near(x), cubic_near(1 - x),
                                     cubic_far(2 - x) } };
    for (int j = 0; j < 4; j++) {
        int64_t t = (int64_t)below - 1 + j;
        axis.at[j] = t < 0 ? 0 : t < side ? t : side - 1;
    }
    return axis;
}

static struct axis
neighbours(enum qv_interpolation how, int64_t i, int64_t n, int64_t side)
{
    return how == QV_BICUBIC ? cubic_neighbours(i, n, side) : linear_neighbours(i, n, side);
}

void
qv_geometry_interpolation(enum qv_interpolation how, int64_t grid_h, int64_t grid_w, int64_t merge,
                          int64_t side, int32_t *index, float *weight)
{
    const int64_t taps = qv_interpolation_taps(how), across = how == QV_BICUBIC ? 4 : 2;
    for (int64_t c = 0; c < grid_w; c++) {
        const struct axis col = neighbours(how, c, grid_w, side);
        for (int64_t r = 0; r < grid_h; r++) {
            const struct axis row = neighbours(how, r, grid_h, side);
            const int64_t first = qv_block_row(grid_w, merge, r, c) * taps;
            for (int64_t j = 0; j < taps; j++) {
                index[first + j] = (int32_t)(row.at[j / across] * side + col.at[j % across]);
                weight[first + j] = row.weight[j / across] * col.weight[j % across];
            }
        }
    }
}
