/* SPDX-License-Identifier: MIT */
/*
 * A cache that is read. What is kept of a key is where its tensors begin and what decides whether it
 * is done again; the rest of its record is read again when it is asked for.
 */
#define _DEFAULT_SOURCE /* MAP_SHARED and the like */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache_scan.h"
#include "error.h"
#include "files/json.h"
#include "files/utf8.h"

#define MAX_KEYS ((size_t)UINT32_MAX / 2)

struct part {
    char *name; /* of the file */
    int64_t sealed_ns;
    uint64_t size;
    void *map; /* NULL until it is needed */
};

struct key {
    uint64_t name;      /* in the names */
    uint64_t at, small; /* offsets in the part: of the first tensor, of grid_thw */
    uint64_t source, xxh3;
    int64_t bytes, mtime_ns;
    uint32_t rows, step; /* step: from tensor to tensor, in units of QV_CACHE_ALIGN */
    uint32_t n_times, part;
    uint32_t record, record_bytes; /* in the part's records */
    uint32_t hash;                 /* the low bits of the key's: the table has no more places */
    uint8_t status;
};

struct qv_cache {
    char *dir, *made_by;
    qv_cache_layout layout;
    uint64_t seed;
    struct part *parts; /* by name */
    struct key *keys;
    uint32_t *table;
    struct qv_text names;
    char **damage;
    size_t n_parts, n_keys, keys_room, table_room, n_damage;
    uint64_t part_bytes;
    bool has_lock;
    pthread_mutex_t *lock;      /* of maps and the scanner */
    struct qv_scanner *scanner; /* of the part that was scanned last */
    size_t scanned;
};

static qv_status
no_memory(const qv_cache *c, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(c->dir));
}

/* ---- keys ------------------------------------------------------------------------------------ */

static const char *
name_of(const qv_cache *c, const struct key *k)
{
    return c->names.at + k->name;
}

/* The place of a key in the table, or where it would be put. */
static size_t
find_place(const qv_cache *c, const char *key, uint64_t hash)
{
    size_t at = (size_t)hash & (c->table_room - 1);
    for (; c->table[at]; at = (at + 1) & (c->table_room - 1)) {
        const struct key *k = &c->keys[c->table[at] - 1];
        if (k->hash == (uint32_t)hash && !strcmp(name_of(c, k), key))
            break;
    }
    return at;
}

static qv_status
grow_table(qv_cache *c, qv_error *err)
{
    const size_t room = c->table_room ? 2 * c->table_room : 4096;
    uint32_t *table = calloc(room, sizeof *table);
    if (!table)
        return no_memory(c, err);
    for (size_t i = 0; i < c->n_keys; i++) {
        size_t at = (size_t)c->keys[i].hash & (room - 1);
        while (table[at])
            at = (at + 1) & (room - 1);
        table[at] = (uint32_t)i + 1;
    }
    free(c->table);
    c->table = table;
    c->table_room = room;
    return QV_OK;
}

static qv_status
grow_keys(qv_cache *c, qv_error *err)
{
    const size_t room = c->keys_room * 3 / 2 + 4096;
    if (c->n_keys >= MAX_KEYS)
        return qv_fail(err, QV_EUNSUPPORTED, "%s: more than %zu keys", qv_path_tail(c->dir),
                       MAX_KEYS);
    struct key *keys = realloc(c->keys, room * sizeof *keys);
    if (!keys)
        return no_memory(c, err);
    c->keys = keys;
    c->keys_room = room;
    return QV_OK;
}

/* ok beats failed, then the part that was sealed later, then the last by name (parts come by name). */
static bool
beats(const qv_cache *c, const struct key *now, const struct key *before)
{
    if (!now->status != !before->status)
        return !now->status;
    return c->parts[now->part].sealed_ns >= c->parts[before->part].sealed_ns;
}

static qv_status
add_key(qv_cache *c, const struct qv_scanner *s, const struct qv_scan_item *item, uint32_t part,
        qv_error *err)
{
    struct key k = { .hash = (uint32_t)item->hash,
                     .at = item->at[0],
                     .small = item->grid,
                     .source = item->source,
                     .xxh3 = item->xxh3,
                     .bytes = item->bytes,
                     .mtime_ns = item->mtime_ns,
                     .rows = (uint32_t)item->rows,
                     .n_times = (uint32_t)item->n_times,
                     .part = part,
                     .record = (uint32_t)item->record,
                     .record_bytes = (uint32_t)item->record_bytes,
                     .status = (uint8_t)item->status };
    if (qv_cache_n_tensors(&c->layout) > 1)
        k.step = (uint32_t)((item->at[1] - item->at[0]) / QV_CACHE_ALIGN);
    qv_status status = QV_OK;
    if (2 * (c->n_keys + 1) > c->table_room)
        status = grow_table(c, err);
    if (!status && c->n_keys == c->keys_room)
        status = grow_keys(c, err);
    if (status)
        return status;
    const char *name = s->names.at + item->name;
    const size_t at = find_place(c, name, item->hash);
    if (c->table[at]) {
        struct key *before = &c->keys[c->table[at] - 1];
        k.name = before->name;
        if (beats(c, &k, before))
            *before = k;
        return QV_OK;
    }
    k.name = c->names.n;
    qv_text_add(&c->names, name, item->name_bytes + 1);
    if (c->names.lost)
        return no_memory(c, err);
    c->keys[c->n_keys++] = k;
    c->table[at] = (uint32_t)c->n_keys;
    return QV_OK;
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
    const struct part *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static qv_status
list_parts(qv_cache *c, qv_error *err)
{
    DIR *dir = opendir(c->dir);
    if (!dir)
        return qv_fail(err, QV_EIO, "%s: %s", qv_path_tail(c->dir), strerror(errno));
    qv_status s = QV_OK;
    size_t room = 0;
    const struct dirent *e;
    while (!s && (errno = 0, e = readdir(dir)) != NULL) {
        if (!is_part(e->d_name))
            continue;
        if (c->n_parts == room) {
            room = 2 * room + 64;
            struct part *parts = realloc(c->parts, room * sizeof *parts);
            c->parts = parts ? parts : c->parts;
            s = parts ? QV_OK : no_memory(c, err);
        }
        if (s)
            break;
        c->parts[c->n_parts] = (struct part){ .name = strdup(e->d_name) };
        s = c->parts[c->n_parts].name ? QV_OK : no_memory(c, err);
        c->n_parts += !s;
    }
    if (!s && errno)
        s = qv_fail(err, QV_EIO, "%s: cannot be listed: %s", qv_path_tail(c->dir), strerror(errno));
    closedir(dir);
    if (c->n_parts)
        qsort(c->parts, c->n_parts, sizeof *c->parts, by_name);
    return s;
}

static char *
part_path(const qv_cache *c, size_t part)
{
    return qv_path_join(c->dir, c->parts[part].name);
}

/* A part that cannot be used is told and passed over: its keys are missing, and can be made again. */
static qv_status
note_damage(qv_cache *c, const qv_error *why, qv_error *err)
{
    char **damage = realloc(c->damage, (c->n_damage + 1) * sizeof *damage);
    if (!damage)
        return no_memory(c, err);
    c->damage = damage;
    damage[c->n_damage] = strdup(why->text);
    if (!damage[c->n_damage])
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
        return note_damage(c, &why, err);
    c->parts[part].sealed_ns = s->sealed_ns;
    c->parts[part].size = s->size;
    c->part_bytes += s->size;
    for (size_t i = 0; i < s->n_items && !status; i++)
        status = add_key(c, s, &s->items[i], (uint32_t)part, err);
    return status;
}

static qv_status
scan_parts(qv_cache *c, qv_error *err)
{
    struct qv_scanner s = { .layout = c->layout, .seed = c->seed };
    qv_status status = list_parts(c, err);
    if (!status)
        status = grow_table(c, err);
    for (size_t i = 0; i < c->n_parts && !status; i++)
        status = scan_part(c, &s, i, err);
    qv_scan_free(&s);
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
qv_cache_open(const char *dir, qv_cache **out, qv_error *err)
{
    qv_cache *c = calloc(1, sizeof *c);
    if (!c)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    c->seed = draw_seed(c);
    c->dir = strdup(dir);
    c->lock = malloc(sizeof(pthread_mutex_t));
    c->has_lock = c->lock && !pthread_mutex_init(c->lock, NULL);
    qv_status s = c->dir && c->has_lock
                      ? QV_OK
                      : qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    if (!s)
        s = read_description(c, err);
    if (!s)
        s = scan_parts(c, err);
    if (s)
        qv_cache_close(&c);
    else
        *out = c;
    return s;
}

void
qv_cache_close(qv_cache **cache)
{
    qv_cache *c = cache ? *cache : NULL;
    if (!c)
        return;
    for (size_t i = 0; i < c->n_parts; i++) {
        if (c->parts[i].map)
            munmap(c->parts[i].map, (size_t)c->parts[i].size);
        free(c->parts[i].name);
    }
    for (size_t i = 0; i < c->n_damage; i++)
        free(c->damage[i]);
    if (c->scanner)
        qv_scan_free(c->scanner);
    if (c->has_lock)
        pthread_mutex_destroy(c->lock);
    free(c->scanner);
    free(c->lock);
    free(c->damage);
    free(c->parts);
    free(c->keys);
    free(c->table);
    free(c->names.at);
    free(c->made_by);
    free(c->dir);
    free(c);
    *cache = NULL;
}

void
qv_cache_get_info(const qv_cache *c, qv_cache_info *out)
{
    *out = (qv_cache_info){ .layout = c->layout,
                            .n_parts = (int64_t)c->n_parts,
                            .n_damaged = (int64_t)c->n_damage,
                            .part_bytes = c->part_bytes,
                            .made_by = c->made_by };
    const uint64_t row = qv_cache_row_bytes(&c->layout) * (uint64_t)qv_cache_n_tensors(&c->layout);
    for (size_t i = 0; i < c->n_keys; i++) {
        const struct key *k = &c->keys[i];
        out->n_ok += !k->status;
        out->n_failed += k->status != 0;
        out->bytes += k->status ? 0 : k->rows * row + 24 + 8 * (uint64_t)k->n_times;
    }
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].sealed_ns > out->sealed)
            out->sealed = c->parts[i].sealed_ns;
    out->index_bytes = c->keys_room * sizeof *c->keys + c->table_room * sizeof *c->table +
                       c->names.room + c->n_parts * (sizeof *c->parts + 96);
}

const char *
qv_cache_damage(const qv_cache *c, int64_t i)
{
    return i >= 0 && (uint64_t)i < c->n_damage ? c->damage[i] : NULL;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Under the lock. */
static qv_status
map_part(const qv_cache *c, struct part *p, size_t i, qv_error *err)
{
    struct stat st = { .st_size = 0 };
    char *path = part_path(c, i);
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    int e = fd < 0 || fstat(fd, &st) ? errno : 0;
    if (!e && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != p->size))
        e = ESTALE;
    if (!e) {
        void *map = mmap(NULL, (size_t)p->size, PROT_READ, MAP_SHARED, fd, 0);
        e = map == MAP_FAILED ? errno : 0;
        p->map = e ? NULL : map;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    if (!path)
        return no_memory(c, err);
    return e ? qv_fail(err, e == ENOMEM ? QV_ENOMEM : QV_EIO, "%s/%s: cannot be mapped: %s",
                       qv_path_tail(c->dir), p->name,
                       e == ESTALE ? "it is not the file that it was" : strerror(e))
             : QV_OK;
}

static qv_status
fill_item(const qv_cache *c, const struct key *k, qv_cache_item *out, qv_error *err)
{
    struct part *p = &c->parts[k->part];
    qv_cache_item item = { .key = name_of(c, k),
                           .index = k - c->keys,
                           .status = (qv_status)k->status,
                           .part = p->name,
                           .bytes = k->bytes,
                           .mtime_ns = k->mtime_ns,
                           .xxh3 = k->xxh3 };
    if (k->status) {
        *out = item;
        return QV_OK;
    }
    pthread_mutex_lock(c->lock);
    const qv_status s = p->map ? QV_OK : map_part(c, p, k->part, err);
    const char *map = p->map;
    pthread_mutex_unlock(c->lock);
    if (s)
        return s;
    item.rows = k->rows;
    item.tokens = map + k->at;
    for (int i = 1; i < qv_cache_n_tensors(&c->layout); i++)
        item.deepstack[i - 1] = map + k->at + (uint64_t)i * k->step * QV_CACHE_ALIGN;
    item.grid_thw = (const int64_t *)(const void *)(map + k->small);
    item.timestamps_s = (const double *)(const void *)(map + k->small + 24);
    item.n_timestamps = k->n_times;
    *out = item;
    return QV_OK;
}

static const struct key *
find_key(const qv_cache *c, const char *key)
{
    const uint32_t at = c->table[find_place(c, key, qv_scan_hash(c->seed, key, strlen(key)))];
    return at ? &c->keys[at - 1] : NULL;
}

qv_status
qv_cache_find(const qv_cache *c, const char *key, qv_cache_item *out, qv_error *err)
{
    const struct key *k = find_key(c, key);
    if (k)
        return fill_item(c, k, out, err);
    *out = (qv_cache_item){ .key = NULL };
    return QV_OK;
}

static qv_status
check_index(const qv_cache *c, int64_t i, qv_error *err)
{
    return i >= 0 && (uint64_t)i < c->n_keys
               ? QV_OK
               : qv_fail(err, QV_EINVAL, "%s: there is no key %lld; there are %zu",
                         qv_path_tail(c->dir), (long long)i, c->n_keys);
}

qv_status
qv_cache_at(const qv_cache *c, int64_t i, qv_cache_item *out, qv_error *err)
{
    const qv_status s = check_index(c, i, err);
    return s ? s : fill_item(c, &c->keys[i], out, err);
}

qv_status
qv_cache_state_at(const qv_cache *c, int64_t i, qv_status *out, qv_error *err)
{
    const qv_status s = check_index(c, i, err);
    if (!s)
        *out = (qv_status)c->keys[i].status;
    return s;
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
    const struct key *k = &c->keys[i];
    pthread_mutex_lock(c->lock);
    s = load_records(c, k->part, err);
    if (!s && (uint64_t)k->record + k->record_bytes > c->scanner->records.n)
        s = qv_fail(err, QV_EIO, "%s/%s: it is not the file that it was", qv_path_tail(c->dir),
                    c->parts[k->part].name);
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
hash_key(const qv_cache *c, const struct key *k, int fd, const char *path, uint64_t *out,
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
    if (s || c->keys[i].status)
        return s;
    const struct key *k = &c->keys[i];
    char *path = part_path(c, k->part);
    s = path ? qv_file_open(path, &fd, &size, err) : no_memory(c, err);
    if (!s)
        s = hash_key(c, k, fd, path, &found, err);
    if (fd >= 0)
        close(fd);
    if (!s && found != k->xxh3)
        s = qv_fail(err, QV_EFORMAT,
                    "%s: key %s: the checksum of its tensors is %016llx, its record has %016llx",
                    qv_path_tail(path), qv_json_quote(name_of(c, k), quoted),
                    (unsigned long long)found, (unsigned long long)k->xxh3);
    free(path);
    return s;
}

/* ---- resuming -------------------------------------------------------------------------------- */

qv_cache_state
qv_cache_compare(const qv_cache *c, const char *key, const qv_cache_source *source)
{
    const struct key *k = find_key(c, key);
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
