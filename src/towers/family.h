/* SPDX-License-Identifier: MIT */
/*
 * A family of towers as data: how its checkpoints name tensors, its config's defaults, and how its
 * blocks are built. families.c lists them all; tower.c derives tensors from them, and steps.c
 * operations.
 */
#pragma once

#include "qwenvit_conv3d.h" /* for enum qv_act */

enum qv_norm_kind {
    QV_NORM_LAYER, /* LayerNorm: subtracts the mean; with weight and bias */
    QV_NORM_RMS,   /* RMSNorm: divides by the root mean square; with weight only */
};

/* How the learned position table is interpolated to a grid (towers/geometry.h). */
enum qv_interpolation {
    QV_BILINEAR,
    QV_BICUBIC,
};

/* The tensor names that differ between families' checkpoints, below the tower's prefix and without
 * ".weight" and ".bias". A merger's names are below `merger` (or are whole names if `merger` is "")
 * or below `deepstack`.N. NULL: the family has no such tensor. */
struct qv_tensor_names {
    const char *patch_norm, *positions; /* patch_norm: the norm before positions are added */
    /* a block's: qkv is one tensor or three; fc1 is one, or gate and up */
    const char *qkv[3], *fc1[2], *fc2;
    const char *merger, *deepstack, *merger_norm;
    /* before the merger's MLP: a Conv2d of merge x merge, a linear layer and its LayerNorm */
    const char *downsample, *merger_proj, *merger_proj_norm;
    const char *merger_fc1[2], *merger_fc2;
};

/* The vision config's integers, in reading order. sizes.c has a table of their keys, their bounds
 * and their members in struct qv_config. */
enum qv_size {
    QV_SIZE_DEPTH,
    QV_SIZE_HIDDEN,
    QV_SIZE_HEADS,
    QV_SIZE_KV_HEADS,  /* heads of k and v, each shared by several heads of q */
    QV_SIZE_MLP_RATIO, /* the intermediate size divided by the hidden size */
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

/* A family's defaults and keys for these sizes in vision configs. */
struct qv_family_sizes {
    /* the default in transformers' config class; 0: the default shared by all families or, for a
     * size without a shared default, that the family's configs have no such key */
    int64_t preset[QV_SIZES];
    const char *key[QV_SIZES]; /* a key that differs from most families' (families.c) */
};

struct qv_family {
    /* model_type of the whole model (the tower's has "_vision" after it); the last is NULL */
    const char *model_types[4];
    /* the prefix of the tower's names in published checkpoints; any other prefix is accepted too
     * (stored_names.c) */
    const char *prefix;
    const struct qv_tensor_names *names;
    const struct qv_family_sizes *sizes;
    const char *act; /* the hidden_act if config.json has none */
    enum qv_norm_kind norm;
    double norm_eps;          /* the constant in transformers' modules */
    const char *norm_eps_key; /* the config's key that overrides it; or NULL */
    bool bias;                /* linear layers of blocks and mergers have biases */
    bool patch_embed_bias;    /* the Conv3d has a bias */
    /* attention is windowed, except in the blocks of fullatt_block_indexes */
    bool windows;
    enum qv_interpolation interpolation;
    /* transformers' processor of clips, whose defaults are in preprocessor.c */
    qv_processor processor;
    /* a clip gets 128 to 768 tokens, counted as the processor of transformers' Omni models
     * counts, whatever the preprocessor files say */
    bool own_clip_sizes;
    /* deepstack_visual_indexes if config.json has none; -1: the family has no DeepStack */
    int64_t n_deepstack, deepstack[3];
};

enum qv_family_id {
    QV_FAMILY_QWEN2_VL,
    QV_FAMILY_QWEN2_5_VL,
    QV_FAMILY_QWEN2_5_OMNI,
    QV_FAMILY_EXAONE4_5,
    QV_FAMILY_QWEN3_VL,
    QV_FAMILY_QWEN3_OMNI,
    QV_FAMILY_QWEN3_5,
    QV_FAMILY_GLM4V,
    QV_FAMILIES
};
extern const struct qv_family qv_families[QV_FAMILIES];

/* Returns whether the MLP is act(gate) * up, where one GEMM computes gate and up. */
static inline bool
qv_family_is_gated(const struct qv_family *family)
{
    return family->names->fc1[1] != NULL;
}

/* Returns the key of a size in the family's vision configs. */
const char *qv_family_size_key(const struct qv_family *family, enum qv_size size);

/* Finds the family of a model_type, which may be the whole model's or the tower's; *name becomes
 * the whole model's. Returns NULL if it is unknown. */
const struct qv_family *qv_family_find(const char *model_type, const char **name);
