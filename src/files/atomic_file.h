/* SPDX-License-Identifier: MIT */
/*
 * A file that appears under its name whole or not at all. It is written under a temporary name next
 * to the final one; then come fsync, rename, and fsync of the folder. The old file stays until
 * then. A device or a pipe is written to directly.
 */
#pragma once

#include "qwenvit.h"

struct qv_atomic_file {
    char *path;      /* the final path, with symbolic links followed so that they stay */
    char *temporary; /* NULL: `path` is written to directly */
    void *slot;      /* where its temporary name stands for qv_atomic_files_remove */
    int fd;
    uint64_t end; /* the offset behind the last write */
};

qv_status qv_atomic_file_open(const char *path, struct qv_atomic_file *out, qv_error *err);
qv_status qv_atomic_file_write(struct qv_atomic_file *file, uint64_t offset, const void *data,
                               uint64_t bytes, qv_error *err);
/* Syncs and closes it, after which a commit has only the rename left to do: for files that must
 * appear together. */
qv_status qv_atomic_file_seal(struct qv_atomic_file *file, qv_error *err);
/* Frees in any case. After a failure no new file exists, unless only its folder could not be
 * synced: then the file is whole, but a power loss may undo it. */
qv_status qv_atomic_file_commit(struct qv_atomic_file *file, qv_error *err);
/* Removes the temporary file. A file that is committed, or was never opened ({ 0 }), may be
 * aborted. */
void qv_atomic_file_abort(struct qv_atomic_file *file);

/* Makes the folders above a file and syncs them. It reports no failure, since opening the file
 * will. */
void qv_make_folders(char *path);

/* Opens, writes and commits a file in one call. */
qv_status qv_atomic_file_put(const char *path, const void *data, uint64_t bytes, qv_error *err);

/* For a signal handler, whose process then ends: removes the temporary files of all threads, and
 * returns how many there were. */
int qv_atomic_files_remove(void);
