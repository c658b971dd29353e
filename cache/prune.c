/* SPDX-License-Identifier: MIT */
/* Removes records part by part, beginning with the part that was sealed first: at any moment a
 * key's effective record is the one that was effective before, or the key is gone. A part that
 * replaces another one keeps the sealing time and, except for an added number, the name, and thus
 * its place in the order. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files/json.h"
#include "files/sync_file.h"
#include "lock.h"
#include "part.h"
#include "reader.h"

enum { PIECE = 1 << 20, MOST_STEM = 230 };

struct pruning {
    const qv_cache_prune_options *o;
    qv_cache_pruned *out;
    struct qv_cache_folder folder;
    qv_cache *c;
    struct qv_part_index from; /* the part that is pruned */
    char *records;             /* its records */
    const char **keep, **drop; /* sorted by their bytes */
    char *piece;               /* [PIECE] */
    int lock;
};

/* ---- keys ------------------------------------------------------------------------------------ */

static int
by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool
has_null(const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!keys[i])
            return true;
    return false;
}

/* Returns a sorted copy of the keys; NULL if out of memory. */
static const char **
sort_keys(const char *const *keys, size_t n)
{
    const char **sorted = calloc(n + 1, sizeof *sorted);
    if (sorted && n) {
        memcpy(sorted, keys, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_bytes);
    }
    return sorted;
}

static bool
is_among(const char *key, const char *const *sorted, size_t n)
{
    return n && bsearch(&key, sorted, n, sizeof *sorted, by_bytes);
}

/* Returns whether all records of a key must be removed. */
static bool
goes(const struct pruning *p, const char *key)
{
    return is_among(key, p->drop, p->o->n_drop) ||
           (p->o->keep && !is_among(key, p->keep, p->o->n_keep));
}

static void
count_keys(struct pruning *p)
{
    const struct qv_cache_index *index = &p->c->index;
    for (size_t i = 0; i < index->n_keys; i++)
        p->out->keys += goes(p, qv_index_name(index, &index->keys[i]));
    for (size_t i = 0; i < p->o->n_drop; i++)
        p->out->missing += !qv_cache_find_key(p->c, p->drop[i]);
}

static bool
record_stays(const struct pruning *p, const char *key, uint32_t part)
{
    if (goes(p, key))
        return false;
    const struct qv_index_key *k = qv_cache_find_key(p->c, key);
    return !p->o->superseded || (k && k->part == part);
}

/* ---- changing the folder --------------------------------------------------------------------- */

static const char *
name_of(const struct pruning *p, uint32_t part)
{
    return p->c->index.parts[part].name;
}

/* Leaves a part unchanged, with a warning. It also stops the removal of keys: this part may have
 * older records of a key, which would become effective once the later ones are gone. */
static qv_status
leave(struct pruning *p, uint32_t part, const qv_error *why, qv_error *err)
{
    char words[900];
    p->out->left++;
    if (p->o->keep || p->o->n_drop)
        return qv_fail(err, QV_EIO,
                       "%s: no more keys are removed, because a part that cannot be used may hold "
                       "older records of them: %s",
                       p->folder.path, why->text);
    if (!p->o->told)
        return QV_OK;
    snprintf(words, sizeof words, "%.255s: left as it is: %s", name_of(p, part), why->text);
    p->o->told(p->o->user, words);
    return QV_OK;
}

static bool
goes_on(struct pruning *p, size_t done)
{
    if (p->o->go_on && !p->out->stopped)
        p->out->stopped = !p->o->go_on(p->o->user, (int64_t)done, (int64_t)p->c->index.n_parts);
    return !p->out->stopped;
}

/* Removes a part, and syncs the folder before anything else is reported or changed. */
static qv_status
remove_part(struct pruning *p, const char *name, uint64_t bytes, qv_error *err)
{
    p->out->freed += (int64_t)bytes;
    if (p->o->dry_run)
        return QV_OK;
    int e = unlinkat(p->folder.fd, name, 0) && errno != ENOENT ? errno : 0;
    if (!e)
        e = qv_sync_folder(p->folder.fd);
    return e ? qv_fail(err, QV_EIO, "%s: part %.255s cannot be removed: %s", p->folder.path, name,
                       strerror(e))
             : QV_OK;
}

/* Makes the stem "part-..-000003." of part-..-000003.safetensors and part-..-000003.1.safetensors,
 * and returns its length; *n is the next number. */
static size_t
make_stem(const char *name, char stem[256], unsigned *n)
{
    snprintf(stem, 256, "%.*s", (int)(strlen(name) - strlen("safetensors")), name);
    size_t bytes = strlen(stem);
    stem[bytes - 1] = 0;
    const char *dot = strrchr(stem, '.');
    const size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    stem[bytes - 1] = '.';
    *n = 1;
    if (digits && digits < 9 && dot + 1 + digits == stem + bytes - 1 && dot[1] != '0') {
        *n = (unsigned)strtoul(dot + 1, NULL, 10) + 1;
        bytes = (size_t)(dot + 1 - stem);
        stem[bytes] = 0;
    }
    return bytes;
}

/* ---- copying what stays ---------------------------------------------------------------------- */

/* A part that is being copied. */
struct copy {
    struct qv_cache_part *to;
    const char *path;
    int from;
    bool cannot_read; /* reading the old part failed, not writing the new one */
};

static qv_status
read_from(struct copy *copy, uint64_t at, void *to, uint64_t bytes, qv_error *err)
{
    const qv_status s = qv_file_read(copy->from, copy->path, at, to, bytes, err);
    copy->cannot_read = copy->cannot_read || s;
    return s;
}

static qv_status
copy_bytes(struct pruning *p, struct copy *copy, uint64_t at, uint64_t to, uint64_t bytes,
           qv_error *err)
{
    qv_status s = QV_OK;
    while (bytes && !s) {
        const uint64_t now = bytes < PIECE ? bytes : PIECE;
        s = read_from(copy, at, p->piece, now, err);
        if (!s)
            s = qv_cache_file_write(&copy->to->file, to, p->piece, now, err);
        at += now;
        to += now;
        bytes -= now;
    }
    return s;
}

/* Copies the tensors of a row, which is ok, and adds it with its record. */
static qv_status
copy_tensors(struct pruning *p, struct copy *copy, const struct qv_index_row *row,
             const struct qv_cache_block *b, const struct qv_text *record, qv_error *err)
{
    const qv_cache_layout *l = &p->c->layout;
    const uint64_t bytes = row->n_rows * (uint64_t)qv_cache_row_bytes(l),
                   step = row->step * (uint64_t)QV_CACHE_ALIGN;
    int64_t grid_thw[3];
    double *times = malloc((size_t)row->n_times * sizeof *times + 1);
    qv_status s = times ? QV_OK : qv_no_memory(p->folder.path, err);
    for (int i = 0; i < qv_cache_n_tensors(l) && !s; i++)
        s = copy_bytes(p, copy, row->tokens_at + (uint64_t)i * step, b->at + (uint64_t)i * b->step,
                       bytes, err);
    if (!s)
        s = read_from(copy, row->small_at, grid_thw, sizeof grid_thw, err);
    if (!s)
        s = read_from(copy, row->small_at + sizeof grid_thw, times, row->n_times * sizeof *times,
                      err);
    if (!s)
        s = qv_cache_part_add(copy->to, l, p->from.keys + row->key_at, row, record, b, grid_thw,
                              times, err);
    free(times);
    return s;
}

static uint64_t
need_of(const struct pruning *p, const struct qv_index_row *row)
{
    return qv_cache_part_known_need(&p->c->layout, p->from.keys + row->key_at, !row->status,
                                    row->record_bytes);
}

/* Sets how many rows of a part stay, the room in front that they need, and their total size. */
static void
measure(const struct pruning *p, uint32_t part, size_t *n_stay, uint64_t *room, uint64_t *bytes)
{
    const qv_cache_layout *l = &p->c->layout;
    uint64_t need = 0;
    *n_stay = 0;
    *bytes = 0;
    for (size_t i = 0; i < p->from.head.n_rows; i++) {
        const struct qv_index_row row = qv_part_index_row(&p->from, i);
        if (!record_stays(p, p->from.keys + row.key_at, part))
            continue;
        ++*n_stay;
        need += need_of(p, &row);
        *bytes += qv_index_padded(row.n_rows * (uint64_t)qv_cache_row_bytes(l)) *
                      (uint64_t)qv_cache_n_tensors(l) +
                  qv_index_small_bytes(&row);
    }
    *room = qv_cache_part_least(need);
    *bytes += *room;
}

static qv_status
copy_rows(struct pruning *p, struct copy *copy, uint32_t part, size_t done, qv_error *err)
{
    const struct qv_part_index *from = &p->from;
    qv_status s = QV_OK;
    for (size_t i = 0; i < from->head.n_rows && !s && goes_on(p, done); i++) {
        const struct qv_index_row row = qv_part_index_row(from, i);
        const struct qv_text record = { .at = p->records + row.record_at, .n = row.record_bytes };
        const char *key = from->keys + row.key_at;
        struct qv_cache_block b;
        if (!record_stays(p, key, part))
            continue;
        s = qv_cache_part_begin(copy->to, &p->c->layout, key, row.n_rows, need_of(p, &row), &b,
                                err);
        if (!s)
            s = row.status ? qv_cache_part_add(copy->to, &p->c->layout, key, &row, &record, &b,
                                               NULL, NULL, err)
                           : copy_tensors(p, copy, &row, &b, &record, err);
    }
    return s;
}

/* Writes the new part. *is_left: this part cannot be replaced, but other parts may be. */
static qv_status
write_part(struct pruning *p, uint32_t part, uint64_t room, size_t done, bool *is_left,
           qv_error *err)
{
    unsigned count = 1;
    uint64_t size = 0;
    struct copy copy = { .path = name_of(p, part), .from = -1 };
    struct qv_cache_part_name name = { .digits = 1, .count = &count };
    const size_t stem = make_stem(copy.path, name.begin, &count);
    qv_status s = qv_file_open(p->c->index.parts[part].path, &copy.from, &size, err);
    if (!s && (size != p->from.size || stem > MOST_STEM))
        s = qv_fail(err, QV_EIO, "the part's name is too long, or its file is being changed");
    *is_left = s != QV_OK;
    if (!s)
        s = qv_cache_part_open(&p->folder, room, 0, &copy.to, err);
    if (!s)
        qv_part_ffmpeg(p->c->index.parts[part].path, copy.to->ffmpeg);
    if (!s)
        s = copy_rows(p, &copy, part, done, err);
    if (!s && !p->out->stopped)
        s = qv_cache_part_seal(copy.to, &p->c->layout, &p->c->usual, &name, p->from.head.sealed_ns,
                               err);
    *is_left = *is_left || (s && (copy.cannot_read || s == QV_EFORMAT || s == QV_ESTATE));
    if (copy.to)
        qv_cache_part_free(&copy.to);
    if (copy.from >= 0)
        close(copy.from);
    return s;
}

/* ---- one part -------------------------------------------------------------------------------- */

/* Reads the index and the records of the part to prune. */
static qv_status
read_index(struct pruning *p, uint32_t part, qv_error *err)
{
    const char *path = p->c->index.parts[part].path;
    free(p->records);
    p->records = NULL;
    qv_status s = qv_part_index_read(&p->from, path, err);
    if (!s)
        s = qv_part_records(path, &p->from.head, &p->records, err);
    return s;
}

/* Replaces or removes a part, unless all its rows stay. */
static qv_status
change_part(struct pruning *p, uint32_t part, size_t done, bool *is_left, qv_error *err)
{
    size_t n_stay = 0;
    uint64_t room = 0, size = 0;
    qv_status s = read_index(p, part, err); /* it was readable when the cache was opened */
    *is_left = s != QV_OK;
    if (s)
        return s;
    measure(p, part, &n_stay, &room, &size);
    if (n_stay == p->from.head.n_rows)
        return QV_OK;
    if (n_stay && !p->o->dry_run)
        s = write_part(p, part, room, done, is_left, err);
    if (s || p->out->stopped)
        return s;
    p->out->rewritten += n_stay > 0;
    p->out->removed += !n_stay;
    p->out->records += (int64_t)(p->from.head.n_rows - n_stay);
    if (n_stay) {
        p->out->freed -= (int64_t)size;
        p->out->beside = size > p->out->beside ? size : p->out->beside;
    }
    return remove_part(p, name_of(p, part), p->from.size, err);
}

static qv_status
prune_part(struct pruning *p, uint32_t part, size_t done, qv_error *err)
{
    bool is_left = false;
    qv_error why = { 0 };
    const qv_status s = change_part(p, part, done, &is_left, &why);
    if (is_left && s != QV_ENOMEM)
        return leave(p, part, &why, err);
    if (s && err)
        *err = why;
    return s;
}

/* Reports the parts that cannot be used and will stay, before anything is removed. */
static qv_status
leave_damage(struct pruning *p, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < p->c->n_damage && !s; i++) {
        const struct qv_cache_damaged *d = &p->c->damage[i];
        qv_error why = { 0 };
        if (d->fault == QV_CACHE_BROKEN)
            continue;
        qv_fail(&why, QV_EFORMAT, "%s", d->words);
        s = leave(p, (uint32_t)d->part, &why, err);
    }
    return s;
}

/* Removes broken parts, if the caller asked for it. Parts that another build might read stay. */
static qv_status
prune_damage(struct pruning *p, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < p->c->n_damage && !s && goes_on(p, p->c->index.n_parts); i++) {
        const struct qv_cache_damaged *d = &p->c->damage[i];
        if (d->fault != QV_CACHE_BROKEN || !p->o->superseded)
            continue;
        p->out->broken++;
        s = remove_part(p, name_of(p, (uint32_t)d->part), p->c->index.parts[d->part].bytes, err);
    }
    return s;
}

/* Rejects symbolic links. A link may point to another part of the folder, which would then seem
 * superseded: removing that part would remove the tokens of both. */
static qv_status
refuse_links(const struct pruning *p, qv_error *err)
{
    struct stat st;
    for (uint32_t i = 0; i < p->c->index.n_parts; i++)
        if (!p->c->index.parts[i].damaged &&
            !fstatat(p->folder.fd, name_of(p, i), &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode))
            return qv_fail(err, QV_EIO,
                           "%s: part %.255s is a symbolic link; replace it with the file",
                           p->folder.path, name_of(p, i));
    return QV_OK;
}

/* ---- all parts ------------------------------------------------------------------------------- */

struct place {
    int64_t sealed_ns;
    uint32_t part;
};

static int
by_time(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->sealed_ns != y->sealed_ns)
        return x->sealed_ns < y->sealed_ns ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part; /* part numbers are in the order of names */
}

/* Sorts the usable parts by their sealing time; *n is their number. */
static qv_status
put_in_order(struct pruning *p, struct place **out, size_t *n, qv_error *err)
{
    const struct qv_cache_index *index = &p->c->index;
    struct place *order = calloc(index->n_parts + 1, sizeof *order);
    if (!order)
        return qv_no_memory(p->folder.path, err);
    *n = 0;
    for (size_t i = 0; i < index->n_parts; i++)
        if (!index->parts[i].damaged)
            order[(*n)++] = (struct place){ index->parts[i].head.sealed_ns, (uint32_t)i };
    if (*n)
        qsort(order, *n, sizeof *order, by_time);
    *out = order;
    return QV_OK;
}

static qv_status
prune_parts(struct pruning *p, qv_error *err)
{
    struct place *order = NULL;
    size_t n = 0;
    qv_status s = refuse_links(p, err);
    if (!s)
        s = leave_damage(p, err);
    if (!s)
        s = put_in_order(p, &order, &n, err);
    for (size_t i = 0; i < n && !s && goes_on(p, i); i++)
        s = prune_part(p, order[i].part, i, err);
    free(order);
    return s ? s : prune_damage(p, err);
}

/* Prunes a folder that is open and locked; a dry run only counts. */
static qv_status
prune(struct pruning *p, const char *dir, qv_error *err)
{
    qv_status s = qv_cache_open(dir, &p->c, err);
    if (s)
        return s;
    p->from = (struct qv_part_index){ .layout = p->c->layout, .seed = p->c->seed };
    p->keep = sort_keys(p->o->keep, p->o->n_keep);
    p->drop = sort_keys(p->o->drop, p->o->n_drop);
    p->piece = malloc(PIECE);
    if (!p->keep || !p->drop || !p->piece)
        s = qv_no_memory(p->folder.path, err);
    if (!s) {
        count_keys(p);
        s = prune_parts(p, err);
    }
    return s;
}

static qv_status
open_folder(struct pruning *p, const char *dir, qv_error *err)
{
    if (!qv_cache_exists(dir))
        return qv_fail(err, QV_EIO, "%s: not a cache: it has no %s", dir, QV_CACHE_DESCRIPTION);
    qv_status s = qv_cache_folder_open(dir, &p->folder, err);
    if (!s && !p->o->dry_run && !p->o->no_lock)
        s = qv_cache_lock(&p->folder, true, &p->lock, NULL, err);
    if (!s && !p->o->dry_run)
        qv_cache_folder_sweep(&p->folder);
    return s;
}

qv_status
qv_cache_prune(const char *dir, const qv_cache_prune_options *options, qv_cache_pruned *out,
               qv_error *err)
{
    QV_NEED(err, dir, options, out);
    *out = (qv_cache_pruned){ .keys = 0 };
    if ((options->n_keep && !options->keep) || (options->n_drop && !options->drop))
        return qv_fail(err, QV_EINVAL, "keep or drop is NULL, but its number of keys is not 0");
    if (has_null(options->keep, options->n_keep) || has_null(options->drop, options->n_drop))
        return qv_fail(err, QV_EINVAL, "%s: a key to keep or drop is NULL", dir);
    if (options->keep && !options->n_keep)
        return qv_fail(err, QV_EINVAL,
                       "%s: no key would be kept; to remove a whole cache, remove its folder", dir);
    struct pruning p = { .o = options, .out = out, .lock = -1 };
    qv_status s = open_folder(&p, dir, err);
    if (!s)
        s = prune(&p, dir, err);
    qv_cache_close(&p.c);
    qv_part_index_free(&p.from);
    free(p.records);
    free(p.keep);
    free(p.drop);
    free(p.piece);
    qv_cache_unlock(&p.lock);
    qv_cache_folder_close(&p.folder);
    return s;
}
