/* SPDX-License-Identifier: MIT */
/* Writing and syncing such that data survives a power loss on every system, for files that appear
 * whole. Each function returns 0 or errno. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define QV_MAX_WRITE ((uint64_t)1 << 30) /* Linux moves at most 2 GiB in a call */

/* Writes all bytes at an offset. is_next: they directly follow the last written bytes, so that they
 * can go to a pipe, which has no offsets. */
static inline int
qv_write_all(int fd, uint64_t offset, const void *data, uint64_t bytes, bool is_next)
{
    const char *p = (const char *)data;
    while (bytes) {
        const size_t want = (size_t)(bytes < QV_MAX_WRITE ? bytes : QV_MAX_WRITE);
        ssize_t put = pwrite(fd, p, want, (off_t)offset);
        if (put < 0 && errno == ESPIPE && is_next)
            put = write(fd, p, want);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? errno : ENOSPC;
        p += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return 0;
}

/* Syncs a file. A failure is final: the kernel may have dropped the pages, and a second call
 * would succeed without them. */
static inline int
qv_sync_file(int fd)
{
#ifdef F_FULLFSYNC /* on macOS, fsync may leave data in the drive's cache */
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
#endif
    return fsync(fd) ? errno : 0;
}

/* Syncs the names in an open folder. If the file system cannot sync folders, that is not a
 * failure. */
static inline int
qv_sync_folder(int fd)
{
    return !fsync(fd) || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
}
