/* SPDX-License-Identifier: MIT */
#include "index.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "path.h"

#define MAX_KEYS ((size_t)UINT32_MAX / 2)

const char *
qv_index_name(const struct qv_cache_index *c, const struct qv_index_key *k)
{
    return c->names.at + k->name;
}

/* Until all parts are read, a key may have two entries: its latest success and its latest
 * failure. */
enum which { IS_OK, HAS_FAILED, ANY };

static bool
is_of(const struct qv_index_key *k, enum which which)
{
    return which == ANY || (k->row.status ? HAS_FAILED : IS_OK) == which;
}

/* Returns the key's place in the table, or the free place where it belongs. */
static size_t
find_place(const struct qv_cache_index *c, const char *key, uint64_t hash, enum which which)
{
    size_t at = (size_t)hash & (c->table_room - 1);
    for (; c->table[at]; at = (at + 1) & (c->table_room - 1)) {
        const struct qv_index_key *k = &c->keys[c->table[at] - 1];
        if (k->hash == (uint32_t)hash && is_of(k, which) && !strcmp(qv_index_name(c, k), key))
            break;
    }
    return at;
}

/* Enters all keys into a zeroed table. */
static void
fill_table(const struct qv_cache_index *c, uint32_t *table, size_t room)
{
    for (size_t i = 0; i < c->n_keys; i++) {
        size_t at = (size_t)c->keys[i].hash & (room - 1);
        while (table[at])
            at = (at + 1) & (room - 1);
        table[at] = (uint32_t)i + 1;
    }
}

qv_status
qv_index_grow(struct qv_cache_index *c, qv_error *err)
{
    const size_t room = c->table_room ? 2 * c->table_room : 4096;
    uint32_t *table = calloc(room, sizeof *table);
    if (!table)
        return qv_no_memory(c->dir, err);
    fill_table(c, table, room);
    free(c->table);
    c->table = table;
    c->table_room = room;
    return QV_OK;
}

static qv_status
grow_keys(struct qv_cache_index *c, qv_error *err)
{
    const size_t room = c->keys_room * 3 / 2 + 4096;
    if (c->n_keys >= MAX_KEYS)
        return qv_fail(err, QV_EUNSUPPORTED, "%s: more than %zu keys", c->dir, MAX_KEYS);
    struct qv_index_key *keys = realloc(c->keys, room * sizeof *keys);
    if (!keys)
        return qv_no_memory(c->dir, err);
    c->keys = keys;
    c->keys_room = room;
    return QV_OK;
}

/* Returns whether `now` is in a part sealed later, or at the same time under a later name. */
static bool
is_later(const struct qv_cache_index *c, const struct qv_index_key *now,
         const struct qv_index_key *before)
{
    const struct qv_index_part *a = &c->parts[now->part], *b = &c->parts[before->part];
    return a->head.sealed_ns > b->head.sealed_ns ||
           (a->head.sealed_ns == b->head.sealed_ns && strcmp(a->name, b->name) >= 0);
}

/* Returns whether a key's latest failure supersedes its latest success: if it is later and from a
 * different source. */
static bool
failure_counts(const struct qv_cache_index *c, const struct qv_index_key *failed,
               const struct qv_index_key *ok)
{
    return is_later(c, failed, ok) && !qv_index_same_source(&failed->row, &ok->row);
}

void
qv_index_settle(struct qv_cache_index *c)
{
    enum { DROPPED = 0xff };
    size_t n = 0;
    for (size_t i = 0; i < c->n_keys; i++) {
        struct qv_index_key *failed = &c->keys[i];
        const uint32_t at =
            failed->row.status && failed->row.status != DROPPED
                ? c->table[find_place(c, qv_index_name(c, failed), failed->hash, IS_OK)]
                : 0;
        struct qv_index_key *ok = at ? &c->keys[at - 1] : NULL;
        if (ok)
            (failure_counts(c, failed, ok) ? ok : failed)->row.status = DROPPED;
    }
    for (size_t i = 0; i < c->n_keys; i++)
        if (c->keys[i].row.status != DROPPED)
            c->keys[n++] = c->keys[i];
    if (n == c->n_keys)
        return;
    c->has_dropped = true;
    c->n_keys = n;
    memset(c->table, 0, c->table_room * sizeof *c->table);
    fill_table(c, c->table, c->table_room);
}

/* Prefetches the memory that upcoming rows need: their keys' places in the table, then the keys to
 * compare them with. Otherwise each row would wait for both. */
static void
look_ahead(const struct qv_cache_index *c, const struct qv_part_index *p, size_t i)
{
    enum { FAR = 16, NEAR = 8 };
    const size_t mask = c->table_room - 1;
    if (i + FAR < p->head.n_rows)
        __builtin_prefetch(&c->table[(size_t)p->hashes[i + FAR] & mask]);
    if (i + NEAR < p->head.n_rows) {
        const uint32_t at = c->table[(size_t)p->hashes[i + NEAR] & mask];
        if (at)
            __builtin_prefetch(&c->keys[at - 1].hash);
    }
}

qv_status
qv_index_add(struct qv_cache_index *c, const struct qv_part_index *p, size_t i, uint32_t part,
             qv_error *err)
{
    const struct qv_index_row row = qv_part_index_row(p, i);
    const char *name = p->keys + row.key_at;
    struct qv_index_key k = { .row = row, .part = part, .hash = (uint32_t)p->hashes[i] };
    qv_status status = QV_OK;
    if (2 * (c->n_keys + 1) > c->table_room)
        status = qv_index_grow(c, err);
    if (!status && c->n_keys == c->keys_room)
        status = grow_keys(c, err);
    if (status)
        return status;
    look_ahead(c, p, i);
    const size_t at = find_place(c, name, p->hashes[i], row.status ? HAS_FAILED : IS_OK);
    if (c->table[at]) {
        struct qv_index_key *before = &c->keys[c->table[at] - 1];
        k.name = before->name;
        if (is_later(c, &k, before))
            *before = k;
        return QV_OK;
    }
    k.name = c->names.n;
    qv_text_add(&c->names, name, row.key_bytes + 1u);
    if (c->names.lost)
        return qv_no_memory(c->dir, err);
    c->keys[c->n_keys++] = k;
    c->table[at] = (uint32_t)c->n_keys;
    return QV_OK;
}

const struct qv_index_key *
qv_index_find(const struct qv_cache_index *c, const char *key, uint64_t hash)
{
    const uint32_t at = c->table[find_place(c, key, hash, ANY)];
    return at ? &c->keys[at - 1] : NULL;
}

bool
qv_index_name_part(struct qv_index_part *p, const char *dir, const char *name)
{
    p->path = qv_path_join(dir, name);
    p->name = p->path ? p->path + strlen(p->path) - strlen(name) : NULL;
    return p->path;
}

/* Returns a copy of n elements, which the caller free()s; NULL if out of memory. */
static void *
copied(const void *from, size_t n, size_t size)
{
    void *to = malloc(n * size + 1);
    if (to && n)
        memcpy(to, from, n * size);
    return to;
}

qv_status
qv_index_copy(struct qv_cache_index *to, const struct qv_cache_index *from, qv_error *err)
{
    const char *dir = to->dir;
    *to = *from;
    to->dir = dir;
    to->n_parts = 0; /* the parts that own their paths */
    to->keys_room = from->n_keys;
    to->parts = copied(from->parts, from->n_parts, sizeof *to->parts);
    to->keys = copied(from->keys, from->n_keys, sizeof *to->keys);
    to->table = copied(from->table, from->table_room, sizeof *to->table);
    to->names = (struct qv_text){ .at = NULL };
    qv_text_add(&to->names, from->names.at, from->names.n);
    bool lost = !to->parts || !to->keys || !to->table || to->names.lost;
    while (!lost && to->n_parts < from->n_parts) {
        lost = !qv_index_name_part(&to->parts[to->n_parts], dir, from->parts[to->n_parts].name);
        to->n_parts += !lost;
    }
    return lost ? qv_no_memory(dir, err) : QV_OK;
}

void
qv_index_free(struct qv_cache_index *c)
{
    for (size_t i = 0; i < c->n_parts; i++)
        free(c->parts[i].path);
    free(c->parts);
    free(c->keys);
    free(c->table);
    free(c->names.at);
    *c = (struct qv_cache_index){ .dir = NULL };
}
