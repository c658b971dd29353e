/* SPDX-License-Identifier: MIT */
/* A tower on a device. */
#ifndef QV_MODEL_MODEL_H
#define QV_MODEL_MODEL_H

#include "arena.h"
#include "conv3d/decide.h"
#include "towers/weights.h"

/* Plans that were freed and may be wanted again, most recently freed first: the buckets of the ladder
 * up to a chunk, and some. They hold kernels and recordings; memory they share. */
enum { QV_IDLE_PLANS = 32 };

struct qv_model {
    qv_context *ctx;
    char *folder;
    struct qv_config config;
    struct qv_tower tower;
    qv_dtype dtype;
    bool describe;
    struct qv_conv3d_decision patch_embed; /* how its Conv3d is run, whatever the chunk */
    struct qv_weights weights;
    struct qv_arena *arena; /* the largest one, which new plans share if it is large enough */
    qv_plan *idle[QV_IDLE_PLANS];
    int n_idle;
};

#endif
