/* SPDX-License-Identifier: MIT */
/* What makes a file outlive a loss of power, on every system: for files that appear whole. */
#ifndef QV_FILES_SYNC_FILE_H
#define QV_FILES_SYNC_FILE_H

#include <fcntl.h>
#include <unistd.h>

/* 0, or -1 with errno. */
static inline int
qv_sync_file(int fd)
{
#ifdef F_FULLFSYNC /* macOS: fsync does not reach through the drive's cache */
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
#endif
    return fsync(fd);
}

#endif
