/* SPDX-License-Identifier: MIT */
/* Qwen2-VL (transformers, models/qwen2_vl): no learned positions, no bias of the Conv3d. Its
 * hidden_size is the language model's: the tower's own is embed_dim. */
#include "config.h"

static const struct qv_tensor_names names = {
    .patch_embed = "patch_embed.proj",
    .block = "blocks",
    .norm1 = "norm1",
    .qkv = { "attn.qkv" },
    .proj = "attn.proj",
    .norm2 = "norm2",
    .fc1 = { "mlp.fc1" },
    .fc2 = "mlp.fc2",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

static const struct qv_config_key keys[] = {
    QV_KEY("depth", "num_hidden_layers", depth, 1, QV_MOST_DEPTH, 32),
    QV_KEY("embed_dim", NULL, hidden, 1, 65536, 1280),
    QV_KEY("num_heads", "num_attention_heads", heads, 1, 1024, 16),
    QV_KEY_OF_HIDDEN("mlp_ratio", NULL, intermediate, 1, 16, 4),
    QV_KEY("hidden_size", NULL, out_hidden, 1, 1 << 20, 3584),
    QV_KEY("in_channels", NULL, in_channels, 1, 16, 3),
    QV_KEY("patch_size", NULL, patch, 1, 256, 14),
    QV_KEY("temporal_patch_size", NULL, temporal, 1, 8, 2),
    QV_KEY("spatial_merge_size", NULL, merge, 1, 8, 2),
    QV_KEY(NULL, NULL, depth, 0, 0, 0),
};

const struct qv_family qv_family_qwen2_vl = {
    .model_types = { "qwen2_vl" },
    .names = &names,
    .keys = keys,
    .act = "quick_gelu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .merger_act = QV_ACT_GELU_ERF,
    .n_deepstack = -1,
};
