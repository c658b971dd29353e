/* SPDX-License-Identifier: MIT */
/* Tries everything that a locked-in process must not be able to do, row by row
 * (decoder/lock.inc). */
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

static bool is_free; /* the process is not locked down */

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

/* ---- ways that are more than one call -------------------------------------------------------- */

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

/* Writes past the end of the shared memory, which the limit on file sizes forbids. */
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

/* Allocations beyond the limits fail with a lack of memory. */
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

/* ---- the rows -------------------------------------------------------------------------------- */

enum row_number {
#define TRY(name, text) ROW_##name,
#define TRY_FILES(name, text, version) ROW_##name,
#include "../decoder/lock.inc"
};

/* The attempt of one row of lock.inc. It is shut if the expression is below zero with EPERM, EACCES
 * or ENOSYS. Any other result, such as EFAULT, means that the call was let through. In an unlocked
 * process it must be open; with ATTEMPT_IF, some systems refuse it to an unlocked process too. */
#define ATTEMPT_AS(name, depends, expression)                                                      \
    enum { DEPENDS_##name = (depends) + 0 * ROW_##name };                                          \
    static long try_##name(void)                                                                   \
    {                                                                                              \
        return (long)(expression);                                                                 \
    }
#define ATTEMPT(name, expression) ATTEMPT_AS(name, false, expression)
#define ATTEMPT_IF(name, expression) ATTEMPT_AS(name, true, expression)

/* clang-format off */
/* open or make a file */
ATTEMPT(open_read, open("victim", O_RDONLY))
ATTEMPT(open_folder, open(".", O_RDONLY | O_DIRECTORY))
ATTEMPT(open_write, open("victim", O_WRONLY))
ATTEMPT(open_both, open("victim", O_RDWR))
ATTEMPT(open_create, open("escaped", O_RDWR | O_CREAT, 0600))
ATTEMPT(open_create_only, open("/proc/self/comm", O_RDONLY | O_CREAT, 0600))
ATTEMPT_IF(open_unnamed, open(".", O_RDWR | O_TMPFILE, 0600))
ATTEMPT(open_system, open("/proc/self/comm", O_WRONLY))
ATTEMPT(openat2, unknown(openat2_of("/proc/self/status")))
ATTEMPT_IF(open_handle, syscall(SYS_open_by_handle_at, -1, NULL, 0))

/* empty or change a file */
ATTEMPT(open_trunc, by_filter(open("/proc/self/comm", O_RDONLY | O_TRUNC)))
ATTEMPT(open_trunc_both, by_filter(open("/proc/self/comm", O_RDWR | O_TRUNC)))
ATTEMPT(truncate, truncate("/proc/self/comm", 0))
ATTEMPT(ftruncate, ftruncate(locked.shared, 0))
ATTEMPT(fallocate, syscall(SYS_fallocate, locked.shared, 0, 0L, 4096L))
ATTEMPT(grow, grow_shared())
ATTEMPT(pwrite, pwrite(locked.shared, "", 1, 0))
ATTEMPT(sendfile, syscall(SYS_sendfile, locked.shared, locked.shared, NULL, 0L))
ATTEMPT(splice, syscall(SYS_splice, -1, NULL, -1, NULL, 1L, 0))
ATTEMPT(copy_range, syscall(SYS_copy_file_range, -1, NULL, -1, NULL, 1L, 0))
ATTEMPT(rename, rename("victim", "victim"))
ATTEMPT(renameat2, syscall(SYS_renameat2, AT_FDCWD, "victim", AT_FDCWD, "victim", 0))
ATTEMPT(link, link("victim", "escaped"))
ATTEMPT(symlink, symlink("victim", "escaped"))
ATTEMPT(mkdir, mkdir("escaped", 0700))
ATTEMPT(rmdir, rmdir("escaped"))
ATTEMPT(mknod, mkfifo("escaped", 0600))
ATTEMPT(chmod, chmod("victim", 0600))
ATTEMPT(fchmod, fchmod(locked.shared, 0600))
ATTEMPT_IF(fchmodat2, syscall(452, AT_FDCWD, "victim", 0600, 0))
ATTEMPT(chown, chown("victim", (uid_t)-1, (gid_t)-1))
ATTEMPT(utimens, utimensat(AT_FDCWD, "victim", NULL, 0))
ATTEMPT(setxattr, syscall(SYS_setxattr, "victim", NULL, NULL, 0L, 0))
ATTEMPT(flock, flock(locked.shared, LOCK_UN))
ATTEMPT(setlk, fcntl(locked.shared, F_SETLK, NULL))
ATTEMPT(setlease, fcntl(locked.shared, F_SETLEASE, F_UNLCK))
ATTEMPT(notify, fcntl(locked.socket, F_NOTIFY, 0))
ATTEMPT(add_seals, fcntl(locked.socket, F_ADD_SEALS, 0))
ATTEMPT(unlink, unlink("victim"))

/* signal a process, or have the kernel signal it */
ATTEMPT(kill, kill(locked.victim, SIGWINCH))
ATTEMPT(tkill, syscall(SYS_tkill, locked.victim, SIGWINCH))
ATTEMPT(tgkill, syscall(SYS_tgkill, locked.victim, locked.victim, SIGWINCH))
ATTEMPT(sigqueue, syscall(SYS_rt_sigqueueinfo, locked.victim, SIGWINCH, NULL))
ATTEMPT(tgsigqueue, syscall(SYS_rt_tgsigqueueinfo, locked.victim, locked.victim, SIGWINCH, NULL))
ATTEMPT(pidfd_open, syscall(SYS_pidfd_open, locked.victim, 0))
ATTEMPT(pidfd_send, syscall(SYS_pidfd_send_signal, -1, SIGWINCH, NULL, 0))
ATTEMPT(setown, fcntl(locked.socket, F_SETOWN, locked.victim))
ATTEMPT(setown_ex, fcntl(locked.socket, F_SETOWN_EX, NULL))
ATTEMPT(setsig, fcntl(locked.socket, F_SETSIG, SIGWINCH))
ATTEMPT(setfl_async, fcntl(locked.socket, F_SETFL, O_RDWR | O_ASYNC))
ATTEMPT(fioasync, ioctl(locked.socket, FIOASYNC, NULL))
ATTEMPT(fiosetown, ioctl(locked.socket, FIOSETOWN, NULL))
ATTEMPT(siocspgrp, ioctl(locked.socket, SIOCSPGRP, NULL))
ATTEMPT(timer_create, syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, NULL))
ATTEMPT(setpriority, syscall(SYS_setpriority, PRIO_PROCESS, locked.victim, 20))
ATTEMPT(setscheduler, syscall(SYS_sched_setscheduler, locked.victim, SCHED_OTHER, NULL))
ATTEMPT(setaffinity, syscall(SYS_sched_setaffinity, locked.victim, 8L, NULL))
ATTEMPT(ioprio, syscall(SYS_ioprio_set, 1, locked.victim, -1))
ATTEMPT(prlimit, syscall(SYS_prlimit64, locked.victim, RLIMIT_CORE, NULL, NULL))

/* trace another process, or read or write its memory */
ATTEMPT_IF(ptrace, syscall(SYS_ptrace, 0x4206 /* SEIZE */, locked.victim, NULL, NULL))
ATTEMPT(vm_readv, syscall(SYS_process_vm_readv, locked.victim, NULL, 0L, NULL, 0L, 0L))
ATTEMPT(vm_writev, syscall(SYS_process_vm_writev, locked.victim, NULL, 0L, NULL, 0L, 0L))
ATTEMPT(pidfd_getfd, syscall(SYS_pidfd_getfd, -1, 0, 0))
ATTEMPT_IF(process_madvise, syscall(440, -1, NULL, 0L, 0, 0))
ATTEMPT_IF(kcmp, syscall(SYS_kcmp, locked.victim, locked.victim, 0, 0L, 0L))
ATTEMPT_IF(perf, syscall(SYS_perf_event_open, NULL, locked.victim, -1, -1, 0L))
ATTEMPT_IF(move_pages, syscall(SYS_move_pages, locked.victim, 0L, NULL, NULL, NULL, 0))
ATTEMPT(proc_mem, open_of_victim("mem"))
ATTEMPT(proc_environ, open_of_victim("environ"))
ATTEMPT(proc_cmdline, open_of_victim("cmdline"))
ATTEMPT(proc_status, open_of_victim("status"))
ATTEMPT(cpu_clock, syscall(SYS_clock_gettime, (int)(~(unsigned)locked.victim << 3 | 2),
        &(struct timespec){ 0, 0 }))

/* start a process or program */
ATTEMPT(fork, end_child(fork()))
ATTEMPT(clone, clone_with(SIGCHLD))
ATTEMPT(clone_thread, clone_with(CLONE_THREAD | CLONE_NEWNET))
ATTEMPT(clone3, unknown(syscall(SYS_clone3, NULL, 0L)))
ATTEMPT(execve, syscall(SYS_execve, "no such program", NULL, NULL))
ATTEMPT(execveat, syscall(SYS_execveat, AT_FDCWD, "no such program", NULL, NULL, 0))
ATTEMPT(unshare, unshare(0))
ATTEMPT(setns, setns(-1, 0))

/* write to the caller's terminal, or type into it */
ATTEMPT(tiocsti, ioctl(locked.socket, TIOCSTI, "x"))
ATTEMPT(tioclinux, ioctl(locked.socket, TIOCLINUX, "\2"))
ATTEMPT(tcsets, ioctl(locked.socket, TCSETS, NULL))
ATTEMPT(tiocsctty, ioctl(locked.socket, TIOCSCTTY, 0))
ATTEMPT(dev_tty, open("/dev/tty", O_RDWR | O_NOCTTY))
ATTEMPT(setsid, setsid())
ATTEMPT(setpgid, setpgid(0, -1))
ATTEMPT(output, has_output(STDOUT_FILENO))
ATTEMPT(error, has_output(STDERR_FILENO))

/* use a descriptor of its caller's */
ATTEMPT(leaked, read_leaked())

/* make or use sockets */
ATTEMPT(socket_unix, socket(AF_UNIX, SOCK_STREAM, 0))
ATTEMPT(socket_inet, socket(AF_INET, SOCK_STREAM, 0))
ATTEMPT(socket_inet6, socket(AF_INET6, SOCK_DGRAM, 0))
ATTEMPT_IF(socket_netlink, socket(AF_NETLINK, SOCK_RAW, 0))
ATTEMPT_IF(socket_vsock, socket(AF_VSOCK, SOCK_STREAM, 0))
ATTEMPT(socketpair, socketpair(AF_UNIX, SOCK_STREAM, 0, locked.none))
ATTEMPT(connect, connect(locked.socket, NULL, 0))
ATTEMPT(bind, bind(locked.socket, NULL, 0))
ATTEMPT(listen, listen(locked.socket, 1))
ATTEMPT(accept, accept4(locked.socket, NULL, NULL, 0))
ATTEMPT(sendmsg, syscall(SYS_sendmsg, locked.socket, NULL, 0))
ATTEMPT(sendmmsg, syscall(SYS_sendmmsg, locked.socket, NULL, 0, 0))
ATTEMPT(sendto, sendto(locked.socket, "", 0, MSG_NOSIGNAL,
        (struct sockaddr *)&(struct sockaddr_un){ .sun_family = AF_UNIX }, 2))
ATTEMPT(setsockopt, setsockopt(locked.socket, SOL_SOCKET, -1, NULL, 0))
ATTEMPT(siocgifconf, ioctl(locked.socket, SIOCGIFCONF, NULL))

/* use more memory than it may */
ATTEMPT(map_shared, map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, 1 << 20))
ATTEMPT(mremap, mremap_page())
ATTEMPT(map_large, map_fixed((size_t)4 << 20))
ATTEMPT(map_stack, map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN,
        1 << 20))
ATTEMPT(map_huge, map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, 1 << 21))
ATTEMPT_IF(map_locked, map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, 4096))
ATTEMPT_IF(map_private, fits(map(PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, (size_t)1 << 36)))
ATTEMPT_IF(map_later, fits(map_and_protect((size_t)1 << 36)))
ATTEMPT(memfd, syscall(SYS_memfd_create, "x", 0))
ATTEMPT_IF(memfd_secret, syscall(447, 0))
ATTEMPT(shmget, syscall(SYS_shmget, 0, 0L, 0))
ATTEMPT_IF(io_uring, syscall(SYS_io_uring_setup, 0, NULL))
ATTEMPT_IF(userfaultfd, syscall(SYS_userfaultfd, 0))
ATTEMPT(mlock, syscall(SYS_mlock, NULL, 0L))
ATTEMPT(pipe, pipe(locked.none))
ATTEMPT(pipe_size, fcntl(locked.socket, F_SETPIPE_SZ, 4096))
ATTEMPT(setrlimit, setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }))

/* map shared memory at addresses that it chooses */
ATTEMPT(map_fixed, map_fixed(4096))

/* use page tables for memory that it only reads */
ATTEMPT_IF(map_read, map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, (size_t)1 << 42))

/* outlive its caller */
ATTEMPT(pdeathsig, syscall(SYS_prctl, PR_SET_PDEATHSIG, 0L, 0L, 0L, 0L))

/* change the system, or its own rights */
ATTEMPT(prctl, syscall(SYS_prctl, PR_SET_DUMPABLE, 1L, 0L, 0L, 0L))
ATTEMPT(seccomp, syscall(SYS_seccomp, -1, 0, NULL))
ATTEMPT(setresuid, syscall(SYS_setresuid, -1, -1, -1))
ATTEMPT(setresgid, syscall(SYS_setresgid, -1, -1, -1))
ATTEMPT_IF(setgroups, syscall(SYS_setgroups, -1, NULL))
ATTEMPT(capset, syscall(SYS_capset, NULL, NULL))
ATTEMPT_IF(mount, syscall(SYS_mount, NULL, NULL, NULL, 0L, NULL))
ATTEMPT_IF(umount, syscall(SYS_umount2, NULL, -1))
ATTEMPT_IF(chroot, syscall(SYS_chroot, NULL))
ATTEMPT(chdir, chdir("."))
ATTEMPT_IF(reboot, syscall(SYS_reboot, 0, 0, 0, NULL))
ATTEMPT_IF(sethostname, syscall(SYS_sethostname, NULL, -1))
ATTEMPT(personality, syscall(SYS_personality, 0xffffffffL))
ATTEMPT_IF(keyctl, syscall(SYS_keyctl, -1, 0L, 0L, 0L, 0L))
ATTEMPT_IF(bpf, syscall(SYS_bpf, -1, NULL, 0))
ATTEMPT(inotify, syscall(SYS_inotify_init1, 0))
ATTEMPT_IF(msgget, syscall(SYS_msgget, 0, 0))
ATTEMPT_IF(poison, syscall(SYS_madvise, NULL, 0L, 100))
ATTEMPT_IF(poison_above, syscall(SYS_madvise, NULL, 0L, 100L | 1L << 32))

/* look for files by their names */
ATTEMPT(stat, access_by(0))
ATTEMPT(statx, access_by(1))
ATTEMPT(access, access_by(2))
ATTEMPT(readlink, readlink("/proc/self/exe", locked.text, 1))
ATTEMPT(open_path, open("victim", O_PATH))

/* by Landlock alone */
ATTEMPT(files_read, open("victim", O_RDONLY))
ATTEMPT(files_create, open("escaped", O_RDWR | O_CREAT, 0600))
ATTEMPT(files_truncate, truncate("/proc/self/comm", 0))
ATTEMPT(files_open_trunc, open("/proc/self/comm", O_RDONLY | O_TRUNC))
ATTEMPT(files_signal, kill(locked.victim, SIGWINCH))
ATTEMPT(files_cmdline, open_of_victim("cmdline"))
/* clang-format on */

const struct locked_row locked_rows[] = {
#define LOCK(kinds, text) { text, NULL, QVM_LOCK_##kinds, false, 0 },
#define TRY(name, text) { text, try_##name, 0, DEPENDS_##name, 0 },
#define TRY_FILES(name, text, version) { text, try_##name, 0, DEPENDS_##name, version },
#include "../decoder/lock.inc"
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
    case LOCKED_CLIP: return !row->abi && class->shut_in & QVM_LOCK_CLIP;
    case LOCKED_GPU: return !row->abi && class->shut_in & QVM_LOCK_GPU;
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
            printf("no process may do this here, so it is not tested: %s\n", row->text);
        else if (wrong && at < size)
            at += (size_t)snprintf(text + at, size - at, " %s;", row->text);
    }
    return n;
}
