/* SPDX-License-Identifier: MIT */
/* GLM-4.1V and GLM-4.5V (transformers, models/glm4v and glm4v_moe). They have RMSNorm and gated
 * MLPs; only the two convolutions have biases. A norm follows the Conv3d, then learned positions
 * are added, interpolated bicubically. A Conv2d of 2x2 patches stands before the merger. The
 * config's intermediate_size is the merger's; the blocks' MLPs are as wide as tokens. */
#include "family.h"

static const struct qv_tensor_names names = {
    .patch_norm = "post_conv_layernorm",
    .positions = "embeddings.position_embedding.weight",
    .qkv = { "attn.qkv" },
    .fc1 = { "mlp.gate_proj", "mlp.up_proj" },
    .fc2 = "mlp.down_proj",
    .merger = "",
    .merger_norm = "post_layernorm",
    .downsample = "downsample",
    .merger_proj = "merger.proj",
    .merger_proj_norm = "merger.post_projection_norm",
    .merger_fc1 = { "merger.gate_proj", "merger.up_proj" },
    .merger_fc2 = "merger.down_proj",
};

static const struct qv_family_sizes sizes = {
    .preset = { [QV_SIZE_DEPTH] = 24,
                [QV_SIZE_HIDDEN] = 1536,
                [QV_SIZE_HEADS] = 12,
                [QV_SIZE_INTERMEDIATE] = 4096,
                [QV_SIZE_OUT_HIDDEN] = 4096,
                [QV_SIZE_MERGER_INTERMEDIATE] = 13696,
                [QV_SIZE_PATCH] = 14,
                [QV_SIZE_IMAGE] = 336 },
    .key = { [QV_SIZE_INTERMEDIATE] = "out_hidden_size" },
};

const struct qv_family qv_family_glm4v = {
    .model_types = { "glm4v", "glm4v_moe" },
    .prefix = "model.visual.",
    .names = &names,
    .sizes = &sizes,
    .act = "silu",
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-5,
    .norm_eps_key = "rms_norm_eps",
    .patch_embed_bias = true,
    .interpolation = QV_BICUBIC,
    .processor = QV_PROCESSOR_GLM4V,
    .n_deepstack = -1,
};
