/* SPDX-License-Identifier: MIT */
/*
 * The GGUF file format, versions 2 and 3, little-endian: "GGUF", the version, the counts of tensors
 * and of keys; the keys with typed values; the tensors' names, shapes, types and offsets; then the
 * data, where each tensor begins at a multiple of general.alignment. Nothing in a file is trusted:
 * counts and lengths are compared with the file's size before anything is allocated, and everything
 * is checked on opening. Files are read with pread and never mapped.
 */
#pragma once

#include <jansson.h>

#include "gguf_types.h"

#define QV_GGUF_MAX_DIMS 4

struct qv_gguf_tensor {
    char *name;
    const struct qv_gguf_type *type;
    int n_dims;
    int64_t
        /* outermost first, as in safetensors; the file has it last */
        shape[QV_GGUF_MAX_DIMS];
    uint64_t offset, bytes; /* offset in the file; bytes of all its data */
};

struct qv_gguf; /* an open file */

qv_status qv_gguf_open(const char *path, struct qv_gguf **out, qv_error *err);
void qv_gguf_close(struct qv_gguf **file); /* sets the pointer to NULL */
const char *qv_gguf_path(const struct qv_gguf *file);

/* Returns whether a file begins like a GGUF file; false if it cannot be read. */
bool qv_gguf_is(const char *path);

/* Returns the keys that begin with "general." and "clip." as an object of numbers, booleans,
 * texts and arrays of these. A text that is not UTF-8 or longer than 4 KiB is null, and so is an
 * array with more than 1024 values. f32 values are the shortest decimals that round to them:
 * 1e-6 is 1e-6. It belongs to the file. */
const json_t *qv_gguf_keys(const struct qv_gguf *file);

/* Returns NULL if the tensor is missing. It belongs to the file. */
const struct qv_gguf_tensor *qv_gguf_find(const struct qv_gguf *file, const char *name);
size_t qv_gguf_count(const struct qv_gguf *file);
/* Tensors in the order of their names; NULL after the last. */
const struct qv_gguf_tensor *qv_gguf_at(const struct qv_gguf *file, size_t i);

/* Reads bytes [begin, begin + bytes) of a tensor's data. A file that has become shorter is
 * QV_EIO. */
qv_status qv_gguf_read(const struct qv_gguf *file, const struct qv_gguf_tensor *tensor,
                       uint64_t begin, void *dst, uint64_t bytes, qv_error *err);
