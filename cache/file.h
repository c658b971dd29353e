/* SPDX-License-Identifier: MIT */
/* A file that appears in a folder under a new name, whole and synced, or not at all. Until then it
 * has no name (O_TMPFILE) or, where that is not supported, a temporary name made from host and
 * process. */
#pragma once

#include "qwenvit.h"

struct qv_cache_folder {
    char *path; /* for error texts */
    int fd;
    char host[64]; /* letters, digits, '-' and '.' */
    uint32_t run;  /* drawn at random, for names of parts */
};

/* Opens the folder, and creates it if it does not exist. */
qv_status qv_cache_folder_open(const char *path, struct qv_cache_folder *out, qv_error *err);
void qv_cache_folder_close(struct qv_cache_folder *folder);
/* Syncs the parent folder: the folder's creator may have died before its name was on disk. */
qv_status qv_cache_folder_sync(const struct qv_cache_folder *folder, qv_error *err);
/* Removes the temporary files of dead processes of this host. */
void qv_cache_folder_sweep(const struct qv_cache_folder *folder);

struct qv_cache_file {
    const struct qv_cache_folder *folder;
    int fd;
    char temporary[128]; /* temporary name; "" with O_TMPFILE */
};

qv_status qv_cache_file_open(const struct qv_cache_folder *folder, struct qv_cache_file *out,
                             qv_error *err);
/* Writes bytes at an offset. If it fails halfway, the rest is not retried. */
qv_status qv_cache_file_write(const struct qv_cache_file *file, uint64_t offset, const void *data,
                              uint64_t bytes, qv_error *err);
/* Syncs the file, gives it the name, and syncs the folder. *taken: the name exists; try another. */
qv_status qv_cache_file_publish(struct qv_cache_file *file, const char *name, bool *taken,
                                qv_error *err);
/* Returns a path that opens the unnamed file, which the caller free()s; NULL if out of memory. */
char *qv_cache_file_path(const struct qv_cache_file *file);
/* Closes the file, which is discarded if it has no name yet. */
void qv_cache_file_close(struct qv_cache_file *file);
