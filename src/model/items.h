/* SPDX-License-Identifier: MIT */
/* What may be pushed: items are checked here, and cut into pieces (qv_item_check, qv_item_piece). */
#ifndef QV_MODEL_ITEMS_H
#define QV_MODEL_ITEMS_H

#include "capacity.h"
#include "model.h"

/* Patches that one image or frame pair, or a chunk, may have. */
enum { QV_MOST_ROWS = 1 << 22 };

/* Frames that an item's data holds, and that its pairs take up in the input: an odd last one twice. */
int64_t qv_item_frames(const struct qv_config *c, const qv_item *item);
int64_t qv_item_pair_frames(const struct qv_config *c, const qv_item *item);

/* That a grid can be one of this model's. `name`: of what has it, for the words. */
qv_status qv_item_check_grid(const qv_model *model, const int64_t grid_thw[3], const char *name,
                             qv_error *err);

/* qv_item_check of the caller's item number i. */
qv_status qv_item_check_nth(const qv_model *model, qv_input input, const qv_item *item, size_t i,
                            qv_error *err);

/* That n items can be pushed as one chunk: QV_EINVAL naming item and value. *rows: of all. */
qv_status qv_items_check(const qv_model *model, qv_input input, const qv_capacity *capacity,
                         const qv_item *items, size_t n, int64_t *rows, qv_error *err);

#endif
