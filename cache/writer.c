/* SPDX-License-Identifier: MIT */
/* Adds keys to a cache. Keys are begun in one part until it is full; a thread seals the part once
 * its keys are finished. The thread that puts rows writes them at once, outside the lock. */
#include <float.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lock.h"
#include "part.h"
#include "clock.h"
#include "error.h"
#include "files/json.h"
#include "files/text.h"
#include "path.h"

enum {
    MOST_SEALING = 2 /* full parts that may wait to be sealed before qv_cache_begin waits */
};
#define FIRST_ROOM                                                                                 \
    ((uint64_t)256 << 10) /* room in front of the first part; each part adjusts it for the next */
#define LEAST_ROOM ((uint64_t)64 << 10)

struct qv_cache_writer {
    struct qv_cache_folder folder;
    qv_cache_layout layout;
    struct qv_cache_usual usual; /* option values that records omit */
    struct qv_cache_part_name name;
    char ffmpeg[QV_CACHE_FFMPEG_BYTES]; /* its version, for all parts */
    uint64_t part_bytes;
    double part_seconds;
    unsigned count;
    int folder_lock;   /* shared with other processes that add keys */
    int64_t sealed_ns; /* time of the latest part; used by the sealing thread alone */
    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by the lock */
    struct qv_cache_part *current, *retired; /* where keys are begun; full parts, oldest first */
    uint64_t room;                           /* room in front of the next part */
    int n_sealing;                           /* parts being sealed by the thread */
    bool ended;
    qv_status status; /* the first disk failure */
    qv_error error;
};

struct qv_cache_entry {
    qv_cache_writer *writer;
    struct qv_cache_part *part;
    struct qv_cache_block block; /* block.rows: rows put so far */
    int64_t rows;                /* rows that there is room for */
    bool broken;                 /* a put failed */
    char *key, *path, *options;
    qv_cache_source source;
    XXH3_state_t hashes[QV_CACHE_MAX_TENSORS]; /* needs its own alignment */
};

static int64_t
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- helpers that need the lock -------------------------------------------------------------- */

/* Records the first failure, and returns it. */
static qv_status
note_failure(qv_cache_writer *w, qv_status status, const qv_error *error, qv_error *err)
{
    if (status && !w->status) {
        w->status = status;
        w->error = *error;
        w->error.status = status;
    }
    if (w->status && err)
        *err = w->error;
    return w->status;
}

static qv_status
say_failure(qv_cache_writer *w, qv_error *err)
{
    return note_failure(w, QV_OK, NULL, err);
}

/* Returns whether a part is large or old enough to be sealed. */
static bool
is_full(const qv_cache_writer *w, const struct qv_cache_part *p)
{
    return p->end - p->room >= w->part_bytes || qv_seconds() - p->began_s >= w->part_seconds;
}

/* Closes the current part: no more keys are begun in it. */
static void
retire(qv_cache_writer *w)
{
    struct qv_cache_part *p = w->current, **last = &w->retired;
    if (!p)
        return;
    if (p->front < p->room / 4 && w->room > LEAST_ROOM)
        w->room /= 2;
    while (*last)
        last = &(*last)->next;
    *last = p;
    w->current = NULL;
    pthread_cond_broadcast(&w->changed);
}

/* Returns the oldest full part that is ready to be sealed; *n is how many are ready. */
static struct qv_cache_part **
find_ready(qv_cache_writer *w, int *n)
{
    struct qv_cache_part **first = NULL;
    *n = 0;
    for (struct qv_cache_part **p = &w->retired; *p; p = &(*p)->next)
        if (!(*p)->n_open) {
            first = first ? first : p;
            ++*n;
        }
    return first;
}

static int
count_unsealed(qv_cache_writer *w)
{
    int n = 0;
    find_ready(w, &n);
    return n + w->n_sealing;
}

/* ---- the thread that seals ------------------------------------------------------------------- */

/* Seals a part. Its time is later than every earlier part's, whatever the clock does. */
static qv_status
seal_part(qv_cache_writer *w, struct qv_cache_part *p, qv_error *err)
{
    if (!p->n_keys)
        return QV_OK;
    const int64_t now = now_ns();
    w->sealed_ns = now > w->sealed_ns ? now : w->sealed_ns + 1;
    return qv_cache_part_seal(p, &w->layout, &w->usual, &w->name, w->sealed_ns, err);
}

static void *
seal_parts(void *user)
{
    qv_cache_writer *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        int n = 0;
        struct qv_cache_part **ready = find_ready(w, &n), *p;
        if (!ready && w->ended)
            break;
        if (!ready) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        p = *ready;
        *ready = p->next;
        w->n_sealing++;
        pthread_mutex_unlock(&w->lock);
        qv_error error = { 0 };
        const qv_status status = seal_part(w, p, &error);
        qv_cache_part_free(&p);
        pthread_mutex_lock(&w->lock);
        w->n_sealing--;
        note_failure(w, status, &error, NULL);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static qv_status
publish_description(const struct qv_cache_folder *folder, const json_t *description, bool *taken,
                    qv_error *err)
{
    struct qv_cache_file file = { 0 };
    char *text = qv_json_text(description, JSON_INDENT(2));
    if (!text)
        return qv_no_memory(folder->path, err);
    qv_status s = qv_cache_file_open(folder, &file, err);
    if (!s)
        s = qv_cache_file_write(&file, 0, text, strlen(text), err);
    if (!s)
        s = qv_cache_file_publish(&file, QV_CACHE_DESCRIPTION, taken, err);
    qv_cache_file_close(&file);
    free(text);
    return s;
}

/* Writes the description, or compares it with the existing one, which may have just appeared. */
static qv_status
describe(const struct qv_cache_folder *folder, const qv_cache_writer_options *o,
         struct qv_cache_usual *usual, qv_error *err)
{
    json_t *run = NULL, *there = NULL;
    qv_cache_layout layout;
    bool is_there = false, taken = false;
    qv_status s = qv_cache_describe(&o->layout, o->made_by, &run, err);
    if (!s)
        s = qv_cache_description(folder->path, &is_there, &there, &layout, err);
    if (!s && !is_there)
        s = qv_cache_folder_sync(folder, err);
    if (!s && !is_there)
        s = publish_description(folder, run, &taken, err);
    if (!s && taken)
        s = qv_cache_description(folder->path, &is_there, &there, &layout, err);
    if (!s && there)
        s = qv_cache_same(folder->path, there, run, err);
    if (!s)
        *usual = qv_cache_usual_of(run);
    json_decref(run);
    json_decref(there);
    return s;
}

static qv_status
start(qv_cache_writer *w, qv_error *err)
{
    if (pthread_mutex_init(&w->lock, NULL))
        return qv_no_memory(w->folder.path, err);
    if (pthread_cond_init(&w->changed, NULL)) {
        pthread_mutex_destroy(&w->lock);
        return qv_no_memory(w->folder.path, err);
    }
    w->has_lock = true;
    w->has_thread = !pthread_create(&w->thread, NULL, seal_parts, w);
    return w->has_thread
               ? QV_OK
               : qv_fail(err, QV_ENOMEM, "%s: cannot start a thread to seal parts", w->folder.path);
}

static qv_status
check_options(const qv_cache_writer_options *o, qv_error *err)
{
    const int64_t n_shards = o->n_shards ? o->n_shards : 1;
    if (n_shards < 1 || n_shards > 99999 || o->shard < 0 || o->shard >= n_shards)
        return qv_fail(err, QV_EINVAL,
                       "shard is %lld of %lld; it must be from 0 to N - 1, with N at most 99999",
                       (long long)o->shard, (long long)o->n_shards);
    if (o->part_bytes < 0 || !(o->part_seconds >= 0))
        return qv_fail(err, QV_EINVAL,
                       "part_bytes is %lld and part_seconds %g; both must be 0 or more",
                       (long long)o->part_bytes, o->part_seconds);
    if (o->after < 0 || o->after > qv_cache_latest_ns())
        return qv_fail(err, QV_EINVAL,
                       "after is %lld ns since 1970; it must be at most 100 years from now",
                       (long long)o->after);
    return QV_OK;
}

static void
free_writer(qv_cache_writer *w)
{
    if (w->has_lock) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
    }
    qv_cache_unlock(&w->folder_lock);
    qv_cache_folder_close(&w->folder);
    free(w);
}

qv_status
qv_cache_writer_open(const char *dir, const qv_cache_writer_options *o, qv_cache_writer **out,
                     qv_error *err)
{
    qv_status s = check_options(o, err);
    qv_error warning = { QV_OK, "" };
    if (s)
        return s;
    qv_cache_writer *w = calloc(1, sizeof *w);
    if (!w)
        return qv_no_memory(dir, err);
    w->folder_lock = -1;
    w->layout = o->layout;
    w->name = (struct qv_cache_part_name){ .digits = 6, .count = &w->count };
    w->part_bytes = o->part_bytes ? (uint64_t)o->part_bytes : (uint64_t)1 << 30;
    w->part_seconds = o->part_seconds > 0 ? o->part_seconds : 300;
    w->sealed_ns = o->after;
    w->room = FIRST_ROOM;
    snprintf(w->ffmpeg, sizeof w->ffmpeg, "%s", o->ffmpeg ? o->ffmpeg : "");
    qv_make_printable(w->ffmpeg);
    s = qv_cache_folder_open(dir, &w->folder, err);
    if (!s) {
        snprintf(w->name.begin, sizeof w->name.begin, "part-%05lld-of-%05lld-%s-%08x-",
                 (long long)o->shard, (long long)(o->n_shards ? o->n_shards : 1), w->folder.host,
                 (unsigned)w->folder.run);
        qv_cache_folder_sweep(&w->folder);
        s = describe(&w->folder, o, &w->usual, err);
    }
    if (!s)
        s = qv_cache_lock(&w->folder, false, &w->folder_lock, &warning, err);
    if (!s && warning.status && o->told)
        o->told(o->user, warning.text);
    if (!s)
        s = start(w, err);
    if (s)
        free_writer(w);
    else
        *out = w;
    return s;
}

qv_status
qv_cache_seal(qv_cache_writer *w, qv_error *err)
{
    pthread_mutex_lock(&w->lock);
    retire(w);
    while (count_unsealed(w))
        pthread_cond_wait(&w->changed, &w->lock);
    const qv_status s = say_failure(w, err);
    pthread_mutex_unlock(&w->lock);
    return s;
}

qv_status
qv_cache_writer_close(qv_cache_writer **writer, qv_error *err)
{
    qv_cache_writer *w = *writer;
    if (!w)
        return QV_OK;
    pthread_mutex_lock(&w->lock);
    retire(w);
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    const qv_status s = say_failure(w, err);
    while (w->retired) { /* parts with entries that were neither finished nor dropped */
        struct qv_cache_part *p = w->retired;
        w->retired = p->next;
        qv_cache_part_free(&p);
    }
    free_writer(w);
    *writer = NULL;
    return s;
}

/* ---- keys: begin ----------------------------------------------------------------------------- */

static void
free_entry(qv_cache_entry **entry)
{
    qv_cache_entry *e = *entry;
    free(e->key);
    free(e->path);
    free(e->options);
    free(e);
    *entry = NULL;
}

static qv_status
make_entry(qv_cache_writer *w, const char *key, const qv_cache_source *source, int64_t rows,
           qv_cache_entry **out, qv_error *err)
{
    qv_cache_entry *e = aligned_alloc(_Alignof(qv_cache_entry), sizeof *e);
    if (!e)
        return qv_no_memory(w->folder.path, err);
    *e = (qv_cache_entry){ .writer = w, .rows = rows, .source = *source };
    e->key = malloc(QV_CACHE_MAX_KEY + 1);
    e->path = qv_utf8_text(source->path);
    e->options = source->options ? qv_utf8_text(source->options) : NULL;
    qv_status s = QV_OK;
    for (int i = 0; i < qv_cache_n_tensors(&w->layout); i++)
        XXH3_64bits_reset(&e->hashes[i]);
    if (!e->key || !e->path || (source->options && !e->options))
        s = qv_no_memory(w->folder.path, err);
    if (!s)
        s = qv_cache_key(key, e->key, err);
    const uint64_t need = s ? 0 : qv_cache_part_need(&w->layout, e->key, e->path, e->options);
    if (!s && qv_cache_part_least(need) > QV_CACHE_MAX_ROOM)
        s = qv_fail(
            err, QV_EFORMAT,
            "key, path and options need %llu bytes before a part's data; there is room for %llu",
            (unsigned long long)need, (unsigned long long)QV_CACHE_MAX_ROOM);
    if (s)
        free_entry(&e);
    else
        *out = e;
    return s;
}

/* Ensures that the current part has room for the key. The caller holds the lock. */
static qv_status
find_part(qv_cache_writer *w, uint64_t need, const char *key, qv_error *err)
{
    struct qv_cache_part *p = w->current;
    if (p && !qv_cache_part_fits(p, need)) {
        w->room = 2 * p->room < QV_CACHE_MAX_ROOM ? 2 * p->room : QV_CACHE_MAX_ROOM;
        retire(w);
    } else if (p && (is_full(w, p) || qv_cache_part_has(p, key))) {
        retire(w);
    }
    while (count_unsealed(w) >= MOST_SEALING && !w->status)
        pthread_cond_wait(&w->changed, &w->lock);
    if (w->current || w->status) /* another thread has made a part meanwhile */
        return say_failure(w, err);
    const uint64_t least = qv_cache_part_least(need);
    const qv_status s = qv_cache_part_open(&w->folder, least > w->room ? least : w->room,
                                           qv_seconds(), &w->current, err);
    if (w->current)
        memcpy(w->current->ffmpeg, w->ffmpeg, sizeof w->ffmpeg);
    return s;
}

static qv_status
place_entry(qv_cache_writer *w, qv_cache_entry *e, qv_error *err)
{
    const uint64_t need = qv_cache_part_need(&w->layout, e->key, e->path, e->options);
    qv_status s = QV_OK;
    qv_error failed = { 0 };
    do
        s = find_part(w, need, e->key, &failed);
    while (!s && (!qv_cache_part_fits(w->current, need) || qv_cache_part_has(w->current, e->key)));
    e->part = w->current;
    if (!s)
        s = qv_cache_part_begin(e->part, &w->layout, e->key, e->rows, need, &e->block, &failed);
    return s ? note_failure(w, s, &failed, err) : QV_OK;
}

qv_status
qv_cache_begin(qv_cache_writer *w, const char *key, const qv_cache_source *source, int64_t rows,
               qv_cache_entry **out, qv_error *err)
{
    const uint64_t row_bytes = qv_cache_row_bytes(&w->layout);
    const uint64_t most =
        ((uint64_t)1 << 46) / row_bytes / (uint64_t)qv_cache_n_tensors(&w->layout);
    if (rows < 0 || (uint64_t)rows > most || rows > UINT32_MAX)
        return qv_fail(err, QV_EINVAL, "a key has %lld rows; it must have 0 to %llu",
                       (long long)rows, (unsigned long long)most);
    qv_cache_entry *e = NULL;
    qv_status s = make_entry(w, key, source, rows, &e, err);
    if (s)
        return s;
    pthread_mutex_lock(&w->lock);
    s = w->status ? say_failure(w, err) : place_entry(w, e, err);
    pthread_mutex_unlock(&w->lock);
    if (s)
        free_entry(&e);
    else
        *out = e;
    return s;
}

/* ---- keys: put ------------------------------------------------------------------------------- */

static qv_status
put_tensor(qv_cache_entry *e, int i, const void *rows, int64_t n, qv_error *err)
{
    const uint64_t row_bytes = qv_cache_row_bytes(&e->writer->layout);
    const uint64_t at = e->block.at + (uint64_t)i * e->block.step;
    XXH3_64bits_update(&e->hashes[i], rows, (size_t)((uint64_t)n * row_bytes));
    return qv_cache_file_write(&e->part->file, at + (uint64_t)e->block.rows * row_bytes, rows,
                               (uint64_t)n * row_bytes, err);
}

/* Checks rows before any of them is written. */
static qv_status
check_rows(const qv_cache_entry *e, const qv_tokens *t, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    if (t->n < 0 || t->n > e->rows - e->block.rows)
        return qv_fail(err, QV_EINVAL, "key %s: %lld rows after %lld exceed its %lld",
                       qv_json_quote(e->key, quoted), (long long)t->n, (long long)e->block.rows,
                       (long long)e->rows);
    return QV_OK;
}

qv_status
qv_cache_put(qv_cache_entry *e, const qv_tokens *t, qv_error *err)
{
    qv_cache_writer *w = e->writer;
    const qv_status wrong = check_rows(e, t, err);
    if (wrong)
        return wrong;
    qv_status s = QV_OK;
    qv_error failed = { 0 };
    for (int i = 0; i < qv_cache_n_tensors(&w->layout) && !s; i++)
        s = put_tensor(e, i, i ? t->deepstack[i - 1] : t->tokens, t->n, &failed);
    if (!s) {
        e->block.rows += t->n;
        return QV_OK;
    }
    e->broken = true;
    pthread_mutex_lock(&w->lock);
    s = note_failure(w, s, &failed, err);
    pthread_mutex_unlock(&w->lock);
    return s;
}

/* ---- keys: finish ---------------------------------------------------------------------------- */

static size_t
n_timestamps(const qv_cache_result *r)
{
    return r->timestamps_s ? (size_t)r->outcome->n_frames : 0;
}

/* Returns the key's checksum: a checksum of its tensors' checksums in order. */
static uint64_t
digest(const qv_cache_entry *e, const qv_cache_result *r)
{
    XXH64_canonical_t all[QV_CACHE_MAX_TENSORS + 2];
    size_t n = 0;
    for (int i = 0; i < qv_cache_n_tensors(&e->writer->layout); i++)
        XXH64_canonicalFromHash(&all[n++], XXH3_64bits_digest(&e->hashes[i]));
    XXH64_canonicalFromHash(&all[n++],
                            XXH3_64bits(r->outcome->grid_thw, sizeof r->outcome->grid_thw));
    XXH64_canonicalFromHash(&all[n++],
                            XXH3_64bits(r->timestamps_s, n_timestamps(r) * sizeof(double)));
    return XXH3_64bits(all, n * sizeof *all);
}

/* Updates a part after one of its keys was finished or dropped. The caller holds the lock. */
static void
look_at_part(qv_cache_writer *w, struct qv_cache_part *p)
{
    if (p == w->current && is_full(w, p))
        retire(w);
    pthread_cond_broadcast(&w->changed);
}

/* Removes the entry from its part, without a record. The caller holds the lock. */
static void
leave(qv_cache_entry *e)
{
    qv_cache_part_drop(e->part, e->key, &e->block);
    look_at_part(e->writer, e->part);
}

static qv_status
check_result(const qv_cache_entry *e, const qv_cache_result *r, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    if (r->status)
        return QV_OK;
    const qv_outcome *o = r->outcome;
    if (e->block.rows <= 0 || o->n_frames < 0 || o->n_frames > UINT32_MAX)
        return qv_fail(err, QV_EINVAL, "key %s: a result cannot have %lld rows and %lld frames",
                       qv_json_quote(e->key, quoted), (long long)e->block.rows,
                       (long long)o->n_frames);
    if (!(o->sampled_fps >= 0 && o->sampled_fps <= DBL_MAX) || (o->is_image && o->sampled_fps > 0))
        return qv_fail(err, QV_EINVAL,
                       "key %s: sampled_fps is %g; it must be 0 or more, and 0 for an image",
                       qv_json_quote(e->key, quoted), o->sampled_fps);
    return QV_OK;
}

/* Makes a key's record, and the row of it. */
static qv_status
make_record(const qv_cache_entry *e, const qv_cache_result *r, struct qv_text *record,
            struct qv_index_row *row, qv_error *err)
{
    const qv_cache_writer *w = e->writer;
    char options[QV_CACHE_OPTIONS_BYTES];
    qv_cache_source source = e->source;
    source.path = e->path;
    source.options = qv_cache_normal(&w->usual, -1, false, e->options, options);
    qv_record_print(record, e->key, &source, r->status ? 0 : digest(e, r), r, row);
    if (!row->status) {
        row->n_rows = (uint32_t)e->block.rows;
        row->n_times = (uint32_t)n_timestamps(r);
    }
    return record->lost ? qv_no_memory(w->folder.path, err) : QV_OK;
}

qv_status
qv_cache_finish(qv_cache_entry **entry, const qv_cache_result *r, qv_error *err)
{
    qv_cache_entry *e = *entry;
    qv_cache_writer *w = e->writer;
    struct qv_text record = { 0 };
    struct qv_index_row row;
    qv_error failed = { 0 };
    const qv_status wrong = check_result(e, r, err);
    const bool is_lost = wrong || e->broken;
    qv_status s = is_lost ? QV_OK : make_record(e, r, &record, &row, &failed);
    pthread_mutex_lock(&w->lock);
    if (is_lost || s) {
        leave(e);
    } else {
        s = qv_cache_part_add(e->part, &w->layout, e->key, &row, &record, &e->block,
                              row.status ? NULL : r->outcome->grid_thw, r->timestamps_s, &failed);
        look_at_part(w, e->part);
    }
    s = wrong ? wrong : note_failure(w, s, &failed, err);
    pthread_mutex_unlock(&w->lock);
    free(record.at);
    free_entry(entry);
    return s;
}

void
qv_cache_drop(qv_cache_entry **entry)
{
    if (!*entry)
        return;
    qv_cache_writer *w = (*entry)->writer;
    pthread_mutex_lock(&w->lock);
    leave(*entry);
    pthread_mutex_unlock(&w->lock);
    free_entry(entry);
}
