/* SPDX-License-Identifier: MIT */
/* The values of --dtype and --weights. */
#include <string.h>

#include "dtype.h"
#include "tool.h"

bool
tool_parse_dtype(const char *text, qv_dtype *out)
{
    return qv_dtype_parse(text, out) &&
           (*out == QV_DTYPE_AUTO || *out == QV_F32 || *out == QV_BF16);
}

/* MLX's quantised groups, whose scales are mostly bf16, and the types of GGUF that are kept as
 * they are. */
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
