/* SPDX-License-Identifier: MIT */
/*
 * Patch positions, as pure functions of the grid. Grids are in patches, and both sides are
 * multiples of merge. Rows are in block order (engine/block_order.h). All frame pairs of a clip
 * share one geometry.
 */
#pragma once

#include "engine/block_order.h"
#include "family.h"

/*
 * Fills cosines and sines, f32 [n, head_dim/4], of the angles that positions rotate by: angle =
 * position * theta^(-4i/head_dim). In each half of a head, the first half rotates by the patch's
 * row, the second by its column. Frequencies and angles are rounded to f32 where torch rounds them
 * (Qwen3VLVisionRotaryEmbedding). The cosines and sines of that angle are exact to half a unit in
 * the last place, and thus within one unit of torch's. head_dim must be a multiple of 4.
 */
void qv_geometry_angles(int64_t n, int64_t head_dim, double theta, float *cos_out, float *sin_out);

/*
 * Interpolates the learned table of side*side positions for the rows of one frame pair. Fills
 * index[grid_h*grid_w, taps] and weight[grid_h*grid_w, taps], with taps from left to right and
 * down. Bilinear gives the same bits as transformers' get_vision_interpolation_indices_and_weights
 * (align_corners). Bicubic equals torch's grid_sample (no align_corners, border) up to f32
 * rounding.
 */
void qv_geometry_interpolation(enum qv_interpolation how, int64_t grid_h, int64_t grid_w,
                               int64_t merge, int64_t side, int32_t *index, float *weight);

/* Returns how many table positions a patch's position is interpolated from, for both axes
 * together. */
static inline int64_t
qv_interpolation_taps(enum qv_interpolation how)
{
    return how == QV_BICUBIC ? 16 : 4;
}
