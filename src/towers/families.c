/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "family.h"

const struct qv_family *const qv_families[] = {
    &qv_family_qwen2_vl,  &qv_family_qwen2_5_vl, &qv_family_qwen2_5_omni,
    &qv_family_exaone4_5, &qv_family_qwen3_vl,   &qv_family_qwen3_omni,
    &qv_family_qwen3_5,   &qv_family_glm4v,      NULL,
};

const char *
qv_family_size_key(const struct qv_family *family, enum qv_size size)
{
    static const char *const keys[QV_SIZES] = {
        [QV_SIZE_DEPTH] = "depth",
        [QV_SIZE_HIDDEN] = "hidden_size",
        [QV_SIZE_HEADS] = "num_heads",
        [QV_SIZE_KV_HEADS] = "num_key_value_heads",
        [QV_SIZE_MLP_RATIO] = "mlp_ratio",
        [QV_SIZE_INTERMEDIATE] = "intermediate_size",
        [QV_SIZE_OUT_HIDDEN] = "out_hidden_size",
        [QV_SIZE_MERGER_INTERMEDIATE] = "intermediate_size",
        [QV_SIZE_IN_CHANNELS] = "in_channels",
        [QV_SIZE_PATCH] = "patch_size",
        [QV_SIZE_TEMPORAL] = "temporal_patch_size",
        [QV_SIZE_MERGE] = "spatial_merge_size",
        [QV_SIZE_POSITIONS] = "num_position_embeddings",
        [QV_SIZE_IMAGE] = "image_size",
        [QV_SIZE_WINDOW] = "window_size",
    };
    const char *own = family->sizes->key[size];
    return own ? own : keys[size];
}

/* Finds a family. A part of an Omni model has a suffix behind the family's name
 * ("_vision_encoder", "_thinker"), and so has a tower's config ("_vision"); the suffix is
 * ignored. */
const struct qv_family *
qv_family_find(const char *model_type, const char **name)
{
    static const char *const suffixes[] = { "_vision", "_vision_encoder", "_thinker" };
    size_t n = strlen(model_type), whole = n;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t bytes = strlen(suffixes[i]);
        if (whole > bytes && !strcmp(model_type + whole - bytes, suffixes[i]))
            n = whole - bytes;
    }
    for (const struct qv_family *const *f = qv_families; *f; f++)
        for (const char *const *type = (*f)->model_types; *type; type++)
            if (strlen(*type) == n && !strncmp(*type, model_type, n)) {
                *name = *type;
                return *f;
            }
    return NULL;
}
