/* SPDX-License-Identifier: MIT */
/* Decides whether a cache's record of a key was made from a given source. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "path.h"
#include "reader.h"

/* Returns whether a record's stretch and options equal these, which are UTF-8 texts. */
static bool
asks_the_same(const qv_cache *c, const struct qv_index_key *k, const qv_cache_source *source,
              const char *options)
{
    char start[QV_CACHE_SECONDS], end[QV_CACHE_SECONDS], normal[QV_CACHE_OPTIONS_BYTES];
    qv_cache_seconds(source->start_s, start);
    qv_cache_seconds(source->end_s, end);
    bool same = false;
    for (int in_full = 0; in_full < 2 && !same; in_full++)
        same = k->row.asked == qv_cache_asked_hash(start, end,
                                                   qv_cache_normal(&c->usual, k->row.is_image,
                                                                   in_full, options, normal));
    return same;
}

qv_cache_state
qv_cache_compare(const qv_cache *cache, const char *key, const qv_cache_source *source,
                 qv_cache_trust trust)
{
    QV_NEED_OR(QV_CACHE_MISSING, cache, key, source);
    QV_NEED_OR(QV_CACHE_MISSING, source->path);
    const struct qv_index_key *k = qv_cache_find_key(cache, key);
    if (!k)
        return QV_CACHE_MISSING;
    const bool is_gone = !source->bytes && !source->mtime_ns && !k->row.status;
    char *path = qv_utf8_text(source->path),
         *options = source->options ? qv_utf8_text(source->options) : NULL;
    const bool asks = (options || !source->options) && asks_the_same(cache, k, source, options);
    const bool same_path =
        trust >= QV_CACHE_TRUST_KEYS || (path && k->row.path == qv_cache_key_hash(path));
    free(path);
    free(options);
    if (asks && is_gone && (k->row.bytes || k->row.mtime_ns))
        return QV_CACHE_SOURCE_GONE;
    if (!asks || !same_path || k->row.bytes != source->bytes ||
        (trust < QV_CACHE_TRUST_TIMES && k->row.mtime_ns != source->mtime_ns))
        return QV_CACHE_CHANGED;
    return k->row.status ? QV_CACHE_FAILED : QV_CACHE_DONE;
}
