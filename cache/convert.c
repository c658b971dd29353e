/* SPDX-License-Identifier: MIT */
/* Writes a part of records and tensors that exist already, as a cache of version 1 has them. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "part.h"

/* Adds a key to a part. What is wrong with its record or its numbers is QV_EFORMAT. */
static qv_status
add_key(struct qv_cache_part *p, const qv_cache_layout *l, const struct qv_cache_usual *usual,
        const struct qv_cache_copied *k, qv_error *err)
{
    struct qv_index_row row;
    const struct qv_text record = { .at = (char *)(uintptr_t)k->record, .n = strlen(k->record) };
    qv_status s =
        qv_record_row(record.at, record.n, usual, p->file.folder->path, k->key, &row, err);
    if (s)
        return s;
    if (row.status ? k->n_rows != 0
                   : k->n_rows < 1 || k->n_rows > UINT32_MAX || k->n_timestamps < 0 ||
                         k->n_timestamps > UINT32_MAX)
        return qv_fail(err, QV_EFORMAT, "key %.80s: it cannot have %lld rows and %lld timestamps",
                       k->key, (long long)k->n_rows, (long long)k->n_timestamps);
    const uint64_t need = qv_cache_part_known_need(l, k->key, !row.status, record.n);
    struct qv_cache_block b;
    s = qv_cache_part_begin(p, l, k->key, k->n_rows, need, &b, err);
    row.n_rows = (uint32_t)k->n_rows;
    row.n_times = row.status ? 0 : (uint32_t)k->n_timestamps;
    for (int i = 0; i < qv_cache_n_tensors(l) && !row.status && !s; i++)
        s = qv_cache_file_write(&p->file, b.at + (uint64_t)i * b.step, k->tensors[i],
                                (uint64_t)k->n_rows * qv_cache_row_bytes(l), err);
    return s ? s
             : qv_cache_part_add(p, l, k->key, &row, &record, &b, k->grid_thw, k->timestamps_s,
                                 err);
}

static qv_status
write_part(const struct qv_cache_folder *folder, const json_t *description,
           const qv_cache_layout *l, struct qv_cache_part_name *name, int64_t sealed_ns,
           const struct qv_cache_copied *keys, size_t n, qv_error *err)
{
    const struct qv_cache_usual usual = qv_cache_usual_of(description);
    struct qv_cache_part *p = NULL;
    uint64_t need = 0;
    for (size_t i = 0; i < n; i++)
        need += qv_cache_part_known_need(l, keys[i].key, true, strlen(keys[i].record));
    qv_status s = qv_cache_part_open(folder, qv_cache_part_least(need), 0, &p, err);
    for (size_t i = 0; i < n && !s; i++)
        s = add_key(p, l, &usual, &keys[i], err);
    if (!s)
        s = qv_cache_part_seal(p, l, &usual, name, sealed_ns, err);
    if (p)
        qv_cache_part_free(&p);
    return s;
}

qv_status
qv_cache_write_part(const char *dir, const char *name, int64_t sealed_ns,
                    const struct qv_cache_copied *keys, size_t n, qv_error *err)
{
    struct qv_cache_folder folder = { .fd = -1 };
    unsigned count = 0;
    struct qv_cache_part_name named = { .whole = name, .count = &count };
    json_t *description = NULL;
    qv_cache_layout l;
    bool there = false;
    if (!n || strlen(name) >= sizeof named.text)
        return qv_fail(err, QV_EINVAL, "%s: a part of no key, or with too long a name",
                       qv_path_tail(dir));
    qv_status s = qv_cache_description(dir, &there, &description, &l, err);
    if (!s && !there)
        s = qv_fail(err, QV_EIO, "%s: there is no " QV_CACHE_DESCRIPTION " in it",
                    qv_path_tail(dir));
    if (!s)
        s = qv_cache_folder_open(dir, &folder, err);
    if (!s)
        s = write_part(&folder, description, &l, &named, sealed_ns, keys, n, err);
    qv_cache_folder_close(&folder);
    json_decref(description);
    return s;
}
