/* SPDX-License-Identifier: MIT */
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cache.h"
#include "error.h"

/* Opens qwenvit-cache.json for locking: for writing if possible, because NFS requires it for an
 * exclusive lock, otherwise for reading, which suffices elsewhere. */
static int
open_description(const struct qv_cache_folder *folder, bool writable)
{
    enum { HOW = O_CLOEXEC | O_NONBLOCK };
    const int fd = openat(folder->fd, QV_CACHE_DESCRIPTION, (writable ? O_RDWR : O_RDONLY) | HOW);
    return fd >= 0 || !writable ? fd : open_description(folder, false);
}

/* Returns 0, or errno. */
static int
take_lock(const struct qv_cache_folder *folder, bool alone, int *lock)
{
    *lock = open_description(folder, alone);
    if (*lock < 0)
        return errno;
    if (!flock(*lock, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB))
        return 0;
    const int e = errno;
    qv_cache_unlock(lock);
    return e;
}

/* Returns whether an errno means that locks are not available. NFS returns EBADF for an exclusive
 * lock on a file that is not open for writing. */
static bool
has_no_locks(int error)
{
    return error == EBADF || error == EINVAL || error == ENOLCK || error == ENOSYS ||
           error == EOPNOTSUPP;
}

qv_status
qv_cache_lock(const struct qv_cache_folder *folder, bool alone, int *lock, qv_error *warning,
              qv_error *err)
{
    const char *path = folder->path;
    const int e = take_lock(folder, alone, lock);
    if (!e)
        return QV_OK;
    if (e == EWOULDBLOCK)
        return qv_fail(err, QV_ESTATE, "%s: %s; run it again once that has ended", path,
                       alone ? "another process is adding to this cache or pruning it"
                             : "this cache is being pruned");
    if (!has_no_locks(e))
        return qv_fail_errno(path, QV_CACHE_DESCRIPTION " cannot be locked", e, err);
    if (alone)
        return qv_fail(
            err, QV_EUNSUPPORTED,
            "%s: files cannot be locked here (%s), so a run that adds to this cache would go "
            "unnoticed; if no run is adding, --no-lock continues without a lock",
            path, strerror(e));
    qv_fail(warning, QV_EUNSUPPORTED,
            "%s: files cannot be locked here (%s), so a process that removes keys would not notice "
            "this one; do not run both at once",
            path, strerror(e));
    return QV_OK;
}

void
qv_cache_unlock(int *lock)
{
    if (*lock >= 0)
        close(*lock);
    *lock = -1;
}
