/* SPDX-License-Identifier: MIT */
/*
 * The order of patch rows, as in transformers' processors: (grid_h/merge, grid_w/merge, merge,
 * merge), so that the merge*merge patches of one token are adjacent. The grid is in patches, both
 * sides multiples of merge.
 */
#pragma once

#include <stdint.h>

/* Returns the row of the patch at (row, col) of the grid. */
static inline int64_t
qv_block_row(int64_t grid_w, int64_t merge, int64_t row, int64_t col)
{
    int64_t block = row / merge * (grid_w / merge) + col / merge;
    return block * merge * merge + row % merge * merge + col % merge;
}

/* The tables that row operations look up (ops.inc). qv_coords: for each row, its item and the
 * position of its patch. qv_item_place: for each item, in patches, where its frames begin, the step
 * from one frame pair to the next and from one frame to the next, and the columns of its grid.
 * qv_item_norm: the scales and shifts of an item's bytes. */
struct qv_coords {
    int32_t item, pair, row, col;
};
struct qv_item_place {
    int32_t first, pair, frame, grid_w;
};
struct qv_item_norm {
    float scale[3], shift[3];
};

/* Fills the coordinates of the rows of one frame pair: coords[grid_h*grid_w], as transformers'
 * get_vision_position_ids does. */
static inline void
qv_block_coords(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t item, int64_t pair,
                struct qv_coords *coords)
{
    for (int64_t r = 0; r < grid_h; r++)
        for (int64_t c = 0; c < grid_w; c++)
            coords[qv_block_row(grid_w, merge, r, c)] =
                (struct qv_coords){ (int32_t)item, (int32_t)pair, (int32_t)r, (int32_t)c };
}
