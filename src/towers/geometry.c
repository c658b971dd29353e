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

/* The two neighbours of position i of n on an axis of the table. f32, and in this order of operations:
 * that is what makes the bits those of transformers. */
static void
axis_neighbours(int64_t i, int64_t n, int64_t side, int64_t at[2], float weight[2])
{
    float source = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1);
    float below = floorf(source);
    for (int j = 0; j < 2; j++) {
        int64_t t = (int64_t)below + j;
        at[j] = t < side ? t : side - 1;
        weight[j] = 1 - fabsf(source - below - (float)j);
    }
}

void
qv_geometry_interpolation(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t side,
                          int32_t (*index)[4], float (*weight)[4])
{
    for (int64_t c = 0; c < grid_w; c++) {
        int64_t col[2];
        float col_weight[2];
        axis_neighbours(c, grid_w, side, col, col_weight);
        for (int64_t r = 0; r < grid_h; r++) {
            int64_t i = qv_block_row(grid_w, merge, r, c), row[2];
            float row_weight[2];
            axis_neighbours(r, grid_h, side, row, row_weight);
            for (int j = 0; j < 4; j++) {
                index[i][j] = (int32_t)(row[j / 2] * side + col[j % 2]);
                weight[i][j] = row_weight[j / 2] * col_weight[j % 2];
            }
        }
    }
}
