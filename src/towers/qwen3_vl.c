/* SPDX-License-Identifier: MIT */
/* Qwen3-VL (transformers, models/qwen3_vl), dense or mixture of experts, and Cohere's Compass
 * (models/cohere_compass), which have the same tower: learned positions, LayerNorm, biases
 * everywhere, and DeepStack mergers behind some blocks. */
#include "family.h"

const struct qv_tensor_names qv_names_qwen3 = {
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

const struct qv_family_sizes qv_sizes_qwen3 = {
    .preset = { [QV_SIZE_DEPTH] = 27,
                [QV_SIZE_HIDDEN] = 1152,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_INTERMEDIATE] = 4304,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 16,
                [QV_SIZE_POSITIONS] = 2304 },
};

const struct qv_family qv_family_qwen3_vl = {
    .model_types = { "qwen3_vl", "qwen3_vl_moe", "cohere_compass" },
    .prefix = "model.visual.",
    .names = &qv_names_qwen3,
    .sizes = &qv_sizes_qwen3,
    .act = "gelu_pytorch_tanh",
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .patch_embed_bias = true,
    .processor = QV_PROCESSOR_QWEN3_VL,
    .n_deepstack = 3,
    .deepstack = { 8, 16, 24 },
};
