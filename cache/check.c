/* SPDX-License-Identifier: MIT */
/* Checks tensors against their records, and whether any data was lost to damage. */
#include <stdlib.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "error.h"
#include "files/json.h"
#include "reader.h"

/* ---- checksums ------------------------------------------------------------------------------- */

enum { PIECE = 1 << 20 };

/* Hashes bytes of a file. It is read, not mapped: a bad disk causes an error, not a signal. */
static qv_status
hash_bytes(int fd, const char *path, uint64_t at, uint64_t bytes, char *piece,
           XXH64_canonical_t *out, qv_error *err)
{
    XXH3_state_t state;
    qv_status s = QV_OK;
    XXH3_64bits_reset(&state);
    while (bytes && !s) {
        const uint64_t now = bytes < PIECE ? bytes : PIECE;
        s = qv_file_read(fd, path, at, piece, now, err);
        if (!s)
            XXH3_64bits_update(&state, piece, (size_t)now);
        at += now;
        bytes -= now;
    }
    if (!s)
        XXH64_canonicalFromHash(out, XXH3_64bits_digest(&state));
    return s;
}

static qv_status
hash_key(const qv_cache *c, const struct qv_index_key *k, int fd, const char *path, uint64_t *out,
         qv_error *err)
{
    XXH64_canonical_t all[QV_CACHE_MAX_TENSORS + 2];
    const int n = qv_cache_n_tensors(&c->layout);
    const struct qv_index_row *r = &k->row;
    const uint64_t bytes = r->n_rows * (uint64_t)qv_cache_row_bytes(&c->layout);
    char *piece = malloc(PIECE);
    qv_status s = piece ? QV_OK : qv_no_memory(c->dir, err);
    for (int i = 0; i < n && !s; i++)
        s = hash_bytes(fd, path, r->tokens_at + (uint64_t)i * r->step * QV_CACHE_ALIGN, bytes,
                       piece, &all[i], err);
    if (!s)
        s = hash_bytes(fd, path, r->small_at, 24, piece, &all[n], err);
    if (!s)
        s = hash_bytes(fd, path, r->small_at + 24, 8 * (uint64_t)r->n_times, piece, &all[n + 1],
                       err);
    free(piece);
    if (!s)
        *out = XXH3_64bits(all, ((size_t)n + 2) * sizeof *all);
    return s;
}

static qv_status
compare_key(const qv_cache *c, const struct qv_index_key *k, const char *path, int fd,
            qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    uint64_t found = 0;
    const qv_status s = hash_key(c, k, fd, path, &found, err);
    return s || found == k->row.xxh3
               ? s
               : qv_fail(err, QV_EFORMAT,
                         "%s: key %s: the checksum of its tensors is %016llx, but its record has "
                         "%016llx",
                         path, qv_json_quote(qv_index_name(&c->index, k), quoted),
                         (unsigned long long)found, (unsigned long long)k->row.xxh3);
}

/* Checks the header and records of a part, unless it was the last part checked. */
static qv_status
check_part(const qv_cache *cache, size_t part, const char *path, qv_error *err)
{
    qv_cache *c = (qv_cache *)(uintptr_t)cache; /* the lock guards the last check */
    pthread_mutex_lock(c->lock);
    if (c->checked.part != part + 1) {
        struct qv_part_index p = { .layout = c->layout, .seed = c->seed };
        qv_cache_looked(&c->checked, part, qv_part_check(&p, path, &c->usual, &c->checked.error));
        qv_part_index_free(&p);
    }
    const qv_status s = qv_cache_found(&c->checked, err);
    pthread_mutex_unlock(c->lock);
    return s;
}

qv_status
qv_cache_verify(const qv_cache *cache, int64_t i, qv_error *err)
{
    QV_NEED(err, cache);
    uint64_t size = 0;
    int fd = -1;
    qv_status s = qv_cache_check_index(cache, i, err);
    if (s)
        return s;
    const struct qv_index_key *k = &cache->index.keys[i];
    const char *path = cache->index.parts[k->part].path;
    s = check_part(cache, k->part, path, err);
    if (!s && !k->row.status)
        s = qv_file_open(path, &fd, &size, err);
    if (!s && !k->row.status)
        s = compare_key(cache, k, path, fd, err);
    if (fd >= 0)
        close(fd);
    const qv_cache *later = NULL;
    qv_cache_item item = { .key = NULL };
    if (s)
        s = qv_cache_look_again(cache, k, s, &later, &item, err);
    return later && item.key ? qv_cache_verify(later, item.index, err) : s;
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Returns whether another part has a record that supersedes a damaged part's row. */
static bool
is_superseded(const qv_cache *c, const struct qv_part_index *p, const struct qv_index_row *row)
{
    const struct qv_index_key *k = qv_cache_find_key(c, p->keys + row->key_at);
    if (!k || (k->row.status && !row->status))
        return false;
    return c->index.parts[k->part].head.sealed_ns > p->head.sealed_ns || row->status ||
           qv_index_same_source(&k->row, row);
}

/* Returns whether losing a damaged part loses no data. */
static bool
part_is_superseded(const qv_cache *c, int64_t i)
{
    if (c->damage[i].fault != QV_CACHE_BROKEN)
        return false;
    struct qv_part_index p = { .layout = c->layout, .seed = c->seed };
    const char *path = c->index.parts[c->damage[i].part].path;
    bool all = qv_part_index_read(&p, path, NULL) == QV_EFORMAT && p.is_readable;
    for (size_t n = 0; n < p.head.n_rows && all; n++) {
        const struct qv_index_row row = qv_part_index_row(&p, n);
        all = is_superseded(c, &p, &row);
    }
    qv_part_index_free(&p);
    return all;
}

const char *
qv_cache_damage(const qv_cache *cache, int64_t i, bool *superseded)
{
    QV_NEED_OR(NULL, cache);
    const bool is = i >= 0 && (uint64_t)i < cache->n_damage;
    if (superseded)
        *superseded = is && part_is_superseded(cache, i);
    return is ? cache->damage[i].words : NULL;
}
