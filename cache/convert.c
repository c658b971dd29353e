/* SPDX-License-Identifier: MIT */
/* Writes a part from existing records and tensors, such as a cache of version 1 has. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "part.h"

/* Checks a key, and makes the row of its record, whose key_bytes is 0 if the key is left out
 * (QV_EFORMAT). */
static qv_status
check_key(const struct qv_cache_usual *usual, const char *path, const struct qv_cache_copied *k,
          struct qv_index_row *row, qv_error *err)
{
    char key[QV_CACHE_MAX_KEY + 1];
    *row = (struct qv_index_row){ .key_bytes = 0 };
    qv_status s = qv_cache_key(k->key, key, err);
    if (!s)
        s = qv_record_row(k->record, strlen(k->record), usual, path, k->key, row, err);
    if (s)
        return s;
    if (strcmp(key, k->key) || strchr(k->record, '\n') ||
        (row->status ? k->n_rows != 0
                     : k->n_rows < 1 || k->n_rows > UINT32_MAX || k->n_timestamps < 0 ||
                           k->n_timestamps > UINT32_MAX))
        return qv_fail(
            err, QV_EFORMAT,
            "key %.80s: it is not UTF-8, its record not one line, or it cannot have %lld "
            "rows and %lld timestamps",
            k->key, (long long)k->n_rows, (long long)k->n_timestamps);
    row->key_bytes = (uint16_t)strlen(key);
    row->n_rows = (uint32_t)k->n_rows;
    row->n_times = row->status ? 0 : (uint32_t)k->n_timestamps;
    return QV_OK;
}

static qv_status
add_key(struct qv_cache_part *p, const qv_cache_layout *l, const struct qv_cache_copied *k,
        const struct qv_index_row *row, qv_error *err)
{
    const struct qv_text record = { .at = (char *)(uintptr_t)k->record, .n = strlen(k->record) };
    struct qv_cache_block b;
    qv_status s =
        qv_cache_part_begin(p, l, k->key, k->n_rows,
                            qv_cache_part_known_need(l, k->key, !row->status, record.n), &b, err);
    for (int i = 0; i < qv_cache_n_tensors(l) && !row->status && !s; i++)
        s = qv_cache_file_write(&p->file, b.at + (uint64_t)i * b.step, k->tensors[i],
                                (uint64_t)k->n_rows * qv_cache_row_bytes(l), err);
    return s ? s
             : qv_cache_part_add(p, l, k->key, row, &record, &b, k->grid_thw, k->timestamps_s, err);
}

static qv_status
write_keys(const struct qv_cache_folder *folder, const char *name, int64_t sealed_ns,
           const qv_cache_layout *l, const struct qv_cache_usual *usual,
           const struct qv_cache_copied *keys, const struct qv_index_row *rows, size_t n,
           qv_error *err)
{
    struct qv_cache_part_name named = { .digits = 0 };
    struct qv_cache_part *p = NULL;
    uint64_t need = 0;
    snprintf(named.begin, sizeof named.begin, "%s", name);
    for (size_t i = 0; i < n; i++)
        need += qv_cache_part_known_need(l, keys[i].key, true, strlen(keys[i].record));
    qv_status s = qv_cache_part_open(folder, qv_cache_part_least(need), 0, &p, err);
    for (size_t i = 0; i < n && !s; i++)
        if (rows[i].key_bytes)
            s = add_key(p, l, &keys[i], &rows[i], err);
    if (!s && p->n_keys)
        s = qv_cache_part_seal(p, l, usual, &named, sealed_ns, err);
    if (p)
        qv_cache_part_free(&p);
    return s;
}

qv_status
qv_cache_write_part(const char *dir, const char *name, int64_t sealed_ns,
                    const struct qv_cache_copied *keys, size_t n,
                    void (*left_out)(void *user, size_t key, const char *words), void *user,
                    qv_error *err)
{
    struct qv_cache_folder folder = { .fd = -1 };
    struct qv_index_row *rows = calloc(n + 1, sizeof *rows);
    json_t *description = NULL;
    qv_cache_layout l;
    bool there = false;
    qv_status s =
        rows ? qv_cache_description(dir, &there, &description, &l, err) : qv_no_memory(dir, err);
    if (!s && !there)
        s = qv_fail(err, QV_EIO, "%s: it has no " QV_CACHE_DESCRIPTION, qv_path_tail(dir));
    const struct qv_cache_usual usual = qv_cache_usual_of(description);
    for (size_t i = 0; i < n && !s; i++) {
        qv_error why = { 0 };
        s = check_key(&usual, name ? name : dir, &keys[i], &rows[i], &why);
        if (s == QV_EFORMAT)
            left_out(user, i, why.text);
        else if (s && err)
            *err = why;
        s = s == QV_EFORMAT ? QV_OK : s;
    }
    if (!s && name)
        s = qv_cache_folder_open(dir, &folder, err);
    if (!s && name)
        s = write_keys(&folder, name, sealed_ns, &l, &usual, keys, rows, n, err);
    qv_cache_folder_close(&folder);
    json_decref(description);
    free(rows);
    return s;
}
