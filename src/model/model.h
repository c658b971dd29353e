/* SPDX-License-Identifier: MIT */
/* A model: a tower's weights on a device, and the plans that it keeps. */
#pragma once

#include "capacity.h"
#include "conv3d/legal.h"
#include "engine/program.h"
#include "towers/weights.h"

/* Freed plans are kept, the most recently freed first, since they may be needed again. This is
 * enough for every bucket up to a full chunk and some more. An idle plan holds kernels and
 * recordings; its memory is the arena that all plans share. */
enum { QV_IDLE_PLANS = 32 };

struct qv_model {
    qv_context *ctx;
    char *folder;
    struct qv_config config;
    struct qv_tower tower;
    qv_dtype dtype;
    struct qv_capacity_bits bits; /* which capacities give the tokens the same bits */
    bool describe;
    /* how the Conv3d of the patch embedding is run, at every capacity */
    struct qv_conv3d_decision patch_embed;
    struct qv_weights weights;
    char identity[QV_IDENTITY_SIZE], *numbers; /* of qv_identity_make */
    struct qv_arena *arena; /* the largest arena so far; a new plan uses it if it fits */
    qv_plan *idle[QV_IDLE_PLANS];
    int n_idle;
};
