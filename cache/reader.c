/* SPDX-License-Identifier: MIT */
/*
 * A cache that is read. What is kept of a key is where its tensors begin and what decides whether it
 * is done again; the rest of its record is read again when it is asked for.
 */
#define _POSIX_C_SOURCE 200809L
#include "open.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "index.h"
#include "maps.h"
#include "scan.h"
#include "error.h"
#include "files/json.h"
#include "files/utf8.h"

enum { MOST_MAPS = 32768, MOST_IDLE = 1024 };

struct damage {
    char *words;
    size_t part;
};

struct qv_cache {
    char *dir, *made_by;
    qv_cache_layout layout;
    uint64_t seed;
    struct qv_cache_index index;
    struct damage *damage;
    struct qv_part_maps *maps; /* have a lock of their own */
    size_t n_damage;
    uint64_t part_bytes;
    bool has_lock;
    pthread_mutex_t *lock;      /* of the scanner */
    struct qv_scanner *scanner; /* of the part that was scanned last */
    size_t scanned;
};

static qv_status
no_memory(const qv_cache *c, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(c->dir));
}

/* ---- parts ----------------------------------------------------------------------------------- */

static bool
is_part(const char *name)
{
    static const char begin[] = "part-", end[] = ".safetensors";
    const size_t n = strlen(name);
    return n > sizeof begin + sizeof end && !strncmp(name, begin, sizeof begin - 1) &&
           !strcmp(name + n - (sizeof end - 1), end);
}

static int
by_name(const void *a, const void *b)
{
    const struct qv_index_part *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static qv_status
add_part(qv_cache *c, const char *name, size_t *room, qv_error *err)
{
    if (c->index.n_parts == *room) {
        *room = 2 * *room + 64;
        struct qv_index_part *parts = realloc(c->index.parts, *room * sizeof *parts);
        if (!parts)
            return no_memory(c, err);
        c->index.parts = parts;
    }
    c->index.parts[c->index.n_parts] = (struct qv_index_part){ .name = strdup(name) };
    if (!c->index.parts[c->index.n_parts].name)
        return no_memory(c, err);
    c->index.n_parts++;
    return QV_OK;
}

static qv_status
list_folder(qv_cache *c, size_t *room, qv_error *err)
{
    DIR *dir = opendir(c->dir);
    if (!dir)
        return qv_fail(err, QV_EIO, "%s: %s", qv_path_tail(c->dir), strerror(errno));
    qv_status s = QV_OK;
    const struct dirent *e;
    while (!s && (errno = 0, e = readdir(dir)) != NULL)
        if (is_part(e->d_name))
            s = add_part(c, e->d_name, room, err);
    if (!s && errno)
        s = qv_fail(err, QV_EIO, "%s: cannot be listed: %s", qv_path_tail(c->dir), strerror(errno));
    closedir(dir);
    return s;
}

/* All that are there, or those that are named. */
static qv_status
list_parts(qv_cache *c, const struct qv_cache_reading *how, qv_error *err)
{
    size_t room = 0;
    qv_status s = how->parts ? QV_OK : list_folder(c, &room, err);
    for (size_t i = 0; how->parts && i < how->n_parts && !s; i++) {
        const char *name = how->parts[i];
        s = is_part(name) && !strchr(name, '/')
                ? add_part(c, name, &room, err)
                : qv_fail(err, QV_EINVAL, "%s: %.80s is no name of a part", qv_path_tail(c->dir),
                          name);
    }
    if (c->index.n_parts)
        qsort(c->index.parts, c->index.n_parts, sizeof *c->index.parts, by_name);
    return s ? s : qv_part_maps_open(c->maps, c->index.n_parts, err);
}

static char *
part_path(const qv_cache *c, size_t part)
{
    return qv_path_join(c->dir, c->index.parts[part].name);
}

/* A part that cannot be used is told and passed over: its keys are missing, and can be made again. */
static qv_status
note_damage(qv_cache *c, size_t part, const qv_error *why, qv_error *err)
{
    struct damage *damage = realloc(c->damage, (c->n_damage + 1) * sizeof *damage);
    if (!damage)
        return no_memory(c, err);
    c->damage = damage;
    damage[c->n_damage] = (struct damage){ .words = strdup(why->text), .part = part };
    if (!damage[c->n_damage].words)
        return no_memory(c, err);
    c->n_damage++;
    return QV_OK;
}

static qv_status
scan_part(qv_cache *c, struct qv_scanner *s, size_t part, qv_error *err)
{
    qv_error why = { 0 };
    char *path = part_path(c, part);
    qv_status status = path ? qv_scan_part(s, path, &why) : no_memory(c, &why);
    free(path);
    if (status == QV_ENOMEM) {
        if (err)
            *err = why;
        return status;
    }
    if (status)
        return note_damage(c, part, &why, err);
    c->index.parts[part].sealed_ns = s->sealed_ns;
    c->maps->at[part].bytes = s->size;
    c->part_bytes += s->size;
    for (size_t i = 0; i < s->n_items && !status; i++)
        status = qv_index_add(&c->index, &c->layout, s, &s->items[i], (uint32_t)part, err);
    return status;
}

static qv_status
scan_parts(qv_cache *c, const struct qv_cache_reading *how, qv_error *err)
{
    struct qv_scanner s = { .layout = c->layout, .seed = c->seed };
    qv_status status = list_parts(c, how, err);
    if (!status)
        status = qv_index_grow(&c->index, err);
    for (size_t i = 0; i < c->index.n_parts && !status; i++)
        status = scan_part(c, &s, i, err);
    qv_scan_free(&s);
    if (!status)
        qv_index_settle(&c->index);
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Who writes keys is not to know which of them meet in the table. */
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
        return qv_fail(err, QV_EIO, "%s: there is no %s in it, so this is no cache",
                       qv_path_tail(c->dir), QV_CACHE_DESCRIPTION);
    c->made_by = qv_json_text(root, JSON_COMPACT);
    json_decref(root);
    return c->made_by ? QV_OK : no_memory(c, err);
}

qv_status
qv_cache_open_as(const char *dir, const struct qv_cache_reading *how, qv_cache **out, qv_error *err)
{
    qv_cache *c = calloc(1, sizeof *c);
    if (!c)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    c->seed = draw_seed(c);
    c->index.dir = c->dir = strdup(dir);
    c->lock = malloc(sizeof(pthread_mutex_t));
    c->has_lock = c->lock && !pthread_mutex_init(c->lock, NULL);
    c->maps = calloc(1, sizeof *c->maps);
    qv_status s = c->dir && c->has_lock && c->maps
                      ? QV_OK
                      : qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    if (!s) {
        c->maps->most = how->most_maps ? how->most_maps : MOST_MAPS;
        c->maps->most_idle = how->most_idle ? how->most_idle : MOST_IDLE;
        c->maps->writable = how->writable;
        s = read_description(c, err);
    }
    if (!s)
        s = scan_parts(c, how, err);
    if (s)
        qv_cache_close(&c);
    else
        *out = c;
    return s;
}

qv_status
qv_cache_open(const char *dir, qv_cache **out, qv_error *err)
{
    return qv_cache_open_as(dir, &(struct qv_cache_reading){ .parts = NULL }, out, err);
}

bool
qv_cache_exists(const char *dir)
{
    char *path = qv_path_join(dir, QV_CACHE_DESCRIPTION);
    const bool there =
        !path || qv_path_exists(path); /* without memory opening it fails, in words */
    free(path);
    return there;
}

void
qv_cache_close(qv_cache **cache)
{
    qv_cache *c = cache ? *cache : NULL;
    if (!c)
        return;
    for (size_t i = 0; i < c->n_damage; i++)
        free(c->damage[i].words);
    if (c->maps)
        qv_part_maps_close(c->maps);
    if (c->scanner)
        qv_scan_free(c->scanner);
    if (c->has_lock)
        pthread_mutex_destroy(c->lock);
    free(c->maps);
    free(c->scanner);
    free(c->lock);
    free(c->damage);
    qv_index_free(&c->index);
    free(c->made_by);
    free(c->dir);
    free(c);
    *cache = NULL;
}

void
qv_cache_get_info(const qv_cache *c, qv_cache_info *out)
{
    *out = (qv_cache_info){ .layout = c->layout,
                            .n_parts = (int64_t)c->index.n_parts,
                            .n_damaged = (int64_t)c->n_damage,
                            .part_bytes = c->part_bytes,
                            .made_by = c->made_by };
    const uint64_t row = qv_cache_row_bytes(&c->layout) * (uint64_t)qv_cache_n_tensors(&c->layout);
    for (size_t i = 0; i < c->index.n_keys; i++) {
        const struct qv_index_key *k = &c->index.keys[i];
        out->n_ok += !k->status;
        out->n_failed += k->status != 0;
        out->bytes += k->status ? 0 : k->rows * row + 24 + 8 * (uint64_t)k->n_times;
    }
    for (size_t i = 0; i < c->index.n_parts; i++)
        if (c->index.parts[i].sealed_ns > out->sealed)
            out->sealed = c->index.parts[i].sealed_ns;
    out->index_bytes = c->index.keys_room * sizeof *c->index.keys +
                       c->index.table_room * sizeof *c->index.table + c->index.names.room +
                       c->index.n_parts * (sizeof *c->index.parts + sizeof *c->maps->at + 96);
}

const char *
qv_cache_damage(const qv_cache *c, int64_t i)
{
    return i >= 0 && (uint64_t)i < c->n_damage ? c->damage[i].words : NULL;
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
    return (qv_cache_item){ .key = qv_index_name(&c->index, k),
                            .index = k - c->index.keys,
                            .status = (qv_status)k->status,
                            .rows = k->rows,
                            .n_timestamps = k->n_times,
                            .part = c->index.parts[k->part].name,
                            .part_index = k->part,
                            .bytes = k->bytes,
                            .mtime_ns = k->mtime_ns,
                            .xxh3 = k->xxh3,
                            .sampled_fps = k->sampled_fps,
                            .is_image = k->is_image,
                            .tokens_at = k->at,
                            .deepstack_step = (uint64_t)k->step * QV_CACHE_ALIGN,
                            .grid_at = k->small };
}

static const struct qv_index_key *
find_key(const qv_cache *c, const char *key)
{
    return qv_index_find(&c->index, key, qv_scan_hash(c->seed, key, strlen(key)));
}

qv_status
qv_cache_find(const qv_cache *c, const char *key, qv_cache_item *out, qv_error *err)
{
    const struct qv_index_key *k = find_key(c, key);
    (void)err;
    *out = k ? item_of(c, k) : (qv_cache_item){ .key = NULL };
    return QV_OK;
}

static qv_status
check_index(const qv_cache *c, int64_t i, qv_error *err)
{
    return i >= 0 && (uint64_t)i < c->index.n_keys
               ? QV_OK
               : qv_fail(err, QV_EINVAL, "%s: there is no key %lld; there are %zu",
                         qv_path_tail(c->dir), (long long)i, c->index.n_keys);
}

qv_status
qv_cache_at(const qv_cache *c, int64_t i, qv_cache_item *out, qv_error *err)
{
    const qv_status s = check_index(c, i, err);
    if (!s)
        *out = item_of(c, &c->index.keys[i]);
    return s;
}

qv_status
qv_cache_hold(const qv_cache *c, qv_cache_item *item, qv_error *err)
{
    const char *map = NULL;
    qv_status s = check_index(c, item->index, err);
    if (s || c->index.keys[item->index].status)
        return s;
    const struct qv_index_key *k = &c->index.keys[item->index];
    char *path = part_path(c, k->part);
    s = path ? qv_part_maps_hold(c->maps, k->part, path, &map, err) : no_memory(c, err);
    free(path);
    if (s)
        return s;
    item->tokens = map + k->at;
    for (int i = 1; i < qv_cache_n_tensors(&c->layout); i++)
        item->deepstack[i - 1] = map + k->at + (uint64_t)i * k->step * QV_CACHE_ALIGN;
    item->grid_thw = (const int64_t *)(const void *)(map + k->small);
    item->timestamps_s = (const double *)(const void *)(map + k->small + 24);
    return QV_OK;
}

void
qv_cache_release(const qv_cache *c, qv_cache_item *item)
{
    if (!item->tokens)
        return;
    qv_part_maps_release(c->maps, c->index.keys[item->index].part);
    item->tokens = NULL;
    memset(item->deepstack, 0, sizeof item->deepstack);
    item->grid_thw = NULL;
    item->timestamps_s = NULL;
}

/* Under the lock: the records of a part, in the cache's scanner. */
static qv_status
load_records(qv_cache *c, size_t part, qv_error *err)
{
    if (c->scanner && c->scanned == part)
        return QV_OK;
    if (!c->scanner)
        c->scanner = calloc(1, sizeof *c->scanner);
    char *path = part_path(c, part);
    qv_status s = path && c->scanner ? QV_OK : no_memory(c, err);
    if (!s) {
        c->scanner->layout = c->layout;
        c->scanned = SIZE_MAX;
        s = qv_scan_part(c->scanner, path, err);
    }
    if (!s)
        c->scanned = part;
    free(path);
    return s;
}

qv_status
qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err)
{
    qv_cache *c = (qv_cache *)(uintptr_t)cache; /* what it remembers is under the lock */
    qv_status s = check_index(c, i, err);
    if (s)
        return s;
    const struct qv_index_key *k = &c->index.keys[i];
    pthread_mutex_lock(c->lock);
    s = load_records(c, k->part, err);
    if (!s && (uint64_t)k->record + k->record_bytes > c->scanner->records.n)
        s = qv_fail(err, QV_EIO, "%s/%s: it is not the file that it was", qv_path_tail(c->dir),
                    c->index.parts[k->part].name);
    if (!s) {
        char *text = strndup(c->scanner->records.at + k->record, k->record_bytes);
        s = text ? QV_OK : no_memory(c, err);
        if (text)
            *out = text;
    }
    pthread_mutex_unlock(c->lock);
    return s;
}

/* ---- checksums ------------------------------------------------------------------------------- */

enum { PIECE = 1 << 20 };

/* XXH3-64 of bytes of a file, which are read: a disk that fails is an error then, not a signal. */
static qv_status
hash_bytes(int fd, const char *path, uint64_t at, uint64_t bytes, char *piece,
           XXH64_canonical_t *out, qv_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    qv_status s = QV_OK;
    if (!state || XXH3_64bits_reset(state))
        s = qv_fail(err, QV_ENOMEM, "%s: no memory for a checksum", qv_path_tail(path));
    while (bytes && !s) {
        const uint64_t now = bytes < PIECE ? bytes : PIECE;
        s = qv_file_read(fd, path, at, piece, now, err);
        if (!s)
            XXH3_64bits_update(state, piece, (size_t)now);
        at += now;
        bytes -= now;
    }
    if (!s)
        XXH64_canonicalFromHash(out, XXH3_64bits_digest(state));
    if (state)
        XXH3_freeState(state);
    return s;
}

static qv_status
hash_key(const qv_cache *c, const struct qv_index_key *k, int fd, const char *path, uint64_t *out,
         qv_error *err)
{
    XXH64_canonical_t all[QV_CACHE_MAX_TENSORS + 2];
    const int n = qv_cache_n_tensors(&c->layout);
    const uint64_t bytes = k->rows * (uint64_t)qv_cache_row_bytes(&c->layout);
    char *piece = malloc(PIECE);
    qv_status s = piece ? QV_OK : no_memory(c, err);
    for (int i = 0; i < n && !s; i++)
        s = hash_bytes(fd, path, k->at + (uint64_t)i * k->step * QV_CACHE_ALIGN, bytes, piece,
                       &all[i], err);
    if (!s)
        s = hash_bytes(fd, path, k->small, 24, piece, &all[n], err);
    if (!s)
        s = hash_bytes(fd, path, k->small + 24, 8 * (uint64_t)k->n_times, piece, &all[n + 1], err);
    free(piece);
    if (!s)
        *out = XXH3_64bits(all, ((size_t)n + 2) * sizeof *all);
    return s;
}

qv_status
qv_cache_verify(const qv_cache *c, int64_t i, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    uint64_t size = 0, found = 0;
    int fd = -1;
    qv_status s = check_index(c, i, err);
    if (s || c->index.keys[i].status)
        return s;
    const struct qv_index_key *k = &c->index.keys[i];
    char *path = part_path(c, k->part);
    s = path ? qv_file_open(path, &fd, &size, err) : no_memory(c, err);
    if (!s)
        s = hash_key(c, k, fd, path, &found, err);
    if (fd >= 0)
        close(fd);
    if (!s && found != k->xxh3)
        s = qv_fail(err, QV_EFORMAT,
                    "%s: key %s: the checksum of its tensors is %016llx, its record has %016llx",
                    qv_path_tail(path), qv_json_quote(qv_index_name(&c->index, k), quoted),
                    (unsigned long long)found, (unsigned long long)k->xxh3);
    free(path);
    return s;
}

/* ---- resuming -------------------------------------------------------------------------------- */

qv_cache_state
qv_cache_compare(const qv_cache *c, const char *key, const qv_cache_source *source)
{
    const struct qv_index_key *k = find_key(c, key);
    if (!k)
        return QV_CACHE_MISSING;
    struct qv_text start = { 0 }, end = { 0 };
    char *path = qv_utf8_text(source->path);
    char *options = source->options ? qv_utf8_text(source->options) : NULL;
    if (source->start_s > 0)
        qv_text_seconds(&start, source->start_s);
    if (source->end_s > 0)
        qv_text_seconds(&end, source->end_s);
    qv_text_add(&start, "", 1);
    qv_text_add(&end, "", 1);
    const bool lost = !path || (source->options && !options) || start.lost || end.lost;
    const bool same = !lost && k->bytes == source->bytes && k->mtime_ns == source->mtime_ns &&
                      k->source == qv_cache_source_hash(path, source->start_s > 0 ? start.at : NULL,
                                                        source->end_s > 0 ? end.at : NULL, options);
    free(path);
    free(options);
    free(start.at);
    free(end.at);
    return !same ? QV_CACHE_CHANGED : k->status ? QV_CACHE_FAILED : QV_CACHE_DONE;
}
