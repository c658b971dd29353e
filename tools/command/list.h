/* SPDX-License-Identifier: MIT */
/* A list of clips: each line is a path or a JSON object. */
#ifndef QV_TOOLS_LIST_H
#define QV_TOOLS_LIST_H

#include "clips/option_list.h"

/* A line. A list may have a million, and few have options of their own. */
struct tool_entry {
    const char *path, *key; /* the line's key, else its path; bytes that are not UTF-8 become %XX */
    const qv_clip_options *own; /* options of this clip alone; NULL: it has none */
    size_t line;                /* counted from 1 */
};

struct tool_block;

struct tool_list {
    struct tool_entry *at; /* [n], in the order of lines */
    size_t n, room;
    struct tool_block *blocks; /* memory of the entries' texts and options */
};

/*
 * Reads all of FILE, or of standard input for "-"; blank lines are skipped. Returns QV_EFORMAT,
 * with the line's number, for a line that is neither a path nor such an object, a line that begins
 * with "#", a header, an unknown field or a field of another type, an end that is not above start,
 * a repeated key, a NUL, or a key that begins with "__"; else QV_EIO.
 */
qv_status tool_list_read(const char *file, struct tool_list *out, qv_error *err);
/* Makes a list of paths, each with its file's name as its key. The paths must outlive the list. */
qv_status tool_list_of_paths(const char *const *paths, size_t n, struct tool_list *out,
                             qv_error *err);
void tool_list_free(struct tool_list *list);

/* Checks that keys can be names of files below a folder. Returns QV_EFORMAT, with the line's
 * number, for a key with "..", and for two keys that would be one file. file NULL: the list is of
 * paths, and the error is QV_EINVAL. */
qv_status tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err);

#endif
