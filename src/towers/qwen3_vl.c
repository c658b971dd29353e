/* SPDX-License-Identifier: MIT */
/* Qwen3-VL, dense and mixture of experts: the tower is the same (transformers, models/qwen3_vl).
 * Learned positions, LayerNorm, biases everywhere, DeepStack mergers behind some blocks. */
#include "config.h"

const struct qv_tensor_names qv_names_qwen3 = {
    .patch_embed = "patch_embed.proj",
    .positions = "pos_embed.weight",
    .block = "blocks",
    .norm1 = "norm1",
    .qkv = { "attn.qkv" },
    .proj = "attn.proj",
    .norm2 = "norm2",
    .fc1 = { "mlp.linear_fc1" },
    .fc2 = "mlp.linear_fc2",
    .merger = "merger",
    .deepstack = "deepstack_merger_list",
    .merger_norm = "norm",
    .merger_fc1 = { "linear_fc1" },
    .merger_fc2 = "linear_fc2",
};

const struct qv_config_key qv_keys_qwen3[] = {
    QV_KEY("depth", "num_hidden_layers", depth, 1, QV_MOST_DEPTH, 27),
    QV_KEY("hidden_size", NULL, hidden, 1, 65536, 1152),
    QV_KEY("num_heads", "num_attention_heads", heads, 1, 1024, 16),
    QV_KEY("intermediate_size", NULL, intermediate, 1, 1 << 20, 4304),
    QV_KEY("out_hidden_size", NULL, out_hidden, 1, 1 << 20, 3584),
    QV_KEY("in_channels", NULL, in_channels, 1, 16, 3),
    QV_KEY("patch_size", NULL, patch, 1, 256, 16),
    QV_KEY("temporal_patch_size", NULL, temporal, 1, 8, 2),
    QV_KEY("spatial_merge_size", NULL, merge, 1, 8, 2),
    QV_KEY("num_position_embeddings", NULL, n_positions, 1, 1 << 20, 2304),
    QV_KEY(NULL, NULL, depth, 0, 0, 0),
};

const struct qv_family qv_family_qwen3_vl = {
    .model_types = { "qwen3_vl", "qwen3_vl_moe" },
    .names = &qv_names_qwen3,
    .keys = qv_keys_qwen3,
    .act = "gelu_pytorch_tanh",
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .patch_embed_bias = true,
    .merger_act = QV_ACT_GELU_ERF,
    .processor = QV_PROCESSOR_QWEN3_VL,
    .n_deepstack = 3,
    .deepstack = { 8, 16, 24 },
};
