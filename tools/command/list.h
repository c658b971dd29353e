/* SPDX-License-Identifier: MIT */
/* A list of clips: a path a line, or JSON a line. */
#ifndef QV_TOOLS_LIST_H
#define QV_TOOLS_LIST_H

#include "qwenvit_job.h"

/* A line. A list may have a million, few of which ask for anything of their own. */
struct tool_entry {
    const char *path,
        *key; /* key: as the line says, else the path; bytes that are not UTF-8 are %XX */
    const qv_row_own *own; /* all 0 where the line is a path */
    size_t line;           /* from 1 */
};

struct tool_block;

struct tool_list {
    struct tool_entry *at; /* [n], in the lines' order */
    size_t n, room;
    struct tool_block *blocks; /* what the entries point to */
};

/*
 * Reads all of FILE, "-" for standard input; lines that are empty or blank are nothing. QV_EFORMAT, with the
 * line's number, for a line that is neither a path nor such an object, one that begins with "#", a header, a field that is not known or of another kind, an
 * end that is not above start, a key twice, a NUL, a key that begins with "__"; QV_EIO.
 */
qv_status tool_list_read(const char *file, struct tool_list *out, qv_error *err);
void tool_list_free(struct tool_list *list);

/* That keys can be names of files below a folder: QV_EFORMAT, with the line's number, for one with "..",
 * and for two that would be one file. */
qv_status tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err);

#endif
