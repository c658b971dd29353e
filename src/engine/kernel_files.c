/* SPDX-License-Identifier: MIT */
/* Files in which kernels that are slow to make are kept. */
#include "context.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "files/atomic_file.h"
#include "files/json.h"
#include "path.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST_BYTES = 16 << 20, NAME_BYTES = 32, HEAD_BYTES = 1024 };

qv_status
qv_kernel_files_open(struct qv_kernel_files *files, const char *folder, const char *backend,
                     const struct qv_caps *caps, qv_error *err)
{
    *files = (struct qv_kernel_files){ .lock = PTHREAD_MUTEX_INITIALIZER };
    snprintf(files->device, sizeof files->device, "%s: %s, qwenvit %s", backend, caps->device,
             QV_VERSION);
    files->folder = folder ? strdup(folder) : NULL;
    if (folder && !files->folder)
        return qv_fail(err, QV_ENOMEM, "no memory for a path");
    return QV_OK;
}

void
qv_kernel_files_close(struct qv_kernel_files *files)
{
    free(files->folder);
    pthread_mutex_destroy(&files->lock);
    *files = (struct qv_kernel_files){ 0 };
}

void
qv_kernel_files_warning(const struct qv_kernel_files *files, char *out, size_t size)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&files->lock; /* nothing but the lock changes */
    pthread_mutex_lock(lock);
    snprintf(out, size, "%s", files->warning);
    pthread_mutex_unlock(lock);
}

__attribute__((format(printf, 2, 3))) static void
warn(struct qv_kernel_files *files, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&files->lock);
    vsnprintf(files->warning, sizeof files->warning, format, args);
    pthread_mutex_unlock(&files->lock);
    va_end(args);
}

/* Writes the four header lines of a file. Returns their length, or -1 if they do not fit. */
static int
write_head(const struct qv_kernel_files *files, const char *key, const void *data, size_t bytes,
           char head[HEAD_BYTES])
{
    const int n = snprintf(head, HEAD_BYTES, "qwenvit kernel 1\n%s\n%s\n%016" PRIx64 " %zu\n",
                           files->device, key, (uint64_t)XXH3_64bits(data, bytes), bytes);
    return n < HEAD_BYTES ? n : -1;
}

/* Returns FOLDER/HASH.kernel, which the caller must free(); NULL if out of memory. */
static char *
path_of(const struct qv_kernel_files *files, const char *key)
{
    char name[NAME_BYTES];
    const uint64_t device = XXH3_64bits(files->device, strlen(files->device));
    snprintf(name, sizeof name, "%016" PRIx64 ".kernel",
             (uint64_t)XXH3_64bits_withSeed(key, strlen(key), device));
    return qv_path_join(files->folder, name);
}

/* Reads the whole file, and appends a NUL. */
static qv_status
read_all(const char *path, char **out, size_t *n, qv_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    qv_status s = qv_file_open(path, &fd, &size, err);
    if (s)
        return s;
    char *text = size <= MOST_BYTES ? malloc((size_t)size + 1) : NULL;
    if (!text)
        s = qv_fail(err, QV_ENOMEM, "%s: no memory for its %" PRIu64 " bytes", path, size);
    if (!s)
        s = qv_file_read(fd, path, 0, text, size, err);
    close(fd);
    if (s) {
        free(text);
        return s;
    }
    text[size] = 0;
    *out = text;
    *n = (size_t)size;
    return QV_OK;
}

/* Returns where a file's bytes begin, after its four header lines, which must be exactly what
 * write_head would write for these bytes. NULL: the file is damaged, or has another key. */
static const char *
bytes_of(const struct qv_kernel_files *files, const char *key, const char *text, size_t n)
{
    char head[HEAD_BYTES];
    const char *at = text;
    for (int line = 0; line < 4 && at; line++) {
        at = memchr(at, '\n', n - (size_t)(at - text));
        at = at ? at + 1 : NULL;
    }
    if (!at)
        return NULL;
    const int length = write_head(files, key, at, n - (size_t)(at - text), head);
    return length == at - text && !memcmp(head, text, (size_t)length) ? at : NULL;
}

void *
qv_kernel_files_find(void *user, const char *key, size_t *bytes)
{
    void *found = NULL;
    struct qv_kernel_files *files = user;
    qv_error err = { 0 };
    char *text = NULL, *path = files->folder ? path_of(files, key) : NULL;
    size_t n = 0;
    if (!path || !qv_path_exists(path)) {
        free(path);
        return NULL;
    }
    if (read_all(path, &text, &n, &err)) {
        warn(files, "%.250s", err.text);
    } else {
        const char *from = bytes_of(files, key, text, n);
        if (from) {
            *bytes = n - (size_t)(from - text);
            found = memmove(text, from, *bytes);
            text = NULL;
        } else {
            warn(files, "%.150s: damaged, or not a kernel of this version: ignored", path);
        }
    }
    free(text);
    free(path);
    return found;
}

void
qv_kernel_files_keep(void *user, const char *key, const void *data, size_t bytes)
{
    struct qv_kernel_files *files = user;
    char head[HEAD_BYTES];
    const int n = files->folder ? write_head(files, key, data, bytes, head) : -1;
    if (n < 0 || bytes > MOST_BYTES - HEAD_BYTES)
        return;
    char *path = path_of(files, key), *all = malloc((size_t)n + bytes);
    qv_error err = { 0 };
    if (path && all) {
        memcpy(all, head, (size_t)n);
        memcpy(all + n, data, bytes);
        qv_make_folders(path);
        if (qv_atomic_file_put(path, all, (size_t)n + bytes, &err))
            warn(files, "compiled kernels are not cached: %.200s", err.text);
    }
    free(all);
    free(path);
}
