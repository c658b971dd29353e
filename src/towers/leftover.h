/* SPDX-License-Identifier: MIT */
/* What a checkpoint holds that its vision tower does not use. */
#ifndef QV_TOWERS_LEFTOVER_H
#define QV_TOWERS_LEFTOVER_H

#include "tower.h"

enum { QV_LEFTOVER_NAMES = 3 };

struct qv_leftover {
    int64_t of_tower;                  /* tensors that have the tower's prefix all the same */
    int64_t of_others;                 /* of other parts: the language model */
    char names[QV_LEFTOVER_NAMES][96]; /* the tower's first, below its prefix */
    const char *prefix;                /* "model.visual." */
};

/* Looks through a checkpoint that can be loaded. QV_EIO, QV_EFORMAT, QV_ENOMEM. */
qv_status qv_leftover_find(const char *dir, const struct qv_config *config,
                           const struct qv_tower *tower, struct qv_leftover *out, qv_error *err);

#endif
