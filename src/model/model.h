/* SPDX-License-Identifier: MIT */
/* A model: a tower's weights on a device, and the plans that it keeps. */
#pragma once

#include "conv3d/legal.h"
#include "engine/context.h"
#include "towers/weights.h"

/* Freed plans are kept, the most recently freed first, since they may be wanted again. This is
 * enough for every bucket up to a full chunk and some more. An idle plan holds kernels and
 * recordings; its memory is the arena that all plans share. */
enum { QV_IDLE_PLANS = 32 };

struct qv_model {
    qv_context *ctx;
    char *folder;
    struct qv_config config;
    struct qv_tower tower;
    qv_dtype dtype;
    bool describe;
    /* how the Conv3d of the patch embedding is run, at every capacity */
    struct qv_conv3d_decision patch_embed;
    struct qv_weights weights;
    char identity[QV_IDENTITY_SIZE], *numbers; /* of qv_identity_make */
    struct qv_arena *arena; /* the largest arena so far; a new plan uses it if it fits */
    qv_plan *idle[QV_IDLE_PLANS];
    int n_idle;
};

/*
 * The arena is the memory that a model's plans share. Each chunk under way has a part of its own
 * (input, tables, tokens). Activations and scratch lie after those parts and are used by all chunks
 * in turn, which is safe because the device works in order.
 */
enum { QV_MOST_CHUNKS = QV_MARK_BEGIN - QV_MARK_CHUNK };

struct qv_arena {
    struct qv_memory *memory;
    size_t own_bytes, work_bytes; /* own_bytes: of one chunk; work_bytes: used by all in turn */
    int n_chunks;                 /* how many chunks may be under way */
    /* the plan whose chunk is under way in each place; NULL: free */
    const qv_plan *chunks[QV_MOST_CHUNKS];
    int users; /* the plans that use it, and the model */
};
