/* SPDX-License-Identifier: MIT */
/* The vision tower of Qwen2.5-Omni (transformers, models/qwen2_5_omni). It is that of
 * Qwen2.5-VL, with q, k and v stored as three tensors. */
#include "family.h"

static const struct qv_tensor_names names = {
    .qkv = { "attn.q", "attn.k", "attn.v" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

const struct qv_family qv_family_qwen2_5_omni = {
    .model_types = { "qwen2_5_omni" },
    .prefix = "thinker.visual.",
    .names = &names,
    .sizes = &qv_sizes_qwen2_5_vl,
    .act = "silu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .own_clip_sizes = true,
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-6,
    .bias = true,
    .windows = true,
    .n_deepstack = -1,
};
