/* SPDX-License-Identifier: MIT */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "files/sync_file.h"
#include "path.h"

/* Temporary names are PREFIX host-process-DRAWNnumber, where DRAWN has 8 hexadecimal digits. */
#define PREFIX ".qwenvit-tmp-"

/* ---- the folder ------------------------------------------------------------------------------ */

static void
name_host(char host[64])
{
    if (gethostname(host, 63) || !*host)
        strcpy(host, "host");
    host[63] = 0;
    for (char *p = host; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", *p))
            *p = '.';
    host[48] = 0;
}

/* Draws a random number. Two runs that draw the same number merely try another name. */
static uint32_t
draw(void)
{
    uint32_t drawn = 0;
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (fd < 0 || read(fd, &drawn, sizeof drawn) != sizeof drawn)
        drawn = (uint32_t)now.tv_nsec * 2654435761u ^ (uint32_t)getpid();
    if (fd >= 0)
        close(fd);
    return drawn;
}

/* Returns a number that distinguishes this process's temporary files from the files of a dead
 * process with the same process number. */
static uint32_t
draw_of_process(void)
{
    static _Atomic uint32_t drawn;
    uint32_t none = 0;
    atomic_compare_exchange_strong(&drawn, &none, draw() | 1);
    return drawn;
}

qv_status
qv_cache_folder_open(const char *path, struct qv_cache_folder *out, qv_error *err)
{
    struct qv_cache_folder f = { .fd = -1 };
    if (mkdir(path, 0777) && errno != EEXIST)
        return qv_fail_errno(path, "cannot create the folder", errno, err);
    f.path = strdup(path);
    if (!f.path)
        return qv_no_memory(path, err);
    f.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.fd < 0) {
        const qv_status s = qv_fail_errno(path, "cannot open the folder", errno, err);
        free(f.path);
        return s;
    }
    name_host(f.host);
    f.run = draw();
    *out = f;
    return QV_OK;
}

/* A process that may not read the parent folder cannot sync it, and continues without. */
qv_status
qv_cache_folder_sync(const struct qv_cache_folder *f, qv_error *err)
{
    const int above = openat(f->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int e = above < 0 ? errno : qv_sync_folder(above);
    if (above >= 0)
        close(above);
    else if (e == EACCES)
        e = 0;
    return e ? qv_fail_errno(f->path, "cannot sync its parent folder", e, err) : QV_OK;
}

void
qv_cache_folder_close(struct qv_cache_folder *f)
{
    if (!f->path)
        return;
    close(f->fd);
    free(f->path);
    *f = (struct qv_cache_folder){ .fd = -1 };
}

enum owner { OTHERS, OURS, NOBODY };

/* Finds a file's owner by the host and process in its name; a dead process's file has no owner. */
static enum owner
find_owner(const struct qv_cache_folder *f, const char *name)
{
    const size_t n = strlen(f->host);
    if (strncmp(name, PREFIX, strlen(PREFIX)))
        return OTHERS;
    name += strlen(PREFIX);
    if (strncmp(name, f->host, n) || name[n] != '-')
        return OTHERS;
    char *end = NULL, ours[16];
    const long pid = strtol(name + n + 1, &end, 10);
    snprintf(ours, sizeof ours, "-%08x", (unsigned)draw_of_process());
    if (pid <= 0 || *end != '-')
        return OTHERS;
    if (pid == (long)getpid())
        return strncmp(end, ours, strlen(ours)) ? NOBODY : OURS;
    return kill((pid_t)pid, 0) && errno == ESRCH ? NOBODY : OTHERS;
}

/* Returns whether the file has not been written to for so long that its process must have ended.
 * The file's times may come from another machine's clock. */
static bool
is_old(int fd)
{
    enum { OLD_S = 3600 };
    struct stat st;
    return !fstat(fd, &st) && time(NULL) - st.st_mtime > OLD_S;
}

/* Removes a file that is not locked. The lock protects a process that has a different number here,
 * or is invisible from here (containers). Without locks only dead processes' files are removed,
 * since another writer in this process may be using its own, and only old ones, since a process in
 * another container may merely look dead. */
static void
remove_left_over(const struct qv_cache_folder *f, const char *name, enum owner owner)
{
    const int fd = openat(f->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!flock(fd, LOCK_EX | LOCK_NB) || (errno != EWOULDBLOCK && owner == NOBODY && is_old(fd)))
        unlinkat(f->fd, name, 0);
    close(fd);
}

void
qv_cache_folder_sweep(const struct qv_cache_folder *f)
{
    const int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const enum owner owner = find_owner(f, e->d_name);
        if (owner != OTHERS)
            remove_left_over(f, e->d_name, owner);
    }
    closedir(dir);
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* Creates a file and locks it, if the file system has locks. Until it is locked it looks abandoned,
 * and another sweep may lock and remove it: this then fails with EEXIST, as if the name had been
 * taken. */
static int
make_locked(int folder, const char *name)
{
    struct stat st;
    const int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return -1;
    const bool is_swept = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!is_swept && !fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW))
        return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

static int
open_named(struct qv_cache_file *f)
{
    static _Atomic unsigned count;
    for (int try = 0; try < 100; try++) {
        snprintf(f->temporary, sizeof f->temporary, PREFIX "%s-%ld-%08x%u", f->folder->host,
                 (long)getpid(), (unsigned)draw_of_process(), (unsigned)count++);
        const int fd = make_locked(f->folder->fd, f->temporary);
        if (fd >= 0)
            return fd;
        if (errno != EEXIST)
            break;
    }
    *f->temporary = 0;
    return -1;
}

qv_status
qv_cache_file_open(const struct qv_cache_folder *folder, struct qv_cache_file *out, qv_error *err)
{
    struct qv_cache_file f = { .folder = folder, .fd = -1 };
#ifdef O_TMPFILE
    if (!access("/proc/self/fd", X_OK)) /* the file gets its name through /proc/self/fd */
        f.fd = openat(folder->fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
#endif
    if (f.fd < 0)
        f.fd = open_named(&f);
    if (f.fd < 0)
        return qv_fail_errno(folder->path, "cannot create a file in it", errno, err);
    *out = f;
    return QV_OK;
}

qv_status
qv_cache_file_write(const struct qv_cache_file *f, uint64_t offset, const void *data,
                    uint64_t bytes, qv_error *err)
{
    const int e = qv_write_all(f->fd, offset, data, bytes, false);
    return e ? qv_fail_errno(f->folder->path, "cannot write a part", e, err) : QV_OK;
}

static int
give_name(const struct qv_cache_file *f, const char *name)
{
    char path[64];
    if (*f->temporary)
        return linkat(f->folder->fd, f->temporary, f->folder->fd, name, 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd);
    return linkat(AT_FDCWD, path, f->folder->fd, name, AT_SYMLINK_FOLLOW);
}

qv_status
qv_cache_file_publish(struct qv_cache_file *f, const char *name, bool *taken, qv_error *err)
{
    *taken = false;
    int e = qv_sync_file(f->fd);
    if (e)
        return qv_fail_errno(f->folder->path, "cannot sync a part", e, err);
    if (give_name(f, name)) {
        *taken = errno == EEXIST;
        return *taken ? QV_OK
                      : qv_fail_errno(f->folder->path, "cannot rename a part to its final name",
                                      errno, err);
    }
    if (*f->temporary)
        unlinkat(f->folder->fd, f->temporary, 0);
    *f->temporary = 0;
    e = qv_sync_folder(f->folder->fd);
    return e ? qv_fail_errno(f->folder->path, "a part was written, but the folder cannot be synced",
                             e, err)
             : QV_OK;
}

char *
qv_cache_file_path(const struct qv_cache_file *f)
{
    char number[16];
    snprintf(number, sizeof number, "%d", f->fd);
    return *f->temporary ? qv_path_join(f->folder->path, f->temporary)
                         : qv_path_join("/proc/self/fd", number);
}

void
qv_cache_file_close(struct qv_cache_file *f)
{
    if (!f->folder)
        return;
    if (*f->temporary)
        unlinkat(f->folder->fd, f->temporary, 0);
    close(f->fd);
    *f = (struct qv_cache_file){ .fd = -1 };
}
