/* SPDX-License-Identifier: MIT */
/* --dtype and --weights: what they may be; and the model that options name. */
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "tool.h"

bool
tool_parse_dtype(const char *text, qv_dtype *out)
{
    return qv_dtype_parse(text, out) &&
           (*out == QV_DTYPE_AUTO || *out == QV_F32 || *out == QV_BF16);
}

/* MLX's groups, whose scales are bf16 as a rule, and GGUF's types as they are kept. */
static const struct tool_weights weights[] = {
    { "bf16", false, { 0 } },
    { "stored", true, { 0 } },
    { "q4g64", false, { 4, 64, QV_BF16 } },
    { "q8g64", false, { 8, 64, QV_BF16 } },
    { "q4_0", false, { 4, 32, QV_F16 } },
    { "q8_0", false, { 8, 32, QV_F16 } },
};

const char *
tool_parse_weights(const char *text, bool bench, struct tool_weights *out)
{
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (!strcmp(text, weights[i].name) && (bench || !weights[i].groups.bits)) {
            *out = weights[i];
            return NULL;
        }
    return bench ? "bf16 or stored, or of bench gemm q4g64, q8g64, q4_0 or q8_0" : "bf16 or stored";
}

qv_status
tool_load_model(const struct tool_options *o, qv_context *ctx, const char *dir, bool describe,
                qv_model **out, qv_error *err)
{
    const qv_model_options model = { .dtype = o->dtype,
                                     .describe = describe,
                                     .weights = o->weights.stored ? QV_WEIGHTS_STORED
                                                                  : QV_WEIGHTS_WIDENED };
    if (o->weights.groups.bits)
        return qv_fail(err, QV_EINVAL, "--weights is \"%s\", must be bf16 or stored for a model",
                       o->weights.name);
    return qv_model_load(ctx, dir, &model, out, err);
}
