/* SPDX-License-Identifier: MIT */
/* Qwen2-VL (transformers, models/qwen2_vl): it has no learned positions, and its Conv3d has no
 * bias. Trap: its config's hidden_size is the language model's; the tower's is embed_dim. */
#include "family.h"

static const struct qv_tensor_names names = {
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.fc1" },
    .fc2 = "mlp.fc2",
    .merger = "merger",
    .merger_norm = "ln_q",
    .merger_fc1 = { "mlp.0" },
    .merger_fc2 = "mlp.2",
};

static const struct qv_family_sizes sizes = {
    .preset = { [QV_SIZE_DEPTH] = 32,
                [QV_SIZE_HIDDEN] = 1280,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_MLP_RATIO] = 4,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 14 },
    .key = { [QV_SIZE_HIDDEN] = "embed_dim", [QV_SIZE_OUT_HIDDEN] = "hidden_size" },
};

const struct qv_family qv_family_qwen2_vl = {
    .model_types = { "qwen2_vl" },
    .prefix = "visual.",
    .names = &names,
    .sizes = &sizes,
    .act = "quick_gelu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .n_deepstack = -1,
};
