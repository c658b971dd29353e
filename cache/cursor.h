/* SPDX-License-Identifier: MIT */
/*
 * JSON read from its begin to its end, without a tree: a header of 16 MiB would take one of a
 * gigabyte. The text is to end with a NUL. A function that returns false has said in `wrong` what is
 * wrong, and where is `at`.
 */
#ifndef QV_CACHE_CURSOR_H
#define QV_CACHE_CURSOR_H

#include "cache.h"

struct qv_cursor {
    const char *at, *end;
    const char *wrong;
    bool lost; /* what is wrong is a lack of memory */
};

bool qv_cursor_fail(struct qv_cursor *c, const char *wrong);
bool qv_cursor_fail_memory(struct qv_cursor *c);
/* Takes the character if it is the next one that is no space. */
bool qv_cursor_take(struct qv_cursor *c, char wanted);
/* The same where there must be one. */
bool qv_cursor_expect(struct qv_cursor *c, char wanted, const char *wrong);
/* A string; the text behind what `to` holds, with a NUL that is not counted. It has none inside. */
bool qv_cursor_string(struct qv_cursor *c, struct qv_text *to);
bool qv_cursor_int(struct qv_cursor *c, int64_t *out);
/* A number, as its text. */
bool qv_cursor_number(struct qv_cursor *c, char *out, size_t size);
/* true or false; `wrong` where it is neither. */
bool qv_cursor_bool(struct qv_cursor *c, bool *out, const char *wrong);
/* Any value. */
bool qv_cursor_skip(struct qv_cursor *c);
/* Goes on in an object: false at its end, and where something is wrong. first: at its begin. */
bool qv_cursor_member(struct qv_cursor *c, bool *first, struct qv_text *name);

#endif
