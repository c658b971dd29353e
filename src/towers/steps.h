/* SPDX-License-Identifier: MIT */
/* The operations that turn a chunk into tokens: a list, built around a tower's tensors. */
#ifndef QV_TOWERS_STEPS_H
#define QV_TOWERS_STEPS_H

#include "conv3d/lower.h"
#include "engine/backend.h"
#include "tower.h"

/* Places in the plan's arena. Each is as large as its largest use. */
enum qv_slot {
    SLOT_INPUT, /* frames or pixel_values of a chunk, as pushed; and its tables: */
    SLOT_PLACES,
    SLOT_NORMS,
    SLOT_COORDS,
    SLOT_INDEX, /* neighbours in the position table, */
    SLOT_WEIGHT,
    SLOT_SEGMENTS,
    SLOT_WINDOWS, /* the same of windows, */
    SLOT_ORDER,   /* which row of the input a row is, */
    SLOT_BACK,    /* and a token of the merged rows, where windows changed their order */
    SLOT_LAST_INPUT = SLOT_BACK,
    SLOT_ROWS,   /* patch rows in the model's dtype */
    SLOT_POS,    /* position embedding */
    SLOT_X,      /* the residual stream, */
    SLOT_X2,     /* and its other place where a sum must not go where it came from */
    SLOT_A,      /* normalised x, attention's output */
    SLOT_B,      /* qkv, the MLP's inside; of a gated one before its gate, then behind it */
    SLOT_MERGED, /* a merger's output where it is not yet in the output's dtype and order */
    SLOT_SIDE_A, /* the same three for mergers on the side stream */
    SLOT_SIDE_B,
    SLOT_SIDE_MERGED,
    SLOT_TOKENS, /* outputs: tokens, then each DeepStack's */
    SLOT_COUNT = SLOT_TOKENS + 1 + QV_MAX_DEEPSTACK
};

/* An operand: a slot, a weight (qv_weight_operand(id)), or QV_NO_OPERAND. */
enum { QV_NO_OPERAND = -1 };
static inline int
qv_weight_operand(size_t id)
{
    return SLOT_COUNT + (int)id;
}

struct qv_step {
    struct qv_op op;
    int operands[QV_MAX_OPERANDS];
    int64_t offsets[QV_MAX_OPERANDS]; /* bytes from the slot's begin: k and v of packed qkv */
    char layer[40];                   /* set where this step completes a layer: "blocks.0" */
    int64_t layer_cols;               /* of its output */
    bool side, waits;                 /* see qv_call */
};

struct qv_steps {
    struct qv_step *steps;
    size_t n, capacity;
    qv_status status; /* of building: ENOMEM */
};

/* What a chunk's list of operations is made for. */
struct qv_tower_shape {
    struct qv_capacity capacity;
    qv_input input;
    int64_t gated_rows; /* see qv_caps, as of the next two */
    bool residual_apart, side;
    qv_dtype dtype, output;
    const struct qv_groups
        *groups; /* how each tensor is quantised on the device, by id; NULL: none is */
};

/* The attention of a chunk within its segments, over packed rows of q, k and v. */
struct qv_op qv_steps_attention(const struct qv_config *c, const struct qv_tower_shape *s);

/* The dtype of a chunk's input as it is pushed. */
qv_dtype qv_input_dtype(qv_input input);

/* The Conv3d that is the patch embedding of a chunk, whose patches are rows by then. */
qv_conv3d_desc qv_steps_patch_embed(const struct qv_config *c, const struct qv_tower_shape *s);

/* Builds the list. The lowering of the patch embedding is one that is legal for it. The caller frees
 * steps->steps, also after a failure. */
qv_status qv_steps_build(const struct qv_config *c, const struct qv_tower *tower,
                         const struct qv_tower_shape *s, qv_lowering patch_embed,
                         struct qv_steps *out, qv_error *err);

#endif
