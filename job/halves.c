/* SPDX-License-Identifier: MIT */
#include "halves.h"

#include <stdlib.h>

#include "dtype.h"
#include "error.h"

/* Converts f32 values to f16, each rounded once. A value that f16 cannot hold is an error. */
static qv_status
to_f16(const float *from, int64_t n, uint16_t *to, qv_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = qv_f32_to_f16(from[i]);
        if ((to[i] & 0x7fff) == 0x7c00)
            return qv_fail(err, QV_EUNSUPPORTED,
                           "a token has the value %g, which f16 cannot hold; bf16 can",
                           (double)from[i]);
    }
    return QV_OK;
}

qv_status
qv_cache_put_rounded(const qv_cache_layout *layout, qv_cache_entry *entry, const qv_tokens *rows,
                     qv_error *err)
{
    if (layout->dtype != QV_F16)
        return qv_cache_put(entry, rows, err);
    const int each = 1 + layout->n_deepstack;
    const int64_t n = rows->n * layout->width;
    uint16_t *halves = malloc((size_t)each * (size_t)n * sizeof *halves);
    if (!halves)
        return qv_fail(err, QV_ENOMEM, "no memory for tokens as f16");
    qv_tokens half = { .n = rows->n };
    qv_status s = QV_OK;
    for (int i = 0; i < each && !s; i++) {
        uint16_t *to = halves + (size_t)i * (size_t)n;
        s = to_f16(i ? rows->deepstack[i - 1] : rows->tokens, n, to, err);
        *(i ? &half.deepstack[i - 1] : &half.tokens) = to;
    }
    if (!s)
        s = qv_cache_put(entry, &half, err);
    free(halves);
    return s;
}
