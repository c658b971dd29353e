/* SPDX-License-Identifier: MIT */
/* The vision tower: which tensors it has, and the operations that turn a chunk into tokens. */
#ifndef QV_SRC_TOWER_H
#define QV_SRC_TOWER_H

#include "engine/backend.h"
#include "towers/config.h"
#include "conv3d/lower.h"

/* ---- tensors --------------------------------------------------------------------------------- */

enum qv_tensor_form {
    QV_TENSOR_MATRIX, /* [n,k], packed, model's dtype */
    QV_TENSOR_TABLE,  /* [n,k], row-major, model's dtype */
    QV_TENSOR_VECTOR, /* [n], f32 */
    QV_TENSOR_BIAS,   /* [n], model's dtype */
};

struct qv_tensor_spec {
    char name[96]; /* below "visual.": "blocks.0.attn.qkv.weight" */
    enum qv_tensor_form form;
    int64_t n, k;         /* k is 1 for a vector or a bias */
    bool conv3d;          /* stored 5D, 2D or channels-last; also named linear_proj */
    bool sum_depth;       /* of the Conv3d weight of that name: its depth slices summed */
    int64_t pad_n, pad_k; /* rows and columns of zeros that the device has behind */
};

/* Ids: the head's tensors, then those of each block, then of each merger (the final one first). */
enum { PATCH_WEIGHT, PATCH_STILL, PATCH_BIAS, POSITIONS, HEAD_TENSORS };
enum {
    NORM1_WEIGHT,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJ_WEIGHT,
    PROJ_BIAS,
    NORM2_WEIGHT,
    NORM2_BIAS,
    FC1_WEIGHT,
    FC1_BIAS,
    FC2_WEIGHT,
    FC2_BIAS,
    BLOCK_TENSORS
};
enum {
    MERGER_NORM_WEIGHT,
    MERGER_NORM_BIAS,
    MERGER_FC1_WEIGHT,
    MERGER_FC1_BIAS,
    MERGER_FC2_WEIGHT,
    MERGER_FC2_BIAS,
    MERGER_TENSORS
};

size_t qv_tower_n_tensors(const struct qv_config *c);
struct qv_tensor_spec qv_tower_tensor(const struct qv_config *c, size_t id);

/* ---- operations ------------------------------------------------------------------------------ */

/* Places in the plan's arena. Each is as large as its largest use. */
enum qv_slot {
    SLOT_INPUT, /* frames or pixel_values of a chunk, as pushed */
    SLOT_ROWS,  /* patch rows in the model's dtype */
    SLOT_POS,   /* position embedding of one frame pair */
    SLOT_COS,   /* rotary tables of one frame pair */
    SLOT_SIN,
    SLOT_INDEX, /* taps of the position embedding */
    SLOT_WEIGHT,
    SLOT_X,        /* the residual stream, */
    SLOT_X2,       /* and its other place where a sum must not go where it came from */
    SLOT_A,        /* normalised x, attention's output */
    SLOT_B,        /* qkv, the MLP's inside */
    SLOT_MERGED,   /* a merger's output where it is not yet in the output's dtype */
    SLOT_BESIDE_A, /* the same three for mergers that run beside the blocks */
    SLOT_BESIDE_B,
    SLOT_BESIDE_MERGED,
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
    char layer[40];     /* set where this step completes a layer: "blocks.0" */
    int64_t layer_cols; /* of its output */
    bool beside, waits; /* see qv_call */
};

struct qv_steps {
    struct qv_step *steps;
    size_t n, capacity;
    size_t n_setup;   /* the first n_setup run once, when the plan is made */
    qv_status status; /* of building: ENOMEM */
};

/* A chunk: `pairs` frame pairs of one grid. */
struct qv_tower_shape {
    int64_t pairs, grid_h, grid_w;
    qv_input input;
    bool still, image_norm;
    bool addend_apart, beside; /* see qv_caps */
    qv_dtype dtype, output;
};

/* The Conv3d that is the patch embedding of a chunk. */
qv_conv3d_desc qv_tower_patch_embed(const struct qv_config *c, const struct qv_tower_shape *s);

/* Builds the list around the patch embedding's, which ends in one product; the caller frees
 * steps->steps, also after a failure. */
qv_status qv_tower_build(const struct qv_config *c, const struct qv_tower_shape *s,
                         const struct qv_conv3d_list *patch_embed, struct qv_steps *out,
                         qv_error *err);

#endif
