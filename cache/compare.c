/* SPDX-License-Identifier: MIT */
/* Says whether the record that a cache has of a key was made from a given source. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "files/utf8.h"
#include "options.h"
#include "reader.h"

/* A source's texts, as records have them. */
struct texts {
    char *path, *options;
    struct qv_text start, end;
    bool lost;
};

static struct texts
make_texts(const qv_cache_source *source)
{
    struct texts t = { .path = qv_utf8_text(source->path),
                       .options = source->options ? qv_utf8_text(source->options) : NULL };
    if (source->start_s > 0)
        qv_text_seconds(&t.start, source->start_s);
    if (source->end_s > 0)
        qv_text_seconds(&t.end, source->end_s);
    qv_text_add(&t.start, "", 1);
    qv_text_add(&t.end, "", 1);
    t.lost = !t.path || (source->options && !t.options) || t.start.lost || t.end.lost;
    return t;
}

static void
free_texts(struct texts *t)
{
    free(t->path);
    free(t->options);
    free(t->start.at);
    free(t->end.at);
}

qv_cache_state
qv_cache_compare(const qv_cache *c, const char *key, const qv_cache_source *source,
                 qv_cache_trust trust)
{
    const bool valid = c && key && source && source->path && QV_RESERVED_IS_ZERO(source);
    const struct qv_index_key *k = valid ? qv_cache_find_key(c, key) : NULL;
    if (!k)
        return QV_CACHE_MISSING;
    const bool is_gone = !source->bytes && !source->mtime_ns && !k->status;
    struct texts t = make_texts(source);
    char normal[QV_CACHE_OPTIONS_BYTES];
    bool asks = false;
    for (int in_full = 0; in_full < 2 && !asks && !t.lost; in_full++)
        asks = k->asked == qv_cache_asked_hash(source->start_s > 0 ? t.start.at : NULL,
                                               source->end_s > 0 ? t.end.at : NULL,
                                               qv_cache_normal(&c->usual, k->is_image, in_full,
                                                               t.options, normal));
    const bool path =
        trust >= QV_CACHE_TRUST_KEYS || (!t.lost && k->path == qv_cache_key_hash(t.path));
    free_texts(&t);
    if (asks && is_gone && (k->bytes || k->mtime_ns))
        return QV_CACHE_SOURCE_GONE;
    if (!asks || !path || k->bytes != source->bytes ||
        (trust < QV_CACHE_TRUST_TIMES && k->mtime_ns != source->mtime_ns))
        return QV_CACHE_CHANGED;
    return k->status ? QV_CACHE_FAILED : QV_CACHE_DONE;
}
