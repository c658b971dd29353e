/* SPDX-License-Identifier: MIT */
/* Reads a cache. Data that is not in the index is read from the parts on demand. */
#include "reader.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "error.h"
#include "files/json.h"
#include "path.h"

enum { MOST_MAPS = 32768, MOST_IDLE = 1024 };

/* ---- opening and closing --------------------------------------------------------------------- */

/* Draws the hash table's seed: whoever chooses keys must not be able to make them collide. */
static uint64_t
draw_seed(const void *here)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t from[] = { (uint64_t)t.tv_nsec, (uint64_t)t.tv_sec, (uint64_t)(uintptr_t)here };
    return XXH3_64bits(from, sizeof from);
}

static qv_status
read_description(qv_cache *c, qv_error *err)
{
    json_t *root = NULL;
    bool there = false;
    const qv_status s = qv_cache_description(c->dir, &there, &root, &c->layout, err);
    if (s)
        return s;
    if (!there)
        return qv_fail(err, QV_EIO, "%s: not a cache: it has no %s", c->dir, QV_CACHE_DESCRIPTION);
    c->made_by = qv_json_text(root, JSON_COMPACT);
    c->usual = qv_cache_usual_of(root);
    json_decref(root);
    return c->made_by ? QV_OK : qv_no_memory(c->dir, err);
}

qv_status
qv_cache_open_as(const char *dir, const struct qv_cache_reading *how, qv_cache **out, qv_error *err)
{
    qv_cache *c = calloc(1, sizeof *c);
    if (!c)
        return qv_no_memory(dir, err);
    c->seed = draw_seed(c);
    c->how = (struct qv_cache_reading){ .most_maps = how->most_maps,
                                        .most_idle = how->most_idle,
                                        .writable = how->writable };
    c->index.dir = c->dir = strdup(dir);
    c->lock = malloc(sizeof(pthread_mutex_t));
    c->has_lock = c->lock && !pthread_mutex_init(c->lock, NULL);
    c->maps = calloc(1, sizeof *c->maps);
    qv_status s = c->dir && c->has_lock && c->maps ? QV_OK : qv_no_memory(dir, err);
    if (!s) {
        c->maps->most = how->most_maps ? how->most_maps : MOST_MAPS;
        c->maps->most_idle = how->most_idle ? how->most_idle : MOST_IDLE;
        c->maps->writable = how->writable;
        s = read_description(c, err);
    }
    if (!s)
        s = qv_cache_scan(c, how, err);
    if (s)
        qv_cache_close(&c);
    else
        *out = c;
    return s;
}

qv_status
qv_cache_open(const char *dir, qv_cache **out, qv_error *err)
{
    QV_NEED(err, dir, out);
    return qv_cache_open_as(dir, &(struct qv_cache_reading){ .parts = NULL }, out, err);
}

bool
qv_cache_exists(const char *dir)
{
    QV_NEED_OR(false, dir);
    char *path = qv_path_join(dir, QV_CACHE_DESCRIPTION);
    /* out of memory counts as a cache: opening it reports the reason */
    const bool there = !path || qv_path_exists(path);
    free(path);
    return there;
}

void
qv_cache_close(qv_cache **cache)
{
    qv_cache *c = cache ? *cache : NULL;
    if (!c)
        return;
    qv_cache_close(&c->later);
    for (size_t i = 0; i < c->n_damage; i++)
        free(c->damage[i].words);
    if (c->maps)
        qv_part_maps_close(c->maps);
    if (c->has_lock)
        pthread_mutex_destroy(c->lock);
    free(c->maps);
    free(c->records);
    free(c->lock);
    free(c->damage);
    qv_index_free(&c->index);
    free(c->made_by);
    free(c->dir);
    free(c);
    *cache = NULL;
}

const char *
qv_cache_part_ffmpeg(const qv_cache *c, int64_t i, char version[QV_CACHE_FFMPEG_BYTES])
{
    qv_part_ffmpeg(c->index.parts[i].path, version);
    return version;
}

void
qv_cache_get_info(const qv_cache *cache, qv_cache_info *out)
{
    QV_NEED_OR(, cache, out);
    *out = (qv_cache_info){ .layout = cache->layout,
                            .n_parts = (int64_t)cache->index.n_parts,
                            .n_damaged = (int64_t)cache->n_damage,
                            .part_bytes = cache->part_bytes,
                            .damaged_bytes = cache->damaged_bytes,
                            .superseded_bytes = cache->index.bytes,
                            .made_by = cache->made_by };
    const uint64_t row =
        qv_cache_row_bytes(&cache->layout) * (uint64_t)qv_cache_n_tensors(&cache->layout);
    for (size_t i = 0; i < cache->index.n_keys; i++) {
        const struct qv_index_key *k = &cache->index.keys[i];
        out->n_ok += !k->row.status;
        out->n_failed += k->row.status != 0;
        out->bytes += k->row.n_rows * row + qv_index_small_bytes(&k->row);
    }
    out->superseded_bytes -= out->bytes;
    out->n_superseded = -(int64_t)cache->index.n_keys;
    for (size_t i = 0; i < cache->index.n_parts; i++) {
        const struct qv_index_head *h = &cache->index.parts[i].head;
        out->sealed = h->sealed_ns > out->sealed ? h->sealed_ns : out->sealed;
        out->n_superseded += (int64_t)h->n_rows;
    }
    out->index_bytes =
        cache->index.keys_room * sizeof *cache->index.keys +
        cache->index.table_room * sizeof *cache->index.table + cache->index.names.room +
        cache->index.n_parts * (sizeof *cache->index.parts + sizeof *cache->maps->at + 96);
}

int64_t
qv_cache_damaged_part(const qv_cache *c, int64_t i)
{
    return (int64_t)c->damage[i].part;
}

const char *
qv_cache_part(const qv_cache *c, int64_t i)
{
    return c->index.parts[i].name;
}

/* ---- items ----------------------------------------------------------------------------------- */

static qv_cache_item
item_of(const qv_cache *c, const struct qv_index_key *k)
{
    const struct qv_index_row *r = &k->row;
    return (qv_cache_item){ .key = qv_index_name(&c->index, k),
                            .index = k - c->index.keys,
                            .status = (qv_status)r->status,
                            .rows = r->n_rows,
                            .n_timestamps = r->n_times,
                            .part = c->index.parts[k->part].name,
                            .part_index = k->part,
                            .bytes = r->bytes,
                            .mtime_ns = r->mtime_ns,
                            .xxh3 = r->xxh3,
                            .sampled_fps = r->sampled_fps,
                            .is_image = r->is_image,
                            .tokens_at = r->tokens_at,
                            .deepstack_step = (uint64_t)r->step * QV_CACHE_ALIGN,
                            .grid_at = r->small_at };
}

const struct qv_index_key *
qv_cache_find_key(const qv_cache *c, const char *key)
{
    return qv_index_find(&c->index, key, qv_part_index_hash(c->seed, key, strlen(key)));
}

qv_status
qv_cache_find(const qv_cache *cache, const char *key, qv_cache_item *out, qv_error *err)
{
    QV_NEED(err, cache, key, out);
    const struct qv_index_key *k = qv_cache_find_key(cache, key);
    *out = k ? item_of(cache, k) : (qv_cache_item){ .key = NULL };
    return QV_OK;
}

qv_status
qv_cache_check_index(const qv_cache *c, int64_t i, qv_error *err)
{
    return i >= 0 && (uint64_t)i < c->index.n_keys
               ? QV_OK
               : qv_fail(err, QV_EINVAL, "%s: key %lld does not exist; the cache has %zu keys",
                         c->dir, (long long)i, c->index.n_keys);
}

qv_status
qv_cache_at(const qv_cache *cache, int64_t i, qv_cache_item *out, qv_error *err)
{
    QV_NEED(err, cache, out);
    const qv_status s = qv_cache_check_index(cache, i, err);
    if (!s)
        *out = item_of(cache, &cache->index.keys[i]);
    return s;
}

/* ---- parts that are gone --------------------------------------------------------------------- */

/* Reads the folder's current state, once for all callers whose part is missing. */
static qv_status
read_again(const qv_cache *cache, const qv_cache **later, qv_error *err)
{
    qv_cache *c = (qv_cache *)(uintptr_t)cache; /* its caches are guarded by the lock */
    pthread_mutex_lock(c->lock);
    const qv_status s = c->later ? QV_OK : qv_cache_open_as(c->dir, &c->how, &c->later, err);
    *later = c->later;
    pthread_mutex_unlock(c->lock);
    return s;
}

qv_status
qv_cache_look_again(const qv_cache *c, const struct qv_index_key *k, qv_status failed,
                    const qv_cache **later, qv_cache_item *item, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    const char *name = qv_index_name(&c->index, k);
    const bool is_gone =
        failed && failed != QV_ENOMEM && !qv_path_exists(c->index.parts[k->part].path);
    *item = (qv_cache_item){ .key = NULL };
    *later = NULL;
    if (!is_gone)
        return failed;
    qv_status s = read_again(c, later, err);
    if (!s && *later)
        qv_cache_find(*later, name, item, err);
    const bool same = item->key && item->status == (qv_status)k->row.status &&
                      item->xxh3 == k->row.xxh3 && item->rows == k->row.n_rows &&
                      item->n_timestamps == k->row.n_times;
    if (!s && !same)
        s = qv_fail(
            err, QV_EIO,
            "%s: key %s: its part %.120s was removed (No such file), and %s; open the cache again",
            c->dir, qv_json_quote(name, quoted), c->index.parts[k->part].name,
            item->key ? "the key was encoded again" : "the key with it");
    if (s)
        item->key = NULL;
    return s;
}

static qv_status
hold_later(const qv_cache *c, const struct qv_index_key *k, qv_status failed, qv_cache_item *item,
           qv_error *err)
{
    const qv_cache *later = NULL;
    qv_cache_item there;
    qv_status s = qv_cache_look_again(c, k, failed, &later, &there, err);
    if (s)
        return s;
    s = qv_cache_hold(later, &there, err);
    if (s)
        return s;
    item->held_in = 1 + there.held_in;
    item->tokens = there.tokens;
    memcpy(item->deepstack, there.deepstack, sizeof item->deepstack);
    item->grid_thw = there.grid_thw;
    item->timestamps_s = there.timestamps_s;
    return QV_OK;
}

qv_status
qv_cache_hold(const qv_cache *cache, qv_cache_item *item, qv_error *err)
{
    QV_NEED(err, cache, item);
    const char *map = NULL;
    qv_status s = qv_cache_check_index(cache, item->index, err);
    if (s || cache->index.keys[item->index].row.status)
        return s;
    const struct qv_index_key *k = &cache->index.keys[item->index];
    s = qv_part_maps_hold(cache->maps, k->part, cache->index.parts[k->part].path, &map, err);
    if (s)
        return hold_later(cache, k, s, item, err);
    item->held_in = 0;
    item->tokens = map + k->row.tokens_at;
    for (int i = 1; i < qv_cache_n_tensors(&cache->layout); i++)
        item->deepstack[i - 1] =
            map + k->row.tokens_at + (uint64_t)i * k->row.step * QV_CACHE_ALIGN;
    item->grid_thw = (const int64_t *)(const void *)(map + k->row.small_at);
    item->timestamps_s = (const double *)(const void *)(map + k->row.small_at + 24);
    return QV_OK;
}

void
qv_cache_release(const qv_cache *cache, qv_cache_item *item)
{
    QV_NEED_OR(, cache, item);
    const qv_cache *c = cache;
    if (!item->tokens)
        return;
    const struct qv_index_key *k = &c->index.keys[item->index];
    for (uint64_t n = item->held_in; n && k; n--) {
        const char *name = qv_index_name(&c->index, k);
        pthread_mutex_lock(c->lock);
        const qv_cache *later = c->later;
        pthread_mutex_unlock(c->lock);
        c = later ? later : c; /* it exists, since the item is held there */
        k = qv_cache_find_key(c, name);
    }
    if (k)
        qv_part_maps_release(c->maps, k->part);
    item->held_in = 0;
    item->tokens = NULL;
    memset(item->deepstack, 0, sizeof item->deepstack);
    item->grid_thw = NULL;
    item->timestamps_s = NULL;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Loads the records of a part, unless they were loaded last. The caller holds the lock. */
static qv_status
load_records(qv_cache *c, size_t part, qv_error *err)
{
    const struct qv_index_part *p = &c->index.parts[part];
    if (c->recorded.part != part + 1) {
        free(c->records);
        c->records = NULL;
        qv_cache_looked(&c->recorded, part,
                        qv_part_records(p->path, &p->head, &c->records, &c->recorded.error));
    }
    return qv_cache_found(&c->recorded, err);
}

qv_status
qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err)
{
    QV_NEED(err, cache, out);
    qv_cache *c = (qv_cache *)(uintptr_t)cache; /* its caches are guarded by the lock */
    qv_status s = qv_cache_check_index(c, i, err);
    if (s)
        return s;
    const struct qv_index_key *k = &c->index.keys[i];
    pthread_mutex_lock(c->lock);
    s = load_records(c, k->part, err);
    if (!s) {
        char *text = strndup(c->records + k->row.record_at, k->row.record_bytes);
        s = text ? QV_OK : qv_no_memory(c->dir, err);
        if (text)
            *out = text;
    }
    pthread_mutex_unlock(c->lock);
    const qv_cache *later = NULL;
    qv_cache_item item = { .key = NULL };
    if (s)
        s = qv_cache_look_again(c, k, s, &later, &item, err);
    return item.key ? qv_cache_record(later, item.index, out, err) : s;
}
