/* SPDX-License-Identifier: MIT */
/*
 * Keeps in files what a device compiled for an operation, so that the next process need not. A file
 * belongs to a backend, a device with its library versions, and a key that the backend makes. Its
 * name is a hash of these, and it holds
 *     qwenvit kernel 1
 *     DEVICE
 *     KEY
 *     XXH3-64 of the bytes in hexadecimal, and how many bytes
 *     the bytes
 * The folder may be removed at any time.
 */
#ifndef QV_ENGINE_KERNEL_FILES_H
#define QV_ENGINE_KERNEL_FILES_H

#include <pthread.h>

#include "backend.h"

struct qv_kernel_files {
    char *folder;     /* NULL: nothing is kept, nothing found */
    char device[256]; /* "cuda: NVIDIA H200, sm_90, ..., qwenvit 0.2.0" */
    /* A device may look for kernels, and keep them, in threads beside its owner's. */
    pthread_mutex_t lock;
    char warning[256]; /* guarded by the lock */
};

/* Reads and makes nothing yet. Returns QV_ENOMEM only. */
qv_status qv_kernel_files_open(struct qv_kernel_files *files, const char *folder,
                               const char *backend, const struct qv_caps *caps, qv_error *err);
void qv_kernel_files_close(struct qv_kernel_files *files);

/* Writes a warning about the last file that was damaged or could not be written; "" if there was
 * none. */
void qv_kernel_files_warning(const struct qv_kernel_files *files, char *out, size_t size);

/* The callbacks of a qv_plan_cache over these files. A file that is damaged or another's leaves a
 * warning and is not found; keeping the same key again replaces it. Any thread may call them. */
void *qv_kernel_files_find(void *files, const char *key, size_t *bytes);
void qv_kernel_files_keep(void *files, const char *key, const void *data, size_t bytes);

#endif
