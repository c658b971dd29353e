/* SPDX-License-Identifier: MIT */
/*
 * Files and JSON read with suspicion: regular files only, whole or not at all, and numbers that are
 * what they should be. Every failure names the file, the field, the value found and what would be
 * right.
 */
#ifndef QV_FILES_JSON_H
#define QV_FILES_JSON_H

#include <jansson.h>

#include "qwenvit.h"

#define QV_JSON_MAX_CONFIG ((size_t)4 << 20)
#define QV_JSON_MAX_INDEX ((size_t)64 << 20)
#define QV_JSON_MAX_BRACKETS ((size_t)1 << 18)
#define QV_QUOTE_SIZE 80

/* dir/name, for free(); NULL if out of memory. */
char *qv_path_join(const char *dir, const char *name);

/* Whether the name is there; a dangling link is, and so is what may not be looked at. */
bool qv_path_exists(const char *path);

/* Opens a regular file for reading; refuses everything else without waiting for it. */
qv_status qv_file_open(const char *path, int *fd, uint64_t *size, qv_error *err);
/* Reads all of [offset, offset + bytes); a file that ends before is QV_EIO. */
qv_status qv_file_read(int fd, const char *path, uint64_t offset, void *dst, uint64_t bytes,
                       qv_error *err);
/* Says what a file seems to be from its first bytes, if it is a well-known wrong one; else "". */
const char *qv_file_hint(const void *head, size_t n);

/* Reads and parses a file of at most `cap` bytes and QV_JSON_MAX_BRACKETS whose top is an object.
 * json_decref(*root). */
qv_status qv_json_read(const char *path, size_t cap, json_t **root, qv_error *err);
/* The same for text in memory; `path` is for error texts. What jansson allocates for [] or {} is a
 * hundred times their two bytes: hence the limit. */
qv_status qv_json_parse(const char *path, const char *text, size_t n, size_t max_brackets,
                        json_t **root, qv_error *err);

/* A value's text, for free(); NULL for lack of memory, where json_dumps may leave out keys instead. */
char *qv_json_text(const json_t *value, size_t flags);

/* A value or a text as it may stand in an error text: JSON in ASCII, cut. Returns `text`. */
const char *qv_json_show(const json_t *value, char text[QV_QUOTE_SIZE]);
const char *qv_json_quote(const char *string, char text[QV_QUOTE_SIZE]);

/* An object inside a file. */
struct qv_json_object {
    const json_t *json;
    const char *file;
    const char *prefix; /* of its fields in error texts: "vision_config." */
    bool null_is_absent;
    const json_t
        *names; /* what a file that is no JSON calls keys, for error texts; NULL: the same */
};

/* NULL if there is no such key. */
const json_t *qv_json_get(const struct qv_json_object *object, const char *key);

/* Typed getters leave *value alone if there is no such key: it then holds the default. Ranges
 * include both ends. */
qv_status qv_json_int(const struct qv_json_object *object, const char *key, int64_t min,
                      int64_t max, int64_t *value, qv_error *err);
qv_status qv_json_real(const struct qv_json_object *object, const char *key, double min, double max,
                       double *value, qv_error *err);
qv_status qv_json_reals(const struct qv_json_object *object, const char *key, double min,
                        double max, double *values, size_t n, qv_error *err);
qv_status qv_json_string(const struct qv_json_object *object, const char *key, const char **value,
                         qv_error *err);
/* The same check for a value that stands elsewhere, as in a list; `key` is for the error text. */
qv_status qv_json_check_int(const struct qv_json_object *object, const char *key,
                            const json_t *found, int64_t min, int64_t max, int64_t *value,
                            qv_error *err);
/* *child is the object under `key`, its json NULL if there is no such key. */
qv_status qv_json_child(const struct qv_json_object *object, const char *key, const char *prefix,
                        struct qv_json_object *child, qv_error *err);

/* "FILE: FIELD is VALUE; WANTED" as QV_EFORMAT; a field without a value is said to be missing. */
qv_status qv_json_wrong(const struct qv_json_object *object, const char *key, const json_t *value,
                        const char *wanted, qv_error *err);
/* The same for a value that makes sense and is not supported: QV_EUNSUPPORTED. */
qv_status qv_json_unsupported(const struct qv_json_object *object, const char *key,
                              const json_t *value, const char *wanted, qv_error *err);

#endif
