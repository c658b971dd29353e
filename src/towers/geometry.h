/* SPDX-License-Identifier: MIT */
/*
 * Where patches lie: pure functions of the grid, which is in patches, both sides multiples of merge.
 * Rows are in block order (engine/block_order.h). Every frame pair of a clip has the same geometry.
 */
#ifndef QV_TOWERS_GEOMETRY_H
#define QV_TOWERS_GEOMETRY_H

#include "engine/block_order.h"
#include "family.h"

/*
 * Cosines and sines of the angles by which positions turn, f32 [n, head_dim/4]: angle = position *
 * theta^(-4i/head_dim). The first half of a rotated half turns by the patch's row, the second by its
 * column. Frequencies and angles are rounded to f32 where torch rounds them
 * (Qwen3VLVisionRotaryEmbedding); cosine and sine of that angle are exact to half a unit, which is
 * within one unit of torch's. head_dim is a multiple of 4.
 */
void qv_geometry_angles(int64_t n, int64_t head_dim, double theta, float *cos_out, float *sin_out);

/*
 * Interpolation of the learned table of side*side positions: of each row of one frame pair
 * index[grid_h*grid_w, taps] and weight[grid_h*grid_w, taps], taps from left to right and down.
 * Bilinear: the same bits as transformers' get_vision_interpolation_indices_and_weights (bilinear,
 * align_corners). Bicubic: torch's grid_sample (no align_corners, border) within roundings of f32.
 */
void qv_geometry_interpolation(enum qv_interpolation how, int64_t grid_h, int64_t grid_w,
                               int64_t merge, int64_t side, int32_t *index, float *weight);

/* Neighbours of a position, in rows and columns together. */
static inline int64_t
qv_interpolation_taps(enum qv_interpolation how)
{
    return how == QV_BICUBIC ? 16 : 4;
}

#endif
