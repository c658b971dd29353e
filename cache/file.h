/* SPDX-License-Identifier: MIT */
/*
 * A file that appears in a folder under a new name, whole and synced, or not at all; it never
 * replaces one. Until then it has no name (O_TMPFILE), or, where the file system cannot do that, a
 * temporary one with host and process.
 */
#ifndef QV_CACHE_FILE_H
#define QV_CACHE_FILE_H

#include "qwenvit.h"

struct qv_cache_folder {
    char *path; /* for error texts */
    int fd;
    char host[64]; /* letters, digits, '-' and '.' */
    uint32_t run;  /* drawn */
};

/* Makes the folder if it is not there. */
qv_status qv_cache_folder_open(const char *path, struct qv_cache_folder *out, qv_error *err);
void qv_cache_folder_close(struct qv_cache_folder *folder);
/* Whoever made the folder may have ended before it was on the disk: syncs the one above it. */
qv_status qv_cache_folder_sync(const struct qv_cache_folder *folder, qv_error *err);
/* Removes what processes of this host that are dead left there. */
void qv_cache_folder_sweep(const struct qv_cache_folder *folder);

struct qv_cache_file {
    const struct qv_cache_folder *folder;
    int fd;
    char temporary[128]; /* "" with O_TMPFILE */
};

qv_status qv_cache_file_open(const struct qv_cache_folder *folder, struct qv_cache_file *out,
                             qv_error *err);
/* Bytes at an offset; those that are left, if it fails half way, are not tried again. */
qv_status qv_cache_file_write(const struct qv_cache_file *file, uint64_t offset, const void *data,
                              uint64_t bytes, qv_error *err);
/* n pieces of so many bytes each, one behind the other. */
qv_status qv_cache_file_gather(const struct qv_cache_file *file, uint64_t offset,
                               const void *const *pieces, size_t n, size_t bytes, qv_error *err);
/* Syncs it, gives it the name, syncs the folder. *taken: somebody has the name; try another. The file
 * stays open. */
qv_status qv_cache_file_publish(struct qv_cache_file *file, const char *name, bool *taken,
                                qv_error *err);
/* Closes it; what has no name yet is gone. */
void qv_cache_file_close(struct qv_cache_file *file);

#endif
