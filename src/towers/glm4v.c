/* SPDX-License-Identifier: MIT */
/* GLM-4.1V and GLM-4.5V (transformers, models/glm4v and glm4v_moe): RMSNorm, gated MLPs, no biases but
 * those of the two convolutions. A norm behind the Conv3d, then learned positions, interpolated
 * bicubically; a Conv2d of 2x2 patches before the merger. Its intermediate_size is the merger's: the
 * blocks' MLPs are as wide as tokens. */
#include "config.h"

static const struct qv_tensor_names names = {
    .patch_embed = "patch_embed.proj",
    .patch_norm = "post_conv_layernorm",
    .positions = "embeddings.position_embedding.weight",
    .block = "blocks",
    .norm1 = "norm1",
    .qkv = { "attn.qkv" },
    .proj = "attn.proj",
    .norm2 = "norm2",
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

static const struct qv_config_key keys[] = {
    QV_KEY("depth", "num_hidden_layers", depth, 1, QV_MOST_DEPTH, 24),
    QV_KEY("hidden_size", NULL, hidden, 1, 65536, 1536),
    QV_KEY("num_heads", "num_attention_heads", heads, 1, 1024, 12),
    QV_KEY("out_hidden_size", NULL, out_hidden, 1, 1 << 20, 4096),
    QV_KEY("out_hidden_size", NULL, intermediate, 1, 1 << 20, 4096),
    QV_KEY("intermediate_size", NULL, merger_intermediate, 1, 1 << 20, 13696),
    QV_KEY("in_channels", NULL, in_channels, 1, 16, 3),
    QV_KEY("patch_size", NULL, patch, 1, 256, 14),
    QV_KEY("temporal_patch_size", NULL, temporal, 1, 8, 2),
    QV_KEY("spatial_merge_size", NULL, merge, 1, 8, 2),
    QV_KEY("image_size", NULL, image_size, 1, 1 << 14, 336),
    QV_KEY(NULL, NULL, depth, 0, 0, 0),
};

const struct qv_family qv_family_glm4v = {
    .model_types = { "glm4v", "glm4v_moe" },
    .names = &names,
    .keys = keys,
    .act = "silu",
    .norm = QV_NORM_RMS,
    .norm_eps = 1e-5,
    .norm_eps_key = "rms_norm_eps",
    .patch_embed_bias = true,
    .merger_act = QV_ACT_GELU_ERF,
    .interpolation = QV_BICUBIC,
    .processor = QV_PROCESSOR_GLM4V,
    .n_deepstack = -1,
};
