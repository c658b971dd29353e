/* SPDX-License-Identifier: MIT */
/* Helpers that write and read small caches. A key's tokens follow from its name. Include this file
 * after test.h. */
#pragma once

#include "cache/part_index.h"
#include "dtype.h"
#include "files/safetensors.h"
#include "cache/writer.h"
#include "qwenvit_clips.h"
#include "tempdir.h"

static const qv_cache_source some_source = { .path = "clip.mp4", .bytes = 1000, .mtime_ns = 2000 };

/* The returned name stays valid for the next 15 calls of the same thread. */
static inline const char *
key_name(int k)
{
    static _Thread_local char names[16][32];
    static _Thread_local unsigned next;
    char *name = names[next++ % 16];
    snprintf(name, sizeof names[0], "clips/%d.mp4", k);
    return name;
}

static inline int64_t
key_rows(int k)
{
    return 1 + k * 7 % 23;
}

/* The bytes of one row of tensor i of a key. No two rows are alike. */
static inline void
make_row(const qv_cache_layout *l, const char *key, int tensor, int64_t row, void *out)
{
    char name[QV_CACHE_MAX_KEY + 1]; /* The key up to the place where a byte may have been replaced
                                      * by %XX. */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(key, "%\xff"), key);
    uint64_t x = qv_cache_key_hash(name) + (uint64_t)tensor * 7919 + (uint64_t)row * 104729;
    uint8_t *bytes = out;
    for (size_t i = 0; i < (size_t)l->width * qv_dtype_bytes(l->dtype); i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(x >> 56);
    }
}

static inline qv_status
try_rows(qv_cache_entry *e, const qv_cache_layout *l, const char *key, int64_t first, int64_t n,
         qv_error *err)
{
    static _Thread_local char rows[1 + QV_MAX_DEEPSTACK][4096];
    const size_t bytes = (size_t)l->width * qv_dtype_bytes(l->dtype);
    qv_tokens t = { .tokens = rows[0], .n = n };
    assert_true((size_t)n * bytes <= sizeof rows[0]);
    for (int i = 0; i < 1 + l->n_deepstack; i++) {
        for (int64_t r = 0; r < n; r++)
            make_row(l, key, i, first + r, rows[i] + (size_t)r * bytes);
        if (i)
            t.deepstack[i - 1] = rows[i];
    }
    return qv_cache_put(e, &t, err);
}

static inline void
put_rows(qv_cache_entry *e, const qv_cache_layout *l, const char *key, int64_t first, int64_t n)
{
    qv_error err = { 0 };
    if (try_rows(e, l, key, first, n, &err))
        fail_msg("%s: %s", key, err.text);
}

static const double some_times[] = { 0, 0.5, 1.25 };

static inline qv_status
try_finish(qv_cache_entry **e, qv_status status, const char *error, qv_error *err)
{
    const qv_outcome o = {
        .n_frames = 3, .damaged_frames = 1, .grid_thw = { 2, 4, 6 }, .sampled_fps = 60000 / 1001.0
    };
    const qv_cache_result r = {
        .status = status, .error = error, .outcome = &o, .timestamps_s = some_times
    };
    return qv_cache_finish(e, &r, err);
}

static inline void
finish_key(qv_cache_entry **e, qv_status status, const char *error)
{
    assert_ok(try_finish(e, status, error, ERR));
}

static inline qv_status
try_key(qv_cache_writer *w, const qv_cache_layout *l, const char *key, int64_t rows, qv_error *err)
{
    qv_cache_entry *e = NULL;
    qv_status s = qv_cache_begin(w, key, &some_source, rows, &e, err);
    const int64_t half = rows / 2;
    if (!s)
        s = try_rows(e, l, key, 0, half, err);
    if (!s)
        s = try_rows(e, l, key, half, rows - half, err);
    if (!s)
        return try_finish(&e, QV_OK, NULL, err);
    qv_cache_drop(&e);
    return s;
}

static inline void
write_key(qv_cache_writer *w, const qv_cache_layout *l, const char *key, int64_t rows)
{
    qv_error err = { 0 };
    if (try_key(w, l, key, rows, &err))
        fail_msg("%.80s: %s", key, err.text);
}

static inline void
write_source(qv_cache_writer *w, const qv_cache_layout *l, const char *key,
             const qv_cache_source *source, qv_status status)
{
    qv_cache_entry *e = NULL;
    assert_ok(qv_cache_begin(w, key, source, status ? 0 : 1, &e, ERR));
    if (!status)
        put_rows(e, l, key, 0, 1);
    finish_key(&e, status, "failed");
}

static inline qv_cache_writer *
open_writer(const char *dir, const qv_cache_layout *l, int64_t part_bytes)
{
    const qv_cache_writer_options o = { .layout = *l, .part_bytes = part_bytes };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    return w;
}

static inline void
close_writer(qv_cache_writer **w)
{
    assert_ok(qv_cache_writer_close(w, ERR));
    assert_null(*w);
}

static inline void
end_cache(void *cache)
{
    qv_cache_close(&(qv_cache *){ cache });
}

/* It is closed when the test is over. */
static inline qv_cache *
open_cache(const char *dir)
{
    qv_cache *c = NULL;
    assert_ok(qv_cache_open(dir, &c, ERR));
    return test_ends(c, end_cache);
}

/* Closes it while the test goes on. */
static inline void
close_cache(qv_cache **c)
{
    test_end(*c);
    *c = NULL;
}

static inline qv_cache_info
cache_info(const qv_cache *c)
{
    qv_cache_info info;
    qv_cache_get_info(c, &info);
    return info;
}

/* Its key is NULL if there is none. */
static inline qv_cache_item
find_item(const qv_cache *c, const char *key)
{
    qv_cache_item item;
    assert_ok(qv_cache_find(c, key, &item, ERR));
    return item;
}

/* Checks that the item, which is held, has the key's tokens, all as make_row makes them. */
static inline void
check_held(const qv_cache *c, const qv_cache_item *item, int64_t rows)
{
    qv_cache_info info;
    uint8_t row[4096];
    qv_cache_get_info(c, &info);
    const qv_cache_layout *l = &info.layout;
    const size_t bytes = (size_t)l->width * qv_dtype_bytes(l->dtype);
    assert_int_equal(item->status, QV_OK);
    assert_int_equal(item->rows, rows);
    assert_true(bytes <= sizeof row);
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < 1 + l->n_deepstack; i++) {
            const uint8_t *found =
                (const uint8_t *)(i ? item->deepstack[i - 1] : item->tokens) + (size_t)r * bytes;
            make_row(l, item->key, i, r, row);
            assert_memory_equal(found, row, bytes);
        }
    assert_int_equal((uintptr_t)item->tokens % 64, 0);
    assert_int_equal(item->n_timestamps, 3);
    assert_memory_equal(item->timestamps_s, some_times, sizeof some_times);
    assert_int_equal(item->grid_thw[0], 2);
    assert_int_equal(item->grid_thw[1], 4);
    assert_int_equal(item->grid_thw[2], 6);
}

static inline void
check_item(const qv_cache *c, qv_cache_item *item, int64_t rows)
{
    assert_null(item->tokens);
    assert_ok(qv_cache_hold(c, item, ERR));
    check_held(c, item, rows);
    qv_cache_release(c, item);
    assert_true(!item->tokens && !item->deepstack[0] && !item->grid_thw && !item->timestamps_s);
}

static inline void
check_all(const qv_cache *c)
{
    qv_cache_info info;
    qv_cache_get_info(c, &info);
    for (int64_t i = 0; i < info.n_ok + info.n_failed; i++)
        assert_ok(qv_cache_verify(c, i, ERR));
}

static inline void
expect_record(const qv_cache *c, const char *key, const char *words)
{
    qv_cache_info info;
    qv_cache_item item;
    qv_cache_get_info(c, &info);
    for (int64_t i = 0; i < info.n_ok + info.n_failed; i++) {
        char *text = NULL;
        assert_ok(qv_cache_at(c, i, &item, ERR));
        if (strcmp(item.key, key))
            continue;
        assert_ok(qv_cache_record(c, i, &text, ERR));
        if (!strstr(text, words))
            fail_msg("%s is not in %s", words, text);
        free(text);
        return;
    }
    fail_msg("no %s", key);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Calls `call` with the path of every part and returns their number. */
static inline int
each_part(const char *dir, void (*call)(const char *path, void *user), void *user)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        if (!strncmp(e->d_name, "part-", 5)) {
            char path[600];
            snprintf(path, sizeof path, "%.300s/%.255s", dir, e->d_name);
            if (call)
                call(path, user);
            n++;
        }
    closedir(d);
    return n;
}

static inline void
validate_part(const char *path, void *user)
{
    struct qv_safetensors *file = NULL;
    assert_ok(qv_safetensors_open(path, &file, ERR));
    qv_safetensors_close(&file);
}

/* Checks that every part is a safetensors file that any reader of safetensors can read. */
static inline void
validate_parts(const char *dir)
{
    assert_true(each_part(dir, validate_part, NULL) > 0);
}

static inline void
keep_path(const char *path, void *user)
{
    snprintf(user, 600, "%s", path);
}

/* Reads the only part of a folder as a whole. */
static inline struct file
read_part(const char *dir, char path[600])
{
    assert_int_equal(each_part(dir, keep_path, path), 1);
    return read_file(path);
}

static inline size_t
header_bytes(const struct file *f)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (unsigned char)f->data[i];
    assert_true(n + 8 <= f->bytes);
    return (size_t)n + 8;
}

static inline uint64_t
get_number(const struct file *f, size_t at, int bytes)
{
    uint64_t v = 0;
    assert_true(at + (size_t)bytes <= f->bytes);
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | (unsigned char)f->data[at + (size_t)i];
    return v;
}

static inline void
put_number(const struct file *f, size_t at, int bytes, uint64_t v)
{
    assert_true(at + (size_t)bytes <= f->bytes);
    for (int i = 0; i < bytes; i++, v >>= 8)
        f->data[at + (size_t)i] = (char)v;
}

/* Where a part's records begin, and its data, after header, index, keys and records. */
static inline size_t
records_at(const struct file *f)
{
    return (size_t)get_number(f, header_bytes(f) + 48, 8);
}

static inline size_t
front_bytes(const struct file *f)
{
    return records_at(f) + ((size_t)get_number(f, header_bytes(f) + 56, 8) + 63) / 64 * 64;
}

/* Corrects the checksum of a part's changed index. */
static inline void
mend_index(const struct file *f)
{
    const size_t at = header_bytes(f), end = records_at(f);
    assert_true(end > at && end <= f->bytes);
    put_number(f, at + 8, 8, qv_index_xxh3((unsigned char *)f->data + at, end - at));
}

/* The length of the header without the spaces at its end. */
static inline size_t
header_used(const struct file *f)
{
    size_t n = header_bytes(f);
    while (n > 8 && f->data[n - 1] == ' ')
        n--;
    return n;
}

/* Returns whether a byte of the data belongs to a tensor and is not padding. */
static inline bool
is_used(const struct file *f, size_t at)
{
    const char *p = f->data;
    const size_t header = header_used(f), data = header_bytes(f);
    char text[] = "__unused.";
    for (size_t i = 8; i + sizeof text < header; i++) {
        unsigned long long begin = 0, end = 0;
        if (memcmp(p + i, text, sizeof text - 1))
            continue;
        const char *offsets = memmem(p + i, header - i, "_offsets\":[", 11);
        assert_non_null(offsets);
        assert_int_equal(sscanf(offsets + 11, "%llu,%llu", &begin, &end), 2);
        if (at >= data + begin && at < data + end)
            return false;
    }
    return true;
}

static inline int
temp_entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}

static inline void
remove_folder(const char *dir)
{
    assert_int_equal(remove_tree(dir), 0);
}
