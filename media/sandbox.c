/* SPDX-License-Identifier: MIT */
/* What a decoding process may still do: read the clip, fill the shared memory, and end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "media.h"

#ifdef __linux__
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif
#endif

/* The sanitizers reserve terabytes before main. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static bool
set_limit(int what, rlim_t most)
{
    const struct rlimit limit = { most, most };
    return !setrlimit(what, &limit);
}

/* Descriptors of a parent that did not mark them to be closed. */
static void
close_from(int first)
{
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, first, ~0U, 0))
        return;
#endif
    for (int fd = first; fd < 4096; fd++)
        close(fd);
}

#ifdef ARCHITECTURE

/* What the C library, FFmpeg's threads, and the sanitizers' reports need. Nothing that opens a file,
 * makes a socket or a process, or changes a file (newfstatat: newer C libraries' fstat). */
static const int allowed[] = {
    SYS_read,          SYS_pread64,         SYS_lseek,        SYS_fstat,
    SYS_newfstatat,    SYS_write,           SYS_writev,       SYS_close,
    SYS_sendto,        SYS_recvfrom,        SYS_mmap,         SYS_munmap,
    SYS_mprotect,      SYS_mremap,          SYS_madvise,      SYS_brk,
    SYS_futex,         SYS_set_robust_list, SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_rt_sigreturn,  SYS_sigaltstack,     SYS_sched_yield,  SYS_sched_getaffinity,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep,    SYS_gettimeofday,
    SYS_getrandom,     SYS_getpid,          SYS_gettid,       SYS_tgkill,
    SYS_sysinfo,       SYS_uname,           SYS_getrusage,    SYS_restart_syscall,
    SYS_exit,          SYS_exit_group,      SYS_membarrier,
#ifdef SYS_rseq
    SYS_rseq,
#endif
};

enum {
    N_ALLOWED = sizeof allowed / sizeof *allowed,
    N_FRONT = 6,
    N_BEHIND = 9,
    N_FILTER = N_FRONT + N_ALLOWED + N_BEHIND
};

/* Any other call fails with EPERM, as if it were for root alone: libraries live with that. */
static const char *
filter_calls(void)
{
    const struct sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_filter f[N_FILTER] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        /* "there is no such call": threads are then made by clone, whose flags can be seen */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    unsigned short n = N_FRONT;
    for (unsigned i = 0; i < N_ALLOWED; i++) {
        const unsigned char to_allow = (unsigned char)(N_ALLOWED - i + N_BEHIND - 2);
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i],
                                              to_allow, 0);
    }
    const struct sock_filter first_argument =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
    const struct sock_filter behind[N_BEHIND] = {
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 3, 0),
        refuse,
        first_argument, /* clone: of threads */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 3, 2),
        first_argument, /* tgkill: of ourselves, which abort() is */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)getpid(), 1, 0),
        refuse,
        allow,
    };
    memcpy(f + n, behind, sizeof behind);
    n += N_BEHIND;
    const struct sock_fprog program = { n, f };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return "prctl(PR_SET_NO_NEW_PRIVS)";
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? "prctl(PR_SET_SECCOMP)" : NULL;
}

#elif defined(__linux__)

static const char *
filter_calls(void)
{
    errno = ENOTSUP;
    return "no filter of system calls for this processor";
}

#else

static const char *
filter_calls(void)
{
    return NULL;
}

#endif

const char *
qvm_sandbox(int64_t memory, int first_fd)
{
#ifdef SANITIZED
    memory = 0;
#else
    close(STDOUT_FILENO); /* a terminal obeys what is written to it */
    close(STDERR_FILENO);
#endif
    close_from(first_fd);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    if (memory && !set_limit(RLIMIT_DATA, (rlim_t)memory))
        return "setrlimit(RLIMIT_DATA)";
    return filter_calls();
}
