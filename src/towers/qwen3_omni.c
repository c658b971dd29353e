/* SPDX-License-Identifier: MIT */
/* The vision tower of Qwen3-Omni (transformers, models/qwen3_omni_moe). It is that of Qwen3-VL,
 * with other names for the mergers. */
#include "family.h"

static const struct qv_tensor_names names = {
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

const struct qv_family qv_family_qwen3_omni = {
    .model_types = { "qwen3_omni_moe" },
    .prefix = "thinker.visual.",
    .names = &names,
    .sizes = &qv_sizes_qwen3,
    .act = "gelu_pytorch_tanh",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .own_clip_sizes = true,
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .patch_embed_bias = true,
    .n_deepstack = 3,
    .deepstack = { 8, 16, 24 },
};
