/* SPDX-License-Identifier: MIT */
/* Writes GGUF files for tests byte by byte, sharing nothing with the reader. Include it after
 * test.h. */
#pragma once

#include "tempdir.h"

struct bytes {
    uint8_t *at;
    size_t n, room;
};

static inline void
put(struct bytes *b, const void *data, size_t n)
{
    if (!n)
        return;
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->at = realloc(b->at, b->room);
        assert_non_null(b->at);
    }
    memcpy(b->at + b->n, data, n);
    b->n += n;
}

/* Puts the lowest n bytes of a number. */
static inline void
put_number(struct bytes *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)(v >> 8 * i);
        put(b, &byte, 1);
    }
}

static inline void
put_text(struct bytes *b, const char *text)
{
    put_number(b, strlen(text), 8);
    put(b, text, strlen(text));
}

/* A file's parts, joined at the end. */
struct gguf_file {
    struct bytes keys, tensors, data;
    uint64_t n_keys, n_tensors;
    uint32_t version;
};

enum { GGUF_U32 = 4, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

static inline void
gguf_key(struct gguf_file *f, const char *key, uint32_t type)
{
    f->n_keys++;
    put_text(&f->keys, key);
    put_number(&f->keys, type, 4);
}

static inline void
gguf_u32(struct gguf_file *f, const char *key, uint32_t v)
{
    gguf_key(f, key, GGUF_U32);
    put_number(&f->keys, v, 4);
}

static inline void
gguf_bool(struct gguf_file *f, const char *key, bool v)
{
    gguf_key(f, key, GGUF_BOOL);
    put_number(&f->keys, v, 1);
}

static inline void
gguf_string(struct gguf_file *f, const char *key, const char *v)
{
    gguf_key(f, key, GGUF_STRING);
    put_text(&f->keys, v);
}

static inline void
gguf_floats(struct gguf_file *f, const char *key, const float *v, size_t n)
{
    gguf_key(f, key, n == 1 ? GGUF_F32 : GGUF_ARRAY);
    if (n != 1) {
        put_number(&f->keys, GGUF_F32, 4);
        put_number(&f->keys, n, 8);
    }
    put(&f->keys, v, n * sizeof *v);
}

static inline void
gguf_bools(struct gguf_file *f, const char *key, const bool *v, size_t n)
{
    gguf_key(f, key, GGUF_ARRAY);
    put_number(&f->keys, GGUF_BOOL, 4);
    put_number(&f->keys, n, 8);
    for (size_t i = 0; i < n; i++)
        put_number(&f->keys, v[i], 1);
}

/* Adds a tensor. shape has the outermost dimension first. */
static inline void
gguf_tensor(struct gguf_file *f, const char *name, uint32_t type, int n_dims, const int64_t *shape,
            const void *data, size_t bytes)
{
    static const uint8_t zeros[32];
    put_text(&f->tensors, name);
    put_number(&f->tensors, (uint64_t)n_dims, 4);
    for (int i = n_dims; i-- > 0;)
        put_number(&f->tensors, (uint64_t)shape[i], 8);
    put_number(&f->tensors, type, 4);
    put_number(&f->tensors, f->data.n, 8);
    put(&f->data, data, bytes);
    put(&f->data, zeros, (32 - f->data.n % 32) % 32);
    f->n_tensors++;
}

/* Writes the file and frees its parts. */
static inline const char *
gguf_write(struct gguf_file *f, const char *name)
{
    static const uint8_t zeros[32];
    struct bytes all = { 0 };
    put(&all, "GGUF", 4);
    put_number(&all, f->version ? f->version : 3, 4);
    put_number(&all, f->n_tensors, 8);
    put_number(&all, f->n_keys, 8);
    put(&all, f->keys.at ? (void *)f->keys.at : "", f->keys.n);
    put(&all, f->tensors.at ? (void *)f->tensors.at : "", f->tensors.n);
    put(&all, zeros, (32 - all.n % 32) % 32);
    put(&all, f->data.at ? (void *)f->data.at : "", f->data.n);
    const char *path = temp_file(name, all.at, all.n);
    free(all.at);
    free(f->keys.at);
    free(f->tensors.at);
    free(f->data.at);
    *f = (struct gguf_file){ 0 };
    return path;
}
