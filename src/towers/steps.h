/* SPDX-License-Identifier: MIT */
/* The list of operations that turns a chunk into tokens, built from a tower's tensors. */
#pragma once

#include "conv3d/lower.h"
#include "engine/program.h"
#include "tower.h"

/* The places of a plan's program. */
enum qv_slot {
    SLOT_NONE = QV_NO_OPERAND,
    SLOT_INPUT, /* frames or pixel_values as they were pushed; the tables follow: */
    SLOT_PLACES,
    SLOT_NORMS,
    SLOT_COORDS,
    SLOT_INDEX, /* table positions to interpolate from */
    SLOT_WEIGHT,
    SLOT_SEGMENTS,
    SLOT_WINDOWS, /* the segments that are windows */
    SLOT_ORDER,   /* for each row, its input row */
    SLOT_BACK,    /* for each token, its merged row: windows change the order */
    SLOT_LAST_INPUT = SLOT_BACK,
    SLOT_ROWS,   /* patch rows in the model's dtype */
    SLOT_POS,    /* position embedding */
    SLOT_X,      /* the residual stream */
    SLOT_X2,     /* a second slot for it, where a sum must not overwrite its input */
    SLOT_A,      /* the normalised x, or attention's output */
    SLOT_B,      /* qkv; the inside of the MLP, before and after its gate */
    SLOT_MERGED, /* a merger's output before its dtype or order changes */
    SLOT_SIDE_A, /* SLOT_A, B and MERGED for mergers on the side stream */
    SLOT_SIDE_B,
    SLOT_SIDE_MERGED,
    SLOT_HIDDEN, /* outputs: the last block's rows; */
    SLOT_TOKENS, /* the tokens, then each DeepStack's */
    SLOT_COUNT = SLOT_TOKENS + 1 + QV_MAX_DEEPSTACK
};

/* The operand that is a weight: the model's buffers are the program's buffers from outside. */
static inline int
qv_weight_operand(size_t id)
{
    return SLOT_COUNT + (int)id;
}

struct qv_steps {
    struct qv_step *steps;
    size_t n, capacity;
    qv_status status; /* QV_ENOMEM if the list could not grow */
};

/* The properties for which a chunk's list of operations is built. */
struct qv_tower_shape {
    struct qv_capacity capacity;
    qv_input input;
    int64_t gated_rows; /* this and the next two: see qv_caps */
    bool residual_apart, side;
    bool hidden; /* the last block's rows are an output too */
    qv_dtype dtype, output;
};

/* Returns a chunk's attention within segments, as an operation on packed rows of q, k and v. */
struct qv_op qv_steps_attention(const struct qv_config *c, const struct qv_tower_shape *s);

/* Returns the dtype of a chunk's input as pushed. */
qv_dtype qv_input_dtype(qv_input input);

/* Returns the Conv3d of a chunk's patch embedding, whose input is patch rows. */
qv_conv3d_desc qv_steps_patch_embed(const struct qv_config *c, const struct qv_tower_shape *s);

/* Builds the list. The lowering of the patch embedding must be legal for it. The caller must free
 * steps->steps, even after a failure. */
qv_status qv_steps_build(const struct qv_config *c, const struct qv_tower *tower,
                         const struct qv_tower_shape *s, qv_lowering patch_embed,
                         struct qv_steps *out, qv_error *err);
