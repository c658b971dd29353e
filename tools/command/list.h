/* SPDX-License-Identifier: MIT */
/* A list of clips: each line is a path or a JSON object. */
#pragma once

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
    bool has_folders;          /* arguments were folders */
    struct tool_block *blocks; /* memory of the entries' texts and options */
};

/*
 * Reads all of FILE, or of standard input for "-"; blank lines are skipped. Returns QV_EFORMAT,
 * with the line's number, for a line that is neither a path nor such an object, a line that begins
 * with "#", a header, an unknown field or a field of another type, an end that is not above start,
 * a repeated key, a NUL, or a key that begins with "__"; else QV_EIO.
 */
qv_status tool_list_read(const char *file, struct tool_list *out, qv_error *err);
/* folder.c: makes a list of the arguments; a folder stands for the clips and images in it,
 * with `recursive` in the folders below it too, in the order of their names. The arguments must
 * outlive the list. Keys are paths as written, or, with `names`, those that files below one folder
 * can have: a file's name, and a folder's name with what lies below it. */
qv_status tool_list_of_paths(const char *const *paths, size_t n, bool recursive, bool names,
                             struct tool_list *out, qv_error *err);
bool tool_is_media(const char *name);
qv_status tool_list_add_file(struct tool_list *list, const char *path, const char *key,
                             qv_error *err);
/* Fails if a key comes twice, naming the first line of the file that repeats one and the earlier
 * line; file NULL: the list is of paths. `what` names a key: "key", or what it becomes. */
qv_status tool_list_check_once(const struct tool_list *list, const char *file, const char *what,
                               qv_error *err);
void tool_list_free(struct tool_list *list);

/* Writes to plain[strlen(key) + 1] the key without the parts that change no path: "." and empty
 * names. Returns false if it has "..", or ends in such a part. */
bool tool_list_file_of(const char *key, char *plain);
/* Checks that keys can be names of files below a folder. Returns QV_EFORMAT, with the line's
 * number, for a key with "..", and for two keys that would be one file. file NULL: the list is of
 * paths, and the error is QV_EINVAL. */
qv_status tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err);

/* tar.c: tar files, ustar with the long names and sizes of GNU and pax. Nothing in them is
 * unpacked. */
/* Called for each file in a tar file: its name, and where its bytes lie; bytes -1: it is a sparse
 * file or a hard link, which does not have all its bytes there. */
typedef qv_status tool_tar_see(void *user, const char *name, int64_t offset, int64_t bytes,
                               qv_error *err);
/* Returns QV_EIO; QV_EFORMAT if it is not a tar file, is cut short, or has a name or pax header
 * above 1 MiB; what `see` returned. */
qv_status tool_tar_visit(const char *path, tool_tar_see *see, void *user, qv_error *err);
bool tool_tar_is(const char *path);
