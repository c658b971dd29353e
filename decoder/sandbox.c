/* SPDX-License-Identifier: MIT */
/* Locks a decoder process down: it may read the clip, fill the shared memory, and exit. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "decoder.h"

#ifdef __linux__
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#define STACK                                                                                      \
    ((rlim_t)8 << 20) /* bytes of its first thread's stack, which RLIMIT_DATA does not count */
#define GPU_MEMORY ((rlim_t)8 << 30) /* bytes that a GPU process may write to */

/* Lowers a limit to `most`. */
static bool
set_limit(int what, rlim_t most)
{
    struct rlimit limit;
    if (getrlimit(what, &limit))
        return false;
    if (limit.rlim_max < most)
        most = limit.rlim_max;
    return !setrlimit(what, &(struct rlimit){ most, most });
}

/* Limits writable memory; the filter denies memory that RLIMIT_DATA does not count. RLIMIT_AS must
 * not be set: without room to count a mapping twice, Linux's mprotect() makes it writable without
 * checking RLIMIT_DATA. */
static const char *
limit_memory(rlim_t memory)
{
    if (!memory || QVM_SANITIZED) /* sanitizers reserve terabytes before main */
        return NULL;
    if (!set_limit(RLIMIT_DATA, memory))
        return "setrlimit(RLIMIT_DATA)";
    return set_limit(RLIMIT_STACK, STACK) ? NULL : "setrlimit(RLIMIT_STACK)";
}

void
qvm_close_from(int first)
{
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, first, ~0U, 0))
        return;
#endif
    const long most = sysconf(_SC_OPEN_MAX), bound = 1 << 20;
    for (int fd = first; fd < (most < 0 || most > bound ? bound : most); fd++)
        close(fd);
}

#ifdef __linux__

/* A placeholder in the filter for the process's own number, which is filled in after the fork. */
#define ITSELF 0x7fffffff

/* lock.inc's rules for system calls. An argument without a comparison may be anything. */
struct rule {
    int kinds, call;
    uint32_t action;
    struct scmp_arg_cmp arguments[2];
};

#define ARG(number, comparison, value)                                                             \
    {                                                                                              \
        number, SCMP_CMP_##comparison, value, 0                                                    \
    }
#define MASKED(number, mask, value)                                                                \
    {                                                                                              \
        number, SCMP_CMP_MASKED_EQ, mask, value                                                    \
    }
#define ONLY(number, bits) MASKED(number, 0xffffffffU & ~(scmp_datum_t)(bits), 0)

static const struct rule rules[] = {
#define ALLOW(kinds, call) { QVM_LOCK_##kinds, __SNR_##call, SCMP_ACT_ALLOW, { { 0 } } },
#define ALLOW_IF(kinds, call, ...)                                                                 \
    { QVM_LOCK_##kinds, __SNR_##call, SCMP_ACT_ALLOW, { __VA_ARGS__ } },
#define ABSENT(kinds, call) { QVM_LOCK_##kinds, __SNR_##call, SCMP_ACT_ERRNO(ENOSYS), { { 0 } } },
#include "lock.inc"
};

/* The filter in the kernel's format. libseccomp makes it once, before the forks. */
static struct sock_fprog filter;

static bool
add_rules(scmp_filter_ctx to, int kind)
{
    for (const struct rule *r = rules; r < rules + sizeof rules / sizeof *rules; r++) {
        const unsigned n = !!r->arguments[0].op + !!r->arguments[1].op;
        if (r->kinds & kind && r->call >= 0 && /* below 0: the call does not exist on this
                                                * machine */
            seccomp_rule_add_array(to, r->action, r->call, n, r->arguments))
            return false;
    }
    return !seccomp_attr_set(to, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
}

static void
make_filter(int kind)
{
    scmp_filter_ctx to = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    const int fd = qvm_shared_memory();
    if (to && fd >= 0 && add_rules(to, kind) && !seccomp_export_bpf(to, fd)) {
        const off_t bytes = lseek(fd, 0, SEEK_END);
        void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        if (at != MAP_FAILED)
            filter =
                (struct sock_fprog){ (unsigned short)((size_t)bytes / sizeof *filter.filter), at };
    }
    close(fd);
    seccomp_release(to);
}

void
qvm_sandbox_prepare(void)
{
    make_filter(QVM_LOCK_CLIP);
}

/* Filters the calls of this thread, or with SECCOMP_FILTER_FLAG_TSYNC of all threads. Returns NULL,
 * or what failed, with errno. */
static const char *
filter_calls(unsigned flags)
{
    int named = 0;
    for (int i = 0; i < filter.len; i++)
        if (filter.filter[i].k == ITSELF) {
            filter.filter[i].k = (unsigned)getpid();
            named++;
        }
    errno = ENOTSUP;
    if (named != 1)
        return "libseccomp";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return "prctl(PR_SET_NO_NEW_PRIVS)";
#ifdef QV_LOG_REFUSED
    flags |= SECCOMP_FILTER_FLAG_LOG;
#endif
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) ? "seccomp" : NULL;
}

/* No call that the filter allows can undo this. */
void
qvm_end_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(0);
}

#else

void
qvm_sandbox_prepare(void)
{
}

void
qvm_end_with(pid_t parent)
{
    (void)parent;
}

static const char *
filter_calls(unsigned flags)
{
    (void)flags;
    return NULL;
}

#endif

const char *
qvm_sandbox(int64_t memory, int first_fd)
{
    if (!QVM_SANITIZED) { /* sanitizers report on standard error */
        close(STDOUT_FILENO);
        close(STDERR_FILENO);
    }
    qvm_close_from(first_fd);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    const char *failed = limit_memory((rlim_t)memory);
    return failed ? failed : filter_calls(0);
}

const char *
qvm_sandbox_gpu(void)
{
#ifdef __linux__
    make_filter(QVM_LOCK_GPU);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    const char *failed = limit_memory(GPU_MEMORY);
    return failed ? failed : filter_calls(SECCOMP_FILTER_FLAG_TSYNC);
#else
    errno = ENOTSUP;
    return "this system";
#endif
}
