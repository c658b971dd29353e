/* SPDX-License-Identifier: MIT */
/*
 * A family of towers as data: what its checkpoints call things, what its config leaves out, and how
 * its blocks are made. One short file a family, listed in families.c; tower.c makes tensors of it,
 * and steps.c operations.
 */
#ifndef QV_TOWERS_FAMILY_H
#define QV_TOWERS_FAMILY_H

#include "qwenvit_conv3d.h" /* qv_act */

enum qv_norm_kind {
    QV_NORM_LAYER, /* mean and variance, weight and bias */
    QV_NORM_RMS,   /* root of the mean square, weight alone */
};

/* How learned positions become those of a grid (towers/geometry.h). */
enum qv_interpolation {
    QV_BILINEAR,
    QV_BICUBIC,
};

/* Names in checkpoints that families differ in, below the tower's prefix and without ".weight",
 * ".bias". Those of a merger are below `merger` (where that is "", they are whole) or
 * `deepstack`.N. NULL: the family has none. */
struct qv_tensor_names {
    const char *patch_norm, *positions; /* patch_norm: before positions are added */
    const char *qkv[3], *fc1[2], *fc2;  /* of a block: qkv as one or as three, fc1 as gate and up */
    const char *merger, *deepstack, *merger_norm;
    /* a Conv2d of merge x merge, then a linear layer and its LayerNorm, before the merger's MLP */
    const char *downsample, *merger_proj, *merger_proj_norm;
    const char *merger_fc1[2], *merger_fc2;
};

/* The vision config's integers, in the order in which they are read. config.c has a table of their
 * keys, their bounds and what they become in struct qv_config. */
enum qv_size {
    QV_SIZE_DEPTH,
    QV_SIZE_HIDDEN,
    QV_SIZE_HEADS,
    QV_SIZE_MLP_RATIO, /* the intermediate size as a multiple of the hidden size */
    QV_SIZE_INTERMEDIATE,
    QV_SIZE_OUT_HIDDEN,
    QV_SIZE_MERGER_INTERMEDIATE,
    QV_SIZE_IN_CHANNELS,
    QV_SIZE_PATCH,
    QV_SIZE_TEMPORAL,
    QV_SIZE_MERGE,
    QV_SIZE_POSITIONS,
    QV_SIZE_IMAGE,
    QV_SIZE_WINDOW,
    QV_SIZES,
};

/* What a family's configs say of these sizes. */
struct qv_family_sizes {
    /* transformers' class defaults; 0: the default that every family shares, or, where there is none,
     * the family's configs have no such key */
    int64_t preset[QV_SIZES];
    const char *key[QV_SIZES]; /* another key than the one that most families have (families.c) */
};

struct qv_family {
    /* model_type of the whole model, NULL at the end; with "_vision" behind, of the tower */
    const char *model_types[4];
    const struct qv_tensor_names *names;
    const struct qv_family_sizes *sizes;
    const char *act; /* hidden_act where config.json leaves it out */
    enum qv_norm_kind norm;
    double norm_eps;          /* transformers' modules have it as a constant, */
    const char *norm_eps_key; /* or the vision config has it under this name */
    bool bias;                /* of the linear layers in blocks and mergers */
    bool patch_embed_bias;    /* of the Conv3d */
    bool windows;             /* attention stays within windows, but for fullatt_block_indexes */
    enum qv_interpolation interpolation;
    qv_processor processor; /* of clips: its defaults are in preprocess.c */
    /* clips have 128 to 768 tokens, counted as their processor does, whatever the files say: so
     * transformers' processors of Omni models */
    bool own_clip_sizes;
    /* deepstack_visual_indexes where config.json leaves it out; -1: there is no DeepStack at all */
    int64_t n_deepstack, deepstack[3];
};

/* NULL at the end. */
extern const struct qv_family *const qv_families[];

/* What several families share. */
extern const struct qv_tensor_names qv_names_qwen3;      /* in qwen3_vl.c */
extern const struct qv_family_sizes qv_sizes_qwen3;      /* in qwen3_vl.c */
extern const struct qv_family_sizes qv_sizes_qwen2_5_vl; /* in qwen2_5_vl.c */

extern const struct qv_family qv_family_qwen2_vl;
extern const struct qv_family qv_family_qwen2_5_vl;
extern const struct qv_family qv_family_qwen2_5_omni;
extern const struct qv_family qv_family_qwen3_vl;
extern const struct qv_family qv_family_qwen3_omni;
extern const struct qv_family qv_family_qwen3_5;
extern const struct qv_family qv_family_glm4v;

/* Whether an MLP is act(gate) * up, of one GEMM with both. */
static inline bool
qv_family_is_gated(const struct qv_family *family)
{
    return family->names->fc1[1] != NULL;
}

/* What the family's vision configs call a number. */
const char *qv_family_size_key(const struct qv_family *family, enum qv_size size);

/* The family of a model_type, which may be the model's or the tower's; *name is the model's.
 * NULL: it is not known. */
const struct qv_family *qv_family_find(const char *model_type, const char **name);

#endif
