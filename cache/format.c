/* SPDX-License-Identifier: MIT */
/* Keys, their hashes, and the sizes of a key's tensors. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "files/token_file.h"
#include "path.h"

void
qv_cache_seconds(double seconds, char text[QV_CACHE_SECONDS])
{
    const int64_t ns = seconds > 0 && seconds < 1e9 ? llround(seconds * 1e9) : 0;
    int n = snprintf(text, QV_CACHE_SECONDS, "%" PRId64 ".%09" PRId64, ns / 1000000000,
                     ns % 1000000000);
    while (n > 2 && text[n - 1] == '0' && text[n - 2] != '.')
        n--;
    text[seconds > 0 ? n : 0] = 0;
}

int64_t
qv_cache_latest_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((int64_t)now.tv_sec + (int64_t)36525 * 24 * 3600) * 1000000000;
}

/* ---- keys and tensors ------------------------------------------------------------------------ */

qv_status
qv_cache_key(const char *bytes, char *out, qv_error *err)
{
    QV_NEED(err, bytes, out);
    char quoted[QV_QUOTE_SIZE];
    if (!*bytes)
        return qv_fail(err, QV_EFORMAT, "the key is empty; it must have 1 byte or more");
    if (!strncmp(bytes, "__", 2))
        return qv_fail(err, QV_EFORMAT, "the key %s begins with \"__\", which caches reserve",
                       qv_json_quote(bytes, quoted));
    char *text = qv_utf8_text(bytes);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "no memory for a key");
    const size_t n = strlen(text);
    if (n <= QV_CACHE_MAX_KEY)
        memcpy(out, text, n + 1);
    free(text);
    return n <= QV_CACHE_MAX_KEY
               ? QV_OK
               : qv_fail(err, QV_EFORMAT, "the key %s has %zu bytes; it may have at most %d",
                         qv_json_quote(bytes, quoted), n, QV_CACHE_MAX_KEY);
}

uint64_t
qv_cache_key_hash(const char *key)
{
    QV_NEED_OR(0, key);
    return XXH3_64bits(key, strlen(key));
}

uint64_t
qv_cache_hash(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

uint64_t
qv_cache_asked_hash(const char *start, const char *end, const char *options)
{
    const char *const texts[] = { start, end, options };
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++)
        hashes[i] = texts[i] && *texts[i] ? XXH3_64bits(texts[i], strlen(texts[i])) : 0;
    return XXH3_64bits(hashes, sizeof hashes);
}

int
qv_cache_n_tensors(const qv_cache_layout *l)
{
    return 1 + l->n_deepstack;
}

size_t
qv_cache_row_bytes(const qv_cache_layout *l)
{
    return (size_t)l->width * qv_dtype_bytes(l->dtype);
}

const char *
qv_cache_dtype_name(qv_dtype dtype)
{
    return dtype == QV_F32 || dtype == QV_BF16 ? qv_dtype_file_name(dtype) : NULL;
}
