/* SPDX-License-Identifier: MIT */
/* EXAONE 4.5 (transformers, models/exaone4_5): the tower of Qwen2.5-VL with fewer heads of k and v
 * than of q. The device has a copy of each for every head of q, so that attention is the same. */
#include "family.h"

static const struct qv_family_sizes sizes = {
    .preset = { [QV_SIZE_DEPTH] = 32,
                [QV_SIZE_HIDDEN] = 3584,
                [QV_SIZE_HEADS] = 16,
                [QV_SIZE_KV_HEADS] = 8,
                [QV_SIZE_INTERMEDIATE] = 3420,
                [QV_SIZE_OUT_HIDDEN] = 3584,
                [QV_SIZE_PATCH] = 14,
                [QV_SIZE_WINDOW] = 112 },
};

const struct qv_family qv_family_exaone4_5 = {
    .model_types = { "exaone4_5" },
    .prefix = "model.visual.",
    .names = &qv_names_qwen2_5_vl,
    .sizes = &sizes,
    .act = "silu",
    .processor = QV_PROCESSOR_QWEN2_VL,
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-6,
    .bias = true,
    .windows = true,
    .n_deepstack = -1,
};
