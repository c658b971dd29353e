/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fallocate */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "json.h"
#include "safetensors.h"

#define MAX_WRITE ((uint64_t)1 << 30)

struct slot {
    uint64_t offset, bytes; /* in the file */
    uint64_t put;           /* bytes so far */
};

struct qv_safetensors_writer {
    char *path;
    char *temporary; /* NULL while there is no such file */
    int fd;
    struct slot *slots;
    size_t n;
};

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {
    { "F32", 4 }, { "BF16", 2 }, { "F16", 2 }, { "F64", 8 },
    { "U8", 1 },  { "I32", 4 },  { "I64", 8 },
};

static qv_status
fail_errno(const struct qv_safetensors_writer *w, const char *doing, int e, qv_error *err)
{
    return qv_fail(err, QV_EIO, "%s: %s: %s", qv_path_tail(w->path), doing, strerror(e));
}

static qv_status
fail_memory(const struct qv_safetensors_writer *w, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(w->path));
}

static qv_status
fail_tensor(const struct qv_safetensors_writer *w, const struct qv_safetensor *t, const char *what,
            qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    return qv_fail(err, QV_EINVAL, "%s: tensor %s: %s", qv_path_tail(w->path),
                   qv_json_quote(t->name, quoted), what);
}

static qv_status
tensor_bytes(const struct qv_safetensors_writer *w, const struct qv_safetensor *t, uint64_t *bytes,
             qv_error *err)
{
    const size_t n_dtypes = sizeof dtypes / sizeof *dtypes;
    size_t d = 0;
    while (d < n_dtypes && strcmp(dtypes[d].name, t->dtype_name))
        d++;
    if (d == n_dtypes)
        return fail_tensor(w, t, "dtype must be F32, BF16, F16, F64, U8, I32 or I64", err);
    if (t->n_dims < 0 || t->n_dims > QV_SAFETENSORS_MAX_DIMS)
        return fail_tensor(w, t, "must have 0 to 8 dimensions", err);

    int64_t size = dtypes[d].bytes; /* signed: offsets in files are */
    for (int i = 0; i < t->n_dims; i++) {
        if (t->shape[i] < 0)
            return fail_tensor(w, t, "a size in its shape is negative", err);
        if (__builtin_mul_overflow(size, t->shape[i], &size))
            return fail_tensor(w, t, "its size in bytes overflows 64 bits", err);
    }
    *bytes = (uint64_t)size;
    return QV_OK;
}

static json_t *
make_entry(const struct qv_safetensor *t, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++) {
        if (json_array_append_new(shape, json_integer(t->shape[i]))) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype_name, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

static qv_status
add_metadata(struct qv_safetensors_writer *w, json_t *header, const char *const (*metadata)[2],
             size_t n, qv_error *err)
{
    if (!n)
        return QV_OK;
    json_t *object = json_object();
    if (json_object_set_new(header, "__metadata__", object))
        return fail_memory(w, err);
    for (size_t i = 0; i < n; i++) {
        const char *key = metadata[i][0];
        if (json_object_get(object, key))
            return qv_fail(err, QV_EINVAL, "%s: metadata has \"%.80s\" twice",
                           qv_path_tail(w->path), key);
        json_t *value = json_string(metadata[i][1]);
        if (!value || json_object_set_new(object, key, value))
            return qv_fail(err, QV_EINVAL, "%s: metadata \"%.80s\" is not UTF-8, or out of memory",
                           qv_path_tail(w->path), key);
    }
    return QV_OK;
}

/* Adds the tensors' entries, and their slots with offsets from the data's begin. */
static qv_status
add_tensors(struct qv_safetensors_writer *w, json_t *header, const struct qv_safetensor *tensors,
            qv_error *err)
{
    int64_t end = 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct qv_safetensor *t = &tensors[i];
        struct slot *slot = &w->slots[i];
        const qv_status s = tensor_bytes(w, t, &slot->bytes, err);
        if (s)
            return s;
        slot->offset = (uint64_t)end;
        if (__builtin_add_overflow(end, (int64_t)slot->bytes, &end))
            return fail_tensor(w, t, "the file's size overflows 64 bits", err);
        if (!strcmp(t->name, "__metadata__") || json_object_get(header, t->name))
            return fail_tensor(w, t, "this name is there already", err);
        json_t *entry = make_entry(t, slot->offset, (uint64_t)end);
        if (!entry || json_object_set_new(header, t->name, entry))
            return fail_tensor(w, t, "its name is not UTF-8, or out of memory", err);
    }
    return QV_OK;
}

/* Length and header, padded with spaces so that data begin at a multiple of 8. *bytes is all. */
static qv_status
make_header(struct qv_safetensors_writer *w, const struct qv_safetensor *tensors,
            const char *const (*metadata)[2], size_t n_metadata, char **text, size_t *bytes,
            qv_error *err)
{
    json_t *header = json_object();
    if (!header)
        return fail_memory(w, err);
    qv_status s = add_metadata(w, header, metadata, n_metadata, err);
    if (!s)
        s = add_tensors(w, header, tensors, err);
    if (s) {
        json_decref(header);
        return s;
    }

    const size_t n = json_dumpb(header, NULL, 0, JSON_COMPACT);
    const size_t padded = (n + 7) / 8 * 8;
    char *t = n ? malloc(8 + padded) : NULL;
    if (!t) {
        s = fail_memory(w, err);
    } else if (padded > QV_SAFETENSORS_MAX_HEADER) {
        s = qv_fail(err, QV_EINVAL, "%s: the header needs %zu bytes; at most %u can be read again",
                    qv_path_tail(w->path), padded, QV_SAFETENSORS_MAX_HEADER);
    } else if (json_dumpb(header, t + 8, n, JSON_COMPACT) != n) {
        s = fail_memory(w, err);
    } else {
        for (int i = 0; i < 8; i++)
            t[i] = (char)(padded >> 8 * i & 0xff);
        memset(t + 8 + n, ' ', padded - n);
        *text = t;
        *bytes = 8 + padded;
        t = NULL;
    }
    free(t);
    json_decref(header);
    return s;
}

static qv_status
create_temporary(struct qv_safetensors_writer *w, qv_error *err)
{
    struct stat st;
    if (stat(w->path, &st) == 0 && S_ISDIR(st.st_mode))
        return qv_fail(err, QV_EIO, "%s: is a folder; the name of a file is needed",
                       qv_path_tail(w->path));

    const size_t size = strlen(w->path) + 48;
    char *name = malloc(size);
    if (!name)
        return fail_memory(w, err);
    for (int try = 0; try < 100; try++) {
        snprintf(name, size, "%s.tmp.%ld.%d", w->path, (long)getpid(), try);
        w->fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) {
            w->temporary = name;
            return QV_OK;
        }
        if (errno != EEXIST)
            break;
    }
    const int e = errno;
    free(name);
    return fail_errno(w, "cannot create a temporary file beside it", e, err);
}

/* Takes the space now: a full disk is better known before the work than after. */
static qv_status
reserve(struct qv_safetensors_writer *w, uint64_t size, qv_error *err)
{
#ifdef __linux__
    int r;
    do
        r = fallocate(w->fd, 0, 0, (off_t)size);
    while (r && errno == EINTR);
    if (r && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)
        return fail_errno(w, "cannot reserve space for it", errno, err);
#endif
    if (ftruncate(w->fd, (off_t)size))
        return fail_errno(w, "cannot set its size", errno, err);
    return QV_OK;
}

static qv_status
write_all(struct qv_safetensors_writer *w, uint64_t offset, const void *data, uint64_t bytes,
          qv_error *err)
{
    const char *p = data;
    while (bytes) {
        const size_t want = (size_t)(bytes < MAX_WRITE ? bytes : MAX_WRITE);
        const ssize_t put = pwrite(w->fd, p, want, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return fail_errno(w, "cannot write", put ? errno : ENOSPC, err);
        p += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return QV_OK;
}

static qv_status
start_file(struct qv_safetensors_writer *w, const char *header, size_t header_bytes, qv_error *err)
{
    uint64_t size = header_bytes;
    for (size_t i = 0; i < w->n; i++) {
        w->slots[i].offset += header_bytes;
        size += w->slots[i].bytes;
    }
    if (size > INT64_MAX)
        return fail_errno(w, "cannot set its size", EFBIG, err);
    qv_status s = create_temporary(w, err);
    if (!s)
        s = reserve(w, size, err);
    if (!s)
        s = write_all(w, 0, header, header_bytes, err);
    return s;
}

qv_status
qv_safetensors_writer_open(const char *path, const struct qv_safetensor *tensors, size_t n,
                           const char *const (*metadata)[2], size_t n_metadata,
                           struct qv_safetensors_writer **out, qv_error *err)
{
    struct qv_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(path));
    w->fd = -1;
    w->n = n;
    w->path = strdup(path);
    w->slots = calloc(n + 1, sizeof *w->slots);
    if (!w->path || !w->slots) {
        qv_safetensors_writer_abort(&w);
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(path));
    }

    char *header = NULL;
    size_t header_bytes = 0;
    qv_status s = make_header(w, tensors, metadata, n_metadata, &header, &header_bytes, err);
    if (!s)
        s = start_file(w, header, header_bytes, err);
    free(header);
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
    if (i >= w->n)
        return qv_fail(err, QV_EINVAL, "%s: there is no tensor %zu; there are %zu",
                       qv_path_tail(w->path), i, w->n);
    struct slot *slot = &w->slots[i];
    if (begin > slot->bytes || bytes > slot->bytes - begin)
        return qv_fail(err, QV_EINVAL,
                       "%s: tensor %zu has %llu bytes; %llu from byte %llu on cannot be put",
                       qv_path_tail(w->path), i, (unsigned long long)slot->bytes,
                       (unsigned long long)bytes, (unsigned long long)begin);
    const qv_status s = write_all(w, slot->offset + begin, data, bytes, err);
    if (!s)
        slot->put += bytes;
    return s;
}

/* The rename is only kept over a power loss once the folder is on the disk as well. */
static qv_status
sync_folder(const struct qv_safetensors_writer *w, qv_error *err)
{
    const char *slash = strrchr(w->path, '/');
    char *dir = slash ? strndup(w->path, (size_t)(slash - w->path) + 1) : strdup(".");
    if (!dir)
        return fail_memory(w, err);
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return fail_errno(w, "written, but its folder cannot be opened to sync it", errno, err);
    const int e = fsync(fd) ? errno : 0;
    close(fd);
    if (e && e != EINVAL && e != ENOTSUP)
        return fail_errno(w, "written, but its folder cannot be synced", e, err);
    return QV_OK;
}

static int
sync_file(int fd)
{
#ifdef F_FULLFSYNC /* macOS: fsync does not reach through the drive's cache */
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
#endif
    return fsync(fd);
}

static qv_status
publish(struct qv_safetensors_writer *w, qv_error *err)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->slots[i].put != w->slots[i].bytes)
            return qv_fail(err, QV_ESTATE, "%s: tensor %zu got %llu of its %llu bytes",
                           qv_path_tail(w->path), i, (unsigned long long)w->slots[i].put,
                           (unsigned long long)w->slots[i].bytes);
    /* A failed fsync is final: the kernel may have dropped the pages, and a second one succeeds. */
    if (sync_file(w->fd))
        return fail_errno(w, "cannot sync", errno, err);
    const int fd = w->fd;
    w->fd = -1;
    if (close(fd) && errno != EINTR)
        return fail_errno(w, "cannot close", errno, err);
    if (rename(w->temporary, w->path))
        return fail_errno(w, "cannot rename the temporary file to it", errno, err);
    free(w->temporary);
    w->temporary = NULL;
    return sync_folder(w, err);
}

qv_status
qv_safetensors_writer_finish(struct qv_safetensors_writer **w, qv_error *err)
{
    const qv_status s = publish(*w, err);
    qv_safetensors_writer_abort(w);
    return s;
}

void
qv_safetensors_writer_abort(struct qv_safetensors_writer **writer)
{
    struct qv_safetensors_writer *w = writer ? *writer : NULL;
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->temporary)
        unlink(w->temporary);
    free(w->temporary);
    free(w->slots);
    free(w->path);
    free(w);
    *writer = NULL;
}
