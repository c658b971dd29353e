/* SPDX-License-Identifier: MIT */

#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "path.h"
#include "sync_file.h"

/* The names of temporary files, which a signal handler removes. The thread or handler that takes a
 * name out of its slot owns it, so a handler never reads freed memory. Blocks of slots are added at
 * the front and never freed, so a handler may traverse them at any time. */
typedef _Atomic(char *) name_slot;
struct name_block {
    name_slot names[16];
    struct name_block *next;
};
static struct name_block first_names;
static _Atomic(struct name_block *) all_names = &first_names;

static name_slot *
find_free_slot(struct name_block *block, char *name)
{
    for (size_t i = 0; i < sizeof block->names / sizeof *block->names; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&block->names[i], &none, name))
            return &block->names[i];
    }
    return NULL;
}

/* Returns the slot that now has the name; NULL if out of memory. */
static name_slot *
put_name(char *name)
{
    for (struct name_block *b = atomic_load(&all_names); b; b = b->next) {
        name_slot *slot = find_free_slot(b, name);
        if (slot)
            return slot;
    }
    struct name_block *more = calloc(1, sizeof *more);
    if (!more)
        return NULL;
    more->names[0] = name;
    more->next = atomic_load(&all_names);
    while (!atomic_compare_exchange_weak(&all_names, &more->next, more))
        ;
    return &more->names[0];
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
    for (struct name_block *b = atomic_load(&all_names); b; b = b->next)
        for (size_t i = 0; i < sizeof b->names / sizeof *b->names; i++) {
            const char *name = atomic_exchange(&b->names[i], NULL);
            n += name && !unlink(name);
        }
    return n;
}

/* Creates the temporary file. Its name is registered for removal only once the file is ours,
 * because another process's file must not be removed. */
static qv_status
create_temporary(struct qv_atomic_file *f, qv_error *err)
{
    const size_t size = strlen(f->path) + 48;
    char *name = malloc(size);
    if (!name)
        return qv_no_memory(f->path, err);
    for (int try = 0; try < 100; try++) {
        snprintf(name, size, "%s.tmp.%ld.%d", f->path, (long)getpid(), try);
        f->fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0) {
            f->temporary = name;
            f->slot = put_name(name);
            return f->slot ? QV_OK : qv_no_memory(f->path, err);
        }
        if (errno != EEXIST)
            break;
    }
    const int e = errno;
    free(name);
    return qv_fail_errno(f->path, "cannot create a temporary file in its folder", e, err);
}

qv_status
qv_atomic_file_open(const char *path, struct qv_atomic_file *out, qv_error *err)
{
    struct qv_atomic_file f = { .fd = -1 };
    struct stat st;
    const bool there = stat(path, &st) == 0;
    /* the path may be a link or a device, which a rename would replace */
    if (!there && errno != ENOENT)
        return qv_fail(err, QV_EIO, "%s: %s", path, strerror(errno));
    f.path = there ? realpath(path, NULL) : strdup(path);
    if (!f.path)
        return qv_fail(err, errno == ENOMEM ? QV_ENOMEM : QV_EIO, "%s: %s", path, strerror(errno));
    qv_status s;
    if (!there || S_ISREG(st.st_mode))
        s = create_temporary(&f, err);
    else if (S_ISDIR(st.st_mode))
        s = qv_fail(err, QV_EIO, "%s: is a folder; the name of a file is needed", path);
    else
        s = (f.fd = open(f.path, O_WRONLY | O_CLOEXEC)) < 0
                ? qv_fail_errno(f.path, "cannot be opened for writing", errno, err)
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
    const int e = qv_write_all(f->fd, offset, data, bytes, offset == f->end);
    if (e)
        return qv_fail_errno(f->path, "cannot write", e, err);
    f->end = bytes ? offset + bytes : f->end;
    return QV_OK;
}

/* Opens the folder of a path. Returns -1 and sets errno on failure. */
static int
open_folder_of(const char *path)
{
    char *dir = qv_path_folder(path);
    if (!dir) {
        errno = ENOMEM;
        return -1;
    }
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), e = errno;
    free(dir);
    errno = e;
    return fd;
}

/* Syncs an open folder and closes it. Returns 0 or errno. */
static int
sync_and_close(int fd)
{
    const int e = qv_sync_folder(fd);
    close(fd);
    return e;
}

/* Syncs the folder; otherwise a power loss could undo the rename. */
static qv_status
sync_folder(const struct qv_atomic_file *f, qv_error *err)
{
    const int fd = open_folder_of(f->path);
    if (fd < 0 && errno == ENOMEM)
        return qv_no_memory(f->path, err);
    if (fd < 0)
        return qv_fail_errno(f->path, "written, but its folder cannot be opened to sync it", errno,
                             err);
    const int e = sync_and_close(fd);
    return e ? qv_fail_errno(f->path, "written, but its folder cannot be synced", e, err) : QV_OK;
}

qv_status
qv_atomic_file_seal(struct qv_atomic_file *f, qv_error *err)
{
    const int e = f->temporary ? qv_sync_file(f->fd) : 0;
    if (e)
        return qv_fail_errno(f->path, "cannot sync", e, err);
    const int fd = f->fd;
    f->fd = -1;
    if (close(fd) && errno != EINTR)
        return qv_fail_errno(f->path, "cannot close", errno, err);
    return QV_OK;
}

static qv_status
publish(struct qv_atomic_file *f, qv_error *err)
{
    const qv_status s = f->fd >= 0 ? qv_atomic_file_seal(f, err) : QV_OK;
    if (s || !f->temporary)
        return s;
    if (rename(f->temporary, f->path))
        return qv_fail_errno(f->path, "cannot rename the temporary file to it", errno, err);
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

/* Makes a folder, and removes it again if syncing the parent folder fails: a power loss would
 * remove it with everything in it. A parent folder that cannot be read cannot be synced; the new
 * folder is then kept unsynced. */
static void
make_folder(const char *path)
{
    if (mkdir(path, 0777))
        return;
    const int above = open_folder_of(path);
    if (above >= 0 && sync_and_close(above))
        rmdir(path);
}

void
qv_make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        make_folder(path);
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
