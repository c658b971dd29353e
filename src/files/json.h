/* SPDX-License-Identifier: MIT */
/*
 * Reads untrusted files and JSON: only regular files, only whole files, and numbers only within
 * their ranges. Every error text names the file, the field, its value and the expected value.
 */
#pragma once

#include <jansson.h>

#include "qwenvit.h"

#define QV_JSON_MAX_CONFIG ((size_t)4 << 20)
#define QV_JSON_MAX_INDEX ((size_t)64 << 20)
#define QV_JSON_MAX_BRACKETS ((size_t)1 << 18)
#define QV_QUOTE_SIZE 80

/* Opens a regular file for reading. It rejects anything else, and does not block on a FIFO.
 * Failures of this function and the next return the status of their errno (qv_status_of_errno). */
qv_status qv_file_open(const char *path, int *fd, uint64_t *size, qv_error *err);
/* Reads all of [offset, offset + bytes). A file that ends earlier is QV_EIO. */
qv_status qv_file_read(int fd, const char *path, uint64_t offset, void *dst, uint64_t bytes,
                       qv_error *err);
/* Reads bytes [begin, begin + bytes) of a tensor's data. */
struct qv_file_part {
    const char *name;
    uint64_t offset, bytes;
};
qv_status qv_file_read_part(int fd, const char *path, const struct qv_file_part *tensor,
                            uint64_t begin, void *dst, uint64_t bytes, qv_error *err);
/* Returns, for an error text, what a file seems to be by its first bytes if it is a common mistake,
 * else "". */
const char *qv_file_hint(const void *head, size_t n);

/* Reads and parses a file of at most `cap` bytes and QV_JSON_MAX_BRACKETS brackets whose top is
 * an object. The caller does json_decref(*root). */
qv_status qv_json_read(const char *path, size_t cap, json_t **root, qv_error *err);
/* The same for text in memory; `path` is for error texts. Brackets are limited because for the two
 * bytes of [] or {} jansson allocates a hundred times as many. */
qv_status qv_json_parse(const char *path, const char *text, size_t n, size_t max_brackets,
                        json_t **root, qv_error *err);

/* Returns a value as text, which the caller free()s, or NULL if out of memory. Unlike json_dumps,
 * it never silently drops keys when memory runs out. */
char *qv_json_text(const json_t *value, size_t flags);

/* Writes a value or a text in a form safe for error texts: JSON in ASCII, cut to size. Returns
 * `text`. */
const char *qv_json_show(const json_t *value, char text[QV_QUOTE_SIZE]);
const char *qv_json_quote(const char *string, char text[QV_QUOTE_SIZE]);

/* An object inside a file. */
struct qv_json_object {
    const json_t *json;
    const char *file;
    const char *prefix; /* the prefix of its fields in error texts: "vision_config." */
    bool null_is_absent;
};

/* Returns NULL if the key is missing. */
const json_t *qv_json_get(const struct qv_json_object *object, const char *key);

/* Each reads a value of the given type. If the key is missing, *value is unchanged, so it may hold
 * the default. Ranges are inclusive. */
qv_status qv_json_int(const struct qv_json_object *object, const char *key, int64_t min,
                      int64_t max, int64_t *value, qv_error *err);
qv_status qv_json_real(const struct qv_json_object *object, const char *key, double min, double max,
                       double *value, qv_error *err);
qv_status qv_json_reals(const struct qv_json_object *object, const char *key, double min,
                        double max, double values[3], qv_error *err);
qv_status qv_json_string(const struct qv_json_object *object, const char *key, const char **value,
                         qv_error *err);
/* Checks a value from elsewhere, such as a list, like qv_json_int(). `key` is for the error
 * text. */
qv_status qv_json_check_int(const struct qv_json_object *object, const char *key,
                            const json_t *found, int64_t min, int64_t max, int64_t *value,
                            qv_error *err);
/* Sets *child to the object under `key`. Its json is NULL if the key is missing. */
qv_status qv_json_child(const struct qv_json_object *object, const char *key, const char *prefix,
                        struct qv_json_object *child, qv_error *err);

/* Fails with "FILE: FIELD is VALUE; WANTED" and QV_EFORMAT. A NULL value is reported as missing. */
qv_status qv_json_wrong(const struct qv_json_object *object, const char *key, const json_t *value,
                        const char *wanted, qv_error *err);
/* Fails in the same form with QV_EUNSUPPORTED, for a valid value that is not supported. */
qv_status qv_json_unsupported(const struct qv_json_object *object, const char *key,
                              const json_t *value, const char *wanted, qv_error *err);
