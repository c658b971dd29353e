/* SPDX-License-Identifier: MIT */
/* Qwen3.5 and Qwen4-exp (transformers, models/qwen3_5, qwen3_5_moe and qwen4_exp): the tower of
 * Qwen3-VL without DeepStack. */
#include "family.h"

const struct qv_family qv_family_qwen3_5 = {
    .model_types = { "qwen3_5", "qwen3_5_moe", "qwen4_exp" },
    .prefix = "model.visual.",
    .names = &qv_names_qwen3,
    .sizes = &qv_sizes_qwen3,
    .act = "gelu_pytorch_tanh",
    .norm = QV_NORM_LAYER,
    .norm_eps = 1e-6,
    .bias = true,
    .patch_embed_bias = true,
    .processor = QV_PROCESSOR_QWEN3_VL,
    .n_deepstack = -1,
};
