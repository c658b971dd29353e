/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* for fallocate */
#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "files/safetensors.h"
#include "numbers.h"

enum {
    FIXED_BYTES = 1024, /* of a part without keys: header, the index's head, and paddings */
    ENTRY_BYTES = 128,  /* a tensor's entry in the header besides its key, with offsets below
                          * 10^13 */
    UNUSED_BYTES = 112, /* the entry of a range that is not used */
    RECORD_BYTES =
        6000, /* a record besides key, path and options; most of it is room for an error */
};

static qv_status
no_memory(const struct qv_cache_part *p, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: no memory for a part", qv_path_tail(p->file.folder->path));
}

/* ---- room ------------------------------------------------------------------------------------ */

/* What a key takes besides its record: its row and its key; if it is ok, also an entry for each of its
 * tensors, and one for what may lie unused in front of it. Small tensors leave no gaps. */
static uint64_t
key_need(const qv_cache_layout *l, const char *key, bool ok)
{
    const uint64_t n = (uint64_t)qv_cache_n_tensors(l), bytes = strlen(key);
    const uint64_t entry = qv_text_escaped(key, bytes) + ENTRY_BYTES;
    return QV_INDEX_ROW + bytes + 1 + (ok ? (n + 2) * entry + n * UNUSED_BYTES : 0);
}

uint64_t
qv_cache_part_need(const qv_cache_layout *l, const char *key, const char *path, const char *options)
{
    uint64_t texts = qv_text_escaped(key, strlen(key)) + qv_text_escaped(path, strlen(path));
    if (options)
        texts += qv_text_escaped(options, strlen(options));
    return key_need(l, key, true) + texts + RECORD_BYTES;
}

uint64_t
qv_cache_part_known_need(const qv_cache_layout *l, const char *key, bool ok, size_t record_bytes)
{
    return key_need(l, key, ok) + record_bytes + 1;
}

uint64_t
qv_cache_part_least(uint64_t need)
{
    return (uint64_t)qv_round_up((int64_t)(need + FIXED_BYTES), QV_CACHE_PAGE);
}

bool
qv_cache_part_fits(const struct qv_cache_part *p, uint64_t need)
{
    return p->front + need <= p->room;
}

/* Allocates the room in front at once, so that a part can be sealed even after its data have filled
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
    p->front = FIXED_BYTES;
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
    p->front -= need;
}

struct qv_cache_block
qv_cache_part_take(struct qv_cache_part *p, const qv_cache_layout *l, int64_t rows, uint64_t need)
{
    struct qv_cache_block b = { .at = p->end };
    b.step = qv_index_padded((uint64_t)rows * qv_cache_row_bytes(l));
    b.bytes = b.step * (uint64_t)qv_cache_n_tensors(l);
    p->end += b.bytes;
    p->front += need;
    p->n_open++;
    return b;
}

void
qv_cache_part_give_back(struct qv_cache_part *p, uint64_t from, uint64_t end)
{
    if (end == p->end)
        p->end = qv_index_padded(from);
}

static struct qv_cache_done *
add_done(struct qv_cache_part *p, const char *key)
{
    if (p->n_done == p->done_room) {
        const size_t room = p->done_room * 2 + 64;
        struct qv_cache_done *d = realloc(p->done, room * sizeof *d);
        if (!d)
            return NULL;
        p->done = d;
        p->done_room = room;
    }
    struct qv_cache_done *d = &p->done[p->n_done];
    *d = (struct qv_cache_done){ .key = strdup(key), .record = p->records.n, .small = p->small.n };
    p->n_done += d->key != NULL;
    return d->key ? d : NULL;
}

qv_status
qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                  const struct qv_index_row *row, const struct qv_text *record, uint64_t need,
                  const struct qv_cache_block *b, const int64_t grid_thw[3],
                  const double *timestamps_s)
{
    const uint64_t used = row->n_rows * (uint64_t)qv_cache_row_bytes(l);
    struct qv_cache_done *d = record->lost ? NULL : add_done(p, key);
    p->records.lost = p->records.lost || !d; /* the account is wrong then */
    if (!d)
        return QV_ENOMEM;
    p->front += qv_cache_part_known_need(l, key, !row->status, record->n);
    p->front -= need;
    d->row = *row;
    d->row.key_bytes = (uint16_t)strlen(key);
    d->row.record_bytes = (uint32_t)record->n;
    qv_text_add(&p->records, record->at, record->n);
    if (row->status) {
        qv_cache_part_give_back(p, b->at, b->at + b->bytes);
    } else {
        d->row.tokens_at = b->at;
        d->row.step = qv_cache_n_tensors(l) > 1 ? (uint32_t)(b->step / QV_CACHE_ALIGN) : 0;
        qv_cache_part_give_back(p, b->at + b->bytes - b->step + used, b->at + b->bytes);
        qv_text_add(&p->small, (const char *)grid_thw, QV_CACHE_GRID_BYTES);
        qv_text_add(&p->small, (const char *)timestamps_s,
                    (size_t)row->n_times * sizeof *timestamps_s);
    }
    p->records.lost = p->records.lost || p->small.lost;
    return p->records.lost ? QV_ENOMEM : QV_OK;
}

/* ---- sealing --------------------------------------------------------------------------------- */

/* Orders keys as the index has them: by the place of their tokens, and those that failed last, in the
 * order in which they were finished. */
static int
by_place(const void *a, const void *b)
{
    const struct qv_cache_done *x = a, *y = b;
    if (!x->row.status != !y->row.status)
        return x->row.status ? 1 : -1;
    if (x->row.tokens_at != y->row.tokens_at)
        return x->row.tokens_at < y->row.tokens_at ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

/* Writes the small tensors of all keys behind the tokens. */
static qv_status
write_small(struct qv_cache_part *p, qv_error *err)
{
    struct qv_text t = { 0 };
    for (size_t i = 0; i < p->n_done; i++)
        qv_text_add(&t, p->small.at + p->done[i].small,
                    (size_t)qv_index_small_bytes(&p->done[i].row));
    const qv_status s =
        t.lost ? no_memory(p, err) : qv_cache_file_write(&p->file, p->end, t.at, t.n, err);
    free(t.at);
    return s;
}

/* Gives each row the places of its small tensors, key and record, and the head those of all. */
static struct qv_index_head
lay_out(struct qv_cache_part *p, const qv_cache_layout *l, int64_t sealed_ns)
{
    struct qv_index_head h = { .magic = QV_INDEX_MAGIC,
                               .version = QV_INDEX_VERSION,
                               .row_bytes = QV_INDEX_ROW,
                               .n_rows = p->n_done,
                               .small_at = p->end,
                               .sealed_ns = sealed_ns,
                               .width = (uint64_t)l->width,
                               .dtype = qv_index_dtype(l->dtype),
                               .n_deepstack = (uint32_t)l->n_deepstack,
                               .packed = l->packed };
    uint64_t small = p->end, record = 0;
    for (size_t i = 0; i < p->n_done; i++) {
        struct qv_index_row *r = &p->done[i].row;
        r->key_at = (uint32_t)h.keys_bytes;
        r->record_at = (uint32_t)record;
        r->small_at = r->status ? 0 : small;
        h.keys_bytes += r->key_bytes + 1u;
        record += r->record_bytes + 1u;
        small += qv_index_small_bytes(r);
    }
    h.file_end = small;
    h.records_bytes = record - 1;
    h.records_at = p->room - qv_index_padded(h.records_bytes);
    h.header_bytes = h.records_at - qv_index_padded(h.keys_bytes) - QV_INDEX_ROW * (1 + h.n_rows);
    return h;
}

/* A header that is being printed: its tensors cover the data from `from` on. */
struct printing {
    struct qv_text *t;
    uint64_t from, end; /* where data begin; where the last tensor ends */
    int n_unused;
};

/* Adds a tensor, and before it one of what lies unused in front of it. */
static void
print_tensor(struct printing *to, const char *key, const char *name, const char *dtype, int n_dims,
             const int64_t *shape, uint64_t at, uint64_t bytes)
{
    if (at > to->end) {
        char unused[32];
        const int64_t n = (int64_t)(at - to->end);
        snprintf(unused, sizeof unused, "__unused.%d", to->n_unused++);
        qv_header_tensor(to->t, NULL, unused, "U8", 1, &n, to->end - to->from, at - to->from);
    }
    if (name)
        qv_header_tensor(to->t, key, name, dtype, n_dims, shape, at - to->from,
                         at - to->from + bytes);
    to->end = at + bytes;
}

static void
print_bytes(struct printing *to, const char *name, uint64_t bytes)
{
    const int64_t n = (int64_t)qv_index_padded(bytes);
    print_tensor(to, NULL, name, "U8", 1, &n, to->end, (uint64_t)n);
}

static void
print_tokens(struct printing *to, const qv_cache_layout *l, const struct qv_cache_done *d)
{
    const uint64_t bytes = d->row.n_rows * (uint64_t)qv_cache_row_bytes(l);
    const int64_t shape[] = { d->row.n_rows, qv_cache_columns(l) };
    for (int i = 0; i < qv_cache_n_tensors(l) && !d->row.status; i++) {
        char name[24];
        qv_cache_tensor_name(l, i, name);
        print_tensor(to, d->key, name, qv_cache_dtype_name(l->dtype), 2, shape,
                     d->row.tokens_at + (uint64_t)i * d->row.step * QV_CACHE_ALIGN, bytes);
    }
}

static void
print_small(struct printing *to, const struct qv_cache_done *d)
{
    const int64_t grid[] = { 1, 3 }, times[] = { d->row.n_times };
    if (d->row.status)
        return;
    print_tensor(to, d->key, "grid_thw", "I64", 2, grid, to->end, QV_CACHE_GRID_BYTES);
    print_tensor(to, d->key, "timestamps", "F64", 1, times, to->end,
                 d->row.n_times * sizeof(double));
}

/* Prints the header, with tensors in the order of their data. */
static bool
print_header(struct qv_text *t, const struct qv_cache_part *p, const qv_cache_layout *l,
             const struct qv_index_head *h)
{
    struct printing to = { .t = t, .from = h->header_bytes, .end = h->header_bytes };
    char sealed[24];
    const char *const metadata[][2] = { { "format", QV_CACHE_FORMAT },
                                        { "version", QV_CACHE_VERSION },
                                        { "sealed", sealed } };
    snprintf(sealed, sizeof sealed, "%lld", (long long)h->sealed_ns);
    qv_header_begin(t, metadata, 3);
    print_bytes(&to, "__index", QV_INDEX_ROW * (1 + h->n_rows));
    print_bytes(&to, "__keys", h->keys_bytes);
    print_bytes(&to, "__records", h->records_bytes);
    for (size_t i = 0; i < p->n_done; i++)
        print_tokens(&to, l, &p->done[i]);
    print_tensor(&to, NULL, NULL, NULL, 0, NULL, h->small_at, 0);
    for (size_t i = 0; i < p->n_done; i++)
        print_small(&to, &p->done[i]);
    return qv_header_end(t, (size_t)h->header_bytes);
}

/* Adds index, keys and records to the header, which is printed. */
static void
print_index(struct qv_text *t, const struct qv_cache_part *p, struct qv_index_head *h)
{
    unsigned char row[QV_INDEX_ROW];
    const size_t at = t->n;
    h->header_xxh3 = qv_cache_hash(t->at, at);
    qv_text_pad(t, 0, QV_INDEX_ROW); /* for the head, once its checksum is known */
    for (size_t i = 0; i < p->n_done; i++) {
        qv_index_store_row(row, &p->done[i].row);
        qv_text_add(t, (const char *)row, sizeof row);
    }
    for (size_t i = 0; i < p->n_done; i++)
        qv_text_add(t, p->done[i].key, p->done[i].row.key_bytes + 1u);
    qv_text_pad(t, 0, (size_t)(qv_index_padded(h->keys_bytes) - h->keys_bytes));
    for (size_t i = 0; i < p->n_done; i++) {
        qv_text_add(t, "\n", i > 0);
        qv_text_add(t, p->records.at + p->done[i].record, p->done[i].row.record_bytes);
    }
    qv_text_pad(t, ' ', (size_t)(qv_index_padded(h->records_bytes) - h->records_bytes));
    if (t->lost)
        return;
    h->records_xxh3 =
        qv_cache_hash(t->at + h->records_at, (size_t)qv_index_padded(h->records_bytes));
    qv_index_store_head((unsigned char *)t->at + at, h);
    h->xxh3 = qv_index_xxh3((const unsigned char *)t->at + at, (size_t)h->records_at - at);
    qv_index_store_head((unsigned char *)t->at + at, h);
}

static qv_status
write_front(struct qv_cache_part *p, const qv_cache_layout *l, int64_t sealed_ns, qv_error *err)
{
    struct qv_text t = { .at = malloc((size_t)p->room), .room = (size_t)p->room };
    if (!t.at)
        return no_memory(p, err);
    struct qv_index_head h = lay_out(p, l, sealed_ns);
    qv_status s = QV_OK;
    if (p->front > p->room || !print_header(&t, p, l, &h))
        s = t.lost ? no_memory(p, err)
                   : qv_fail(err, QV_ESTATE, "%s: a part has no room for its header and index",
                             qv_path_tail(p->file.folder->path));
    if (!s)
        print_index(&t, p, &h);
    if (!s && t.lost)
        s = no_memory(p, err);
    if (!s)
        s = qv_cache_file_write(&p->file, 0, t.at, t.n, err);
    free(t.at);
    return s;
}

/* Reads what was written as any reader does, before it has a name. */
static qv_status
read_back(const struct qv_cache_part *p, const qv_cache_layout *l,
          const struct qv_cache_usual *usual, qv_error *err)
{
    struct qv_part_index index = { .layout = *l };
    char *path = qv_cache_file_path(&p->file);
    const qv_status s = path ? qv_part_check(&index, path, usual, err) : no_memory(p, err);
    qv_part_index_free(&index);
    free(path);
    return s == QV_EFORMAT ? QV_ESTATE : s;
}

qv_status
qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                   const struct qv_cache_usual *usual, struct qv_cache_part_name *name,
                   int64_t sealed_ns, qv_error *err)
{
    if (p->records.lost)
        return no_memory(p, err);
    qsort(p->done, p->n_done, sizeof *p->done, by_place);
    /* This cuts off what a failed clip wrote behind the last block; a block that was taken and
     * never written becomes a hole. */
    if (ftruncate(p->file.fd, (off_t)p->end))
        return qv_fail(err, QV_EIO, "%s: a part's size cannot be set: %s",
                       qv_path_tail(p->file.folder->path), strerror(errno));
    qv_status s = write_small(p, err);
    if (!s)
        s = write_front(p, l, sealed_ns, err);
    if (!s)
        s = read_back(p, l, usual, err);
    for (bool taken = true; !s && taken;) {
        const unsigned count = (*name->count)++;
        if (name->whole)
            snprintf(name->text, sizeof name->text, "%s", name->whole);
        else if (name->stem)
            snprintf(name->text, sizeof name->text, "%s.%u.safetensors", name->stem, count);
        else
            snprintf(name->text, sizeof name->text,
                     "part-%05lld-of-%05lld-%s-%08x-%06u.safetensors", (long long)name->shard,
                     (long long)name->n_shards, p->file.folder->host, (unsigned)p->file.folder->run,
                     count);
        s = qv_cache_file_publish(&p->file, name->text, &taken, err);
        if (!s && taken && name->whole)
            s = qv_fail(err, QV_EIO, "%s: part %.255s is there already",
                        qv_path_tail(p->file.folder->path), name->whole);
    }
    return s;
}
