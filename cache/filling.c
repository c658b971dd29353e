/* SPDX-License-Identifier: MIT */
#include "filling.h"

#include <stdlib.h>

#include "dtype.h"
#include "error.h"

/* ---- what the cache has ---------------------------------------------------------------------- */

qv_status
qv_filling_open(struct qv_filling *f, const char *dir, bool retry_failed, qv_error *err)
{
    *f = (struct qv_filling){ .retry_failed = retry_failed };
    return qv_cache_exists(dir) ? qv_cache_open(dir, &f->there, err) : QV_OK;
}

enum qv_filling_state
qv_filling_compare(struct qv_filling *f, const char *key, const qv_cache_source *source)
{
    switch (f->there ? qv_cache_compare_trusting(f->there, key, source, f->trust)
                     : QV_CACHE_MISSING) {
    case QV_CACHE_SOURCE_GONE: f->n_gone++; return QV_FILLING_THERE;
    case QV_CACHE_DONE: return QV_FILLING_THERE;
    case QV_CACHE_FAILED: return f->retry_failed ? QV_FILLING_WANTED : QV_FILLING_FAILED_BEFORE;
    case QV_CACHE_MISSING:
    case QV_CACHE_CHANGED:
    case QV_CACHE_STATE_MAX: break;
    }
    return QV_FILLING_WANTED;
}

/* ---- what is added --------------------------------------------------------------------------- */

qv_status
qv_filling_begin(struct qv_filling *f, const char *dir, const qv_cache_writer_options *options,
                 qv_error *err)
{
    qv_cache_writer_options o = *options;
    qv_cache_info info = { .sealed = 0 };
    if (f->there)
        qv_cache_get_info(f->there, &info);
    o.after = info.sealed;
    f->layout = o.layout;
    return qv_cache_writer_open(dir, &o, &f->writer, err);
}

qv_dtype
qv_filling_dtype(const qv_cache_layout *layout)
{
    return layout->dtype == QV_BF16 ? QV_BF16 : QV_F32;
}

/* Converts f32 values to f16, each rounded once. A value that f16 cannot hold is an error. */
static qv_status
to_f16(const float *from, int64_t n, uint16_t *to, qv_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = qv_f32_to_f16(from[i]);
        if ((to[i] & 0x7fff) == 0x7c00)
            return qv_fail(err, QV_EUNSUPPORTED,
                           "a token has the value %g, which f16 does not hold; bf16 does",
                           (double)from[i]);
    }
    return QV_OK;
}

qv_status
qv_filling_put(const struct qv_filling *f, qv_cache_entry *entry, const qv_tokens *rows,
               qv_error *err)
{
    if (f->layout.dtype != QV_F16)
        return qv_cache_put(entry, rows, err);
    const int each = 1 + f->layout.n_deepstack;
    const int64_t n = rows->n * f->layout.width;
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

qv_status
qv_filling_close(struct qv_filling *f, qv_error *err)
{
    qv_cache_close(&f->there);
    return qv_cache_writer_close(&f->writer, err);
}
