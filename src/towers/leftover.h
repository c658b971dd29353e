/* SPDX-License-Identifier: MIT */
/* The tensors of a checkpoint that its vision tower does not read. */
#ifndef QV_TOWERS_LEFTOVER_H
#define QV_TOWERS_LEFTOVER_H

#include "tower.h"

enum { QV_LEFTOVER_NAMES = 3 };

struct qv_leftover {
    int64_t of_tower;  /* tensors not read although they have the tower's prefix */
    int64_t of_others; /* tensors of the rest, such as the language model */
    /* some of their names; those of the tower come first and lack its prefix */
    char names[QV_LEFTOVER_NAMES][96];
    const char *prefix; /* the tower's prefix, such as "model.visual." */
};

/* Looks through the names of a checkpoint that has been loaded before. Returns QV_EIO,
 * QV_EFORMAT or QV_ENOMEM. */
qv_status qv_leftover_find(const char *dir, const struct qv_config *config,
                           const struct qv_tower *tower, struct qv_leftover *out, qv_error *err);

#endif
