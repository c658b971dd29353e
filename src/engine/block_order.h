/* SPDX-License-Identifier: MIT */
/*
 * The order of patch rows, that of transformers' processors: (grid_h/merge, grid_w/merge, merge,
 * merge), so that the merge*merge patches of one token lie behind each other. The grid is in patches,
 * both sides multiples of merge.
 */
#ifndef QV_ENGINE_BLOCK_ORDER_H
#define QV_ENGINE_BLOCK_ORDER_H

#include <stdint.h>

/* The row of the patch at (row, col) of the grid. */
static inline int64_t
qv_block_row(int64_t grid_w, int64_t merge, int64_t row, int64_t col)
{
    int64_t block = row / merge * (grid_w / merge) + col / merge;
    return block * merge * merge + row % merge * merge + col % merge;
}

/* What the row operations look at (ops.inc): of a row, whose it is and where its patch lies; of an item,
 * where its frames begin, how far it is from a frame pair to the next and from a frame to the next, in
 * patches, and the columns of its grid; scales and shifts of its bytes. */
struct qv_coords {
    int32_t item, pair, row, col;
};
struct qv_item_place {
    int32_t first, pair, frame, grid_w;
};
struct qv_item_norm {
    float scale[3], shift[3];
};

/* Of the rows of one frame pair: coords[grid_h*grid_w], as transformers' get_vision_position_ids. */
static inline void
qv_block_coords(int64_t grid_h, int64_t grid_w, int64_t merge, int64_t item, int64_t pair,
                struct qv_coords *coords)
{
    for (int64_t r = 0; r < grid_h; r++)
        for (int64_t c = 0; c < grid_w; c++)
            coords[qv_block_row(grid_w, merge, r, c)] =
                (struct qv_coords){ (int32_t)item, (int32_t)pair, (int32_t)r, (int32_t)c };
}

#endif
