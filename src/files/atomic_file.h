/* SPDX-License-Identifier: MIT */
/*
 * A file that appears under its name whole or not at all: written under a temporary name beside it,
 * then fsync, rename, fsync of the folder. What was there stays until then. A device or a pipe is
 * written to as it is. Both libraries have this.
 */
#ifndef QV_FILES_ATOMIC_FILE_H
#define QV_FILES_ATOMIC_FILE_H

#include "qwenvit.h"

struct qv_atomic_file {
    char *path;      /* symbolic links followed: they stay */
    char *temporary; /* NULL: path itself is written to */
    void *slot;      /* among the names for qv_atomic_files_remove */
    int fd;
    uint64_t end; /* of what was written last */
};

qv_status qv_atomic_file_open(const char *path, struct qv_atomic_file *out, qv_error *err);
qv_status qv_atomic_file_write(struct qv_atomic_file *file, uint64_t offset, const void *data,
                               uint64_t bytes, qv_error *err);
/* Frees in any case; if it fails, there is no new file, or (only its folder could not be synced) a
 * whole one that a power loss may undo. */
qv_status qv_atomic_file_commit(struct qv_atomic_file *file, qv_error *err);
/* Removes the temporary file. What is finished or was never opened ({ 0 }) may be aborted. */
void qv_atomic_file_abort(struct qv_atomic_file *file);

/* Makes the folders above a file, and syncs them. Failures are left to whoever opens it. */
void qv_make_folders(char *path);

/* All at once. */
qv_status qv_atomic_file_put(const char *path, const void *data, uint64_t bytes, qv_error *err);

/* For a signal handler of a process that then ends: removes the temporary files there are, of all
 * threads. How many. */
int qv_atomic_files_remove(void);

#endif
