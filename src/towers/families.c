/* SPDX-License-Identifier: MIT */
/* The table of families: how their towers differ. */
#include <string.h>

#include "family.h"

static const struct qv_tensor_names names_qwen2_vl = {
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.fc1" },
    .fc2 = "mlp.fc2",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

static const struct qv_family_sizes sizes_qwen2_vl = {
    .preset = { [QV_SIZE_DEPTH] = 32,
                [QV_SIZE_HIDDEN] = 1280,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_MLP_RATIO] = 4,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 14 },
    .key = { [QV_SIZE_HIDDEN] = "embed_dim", [QV_SIZE_OUT_HIDDEN] = "hidden_size" },
};

static const struct qv_tensor_names names_qwen2_5_vl = {
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

/* The sizes shared by Qwen2.5-VL's tower and its relatives. */
#define SIZES_QWEN2_5                                                                              \
    [QV_SIZE_DEPTH] = 32, [QV_SIZE_HIDDEN] = 3584, [QV_SIZE_HEADS] = 16,                           \
    [QV_SIZE_INTERMEDIATE] = 3420, [QV_SIZE_OUT_HIDDEN] = 3584, [QV_SIZE_PATCH] = 14,              \
    [QV_SIZE_WINDOW] = 112

static const struct qv_family_sizes sizes_qwen2_5_vl = {
    .preset = { SIZES_QWEN2_5 },
};

static const struct qv_family_sizes sizes_exaone4_5 = {
    .preset = { SIZES_QWEN2_5, [QV_SIZE_KV_HEADS] = 8 },
};

static const struct qv_tensor_names names_qwen2_5_omni = {
    .qkv = { "attn.q", "attn.k", "attn.v" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

static const struct qv_tensor_names names_qwen3 = {
    .positions = "pos_embed.weight",
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.linear_fc1" },
    .fc2 = "mlp.linear_fc2",
    .merger = "merger",
    .deepstack = "deepstack_merger_list",
    .merger_norm = "norm",
    .merger_fc1 = { "linear_fc1" },
    .merger_fc2 = "linear_fc2",
};

static const struct qv_family_sizes sizes_qwen3 = {
    .preset = { [QV_SIZE_DEPTH] = 27,
                [QV_SIZE_HIDDEN] = 1152,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_INTERMEDIATE] = 4304,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 16,
                [QV_SIZE_POSITIONS] = 2304 },
};

static const struct qv_tensor_names names_qwen3_omni = {
    .positions = "pos_embed.weight",
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.linear_fc1" },
    .fc2 = "mlp.linear_fc2",
    .merger = "merger",
    .deepstack = "merger_list",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

static const struct qv_tensor_names names_glm4v = {
    .patch_norm = "post_conv_layernorm",
    .positions = "embeddings.position_embedding.weight",
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "",
    .merger_norm = "post_layernorm",
    .downsample = "downsample",
    .merger_proj = "merger.proj",
    .merger_proj_norm = "merger.post_projection_norm",
    .merger_fc1 = { "merger.gate_proj", "merger.up_proj" },
    .merger_fc2 = "merger.down_proj",
};

static const struct qv_family_sizes sizes_glm4v = {
    .preset = { [QV_SIZE_DEPTH] = 24,
                [QV_SIZE_HIDDEN] = 1536,
                [QV_SIZE_HEADS] = 12,
                [QV_SIZE_INTERMEDIATE] = 4096,
                [QV_SIZE_OUT_HIDDEN] = 4096,
                [QV_SIZE_MERGER_INTERMEDIATE] = 13696,
                [QV_SIZE_PATCH] = 14,
                [QV_SIZE_IMAGE] = 336 },
    .key = { [QV_SIZE_INTERMEDIATE] = "out_hidden_size" },
};

/* How the towers of Qwen2.5-VL and its relatives are built and fed. */
#define TOWER_QWEN2_5                                                                              \
    .act = "silu", .processor = QV_PROCESSOR_QWEN2_VL, .norm = QV_NORM_RMS, .norm_eps = 1e-6,      \
    .bias = true, .windows = true, .n_deepstack = -1

const struct qv_family qv_families[QV_FAMILIES] = {
    /* Qwen2-VL (transformers, models/qwen2_vl): it has no learned positions, and its Conv3d has no
     * bias. Trap: its config's hidden_size is the language model's; the tower's is embed_dim. */
    [QV_FAMILY_QWEN2_VL] = {
        .model_types = { "qwen2_vl" },
        .prefix = "visual.",
        .names = &names_qwen2_vl,
        .sizes = &sizes_qwen2_vl,
        .act = "quick_gelu",
        .processor = QV_PROCESSOR_QWEN2_VL,
        .norm = QV_NORM_LAYER,
        .norm_eps = 1e-6,
        .bias = true,
        .n_deepstack = -1,
    },
    /* Qwen2.5-VL (transformers, models/qwen2_5_vl): RMSNorm, gated MLPs with biases, and attention
     * within windows. Rows lie in window order, so a window is a segment, and a frame pair is still
     * one segment for the blocks with full attention. */
    [QV_FAMILY_QWEN2_5_VL] = {
        .model_types = { "qwen2_5_vl" },
        .prefix = "visual.",
        .names = &names_qwen2_5_vl,
        .sizes = &sizes_qwen2_5_vl,
        TOWER_QWEN2_5,
    },
    /* The vision tower of Qwen2.5-Omni (transformers, models/qwen2_5_omni). It equals Qwen2.5-VL's,
     * with q, k and v stored as three tensors. */
    [QV_FAMILY_QWEN2_5_OMNI] = {
        .model_types = { "qwen2_5_omni" },
        .prefix = "thinker.visual.",
        .names = &names_qwen2_5_omni,
        .sizes = &sizes_qwen2_5_vl,
        .own_clip_sizes = true,
        TOWER_QWEN2_5,
    },
    /* EXAONE 4.5 (transformers, models/exaone4_5): Qwen2.5-VL's tower with fewer heads of k and v
     * than of q. The device stores a copy of each for every head of q, so attention is the same. */
    [QV_FAMILY_EXAONE4_5] = {
        .model_types = { "exaone4_5" },
        .prefix = "model.visual.",
        .names = &names_qwen2_5_vl,
        .sizes = &sizes_exaone4_5,
        TOWER_QWEN2_5,
    },
    /* Qwen3-VL (transformers, models/qwen3_vl), dense or mixture of experts, and Cohere's Compass
     * (models/cohere_compass), which have the same tower: learned positions, LayerNorm, biases
     * everywhere, and DeepStack mergers after some blocks. */
    [QV_FAMILY_QWEN3_VL] = {
        .model_types = { "qwen3_vl", "qwen3_vl_moe", "cohere_compass" },
        .prefix = "model.visual.",
        .names = &names_qwen3,
        .sizes = &sizes_qwen3,
        .act = "gelu_pytorch_tanh",
        .norm = QV_NORM_LAYER,
        .norm_eps = 1e-6,
        .bias = true,
        .patch_embed_bias = true,
        .processor = QV_PROCESSOR_QWEN3_VL,
        .n_deepstack = 3,
        .deepstack = { 8, 16, 24 },
    },
    /* The vision tower of Qwen3-Omni (transformers, models/qwen3_omni_moe). It equals Qwen3-VL's,
     * with different names for the mergers. */
    [QV_FAMILY_QWEN3_OMNI] = {
        .model_types = { "qwen3_omni_moe" },
        .prefix = "thinker.visual.",
        .names = &names_qwen3_omni,
        .sizes = &sizes_qwen3,
        .act = "gelu_pytorch_tanh",
        .processor = QV_PROCESSOR_QWEN2_VL,
        .own_clip_sizes = true,
        .norm = QV_NORM_LAYER,
        .norm_eps = 1e-6,
        .bias = true,
        .patch_embed_bias = true,
        .n_deepstack = 3,
        .deepstack = { 8, 16, 24 },
    },
    /* Qwen3.5 and Qwen4-exp (transformers, models/qwen3_5, qwen3_5_moe and qwen4_exp): the tower of
     * Qwen3-VL without DeepStack. */
    [QV_FAMILY_QWEN3_5] = {
        .model_types = { "qwen3_5", "qwen3_5_moe", "qwen4_exp" },
        .prefix = "model.visual.",
        .names = &names_qwen3,
        .sizes = &sizes_qwen3,
        .act = "gelu_pytorch_tanh",
        .norm = QV_NORM_LAYER,
        .norm_eps = 1e-6,
        .bias = true,
        .patch_embed_bias = true,
        .processor = QV_PROCESSOR_QWEN3_VL,
        .n_deepstack = -1,
    },
    /* GLM-4.1V and GLM-4.5V (transformers, models/glm4v and glm4v_moe). They have RMSNorm and gated
     * MLPs; only the two convolutions have biases. A norm follows the Conv3d, then learned
     * positions are added, interpolated bicubically. A Conv2d of 2x2 patches stands before the
     * merger. The config's intermediate_size is the merger's; the blocks' MLPs are as wide as
     * tokens. */
    [QV_FAMILY_GLM4V] = {
        .model_types = { "glm4v", "glm4v_moe" },
        .prefix = "model.visual.",
        .names = &names_glm4v,
        .sizes = &sizes_glm4v,
        .act = "silu",
        .norm = QV_NORM_RMS,
        .norm_eps = 1e-5,
        .norm_eps_key = "rms_norm_eps",
        .patch_embed_bias = true,
        .interpolation = QV_BICUBIC,
        .processor = QV_PROCESSOR_GLM4V,
        .n_deepstack = -1,
    },
};

const char *
qv_family_size_key(const struct qv_family *family, enum qv_size size)
{
    static const char *const keys[QV_SIZES] = {
        [QV_SIZE_DEPTH] = "depth",
        [QV_SIZE_HIDDEN] = "hidden_size",
        [QV_SIZE_HEADS] = "num_heads",
        [QV_SIZE_KV_HEADS] = "num_key_value_heads",
        [QV_SIZE_MLP_RATIO] = "mlp_ratio",
        [QV_SIZE_INTERMEDIATE] = "intermediate_size",
        [QV_SIZE_OUT_HIDDEN] = "out_hidden_size",
        [QV_SIZE_MERGER_INTERMEDIATE] = "intermediate_size",
        [QV_SIZE_IN_CHANNELS] = "in_channels",
        [QV_SIZE_PATCH] = "patch_size",
        [QV_SIZE_TEMPORAL] = "temporal_patch_size",
        [QV_SIZE_MERGE] = "spatial_merge_size",
        [QV_SIZE_POSITIONS] = "num_position_embeddings",
        [QV_SIZE_IMAGE] = "image_size",
        [QV_SIZE_WINDOW] = "window_size",
    };
    const char *own = family->sizes->key[size];
    return own ? own : keys[size];
}

/* Finds a family. Parts of Omni models have a suffix after the family's name ("_vision_encoder",
 * "_thinker"), as do tower configs ("_vision"); it is ignored. */
const struct qv_family *
qv_family_find(const char *model_type, const char **name)
{
    static const char *const suffixes[] = { "_vision", "_vision_encoder", "_thinker" };
    size_t n = strlen(model_type), whole = n;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t bytes = strlen(suffixes[i]);
        if (whole > bytes && !strcmp(model_type + whole - bytes, suffixes[i]))
            n = whole - bytes;
    }
    for (const struct qv_family *f = qv_families; f < qv_families + QV_FAMILIES; f++)
        for (const char *const *type = f->model_types; *type; type++)
            if (strlen(*type) == n && !strncmp(*type, model_type, n)) {
                *name = *type;
                return f;
            }
    return NULL;
}
