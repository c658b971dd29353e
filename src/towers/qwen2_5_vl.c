/* SPDX-License-Identifier: MIT */
/* Qwen2.5-VL (transformers, models/qwen2_5_vl): RMSNorm, gated MLPs with biases, and attention
 * within windows. Rows lie in window order, so a window is a segment, and a frame pair is still
 * one segment for the blocks with full attention. */
#include "family.h"

const struct qv_tensor_names qv_names_qwen2_5_vl = {
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

const struct qv_family_sizes qv_sizes_qwen2_5_vl = {
    .preset = { [QV_SIZE_DEPTH] = 32,
                [QV_SIZE_HIDDEN] = 3584,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_INTERMEDIATE] = 3420,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 14,
                [QV_SIZE_WINDOW] = 112 },
};

const struct qv_family qv_family_qwen2_5_vl = {
    .model_types = { "qwen2_5_vl" },
    .prefix = "visual.",
    .names = &qv_names_qwen2_5_vl,
    .sizes = &qv_sizes_qwen2_5_vl,
    .act = "silu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-6,
    .bias = true,
    .windows = true,
    .n_deepstack = -1,
};
