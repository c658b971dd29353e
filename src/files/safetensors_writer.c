/* SPDX-License-Identifier: MIT */
/* Writes safetensors files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "json.h"
#include "atomic_file.h"
#include "safetensors.h"
#include "text.h"

#define AMEND_ROOM 32 /* bytes by which metadata may grow when amended */

struct slot {
    uint64_t offset, bytes; /* offset: in the file */
    uint64_t put;           /* bytes put so far */
};

struct qv_safetensors_writer {
    char *path; /* for error texts */
    struct qv_atomic_file file;
    struct slot *slots;
    size_t n;
    char *(*metadata)[2];
    size_t n_metadata;
    struct qv_text header; /* without its end */
    size_t tensors_at;     /* where in the header the tensors begin */
    size_t header_bytes;   /* including its length in front and the padding after it */
};

static uint64_t
tensor_bytes(const struct qv_safetensor *t)
{
    uint64_t bytes = qv_safetensors_dtype(t->dtype_name)->bits / 8;
    for (int i = 0; i < t->n_dims; i++)
        bytes *= (uint64_t)t->shape[i];
    return bytes;
}

/* Begins a header, with the texts of metadata. */
static void
begin_header(const struct qv_safetensors_writer *w, struct qv_text *t)
{
    qv_header_begin(t, (const char *const(*)[2])w->metadata, w->n_metadata);
}

static qv_status
keep_metadata(struct qv_safetensors_writer *w, const char *const (*metadata)[2], size_t n,
              qv_error *err)
{
    w->metadata = calloc(n + 1, sizeof *w->metadata);
    if (!w->metadata)
        return qv_no_memory(w->path, err);
    for (; w->n_metadata < n; w->n_metadata++) {
        const size_t i = w->n_metadata;
        w->metadata[i][0] = strdup(metadata[i][0]);
        w->metadata[i][1] = strdup(metadata[i][1]);
        if (!w->metadata[i][0] || !w->metadata[i][1]) {
            w->n_metadata++;
            return qv_no_memory(w->path, err);
        }
    }
    return QV_OK;
}

/* Adds a header entry and a slot for each tensor, with offsets relative to the beginning of the
 * data. */
static qv_status
add_tensors(struct qv_safetensors_writer *w, const struct qv_safetensor *tensors, qv_error *err)
{
    uint64_t end = 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct qv_safetensor *t = &tensors[i];
        const uint64_t begin = end;
        w->slots[i] = (struct slot){ .offset = begin, .bytes = tensor_bytes(t) };
        end += w->slots[i].bytes;
        qv_header_tensor(&w->header, NULL, t->name, t->dtype_name, t->n_dims, t->shape, begin, end);
    }
    return w->header.lost ? qv_no_memory(w->path, err) : QV_OK;
}

static qv_status
make_header(struct qv_safetensors_writer *w, const struct qv_safetensor *tensors,
            const char *const (*metadata)[2], size_t n_metadata, qv_error *err)
{
    qv_status s = keep_metadata(w, metadata, n_metadata, err);
    if (s)
        return s;
    begin_header(w, &w->header);
    w->tensors_at = w->header.n;
    s = add_tensors(w, tensors, err);
    if (s)
        return s;
    w->header_bytes = (w->header.n + 1 + (n_metadata ? AMEND_ROOM : 0) + 7) / 8 * 8;
    if (w->header_bytes - 8 > QV_SAFETENSORS_MAX_HEADER)
        return qv_fail(err, QV_EINVAL,
                       "%s: the header needs %zu bytes, but readers accept at most %u", w->path,
                       w->header_bytes - 8, QV_SAFETENSORS_MAX_HEADER);
    return QV_OK;
}

/* Reserves the file's space at the beginning, so that a full disk is detected before the work is
 * done. */
static qv_status
reserve(struct qv_safetensors_writer *w, uint64_t size, qv_error *err)
{
    if (!w->file.temporary) /* a device or a pipe has no size */
        return QV_OK;
#ifdef __linux__
    int r;
    do
        r = fallocate(w->file.fd, 0, 0, (off_t)size);
    while (r && errno == EINTR);
    if (r && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)
        return qv_fail_errno(w->path, "cannot reserve space for it", errno, err);
#endif
    if (ftruncate(w->file.fd, (off_t)size))
        return qv_fail_errno(w->path, "cannot set its size", errno, err);
    return QV_OK;
}

/* Writes the header, padded with spaces so that the data begins at a multiple of 8. Only amended
 * metadata can be too long for it. */
static qv_status
write_header(struct qv_safetensors_writer *w, const char *amended, qv_error *err)
{
    struct qv_text t = { 0 };
    begin_header(w, &t);
    qv_text_add(&t, w->header.at + w->tensors_at, w->header.n - w->tensors_at);
    const qv_status s =
        qv_header_end(&t, w->header_bytes) ? qv_atomic_file_write(&w->file, 0, t.at, t.n, err)
        : t.lost                           ? qv_no_memory(w->path, err)
                 : qv_fail(err, QV_EINVAL, "%s: metadata \"%.80s\" has become too long", w->path,
                           amended);
    free(t.at);
    return s;
}

static qv_status
start_file(struct qv_safetensors_writer *w, qv_error *err)
{
    uint64_t size = w->header_bytes;
    for (size_t i = 0; i < w->n; i++) {
        w->slots[i].offset += w->header_bytes;
        size += w->slots[i].bytes;
    }
    qv_status s = qv_atomic_file_open(w->path, &w->file, err);
    if (!s)
        s = reserve(w, size, err);
    if (!s)
        s = write_header(w, "", err);
    return s;
}

qv_status
qv_safetensors_writer_open(const char *path, const struct qv_safetensor *tensors, size_t n,
                           const char *const (*metadata)[2], size_t n_metadata,
                           struct qv_safetensors_writer **out, qv_error *err)
{
    struct qv_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return qv_no_memory(path, err);
    w->n = n;
    w->path = strdup(path);
    w->slots = calloc(n + 1, sizeof *w->slots);
    if (!w->path || !w->slots) {
        qv_safetensors_writer_abort(&w);
        return qv_no_memory(path, err);
    }

    qv_status s = make_header(w, tensors, metadata, n_metadata, err);
    if (!s)
        s = start_file(w, err);
    if (s) {
        qv_safetensors_writer_abort(&w);
        return s;
    }
    *out = w;
    return QV_OK;
}

qv_status
qv_safetensors_writer_put(struct qv_safetensors_writer *w, size_t i, uint64_t begin,
                          const void *data, uint64_t bytes, qv_error *err)
{
    struct slot *slot = &w->slots[i];
    const qv_status s = qv_atomic_file_write(&w->file, slot->offset + begin, data, bytes, err);
    if (!s)
        slot->put += bytes;
    return s;
}

qv_status
qv_safetensors_writer_amend(struct qv_safetensors_writer *w, const char *key, const char *text,
                            qv_error *err)
{
    size_t i = 0;
    while (strcmp(w->metadata[i][0], key) != 0)
        i++;
    char *copy = strdup(text);
    if (!copy)
        return qv_no_memory(w->path, err);
    free(w->metadata[i][1]);
    w->metadata[i][1] = copy;
    return write_header(w, key, err);
}

static qv_status
check_complete(const struct qv_safetensors_writer *w, qv_error *err)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->slots[i].put != w->slots[i].bytes)
            return qv_fail(err, QV_ESTATE, "%s: tensor %zu got %llu of its %llu bytes", w->path, i,
                           (unsigned long long)w->slots[i].put,
                           (unsigned long long)w->slots[i].bytes);
    return QV_OK;
}

qv_status
qv_safetensors_writer_seal(struct qv_safetensors_writer **w, struct qv_atomic_file *file,
                           qv_error *err)
{
    qv_status s = check_complete(*w, err);
    if (!s)
        s = qv_atomic_file_seal(&(*w)->file, err);
    if (!s) {
        *file = (*w)->file;
        (*w)->file = (struct qv_atomic_file){ 0 };
    }
    qv_safetensors_writer_abort(w);
    return s;
}

qv_status
qv_safetensors_writer_finish(struct qv_safetensors_writer **w, qv_error *err)
{
    struct qv_atomic_file file;
    const qv_status s = qv_safetensors_writer_seal(w, &file, err);
    return s ? s : qv_atomic_file_commit(&file, err);
}

void
qv_safetensors_writer_abort(struct qv_safetensors_writer **writer)
{
    struct qv_safetensors_writer *w = writer ? *writer : NULL;
    if (!w)
        return;
    qv_atomic_file_abort(&w->file);
    for (size_t i = 0; i < w->n_metadata; i++) {
        free(w->metadata[i][0]);
        free(w->metadata[i][1]);
    }
    free(w->metadata);
    free(w->header.at);
    free(w->slots);
    free(w->path);
    free(w);
    *writer = NULL;
}
