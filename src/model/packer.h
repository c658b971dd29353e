/* SPDX-License-Identifier: MIT */
/* The packer holds items whose frame pairs have not all gone into chunks. Chunks are filled from
 * them one by one. */
#ifndef QV_MODEL_PACKER_H
#define QV_MODEL_PACKER_H

#include "model.h"

/* Frame pairs [first, first + n) of the caller's item of this number. */
struct qv_pack_piece {
    size_t item;
    int64_t first, n;
};

/* Holds the runs of frame pairs that wait, the oldest first. It begins as zeros. */
struct qv_packer {
    qv_pack_run runs[QV_PACK_ITEMS];
    struct qv_pack_piece pieces[QV_PACK_ITEMS];
    size_t n;
};

/* Adds an item with so many pairs of a size. Returns false if as many wait as are looked at. */
bool qv_packer_add(struct qv_packer *p, size_t item, const qv_capacity *pair, int64_t pairs);

/* Takes out what goes into the next chunk, an item's pairs in their order, and returns the
 * number of pieces. */
size_t qv_packer_next(struct qv_packer *p, const qv_capacity *chunk,
                      struct qv_pack_piece pieces[QV_PACK_ITEMS]);

/* Returns which capacities give the model's tokens the same bits. */
struct qv_capacity_bits qv_model_bits(const qv_model *model);

#endif
