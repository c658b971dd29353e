/* SPDX-License-Identifier: MIT */
/*
 * Where the patches of one frame pair lie: pure functions of the grid. All rows are in the block
 * order of transformers' processors, (grid_h/merge, grid_w/merge, merge, merge), so that the
 * merge*merge patches of one token lie behind each other. The grid is in patches, both sides
 * multiples of merge. Every frame pair of a clip has the same geometry.
 */
#ifndef QV_SRC_GEOMETRY_H
#define QV_SRC_GEOMETRY_H

#include <stdint.h>

/* The row of the patch at (row, col) in block order. */
static inline int64_t
qv_geometry_row_of(int64_t grid_w, int64_t merge, int64_t row, int64_t col)
{
    int64_t block = row / merge * (grid_w / merge) + col / merge;
    return block * merge * merge + row % merge * merge + col % merge;
}

/* Of each row the patch's place: row[grid_h*grid_w], col[grid_h*grid_w].
 * As transformers' get_vision_position_ids. */
void qv_geometry_positions(int64_t grid_h, int64_t grid_w, int64_t merge, int32_t *row,
                           int32_t *col);

/*
 * Rotary tables, f32: cosines and sines [grid_h*grid_w, head_dim/2]. The first half of a row turns
 * by the patch's row, the second by its column: angle = position * theta^(-4i/head_dim),
 * i < head_dim/4. Frequencies and angles are rounded to f32 where torch rounds them
 * (Qwen3VLVisionRotaryEmbedding); cosine and sine of that angle are exact to half a unit, which is
 * within one unit of torch's. head_dim is a multiple of 4.
 */
void qv_geometry_rotary(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t head_dim,
                        double theta, float *cos_out, float *sin_out);

/*
 * Bilinear taps into the learned table of side*side positions, corners aligned:
 * index[grid_h*grid_w, 4] and weight[grid_h*grid_w, 4], (upper left, upper right, lower left,
 * lower right). The same bits as transformers' get_vision_interpolation_indices_and_weights
 * (bilinear, align_corners).
 */
void qv_geometry_taps(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t side,
                      int32_t (*index)[4], float (*weight)[4]);

#endif
