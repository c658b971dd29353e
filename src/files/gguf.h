/* SPDX-License-Identifier: MIT */
/*
 * The GGUF file format, versions 2 and 3, little-endian: "GGUF", version, counts of tensors and of keys; the
 * keys with typed values; the tensors' names, shapes, types and offsets; then data, each tensor's at a
 * multiple of general.alignment. Nothing in it is believed: counts and lengths are held to the file's size
 * before anything is allocated, and all is checked at open. Files are read with pread, never mapped.
 */
#ifndef QV_FILES_GGUF_H
#define QV_FILES_GGUF_H

#include <jansson.h>

#include "gguf_types.h"

#define QV_GGUF_MAX_DIMS 4

struct qv_gguf_tensor {
    char *name;
    const struct qv_gguf_type *type;
    int n_dims;
    int64_t
        shape[QV_GGUF_MAX_DIMS]; /* the outermost first, as in safetensors; in the file the last */
    uint64_t offset, bytes;      /* in the file; in all */
};

struct qv_gguf; /* one file */

qv_status qv_gguf_open(const char *path, struct qv_gguf **out, qv_error *err);
void qv_gguf_close(struct qv_gguf **file); /* NULLs the pointer */
const char *qv_gguf_path(const struct qv_gguf *file);

/* Whether a file begins as a GGUF file does; false where it cannot be read. */
bool qv_gguf_is(const char *path);

/* The keys below "general." and "clip." as an object of numbers, booleans, texts and arrays of these. A text
 * that is no UTF-8 or longer than 4 KiB, and an array of more than 1024, are null. f32 values are the
 * shortest decimals that round to them: 1e-6 is 1e-6. Belongs to the file. */
const json_t *qv_gguf_keys(const struct qv_gguf *file);

/* NULL if there is no such tensor. Belongs to the file. */
const struct qv_gguf_tensor *qv_gguf_find(const struct qv_gguf *file, const char *name);
size_t qv_gguf_count(const struct qv_gguf *file);
/* In the order of their names; NULL behind the last. */
const struct qv_gguf_tensor *qv_gguf_at(const struct qv_gguf *file, size_t i);

/* Reads bytes [begin, begin + bytes) of a tensor's data. Short reads and a file that became shorter
 * are QV_EIO. */
qv_status qv_gguf_read(const struct qv_gguf *file, const struct qv_gguf_tensor *tensor,
                       uint64_t begin, void *dst, uint64_t bytes, qv_error *err);

#endif
