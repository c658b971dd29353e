/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "family.h"

const struct qv_family *const qv_families[] = {
    &qv_family_qwen2_vl,   &qv_family_qwen2_5_vl, &qv_family_qwen2_5_omni, &qv_family_qwen3_vl,
    &qv_family_qwen3_omni, &qv_family_qwen3_5,    &qv_family_glm4v,        NULL,
};

/* "qwen4_exp" and "qwen4_exp_vision" are the same family; the parts of an Omni model are named so. */
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
