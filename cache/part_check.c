/* SPDX-License-Identifier: MIT */
/* Checks what opening a cache skips: the header and the records of a part. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "files/token_file.h"
#include "part_index.h"

/* Reads bytes of a file and compares their checksum. The caller free()s *out, which ends with
 * NUL. */
static qv_status
read_checked(const char *path, uint64_t at, uint64_t bytes, uint64_t xxh3, const char *what,
             char **out, qv_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    char *text = malloc((size_t)bytes + 1);
    qv_status s = text ? qv_file_open(path, &fd, &size, err) : qv_no_memory(path, err);
    if (!s)
        s = qv_file_read(fd, path, at, text, bytes, err);
    if (!s && qv_cache_hash(text, (size_t)bytes) != xxh3)
        s = qv_fail(err, QV_EFORMAT, "%s: the checksum of its %s is wrong: it was altered", path,
                    what);
    if (fd >= 0)
        close(fd);
    if (s || !text) {
        free(text);
        return s;
    }
    text[bytes] = 0;
    *out = text;
    return QV_OK;
}

qv_status
qv_part_records(const char *path, const struct qv_index_head *h, char **out, qv_error *err)
{
    return read_checked(path, h->records_at, qv_index_padded(h->records_bytes), h->records_xxh3,
                        "records", out, err);
}

/* ---- the header ------------------------------------------------------------------------------ */

/* A part, and its header as read by any safetensors reader. */
struct view {
    const struct qv_part_index *p;
    const struct qv_safetensors *file;
    const char *path;
    size_t n_found; /* tensors found */
};

/* Checks that the header has a tensor with this name, dtype, shape and place. */
static qv_status
find_tensor(struct view *v, const char *name, const char *dtype, int n_dims, const int64_t *shape,
            uint64_t at, qv_error *err)
{
    const struct qv_safetensor *t = qv_safetensors_find(v->file, name);
    char quoted[QV_QUOTE_SIZE];
    if (!t || strcmp(t->dtype_name, dtype) || t->n_dims != n_dims ||
        memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) || t->offset != at)
        return qv_fail(err, QV_EFORMAT, "%s: tensor %s %s its header", v->path,
                       qv_json_quote(name, quoted),
                       t ? "of its index differs from that in" : "of its index is missing from");
    v->n_found++;
    return QV_OK;
}

static qv_status
find_bytes(struct view *v, const char *name, uint64_t at, uint64_t bytes, qv_error *err)
{
    const int64_t shape[] = { (int64_t)qv_index_padded(bytes) };
    return find_tensor(v, name, "U8", 1, shape, at, err);
}

static qv_status
find_key(struct view *v, const struct qv_index_row *r, qv_error *err)
{
    const qv_cache_layout *l = &v->p->layout;
    char name[QV_CACHE_MAX_KEY + 32];
    const size_t n = r->key_bytes;
    const int64_t shape[] = { r->n_rows, l->width }, grid[] = { 1, 3 }, times[] = { r->n_times };
    qv_status s = QV_OK;
    memcpy(name, v->p->keys + r->key_at, n);
    name[n] = '/';
    for (int i = 0; i < qv_cache_n_tensors(l) && !s; i++) {
        qv_token_file_name(i, name + n + 1);
        s = find_tensor(v, name, qv_cache_dtype_name(l->dtype), 2, shape,
                        r->tokens_at + (uint64_t)i * r->step * QV_CACHE_ALIGN, err);
    }
    strcpy(name + n + 1, "grid_thw");
    if (!s)
        s = find_tensor(v, name, "I64", 2, grid, r->small_at, err);
    strcpy(name + n + 1, "timestamps");
    if (!s)
        s = find_tensor(v, name, "F64", 1, times, r->small_at + QV_CACHE_GRID_BYTES, err);
    return s;
}

static size_t
count_unused(const struct qv_safetensors *file)
{
    size_t n = 0;
    for (size_t i = 0; i < qv_safetensors_count(file); i++)
        n += !strncmp(qv_safetensors_at(file, i)->name, "__unused.", 9);
    return n;
}

/* Checks that the header has the index's tensors, and no other tensors except unused ranges. */
static qv_status
compare_header(struct view *v, qv_error *err)
{
    const struct qv_index_head *h = &v->p->head;
    qv_status s = find_bytes(v, "__index", h->header_bytes, QV_INDEX_ROW * (1 + h->n_rows), err);
    if (!s)
        s = find_bytes(v, "__keys", qv_index_keys_at(h), h->keys_bytes, err);
    if (!s)
        s = find_bytes(v, "__records", h->records_at, h->records_bytes, err);
    for (size_t i = 0; i < h->n_rows && !s; i++) {
        const struct qv_index_row r = qv_part_index_row(v->p, i);
        s = r.status ? QV_OK : find_key(v, &r, err);
    }
    if (!s && v->n_found + count_unused(v->file) != qv_safetensors_count(v->file))
        s = qv_fail(err, QV_EFORMAT, "%s: its header has tensors that are missing from its index",
                    v->path);
    return s;
}

static qv_status
check_metadata(const struct view *v, qv_error *err)
{
    char sealed[24];
    snprintf(sealed, sizeof sealed, "%lld", (long long)v->p->head.sealed_ns);
    const char *const wanted[][2] = { { "format", QV_CACHE_FORMAT },
                                      { "version", QV_CACHE_VERSION },
                                      { "sealed", sealed } };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *found = qv_safetensors_metadata(v->file, wanted[i][0]);
        if (!found)
            return qv_fail(err, QV_EFORMAT, "%s: its header has no \"%s\"", v->path, wanted[i][0]);
        if (strcmp(found, wanted[i][1]) != 0)
            return qv_fail(err, QV_EFORMAT, "%s: its header's %s is %.40s; it must be %s", v->path,
                           wanted[i][0], found, wanted[i][1]);
    }
    return QV_OK;
}

static qv_status
check_header(const struct qv_part_index *p, const char *path, qv_error *err)
{
    struct qv_safetensors *file = NULL;
    char *text = NULL;
    qv_status s = read_checked(path, 0, p->header_bytes, p->head.header_xxh3, "header", &text, err);
    free(text);
    if (!s)
        s = qv_safetensors_open(path, &file, err);
    if (s)
        return s;
    struct view v = { .p = p, .file = file, .path = path };
    s = check_metadata(&v, err);
    if (!s)
        s = compare_header(&v, err);
    qv_safetensors_close(&file);
    return s;
}

/* ---- the records ----------------------------------------------------------------------------- */

/* Returns whether a record agrees with its row. */
static bool
is_row_of(const struct qv_index_row *r, const struct qv_index_row *told)
{
    return r->status == told->status && qv_index_same_source(r, told) && r->xxh3 == told->xxh3 &&
           r->is_image == told->is_image && r->sampled_fps == told->sampled_fps;
}

static qv_status
check_records(const struct qv_part_index *p, const char *path, const struct qv_cache_usual *usual,
              qv_error *err)
{
    const struct qv_index_head *h = &p->head;
    char *text = NULL, quoted[QV_QUOTE_SIZE];
    qv_status s = qv_part_records(path, h, &text, err);
    for (size_t i = 0; i < h->n_rows && !s; i++) {
        const struct qv_index_row r = qv_part_index_row(p, i);
        const char *key = p->keys + r.key_at;
        char *record = text + r.record_at, *line = strchr(record, '\n');
        struct qv_index_row told;
        if (line ? line != record + r.record_bytes : i + 1 < h->n_rows)
            s = qv_fail(err, QV_EFORMAT, "%s: the record of key %s is not one line", path,
                        qv_json_quote(key, quoted));
        record[r.record_bytes] = 0;
        if (!s)
            s = qv_record_row(record, r.record_bytes, usual, path, key, &told, err);
        if (!s && !is_row_of(&r, &told))
            s = qv_fail(err, QV_EFORMAT, "%s: the record of key %s disagrees with its row", path,
                        qv_json_quote(key, quoted));
    }
    free(text);
    return s;
}

qv_status
qv_part_check(struct qv_part_index *p, const char *path, const struct qv_cache_usual *usual,
              qv_error *err)
{
    qv_status s = qv_part_index_read(p, path, err);
    if (!s)
        s = check_header(p, path, err);
    if (!s)
        s = check_records(p, path, usual, err);
    return s;
}
