/* SPDX-License-Identifier: MIT */
/* Qwen2.5-VL (transformers, models/qwen2_5_vl): RMSNorm, gated MLPs with biases, and windows, which
 * are segments: rows lie in window order, so that a frame pair stays one segment for the blocks with
 * full attention. */
#include "config.h"

static const struct qv_tensor_names names = {
    .patch_embed = "patch_embed.proj",
    .block = "blocks",
    .norm1 = "norm1",
    .qkv = { "attn.qkv" },
    .proj = "attn.proj",
    .norm2 = "norm2",
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

const struct qv_config_key qv_keys_qwen2_5_vl[] = {
    QV_KEY("depth", "num_hidden_layers", depth, 1, QV_MOST_DEPTH, 32),
    QV_KEY("hidden_size", NULL, hidden, 1, 65536, 3584),
    QV_KEY("num_heads", "num_attention_heads", heads, 1, 1024, 16),
    QV_KEY("intermediate_size", NULL, intermediate, 1, 1 << 20, 3420),
    QV_KEY("out_hidden_size", NULL, out_hidden, 1, 1 << 20, 3584),
    QV_KEY("in_channels", NULL, in_channels, 1, 16, 3),
    QV_KEY("patch_size", NULL, patch, 1, 256, 14),
    QV_KEY("temporal_patch_size", NULL, temporal, 1, 8, 2),
    QV_KEY("spatial_merge_size", NULL, merge, 1, 8, 2),
    QV_KEY("window_size", NULL, window, 1, 1 << 20, 112),
    QV_KEY(NULL, NULL, depth, 0, 0, 0),
};

const struct qv_family qv_family_qwen2_5_vl = {
    .model_types = { "qwen2_5_vl" },
    .names = &names,
    .keys = qv_keys_qwen2_5_vl,
    .act = "silu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-6,
    .bias = true,
    .windows = true,
    .merger_act = QV_ACT_GELU_ERF,
    .n_deepstack = -1,
};
