/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* for fallocate */
#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "numbers.h"

enum {
    FIXED_BYTES = 256,   /* header of a part without keys */
    ENTRY_BYTES = 128,   /* entry of a tensor besides its key, with offsets below 10^13 */
    UNUSED_BYTES = 112,  /* entry of a range that is not used */
    RECORD_BYTES = 7000, /* record besides key, path and options; most of it is room for an error */
};

static qv_status
no_memory(const struct qv_cache_part *p, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: no memory for a part", qv_path_tail(p->file.folder->path));
}

/* ---- room ------------------------------------------------------------------------------------ */

static uint64_t
tensors_need(const qv_cache_layout *l, const char *key)
{
    return (uint64_t)(qv_cache_n_tensors(l) + 2) *
           (qv_text_escaped(key, strlen(key)) + ENTRY_BYTES);
}

/* A record is JSON inside a JSON string, so its bytes are escaped twice: each escaped byte becomes
 * two at most. */
uint64_t
qv_cache_part_need(const qv_cache_layout *l, const char *key, const char *path, const char *options)
{
    uint64_t texts = qv_text_escaped(key, strlen(key)) + qv_text_escaped(path, strlen(path));
    if (options)
        texts += qv_text_escaped(options, strlen(options));
    /* behind each tensor there may be a range that is not used */
    return tensors_need(l, key) + (uint64_t)qv_cache_n_tensors(l) * UNUSED_BYTES + 2 * texts +
           RECORD_BYTES;
}

uint64_t
qv_cache_part_known_need(const qv_cache_layout *l, const char *key, bool ok,
                         const struct qv_text *record)
{
    const uint64_t unused = (uint64_t)qv_cache_n_tensors(l) * UNUSED_BYTES;
    return 1 + qv_text_escaped(record->at, record->n) + (ok ? tensors_need(l, key) + unused : 0);
}

uint64_t
qv_cache_part_least(uint64_t need)
{
    return (uint64_t)qv_round_up((int64_t)(need + FIXED_BYTES), QV_CACHE_PAGE);
}

bool
qv_cache_part_fits(const struct qv_cache_part *p, uint64_t need)
{
    return p->header + need <= p->room;
}

/* Allocates the header's room at once, so that a part can be sealed even after its data have filled
 * the disk. */
static qv_status
reserve(const struct qv_cache_part *p, qv_error *err)
{
#ifdef __linux__
    int r;
    do
        r = fallocate(p->file.fd, 0, 0, (off_t)p->room);
    while (r && errno == EINTR);
    if (r && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)
        return qv_fail(err, QV_EIO, "%s: no space for a part: %s",
                       qv_path_tail(p->file.folder->path), strerror(errno));
#else
    (void)p;
    (void)err;
#endif
    return QV_OK;
}

qv_status
qv_cache_part_open(const struct qv_cache_folder *folder, uint64_t room, double now_s,
                   struct qv_cache_part **out, qv_error *err)
{
    struct qv_cache_part *p = calloc(1, sizeof *p);
    if (!p)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a part", qv_path_tail(folder->path));
    p->room = p->end = room;
    p->header = FIXED_BYTES;
    p->began_s = now_s;
    qv_status s = qv_cache_file_open(folder, &p->file, err);
    if (!s)
        s = reserve(p, err);
    if (s)
        qv_cache_part_free(&p);
    else
        *out = p;
    return s;
}

void
qv_cache_part_free(struct qv_cache_part **part)
{
    struct qv_cache_part *p = *part;
    if (!p)
        return;
    qv_cache_file_close(&p->file);
    for (size_t i = 0; i < p->n_done; i++)
        free(p->done[i].key);
    free(p->done);
    free(p->unused);
    free(p->keys);
    free(p->records.at);
    free(p->small.at);
    free(p);
    *part = NULL;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns the place of a hash, or the free place where it belongs; there is always a free one. */
static uint64_t *
find_key(uint64_t *keys, size_t room, uint64_t hash)
{
    size_t i = (size_t)hash & (room - 1);
    while (keys[i] && keys[i] != hash)
        i = (i + 1) & (room - 1);
    return &keys[i];
}

bool
qv_cache_part_has(const struct qv_cache_part *p, uint64_t hash)
{
    return p->keys && *find_key(p->keys, p->keys_room, hash ? hash : 1);
}

qv_status
qv_cache_part_note(struct qv_cache_part *p, uint64_t hash)
{
    if (2 * (p->n_keys + 1) > p->keys_room) {
        const size_t room = p->keys_room ? 2 * p->keys_room : 64;
        uint64_t *keys = calloc(room, sizeof *keys);
        if (!keys)
            return QV_ENOMEM;
        for (size_t i = 0; i < p->keys_room; i++)
            if (p->keys[i])
                *find_key(keys, room, p->keys[i]) = p->keys[i];
        free(p->keys);
        p->keys = keys;
        p->keys_room = room;
    }
    *find_key(p->keys, p->keys_room, hash ? hash : 1) = hash ? hash : 1;
    p->n_keys++;
    return QV_OK;
}

/* Removes a hash. The hashes behind it move to where find_key looks for them. */
static void
forget_key(struct qv_cache_part *p, uint64_t hash)
{
    uint64_t *keys = p->keys;
    size_t i = (size_t)(find_key(keys, p->keys_room, hash) - keys);
    keys[i] = 0;
    p->n_keys--;
    while (keys[i = (i + 1) & (p->keys_room - 1)]) {
        const uint64_t moved = keys[i];
        keys[i] = 0;
        *find_key(keys, p->keys_room, moved) = moved;
    }
}

void
qv_cache_part_drop(struct qv_cache_part *p, uint64_t hash, uint64_t need)
{
    forget_key(p, hash ? hash : 1);
    p->header -= need;
}

struct qv_cache_block
qv_cache_part_take(struct qv_cache_part *p, const qv_cache_layout *l, int64_t rows, uint64_t need)
{
    struct qv_cache_block b = { .at = p->end };
    b.step = (uint64_t)qv_round_up(rows * (int64_t)qv_cache_row_bytes(l), QV_CACHE_ALIGN);
    b.bytes = b.step * (uint64_t)qv_cache_n_tensors(l);
    p->end += b.bytes;
    p->header += need;
    p->n_open++;
    return b;
}

qv_status
qv_cache_part_unuse(struct qv_cache_part *p, uint64_t from, uint64_t end)
{
    if (from == end)
        return QV_OK;
    if (end == p->end && from % QV_CACHE_ALIGN == 0) { /* the range is the end of the blocks */
        p->end = from;
        return QV_OK;
    }
    if (p->n_unused == p->unused_room) {
        const size_t room = p->unused_room * 2 + 16;
        struct qv_cache_range *r = realloc(p->unused, room * sizeof *r);
        if (!r)
            return QV_ENOMEM;
        p->unused = r;
        p->unused_room = room;
    }
    p->unused[p->n_unused++] = (struct qv_cache_range){ .at = from, .end = end };
    p->header += UNUSED_BYTES;
    return QV_OK;
}

qv_status
qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                  const struct qv_cache_block *b, const int64_t grid_thw[3],
                  const double *timestamps_s, int64_t n_timestamps)
{
    if (p->n_done == p->done_room) {
        const size_t room = p->done_room * 2 + 64;
        struct qv_cache_done *d = realloc(p->done, room * sizeof *d);
        if (!d)
            return QV_ENOMEM;
        p->done = d;
        p->done_room = room;
    }
    const struct qv_cache_done done = {
        .key = strdup(key), .block = *b, .small = p->small.n, .n_timestamps = n_timestamps
    };
    if (!done.key)
        return QV_ENOMEM;
    p->done[p->n_done++] = done;
    qv_text_add(&p->small, (const char *)grid_thw, 3 * sizeof *grid_thw);
    qv_text_add(&p->small, (const char *)timestamps_s, (size_t)n_timestamps * sizeof *timestamps_s);
    const uint64_t used = (uint64_t)b->rows * qv_cache_row_bytes(l);
    qv_status s = QV_OK;
    for (int i = qv_cache_n_tensors(l) - 1; i >= 0 && !s;
         i--) { /* from the last one, which may be the end of the blocks */
        const uint64_t at = b->at + (uint64_t)i * b->step;
        s = qv_cache_part_unuse(p, at + used, at + b->step);
    }
    return s ? s : p->small.lost ? QV_ENOMEM : QV_OK;
}

void
qv_cache_part_record(struct qv_cache_part *p, const qv_cache_layout *l, const char *key, bool ok,
                     uint64_t need, const struct qv_text *record)
{
    if (p->n_records++)
        qv_text_add(&p->records, ",", 1);
    qv_text_add(&p->records, record->at, record->n);
    if (record->lost)
        p->records.lost = true;
    else if (record->n)
        p->header += 1 + qv_text_escaped(record->at, record->n) + (ok ? tensors_need(l, key) : 0);
    p->header -= need;
}

/* ---- the header ------------------------------------------------------------------------------ */

static int
by_place(const void *a, const void *b)
{
    const struct qv_cache_done *x = a, *y = b;
    return x->block.at < y->block.at ? -1 : x->block.at > y->block.at;
}

static int
by_small(const void *a, const void *b)
{
    const struct qv_cache_done *x = a, *y = b;
    return x->small < y->small ? -1 : x->small > y->small;
}

static int
by_begin(const void *a, const void *b)
{
    const struct qv_cache_range *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Merges ranges that touch. */
static void
merge_unused(struct qv_cache_part *p)
{
    size_t n = 0;
    if (p->n_unused)
        qsort(p->unused, p->n_unused, sizeof *p->unused, by_begin);
    for (size_t i = 0; i < p->n_unused; i++)
        if (n && p->unused[n - 1].end == p->unused[i].at)
            p->unused[n - 1].end = p->unused[i].end;
        else
            p->unused[n++] = p->unused[i];
    p->n_unused = n;
}

/* Adds `,"KEY/NAME":{"dtype":..`. */
static void
add_entry(struct qv_text *t, const char *key, const char *name, const char *dtype)
{
    qv_text_add(t, ",\"", 2);
    qv_text_escape(t, key, strlen(key));
    qv_text_say(t, "/%s\":{\"dtype\":\"%s\",", name, dtype);
}

static void
add_place(struct qv_text *t, uint64_t begin, uint64_t end)
{
    qv_text_say(t, "\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)end);
}

/* Adds the unused ranges that begin before `until`. */
static void
add_unused(struct qv_text *t, const struct qv_cache_part *p, size_t *next, uint64_t until)
{
    for (; *next < p->n_unused && p->unused[*next].at < until; ++*next) {
        const struct qv_cache_range *r = &p->unused[*next];
        qv_text_say(t, ",\"__unused.%zu\":{\"dtype\":\"U8\",\"shape\":[%llu],", *next,
                    (unsigned long long)(r->end - r->at));
        add_place(t, r->at - p->room, r->end - p->room);
    }
}

static void
add_tokens(struct qv_text *t, const struct qv_cache_part *p, const qv_cache_layout *l,
           const struct qv_cache_done *d, size_t *next_unused)
{
    const uint64_t bytes = (uint64_t)d->block.rows * qv_cache_row_bytes(l);
    for (int i = 0; i < qv_cache_n_tensors(l); i++) {
        char name[24];
        const uint64_t at = d->block.at + (uint64_t)i * d->block.step;
        qv_cache_tensor_name(l, i, name);
        add_unused(t, p, next_unused, at);
        add_entry(t, d->key, name, qv_cache_dtype_name(l->dtype));
        qv_text_say(t, "\"shape\":[%lld,%lld],", (long long)d->block.rows,
                    (long long)qv_cache_columns(l));
        add_place(t, at - p->room, at - p->room + bytes);
    }
}

static void
add_small(struct qv_text *t, const struct qv_cache_part *p, const struct qv_cache_done *d)
{
    const uint64_t grid = p->end - p->room + d->small, times = grid + 3 * sizeof(int64_t);
    add_entry(t, d->key, "grid_thw", "I64");
    qv_text_say(t, "\"shape\":[1,3],");
    add_place(t, grid, times);
    add_entry(t, d->key, "timestamps", "F64");
    qv_text_say(t, "\"shape\":[%lld],", (long long)d->n_timestamps);
    add_place(t, times, times + (uint64_t)d->n_timestamps * sizeof(double));
}

/* Prints the header, with tensors in the order of their data. */
static void
print_header(struct qv_text *t, struct qv_cache_part *p, const qv_cache_layout *l,
             int64_t sealed_ns)
{
    size_t next_unused = 0;
    if (p->n_done)
        qsort(p->done, p->n_done, sizeof *p->done, by_place);
    merge_unused(p);
    qv_text_add(t, "12345678", 8); /* will be replaced by the length */
    qv_text_say(t,
                "{\"__metadata__\":{\"format\":\"%s\",\"version\":\"%s\",\"sealed\":\"%lld\","
                "\"records\":\"[",
                QV_CACHE_FORMAT, QV_CACHE_VERSION, (long long)sealed_ns);
    if (p->records.n)
        qv_text_escape(t, p->records.at, p->records.n);
    qv_text_add(t, "]\"}", 3);
    for (size_t i = 0; i < p->n_done; i++)
        add_tokens(t, p, l, &p->done[i], &next_unused);
    add_unused(t, p, &next_unused, UINT64_MAX);
    if (p->n_done)
        qsort(p->done, p->n_done, sizeof *p->done, by_small);
    for (size_t i = 0; i < p->n_done; i++)
        add_small(t, p, &p->done[i]);
    qv_text_add(t, "}", 1);
}

static qv_status
write_header(struct qv_cache_part *p, const qv_cache_layout *l, int64_t sealed_ns, qv_error *err)
{
    struct qv_text t = { .at = malloc((size_t)p->room), .room = (size_t)p->room };
    if (!t.at)
        return no_memory(p, err);
    print_header(&t, p, l, sealed_ns);
    qv_status s = QV_OK;
    if (t.lost || p->records.lost)
        s = no_memory(p, err);
    else if (t.n > p->room)
        s = qv_fail(err, QV_ESTATE, "%s: a part's header takes %zu bytes, and has %llu",
                    qv_path_tail(p->file.folder->path), t.n, (unsigned long long)p->room);
    if (!s) {
        memset(t.at + t.n, ' ', (size_t)p->room - t.n);
        for (int i = 0; i < 8; i++)
            t.at[i] = (char)((p->room - 8) >> 8 * i & 0xff);
        s = qv_cache_file_write(&p->file, 0, t.at, p->room, err);
    }
    free(t.at);
    return s;
}

qv_status
qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                   struct qv_cache_part_name *name, int64_t sealed_ns, qv_error *err)
{
    if (p->small.lost)
        return no_memory(p, err);
    /* This cuts off what a failed clip wrote behind the last block; a block that was taken and
     * never written becomes a hole. */
    if (ftruncate(p->file.fd, (off_t)p->end))
        return qv_fail(err, QV_EIO, "%s: a part's size cannot be set: %s",
                       qv_path_tail(p->file.folder->path), strerror(errno));
    qv_status s = qv_cache_file_write(&p->file, p->end, p->small.at, p->small.n, err);
    if (!s)
        s = write_header(p, l, sealed_ns, err);
    for (bool taken = true; !s && taken;) {
        const unsigned count = (*name->count)++;
        if (name->stem)
            snprintf(name->text, sizeof name->text, "%s.%u.safetensors", name->stem, count);
        else
            snprintf(name->text, sizeof name->text,
                     "part-%05lld-of-%05lld-%s-%08x-%06u.safetensors", (long long)name->shard,
                     (long long)name->n_shards, p->file.folder->host, (unsigned)p->file.folder->run,
                     count);
        s = qv_cache_file_publish(&p->file, name->text, &taken, err);
    }
    return s;
}
