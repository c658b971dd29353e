/* SPDX-License-Identifier: MIT */
/* Checks items before they are pushed, and cuts them into pieces. */
#pragma once

#include "model.h"

/* The most patches of an image or a frame pair, and of a chunk. */
enum { QV_MOST_ROWS = 1 << 22 };

/* The frames in an item's data, and the frames that its pairs need in the input, where an odd last
 * frame is repeated. */
int64_t qv_item_frames(const struct qv_config *c, const qv_item *item);
int64_t qv_item_pair_frames(const struct qv_config *c, const qv_item *item);

/* Checks that a grid is valid for this model. `name` names what has the grid in the error text. */
qv_status qv_item_check_grid(const struct qv_config *c, const int64_t grid_thw[3], const char *name,
                             qv_error *err);

/* Checks that an item, whose data come later, is valid for any plan. The text of QV_EINVAL begins
 * with `name`, and states the field, its value and the values allowed. Any thread may call this
 * function. */
qv_status qv_item_check_shape(const qv_model *model, qv_input input, const qv_item *item,
                              const char *name, qv_error *err);
/* Does that for the caller's item number i, which must have data. They are not read. */
qv_status qv_item_check_nth(const qv_model *model, qv_input input, const qv_item *item, size_t i,
                            qv_error *err);

/* Checks that n items can be pushed as one chunk. QV_EINVAL names item and value. *rows becomes
 * their total number of patches. */
qv_status qv_items_check(const qv_model *model, qv_input input, const qv_capacity *capacity,
                         const qv_item *items, size_t n, int64_t *rows, qv_error *err);

/* Returns n frame pairs of an item from pair `first` on, or as many as there are, as an item whose
 * data is part of the whole item's. All pieces of an image share its one frame. Any thread may call
 * it. */
qv_item qv_item_piece(const qv_model *model, qv_input input, const qv_item *item, int64_t first,
                      int64_t n);
