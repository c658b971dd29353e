/* SPDX-License-Identifier: MIT */
/*
 * What a device compiled for an operation, kept in files for the next process: by backend, device and
 * library versions, and by a key of the backend's. A file is named by a hash of these, and holds
 *
 *   qwenvit kernel 1
 *   DEVICE
 *   KEY
 *   XXH3-64 of the bytes in hexadecimal, and how many
 *   bytes
 *
 * Built without xxhash nothing is kept. The folder may be removed at any time.
 */
#ifndef QV_ENGINE_KERNEL_FILES_H
#define QV_ENGINE_KERNEL_FILES_H

#include <pthread.h>

#include "backend.h"

struct qv_kernel_files {
    char *folder;     /* NULL: nothing is kept, nothing found */
    char device[256]; /* "cuda: NVIDIA H200, sm_90, ..., qwenvit 0.2.0" */
    /* a device may look for kernels, and keep them, in threads beside its owner's */
    pthread_mutex_t lock;
    char warning[256]; /* under the lock */
};

/* Nothing is read or made yet. QV_ENOMEM only. */
qv_status qv_kernel_files_open(struct qv_kernel_files *files, const char *folder,
                               const char *backend, const struct qv_caps *caps, qv_error *err);
void qv_kernel_files_close(struct qv_kernel_files *files);

/* Words on the last file that was not as it should be, or could not be written; "" if there is none. */
void qv_kernel_files_warning(const struct qv_kernel_files *files, char *out, size_t size);

/* The verbs of a qv_plan_cache whose files these are. What is damaged, or another's, leaves a warning and is
 * not found; keeping the like again puts it right. Any
 * thread may call them. */
void *qv_kernel_files_find(void *files, const char *key, size_t *bytes);
void qv_kernel_files_keep(void *files, const char *key, const void *data, size_t bytes);

#endif
