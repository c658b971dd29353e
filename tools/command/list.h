/* SPDX-License-Identifier: MIT */
/* A list of clips: each line is a path or a JSON object. */
#pragma once

#include "clips/option_list.h"

/* A line of a list. A list may have a million lines, most of them without options. */
struct tool_entry {
    const char *path, *key;     /* key: default the path; bytes that are not UTF-8 become %XX */
    const qv_clip_options *own; /* this clip's own options; NULL: none */
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
/* folder.c: makes a list of the arguments. A folder stands for the clips and images in it, and with
 * `recursive` in its subfolders, in the order of their names. The arguments must outlive the list.
 * Keys are paths as written or, with `names`, relative paths that fit below one folder: a file's
 * name, or a folder's name and the path below it. */
qv_status tool_list_of_paths(const char *const *paths, size_t n, bool recursive, bool names,
                             struct tool_list *out, qv_error *err);
bool tool_is_media(const char *name);
qv_status tool_list_add_file(struct tool_list *list, const char *path, const char *key,
                             qv_error *err);
/* Fails if a key is repeated. The error names the first line that repeats a key, and the earlier
 * line. file NULL: the list was made from arguments. `what` is what the error calls a key: "key",
 * or the file made from it. */
qv_status tool_list_check_once(const struct tool_list *list, const char *file, const char *what,
                               qv_error *err);
void tool_list_free(struct tool_list *list);

/* Writes the key to plain[strlen(key) + 1] without "." and empty names. Returns false if the key
 * contains "..", or ends in "." or an empty name. */
bool tool_list_file_of(const char *key, char *plain);
/* Checks that keys can be file names below a folder. Returns QV_EFORMAT, with the line number, for
 * a key with "..", and for two keys that name the same file. file NULL: the list was made from
 * arguments, and the error is QV_EINVAL. */
qv_status tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err);

/* tar.c: reads tar files (ustar, with GNU's and pax's long names and sizes) without unpacking
 * them. */
/* Called for each file in a tar file, with its name and the position of its bytes. bytes is -1 for
 * sparse files and hard links, whose bytes are not all at one place. */
typedef qv_status tool_tar_see(void *user, const char *name, int64_t offset, int64_t bytes,
                               qv_error *err);
/* Returns QV_EIO; QV_EFORMAT if the file is not a tar file, is truncated, or has a name or pax
 * header above 1 MiB; or the error that `see` returned. */
qv_status tool_tar_visit(const char *path, tool_tar_see *see, void *user, qv_error *err);
bool tool_tar_is(const char *path);
