/* SPDX-License-Identifier: MIT */
/*
 * Reads JSON from beginning to end without building a tree: the tree of a header of 16 MiB would
 * take a gigabyte. The text must end with a NUL. A function that returns false has set `wrong` to
 * what is wrong, and `at` to where it is.
 */
#ifndef QV_CACHE_CURSOR_H
#define QV_CACHE_CURSOR_H

#include "cache.h"

struct qv_cursor {
    const char *at, *end;
    const char *wrong;
    bool lost; /* memory ran out */
};

bool qv_cursor_fail(struct qv_cursor *c, const char *wrong);
bool qv_cursor_fail_memory(struct qv_cursor *c);
/* Skips spaces, and takes the next character if it is the one wanted. */
bool qv_cursor_take(struct qv_cursor *c, char wanted);
/* Does what qv_cursor_take does, and fails if the character is another. */
bool qv_cursor_expect(struct qv_cursor *c, char wanted, const char *wrong);
/* Reads a string, appends it to `to`, and puts a NUL behind it that is not counted. A string with a
 * NUL inside is refused. */
bool qv_cursor_string(struct qv_cursor *c, struct qv_text *to);
bool qv_cursor_int(struct qv_cursor *c, int64_t *out);
/* Reads a number as its text. */
bool qv_cursor_number(struct qv_cursor *c, char *out, size_t size);
/* Reads true or false; fails with `wrong` if it is neither. */
bool qv_cursor_bool(struct qv_cursor *c, bool *out, const char *wrong);
/* Skips any value. */
bool qv_cursor_skip(struct qv_cursor *c);
/* Reads the next member's name in an object. Returns false at the object's end, and if something is
 * wrong. *first is true at the object's beginning. */
bool qv_cursor_member(struct qv_cursor *c, bool *first, struct qv_text *name);

#endif
