/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* realpath, F_FULLFSYNC */
#define _DARWIN_C_SOURCE

#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "sync_file.h"

#define MAX_WRITE ((uint64_t)1 << 30)

/* Temporary names. Whoever takes one out owns it, so that no handler reads freed memory. A name
 * that finds no place is only not removed by a signal. */
typedef _Atomic(char *) name_slot;
static name_slot names[16];

static name_slot *
put_name(char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&names[i], &none, name))
            return &names[i];
    }
    return NULL;
}

static void
free_name(struct qv_atomic_file *f)
{
    char *mine = f->temporary;
    if (!f->slot || atomic_compare_exchange_strong((name_slot *)f->slot, &mine, NULL))
        free(f->temporary);
    f->temporary = NULL;
    f->slot = NULL;
}

int
qv_atomic_files_remove(void)
{
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *name = atomic_exchange(&names[i], NULL);
        n += name && !unlink(name);
    }
    return n;
}

static qv_status
fail_errno(const struct qv_atomic_file *f, const char *doing, int e, qv_error *err)
{
    return qv_fail(err, QV_EIO, "%s: %s: %s", qv_path_tail(f->path), doing, strerror(e));
}

/* The name is only taken once the file is ours: another process' is not to be removed. */
static qv_status
create_temporary(struct qv_atomic_file *f, qv_error *err)
{
    const size_t size = strlen(f->path) + 48;
    char *name = malloc(size);
    if (!name)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(f->path));
    for (int try = 0; try < 100; try++) {
        snprintf(name, size, "%s.tmp.%ld.%d", f->path, (long)getpid(), try);
        f->fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0) {
            f->temporary = name;
            f->slot = put_name(name);
            return QV_OK;
        }
        if (errno != EEXIST)
            break;
    }
    const int e = errno;
    free(name);
    return fail_errno(f, "cannot create a temporary file beside it", e, err);
}

qv_status
qv_atomic_file_open(const char *path, struct qv_atomic_file *out, qv_error *err)
{
    struct qv_atomic_file f = { .fd = -1 };
    struct stat st;
    const bool there = stat(path, &st) == 0;
    if (!there && errno != ENOENT) /* it may be a link or a device, which a rename would replace */
        return qv_fail(err, QV_EIO, "%s: %s", qv_path_tail(path), strerror(errno));
    f.path = there ? realpath(path, NULL) : strdup(path);
    if (!f.path)
        return qv_fail(err, errno == ENOMEM ? QV_ENOMEM : QV_EIO, "%s: %s", qv_path_tail(path),
                       strerror(errno));
    qv_status s;
    if (!there || S_ISREG(st.st_mode))
        s = create_temporary(&f, err);
    else if (S_ISDIR(st.st_mode))
        s = qv_fail(err, QV_EIO, "%s: is a folder; the name of a file is needed",
                    qv_path_tail(path));
    else
        s = (f.fd = open(f.path, O_WRONLY | O_CLOEXEC)) < 0
                ? fail_errno(&f, "cannot be opened for writing", errno, err)
                : QV_OK;
    if (s)
        qv_atomic_file_abort(&f);
    else
        *out = f;
    return s;
}

qv_status
qv_atomic_file_write(struct qv_atomic_file *f, uint64_t offset, const void *data, uint64_t bytes,
                     qv_error *err)
{
    const char *p = data;
    while (bytes) {
        const size_t want = (size_t)(bytes < MAX_WRITE ? bytes : MAX_WRITE);
        ssize_t put = pwrite(f->fd, p, want, (off_t)offset);
        if (put < 0 && errno == ESPIPE && offset == f->end) /* a pipe takes what comes in order */
            put = write(f->fd, p, want);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return fail_errno(f, "cannot write", put ? errno : ENOSPC, err);
        p += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
        f->end = offset;
    }
    return QV_OK;
}

/* The rename is only kept over a power loss once the folder is on the disk as well. */
static qv_status
sync_folder(const struct qv_atomic_file *f, qv_error *err)
{
    const char *slash = strrchr(f->path, '/');
    char *dir = slash ? strndup(f->path, (size_t)(slash - f->path) + 1) : strdup(".");
    if (!dir)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(f->path));
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return fail_errno(f, "written, but its folder cannot be opened to sync it", errno, err);
    const int e = fsync(fd) ? errno : 0;
    close(fd);
    if (e && e != EINVAL && e != ENOTSUP)
        return fail_errno(f, "written, but its folder cannot be synced", e, err);
    return QV_OK;
}

static qv_status
publish(struct qv_atomic_file *f, qv_error *err)
{
    /* A failed fsync is final: the kernel may have dropped the pages, and a second one succeeds. */
    if (f->temporary && qv_sync_file(f->fd))
        return fail_errno(f, "cannot sync", errno, err);
    const int fd = f->fd;
    f->fd = -1;
    if (close(fd) && errno != EINTR)
        return fail_errno(f, "cannot close", errno, err);
    if (!f->temporary)
        return QV_OK;
    if (rename(f->temporary, f->path))
        return fail_errno(f, "cannot rename the temporary file to it", errno, err);
    free_name(f);
    return sync_folder(f, err);
}

qv_status
qv_atomic_file_commit(struct qv_atomic_file *f, qv_error *err)
{
    const qv_status s = publish(f, err);
    qv_atomic_file_abort(f);
    return s;
}

void
qv_atomic_file_abort(struct qv_atomic_file *f)
{
    if (!f->path)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->temporary)
        unlink(f->temporary);
    free_name(f);
    free(f->path);
    *f = (struct qv_atomic_file){ 0 };
}

void
qv_make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
}

qv_status
qv_atomic_file_put(const char *path, const void *data, uint64_t bytes, qv_error *err)
{
    struct qv_atomic_file f = { 0 };
    qv_status s = qv_atomic_file_open(path, &f, err);
    if (!s)
        s = qv_atomic_file_write(&f, 0, data, bytes, err);
    if (!s)
        s = qv_atomic_file_commit(&f, err);
    qv_atomic_file_abort(&f);
    return s;
}
