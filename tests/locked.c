/* SPDX-License-Identifier: MIT */
/* Tries what a locked-in process must not be able to do, row by row (locked_rows.inc). */
#define _GNU_SOURCE
#include "locked.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../decoder/decoder.h"
#include "faulty_decoder.h"

static bool is_free; /* the process is not locked in */

struct locked locked = { .socket = -1, .shared = -1 };

static long
refuse(void)
{
    errno = EPERM;
    return -1;
}

/* A call that the filter must refuse, as Landlock (EACCES) does so only in its later versions. */
static long
by_filter(long result)
{
    return result < 0 && errno == EACCES ? 0 : result;
}

/* A call that must look as if the kernel did not have it, so that C libraries make an older one. */
static long
unknown(long result)
{
    return result < 0 && errno != ENOSYS ? 0 : result;
}

/* ---- ways that are more than one call ---------------------------------------------------------- */

static long
openat2_of(const char *path)
{
    const uint64_t how[3] = { O_RDONLY };
    return syscall(SYS_openat2, AT_FDCWD, path, how, sizeof how);
}

static long
open_of_victim(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)locked.victim, name);
    return open(path, O_RDONLY);
}

/* Writes behind the end of the shared memory, which the limit of a file's size refuses. */
static long
grow_shared(void)
{
    if (locked.shared == locked.socket)
        return refuse();
    signal(SIGXFSZ, SIG_IGN);
    if (lseek(locked.shared, 0, SEEK_END) < 0)
        return 0;
    const long n = write(locked.shared, "more", 4);
    return n < 0 && errno == EFBIG ? refuse() : n;
}

static long
end_child(long pid)
{
    if (!pid)
        _exit(0);
    return pid;
}

static long
clone_with(unsigned long flags)
{
    return end_child(syscall(SYS_clone, flags, NULL, NULL, NULL, NULL));
}

static long
has_output(int fd)
{
    struct stat it;
    const bool kept = fd == STDERR_FILENO && QVM_SANITIZED && !is_free;
    if (kept || syscall(SYS_fstat, fd, &it) || it.st_rdev == makedev(1, 3) /* /dev/null */)
        return refuse();
    return 0;
}

static long
read_leaked(void)
{
    char byte;
    return syscall(SYS_read, QV_LEAKED_FD, &byte, 0L) < 0 && errno == EBADF ? refuse() : 0;
}

static long
map(int protection, int flags, size_t bytes)
{
    void *at = mmap(NULL, bytes, protection, flags, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    munmap(at, bytes);
    return 0;
}

/* Moves a page as a stack might be moved, to a larger place. */
static long
mremap_page(void)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *moved = at == MAP_FAILED ? at : mremap(at, 4096, 8192, MREMAP_MAYMOVE);
    const int error = errno;
    if (at != MAP_FAILED)
        munmap(moved == MAP_FAILED ? at : moved, moved == MAP_FAILED ? 4096 : 8192);
    errno = error;
    return moved == MAP_FAILED ? -1 : 0;
}

/* Maps shared memory over private memory. */
static long
map_fixed(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 0; /* which is not what is tried */
    const void *over =
        mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    const int error = errno;
    munmap(at, bytes);
    errno = error;
    return over == MAP_FAILED ? -1 : 0;
}

static long
map_and_protect(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    const int code = mprotect(at, bytes, PROT_READ | PROT_WRITE);
    munmap(at, bytes);
    return code;
}

/* What is more than the limits allow is refused for lack of memory. */
static long
fits(long result)
{
    const bool unlimited = QVM_SANITIZED && !is_free;
    return unlimited || (result < 0 && errno == ENOMEM) ? refuse() : result;
}

static long
access_by(int way)
{
    struct stat info;
    char about[256];
    switch (way) {
    case 0: return stat("victim", &info);
    case 1: return syscall(SYS_statx, AT_FDCWD, "victim", 0, 0, about);
    default: return access("victim", F_OK);
    }
}

/* ---- the rows ---------------------------------------------------------------------------------- */

#define TRY(name, text, expression)                                                                \
    static long try_##name(void)                                                                   \
    {                                                                                              \
        return (long)(expression);                                                                 \
    }
#define FILES(name, text, abi, expression) TRY(name, text, expression)
#include "locked_rows.inc"

enum { LEFT, SHUT };

const struct locked_row locked_rows[] = {
#define CLASS(text, clip, gpu) { text, NULL, clip, gpu, false, 0 },
#define TRY(name, text, expression) { text, try_##name, false, false, false, 0 },
#define TRY_IF(name, text, expression) { text, try_##name, false, false, true, 0 },
#define FILES(name, text, abi, expression) { text, try_##name, false, false, false, abi },
#include "locked_rows.inc"
};

const int locked_n_rows = sizeof locked_rows / sizeof *locked_rows;

int
locked_landlock(void)
{
    const long abi = syscall(444 /* landlock_create_ruleset */, NULL, 0L, 1 /* VERSION */);
    return abi > 0 ? (int)abi : 0;
}

static bool
is_shut(const struct locked_row *row)
{
    errno = 0;
    return row->way() < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS);
}

/* Returns whether a row is tried in a process of this kind. `class` is the row's. */
static bool
is_for(enum locked_kind kind, const struct locked_row *class, const struct locked_row *row)
{
    switch (kind) {
    case LOCKED_CLIP: return !row->abi && class->shut_in_clip;
    case LOCKED_GPU: return !row->abi && class->shut_in_gpu;
    case LOCKED_FILES_ONLY: return row->abi && row->abi <= locked_landlock();
    case LOCKED_FREE: return !row->abi;
    }
    return false;
}

int
locked_try(enum locked_kind kind, char *text, size_t size)
{
    const struct locked_row *class = NULL;
    int n = 0;
    size_t at = 0;
    is_free = kind == LOCKED_FREE;
    *text = 0;
    for (const struct locked_row *row = locked_rows; row < locked_rows + locked_n_rows; row++) {
        if (!row->way)
            class = row;
        if (!row->way || !is_for(kind, class, row))
            continue;
        n++;
        const bool shut = is_shut(row), wrong = kind == LOCKED_FREE ? shut : !shut;
        if (kind == LOCKED_FREE && shut && row->depends)
            printf("no process may do this here, so nothing is shown by it: %s\n", row->text);
        else if (wrong && at < size)
            at += (size_t)snprintf(text + at, size - at, " %s;", row->text);
    }
    return n;
}
