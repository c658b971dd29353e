/* SPDX-License-Identifier: MIT */
#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "files/safetensors.h"
#include "files/token_file.h"
#include "grow.h"
#include "numbers.h"

enum {
    FIXED_BYTES = 1280, /* of a part without keys: header, the index's head, and padding */
    ENTRY_BYTES = 128,  /* a tensor's header entry without its key, with offsets below 10^13 */
    UNUSED_BYTES = 112, /* the entry of an unused range */
    /* of a record without key, path and options; most of it is room for an error */
    RECORD_BYTES = 6000,
};

/* ---- room ------------------------------------------------------------------------------------ */

/* What a key needs in addition to its record: row and key and, on success, an entry per tensor and
 * one for unused bytes before them. Small tensors leave no gaps. */
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

/* Allocates disk space for everything that sealing writes: the room in front immediately, small
 * tensors with each key. Sealing thus works even if the disk fills up meanwhile. */
static qv_status
reserve(const struct qv_cache_part *p, uint64_t at, uint64_t bytes, qv_error *err)
{
#ifdef __linux__
    int r;
    do
        r = fallocate(p->file.fd, 0, (off_t)at, (off_t)bytes);
    while (r && errno == EINTR);
    if (r && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)
        return qv_fail_errno(p->file.folder->path, "no space for a part", errno, err);
#else
    (void)p;
    (void)at;
    (void)bytes;
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
        return qv_no_memory(folder->path, err);
    p->room = p->end = p->tokens_end = room;
    p->front = FIXED_BYTES;
    p->began_s = now_s;
    qv_status s = qv_cache_file_open(folder, &p->file, err);
    if (!s)
        s = reserve(p, 0, room, err);
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
    for (size_t i = 0; i < p->n_keys; i++) {
        free(p->keys[i].key);
        free(p->keys[i].done);
    }
    free(p->keys);
    free(p);
    *part = NULL;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns the number of a key, or n_keys. Hashes may collide on purpose, so bytes decide. */
static size_t
find_key(const struct qv_cache_part *p, const char *key)
{
    const uint64_t hash = qv_cache_key_hash(key);
    size_t i = 0;
    while (i < p->n_keys && (p->keys[i].hash != hash || strcmp(p->keys[i].key, key) != 0))
        i++;
    return i;
}

bool
qv_cache_part_has(const struct qv_cache_part *p, const char *key)
{
    return find_key(p, key) < p->n_keys;
}

qv_status
qv_cache_part_begin(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                    int64_t rows, uint64_t need, struct qv_cache_block *b, qv_error *err)
{
    void *keys = qv_grown(p->keys, p->n_keys, &p->keys_room, sizeof *p->keys);
    if (!keys)
        return qv_no_memory(p->file.folder->path, err);
    p->keys = keys;
    p->keys[p->n_keys].done = NULL;
    p->keys[p->n_keys].hash = qv_cache_key_hash(key);
    p->keys[p->n_keys].key = strdup(key);
    if (!p->keys[p->n_keys].key)
        return qv_no_memory(p->file.folder->path, err);
    p->n_keys++;
    *b = (struct qv_cache_block){ .at = p->end, .need = need };
    b->step = qv_index_padded((uint64_t)rows * qv_cache_row_bytes(l));
    b->bytes = b->step * (uint64_t)qv_cache_n_tensors(l);
    p->end += b->bytes;
    p->front += need;
    p->n_open++;
    return QV_OK;
}

/* Releases the unused end of a block, if nothing follows it. */
static void
give_back(struct qv_cache_part *p, const struct qv_cache_block *b, uint64_t from)
{
    if (b->at + b->bytes == p->end)
        p->end = qv_index_padded(from);
}

void
qv_cache_part_drop(struct qv_cache_part *p, const char *key, const struct qv_cache_block *b)
{
    give_back(p, b, b->at);
    const size_t i = find_key(p, key);
    free(p->keys[i].key);
    p->keys[i] = p->keys[--p->n_keys];
    p->front -= b->need;
    p->n_open--;
}

/* Makes a finished key's entry, with its texts. */
static struct qv_cache_done *
make_done(const char *key, const struct qv_index_row *row, const struct qv_text *record,
          const int64_t grid_thw[3], const double *timestamps_s)
{
    const size_t small = (size_t)qv_index_small_bytes(row), key_bytes = strlen(key);
    struct qv_cache_done *d = malloc(sizeof *d + small + key_bytes + 1 + record->n);
    if (!d)
        return NULL;
    d->row = *row;
    d->row.key_bytes = (uint16_t)key_bytes;
    d->row.record_bytes = (uint32_t)record->n;
    d->small = (unsigned char *)(d + 1);
    char *text = (char *)d->small + small;
    if (small)
        memcpy(d->small, grid_thw, QV_CACHE_GRID_BYTES);
    if (row->n_times)
        memcpy(d->small + QV_CACHE_GRID_BYTES, timestamps_s, small - QV_CACHE_GRID_BYTES);
    d->key = memcpy(text, key, key_bytes + 1);
    d->record = memcpy(text + key_bytes + 1, record->at, record->n);
    return d;
}

qv_status
qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                  const struct qv_index_row *row, const struct qv_text *record,
                  const struct qv_cache_block *b, const int64_t grid_thw[3],
                  const double *timestamps_s, qv_error *err)
{
    const uint64_t used = row->n_rows * (uint64_t)qv_cache_row_bytes(l),
                   end = row->status ? b->at : b->at + b->bytes - b->step + used,
                   small = p->small + qv_index_small_bytes(row);
    const uint64_t tokens_end = row->status || end < p->tokens_end ? p->tokens_end : end;
    struct qv_cache_done *d = make_done(key, row, record, grid_thw, timestamps_s);
    qv_status s = d ? QV_OK : qv_no_memory(p->file.folder->path, err);
    if (!s && !row->status)
        s = reserve(p, qv_index_padded(tokens_end), small, err);
    if (s || !d) {
        free(d);
        qv_cache_part_drop(p, key, b);
        return s;
    }
    if (!row->status) {
        d->row.tokens_at = b->at;
        d->row.step = qv_cache_n_tensors(l) > 1 ? (uint32_t)(b->step / QV_CACHE_ALIGN) : 0;
    }
    give_back(p, b, end);
    p->tokens_end = tokens_end;
    p->small = small;
    p->front += qv_cache_part_known_need(l, key, !row->status, record->n);
    p->front -= b->need;
    p->keys[find_key(p, key)].done = d;
    p->n_open--;
    return QV_OK;
}

/* ---- sealing --------------------------------------------------------------------------------- */

/* Orders keys as in the index: by the place of their tokens, failed keys last. */
static int
by_place(const void *a, const void *b)
{
    const struct qv_cache_done *x = *(struct qv_cache_done *const *)a,
                               *y = *(struct qv_cache_done *const *)b;
    if (!x->row.status != !y->row.status)
        return x->row.status ? 1 : -1;
    if (x->row.tokens_at != y->row.tokens_at)
        return x->row.tokens_at < y->row.tokens_at ? -1 : 1;
    return strcmp(x->key, y->key);
}

/* A part's keys, in the order of its index. */
struct sealing {
    const struct qv_cache_part *p;
    const qv_cache_layout *l;
    struct qv_cache_done **done; /* [n] */
    size_t n;
};

/* Writes the small tensors of all keys after the tokens. */
static qv_status
write_small(const struct sealing *w, uint64_t at, qv_error *err)
{
    struct qv_text t = { 0 };
    for (size_t i = 0; i < w->n; i++)
        qv_text_add(&t, (const char *)w->done[i]->small,
                    (size_t)qv_index_small_bytes(&w->done[i]->row));
    const qv_status s = t.lost ? qv_no_memory(w->p->file.folder->path, err)
                               : qv_cache_file_write(&w->p->file, at, t.at, t.n, err);
    free(t.at);
    return s;
}

/* Sets the places of small tensors, keys and records in the rows, and the head's places. */
static struct qv_index_head
lay_out(const struct sealing *w, int64_t sealed_ns)
{
    const qv_cache_layout *l = w->l;
    const uint64_t end = qv_index_padded(w->p->tokens_end);
    struct qv_index_head h = { .magic = QV_INDEX_MAGIC,
                               .version = QV_INDEX_VERSION,
                               .row_bytes = QV_INDEX_ROW,
                               .n_rows = w->n,
                               .small_at = end,
                               .sealed_ns = sealed_ns,
                               .width = (uint64_t)l->width,
                               .dtype = qv_index_dtype(l->dtype),
                               .n_deepstack = (uint32_t)l->n_deepstack };
    uint64_t small = end, record = 0;
    for (size_t i = 0; i < w->n; i++) {
        struct qv_index_row *r = &w->done[i]->row;
        r->key_at = (uint32_t)h.keys_bytes;
        r->record_at = (uint32_t)record;
        r->small_at = r->status ? 0 : small;
        h.keys_bytes += r->key_bytes + 1u;
        record += r->record_bytes + 1u;
        small += qv_index_small_bytes(r);
    }
    h.file_end = small;
    h.records_bytes = record - 1;
    h.records_at = w->p->room - qv_index_padded(h.records_bytes);
    h.header_bytes = h.records_at - qv_index_padded(h.keys_bytes) - QV_INDEX_ROW * (1 + h.n_rows);
    return h;
}

/* The state of printing a header: its tensors cover the data from `from` on. */
struct printing {
    struct qv_text *t;
    uint64_t from, end; /* where data begin; where the last tensor ends */
    int n_unused;
};

/* Adds a tensor and, before it, one that covers the unused bytes in front of it. */
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
    const int64_t shape[] = { d->row.n_rows, l->width };
    for (int i = 0; i < qv_cache_n_tensors(l) && !d->row.status; i++) {
        char name[24];
        qv_token_file_name(i, name);
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
print_header(struct qv_text *t, const struct sealing *w, const struct qv_index_head *h)
{
    struct printing to = { .t = t, .from = h->header_bytes, .end = h->header_bytes };
    char sealed[24];
    const char *const metadata[][2] = { { "format", QV_CACHE_FORMAT },
                                        { "version", QV_CACHE_VERSION },
                                        { "sealed", sealed },
                                        { "ffmpeg", w->p->ffmpeg } };
    snprintf(sealed, sizeof sealed, "%lld", (long long)h->sealed_ns);
    qv_header_begin(t, metadata, *w->p->ffmpeg ? 4 : 3);
    print_bytes(&to, "__index", QV_INDEX_ROW * (1 + h->n_rows));
    print_bytes(&to, "__keys", h->keys_bytes);
    print_bytes(&to, "__records", h->records_bytes);
    for (size_t i = 0; i < w->n; i++)
        print_tokens(&to, w->l, w->done[i]);
    print_tensor(&to, NULL, NULL, NULL, 0, NULL, h->small_at, 0);
    for (size_t i = 0; i < w->n; i++)
        print_small(&to, w->done[i]);
    return qv_header_end(t, (size_t)h->header_bytes);
}

/* Adds index, keys and records to the printed header. */
static void
print_index(struct qv_text *t, const struct sealing *w, struct qv_index_head *h)
{
    unsigned char row[QV_INDEX_ROW];
    const size_t at = t->n;
    h->header_xxh3 = qv_cache_hash(t->at, at);
    qv_text_pad(t, 0, QV_INDEX_ROW); /* for the head, once its checksum is known */
    for (size_t i = 0; i < w->n; i++) {
        qv_index_store_row(row, &w->done[i]->row);
        qv_text_add(t, (const char *)row, sizeof row);
    }
    for (size_t i = 0; i < w->n; i++)
        qv_text_add(t, w->done[i]->key, w->done[i]->row.key_bytes + 1u);
    qv_text_pad(t, 0, (size_t)(qv_index_padded(h->keys_bytes) - h->keys_bytes));
    for (size_t i = 0; i < w->n; i++) {
        qv_text_add(t, "\n", i > 0);
        qv_text_add(t, w->done[i]->record, w->done[i]->row.record_bytes);
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
write_front(const struct sealing *w, int64_t sealed_ns, qv_error *err)
{
    const struct qv_cache_part *p = w->p;
    struct qv_text t = { .at = malloc((size_t)p->room), .room = (size_t)p->room };
    if (!t.at)
        return qv_no_memory(p->file.folder->path, err);
    struct qv_index_head h = lay_out(w, sealed_ns);
    qv_status s = QV_OK;
    if (p->front > p->room || !print_header(&t, w, &h))
        s = t.lost ? qv_no_memory(p->file.folder->path, err)
                   : qv_fail(err, QV_ESTATE, "%s: a part has no room for its header and index",
                             p->file.folder->path);
    if (!s)
        print_index(&t, w, &h);
    if (!s && t.lost)
        s = qv_no_memory(p->file.folder->path, err);
    if (!s)
        s = write_small(w, h.small_at, err);
    if (!s)
        s = qv_cache_file_write(&p->file, 0, t.at, t.n, err);
    free(t.at);
    return s;
}

/* Writes everything except the tokens, which the file already contains. */
static qv_status
write_rest(const struct qv_cache_part *p, const qv_cache_layout *l, int64_t sealed_ns,
           qv_error *err)
{
    struct sealing w = { p, l, malloc((p->n_keys + 1) * sizeof *w.done), 0 };
    if (!w.done)
        return qv_no_memory(p->file.folder->path, err);
    for (size_t i = 0; i < p->n_keys; i++)
        w.done[w.n++] = p->keys[i].done;
    qsort(w.done, w.n, sizeof *w.done, by_place);
    qv_status s = QV_OK;
    /* cuts off the file after the last used block; blocks never written become holes */
    if (ftruncate(p->file.fd, (off_t)(qv_index_padded(p->tokens_end) + p->small)))
        s = qv_fail_errno(p->file.folder->path, "a part's size cannot be set", errno, err);
    if (!s)
        s = write_front(&w, sealed_ns, err);
    free(w.done);
    return s;
}

/* Reads the file as any reader would, before it gets its name. */
static qv_status
read_back(const struct qv_cache_part *p, const qv_cache_layout *l,
          const struct qv_cache_usual *usual, qv_error *err)
{
    struct qv_part_index index = { .layout = *l };
    char *path = qv_cache_file_path(&p->file);
    const qv_status s =
        path ? qv_part_check(&index, path, usual, err) : qv_no_memory(p->file.folder->path, err);
    qv_part_index_free(&index);
    free(path);
    return s == QV_EFORMAT ? QV_ESTATE : s;
}

qv_status
qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                   const struct qv_cache_usual *usual, struct qv_cache_part_name *name,
                   int64_t sealed_ns, qv_error *err)
{
    qv_status s = write_rest(p, l, sealed_ns, err);
    if (!s)
        s = read_back(p, l, usual, err);
    for (bool taken = true; !s && taken;) {
        char text[300];
        snprintf(text, sizeof text, "%s%0*u.safetensors", name->begin, name->digits,
                 (*name->count)++);
        s = qv_cache_file_publish(&p->file, text, &taken, err);
    }
    return s;
}
