/* SPDX-License-Identifier: MIT */
/*
 * A file that appears under its name whole or not at all. It is written under a temporary name next
 * to the final one, synced, renamed, and the folder synced. The old file stays until the rename. A
 * device or a pipe is written to directly.
 */
#pragma once

#include "qwenvit.h"

struct qv_atomic_file {
    char *path;      /* the final path, with symbolic links followed so that they stay */
    char *temporary; /* NULL: `path` is written to directly */
    void *slot;      /* where its temporary name is registered for qv_atomic_files_remove */
    int fd;
    uint64_t end; /* the offset after the last write */
};

qv_status qv_atomic_file_open(const char *path, struct qv_atomic_file *out, qv_error *err);
qv_status qv_atomic_file_write(struct qv_atomic_file *file, uint64_t offset, const void *data,
                               uint64_t bytes, qv_error *err);
/* Syncs and closes the file, so that a commit only renames: for files that must appear together. */
qv_status qv_atomic_file_seal(struct qv_atomic_file *file, qv_error *err);
/* Always frees. After a failure no new file exists, unless only syncing its folder failed: then the
 * file is whole, but a power loss may undo it. */
qv_status qv_atomic_file_commit(struct qv_atomic_file *file, qv_error *err);
/* Removes the temporary file. Aborting a file that is committed or was never opened ({ 0 }) has no
 * effect. */
void qv_atomic_file_abort(struct qv_atomic_file *file);

/* Makes a file's parent folders and syncs them. It does not report failures, since opening the file
 * will. */
void qv_make_folders(char *path);

/* Opens, writes and commits a file in one call. */
qv_status qv_atomic_file_put(const char *path, const void *data, uint64_t bytes, qv_error *err);

/* For a signal handler, after which the process exits: removes the temporary files of all threads,
 * and returns their number. */
int qv_atomic_files_remove(void);
