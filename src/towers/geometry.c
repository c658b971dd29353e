/* SPDX-License-Identifier: MIT */
#include "towers/geometry.h"

#include <math.h>
#include <string.h>

void
qv_geometry_positions(int64_t grid_h, int64_t grid_w, int64_t merge, int32_t *row, int32_t *col)
{
    for (int64_t r = 0; r < grid_h; r++)
        for (int64_t c = 0; c < grid_w; c++) {
            int64_t i = qv_geometry_row_of(grid_w, merge, r, c);
            row[i] = (int32_t)r;
            col[i] = (int32_t)c;
        }
}

/* cos[quarter] and sin[quarter] of one coordinate's angles, quarter = head_dim / 4 */
static void
turn(int64_t position, int64_t quarter, double theta, float *cos_out, float *sin_out)
{
    float base = (float)theta, spatial = (float)(2 * quarter);
    for (int64_t i = 0; i < quarter; i++) {
        float inv_freq = 1.0f / powf(base, (float)(2 * i) / spatial);
        float angle = (float)position * inv_freq;
        cos_out[i] = (float)cos((double)angle);
        sin_out[i] = (float)sin((double)angle);
    }
}

/* The angles of one coordinate are worked out for the first patch that has it, then copied. */
void
qv_geometry_rotary(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t head_dim, double theta,
                   float *cos_out, float *sin_out)
{
    int64_t quarter = head_dim / 4, half = 2 * quarter;
    size_t bytes = (size_t)quarter * sizeof(float);
    for (int64_t r = 0; r < grid_h; r++) {
        int64_t first = qv_geometry_row_of(grid_w, merge, r, 0) * half;
        turn(r, quarter, theta, cos_out + first, sin_out + first);
        for (int64_t c = 1; c < grid_w; c++) {
            int64_t at = qv_geometry_row_of(grid_w, merge, r, c) * half;
            memcpy(cos_out + at, cos_out + first, bytes);
            memcpy(sin_out + at, sin_out + first, bytes);
        }
    }
    for (int64_t c = 0; c < grid_w; c++) {
        int64_t first = qv_geometry_row_of(grid_w, merge, 0, c) * half + quarter;
        turn(c, quarter, theta, cos_out + first, sin_out + first);
        for (int64_t r = 1; r < grid_h; r++) {
            int64_t at = qv_geometry_row_of(grid_w, merge, r, c) * half + quarter;
            memcpy(cos_out + at, cos_out + first, bytes);
            memcpy(sin_out + at, sin_out + first, bytes);
        }
    }
}

/* The two taps of position i of n on an axis of the table. f32, and in this order of operations:
 * that is what makes the bits those of transformers. */
static void
axis_taps(int64_t i, int64_t n, int64_t side, int64_t tap[2], float weight[2])
{
    float source = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1);
    float below = floorf(source);
    for (int j = 0; j < 2; j++) {
        int64_t t = (int64_t)below + j;
        tap[j] = t < side ? t : side - 1;
        weight[j] = 1 - fabsf(source - below - (float)j);
    }
}

void
qv_geometry_taps(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t side, int32_t (*index)[4],
                 float (*weight)[4])
{
    for (int64_t r = 0; r < grid_h; r++)
        for (int64_t c = 0; c < grid_w; c++) {
            int64_t i = qv_geometry_row_of(grid_w, merge, r, c), row[2], col[2];
            float row_weight[2], col_weight[2];
            axis_taps(r, grid_h, side, row, row_weight);
            axis_taps(c, grid_w, side, col, col_weight);
            for (int j = 0; j < 4; j++) {
                index[i][j] = (int32_t)(row[j / 2] * side + col[j % 2]);
                weight[i][j] = row_weight[j / 2] * col_weight[j % 2];
            }
        }
}
