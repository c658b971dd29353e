/* SPDX-License-Identifier: MIT */
/* Locks a decoder process in: it may read the clip, fill the shared memory, and end. */
#define _GNU_SOURCE
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

#ifdef __s390__
#define CLONE_FLAGS_AT 1 /* the number of clone's argument `flags` */
#else
#define CLONE_FLAGS_AT 0
#endif
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

/* Limits the memory that is written to; the filter of calls refuses what RLIMIT_DATA does not count. RLIMIT_AS must not be set:
 * where a mapping is so large that this limit has no room for it twice, Linux's mprotect() makes it writable without asking
 * what RLIMIT_DATA allows. */
static const char *
limit_memory(rlim_t memory)
{
    if (!memory || QVM_SANITIZED) /* which reserve terabytes before main */
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

/* The system calls that the C library, FFmpeg's threads and the sanitizers' reports need. Whatever their arguments are, none of
 * them opens or finds a file, makes a socket or a process, or changes a file. mremap is not among them: it makes a stack as large
 * as it is told to, which no limit counts. */
/* clang-format off */
static const int allowed[] = {
    SCMP_SYS(read), SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(fstat),
    SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(close), SCMP_SYS(recvfrom),
    SCMP_SYS(munmap), SCMP_SYS(mprotect),
    SCMP_SYS(brk), SCMP_SYS(futex), SCMP_SYS(set_robust_list), SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(getrandom), SCMP_SYS(getpid),
    SCMP_SYS(gettid), SCMP_SYS(sysinfo), SCMP_SYS(uname), SCMP_SYS(getrusage),
    SCMP_SYS(restart_syscall), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(membarrier),
    SCMP_SYS(rseq), SCMP_SYS(poll), SCMP_SYS(ppoll),
};

/* The system calls that a GPU process needs besides, for NVIDIA's driver, which opens
 * its devices anew for each decoder, and for taking orders. Landlock limits the files that it may
 * open; files can be looked for by any name. newfstatat is how newer C libraries do fstat. */
static const int of_gpu[] = {
    SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(access),
    SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(readlink), SCMP_SYS(readlinkat),
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getppid),
    SCMP_SYS(recvmsg),
};
/* clang-format on */

/* Stands in the filter for the process's own number, which is filled in after the fork. */
#define ITSELF 0x7fffffff

/* A system call that is allowed where each of its arguments is as said. Arguments of 32 bits are compared by these bits, as the
 * kernel sees no others. */
struct careful {
    int call;
    unsigned n;
    struct scmp_arg_cmp is[2];
};

#define ONLY(argument, bits) /* no other bits are set */                                           \
    {                                                                                              \
        argument, SCMP_CMP_MASKED_EQ, 0xffffffffU & ~(scmp_datum_t)(bits), 0                       \
    }
#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
#define ANY_MAP (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_NORESERVE | MAP_POPULATE)
#define LARGE (O_LARGEFILE | 0100000) /* glibc has 0 for what the kernel calls O_LARGEFILE */
#define OPEN_FLAGS                    /* none that makes, empties or only writes a file */         \
    (O_RDWR | O_CLOEXEC | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOCTTY | O_PATH | LARGE)
enum {
    FIRST_POISON = 100,
    FIRST_GUARD = 102
};                               /* of madvise: 100 and 101 take pages from the machine */
enum { DRIVER_BYTES = 2 << 20 }; /* of shared memory that NVIDIA's driver maps at once */
enum { CLOCKS = 16 }; /* larger numbers are the clocks of other processes, and of devices */

static const struct careful careful[] = {
    { SCMP_SYS(clone),
      1,
      { { CLONE_FLAGS_AT, SCMP_CMP_MASKED_EQ, CLONE_THREAD | NAMESPACES, CLONE_THREAD } } },
    { SCMP_SYS(tgkill), 1, { { 0, SCMP_CMP_EQ, ITSELF, 0 } } }, /* abort() signals itself */
#ifdef __s390__
    { SCMP_SYS(mmap), 0, { { 0 } } }, /* its arguments lie in memory, where no filter sees them */
#else
    /* Shared memory must have a descriptor: without one it is in no limit, nor are stacks that grow and huge pages. */
    { SCMP_SYS(mmap),
      1,
      { ONLY(3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_DENYWRITE | ANY_MAP) } },
    { SCMP_SYS(mmap), 1, { ONLY(3, MAP_SHARED | ANY_MAP) } },
#endif
    { SCMP_SYS(madvise), 1, { { 2, SCMP_CMP_LT, FIRST_POISON, 0 } } },
    { SCMP_SYS(madvise), 1, { { 2, SCMP_CMP_EQ, FIRST_GUARD, 0 } } },
    { SCMP_SYS(madvise), 1, { { 2, SCMP_CMP_EQ, FIRST_GUARD + 1, 0 } } },
    { SCMP_SYS(sendto), 1, { { 4, SCMP_CMP_EQ, 0, 0 } } }, /* to no address */
    { SCMP_SYS(clock_gettime), 1, { { 0, SCMP_CMP_LT, CLOCKS, 0 } } },
};

static const struct careful careful_of_gpu[] = {
#ifndef __s390__
    /* the driver makes a decoder's shared memory so, in places that it has taken before */
    { SCMP_SYS(mmap),
      2,
      { { 3, SCMP_CMP_EQ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, 0 },
        { 1, SCMP_CMP_LE, DRIVER_BYTES, 0 } } },
#endif
    { SCMP_SYS(open), 1, { ONLY(1, OPEN_FLAGS) } },
    { SCMP_SYS(openat), 1, { ONLY(2, OPEN_FLAGS) } },
    { SCMP_SYS(fcntl), 1, { { 1, SCMP_CMP_EQ, F_DUPFD, 0 } } },
    { SCMP_SYS(fcntl), 1, { { 1, SCMP_CMP_EQ, F_DUPFD_CLOEXEC, 0 } } },
    { SCMP_SYS(fcntl), 1, { { 1, SCMP_CMP_EQ, F_GETFD, 0 } } },
    { SCMP_SYS(fcntl), 1, { { 1, SCMP_CMP_EQ, F_SETFD, 0 } } },
    { SCMP_SYS(fcntl), 1, { { 1, SCMP_CMP_EQ, F_GETFL, 0 } } },
    /* without O_ASYNC, by which the kernel sends signals */
    { SCMP_SYS(fcntl),
      2,
      { { 1, SCMP_CMP_EQ, F_SETFL, 0 }, ONLY(2, O_RDWR | O_NONBLOCK | LARGE) } },
    /* NVIDIA's requests have the type 'F'. Those of /dev/nvidia-uvm are small numbers without a type, and two large ones. */
    { SCMP_SYS(ioctl), 1, { { 1, SCMP_CMP_MASKED_EQ, 0xff00, 'F' << 8 } } },
    { SCMP_SYS(ioctl), 1, { { 1, SCMP_CMP_LT, 0x100, 0 } } },
    { SCMP_SYS(ioctl), 1, { { 1, SCMP_CMP_EQ, 0x30000001, 0 } } },
    { SCMP_SYS(ioctl), 1, { { 1, SCMP_CMP_EQ, 0x30000002, 0 } } },
};

/* Calls instead of which C libraries make older ones, whose arguments a filter can see. */
static const int unknown[] = { SCMP_SYS(clone3), SCMP_SYS(openat2) };

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The filter as the kernel takes it. libseccomp makes it once, before the forks. */
static struct sock_fprog filter;

static bool
allow(scmp_filter_ctx rules, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (calls[i] >= 0 && seccomp_rule_add(rules, SCMP_ACT_ALLOW, calls[i], 0))
            return false;
    return true;
}

static bool
allow_carefully(scmp_filter_ctx rules, const struct careful *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (calls[i].call >= 0 &&
            seccomp_rule_add_array(rules, SCMP_ACT_ALLOW, calls[i].call, calls[i].n, calls[i].is))
            return false;
    return true;
}

static bool
add_rules(scmp_filter_ctx rules, bool gpu)
{
    for (size_t i = 0; i < COUNT(unknown); i++)
        if (seccomp_rule_add(rules, SCMP_ACT_ERRNO(ENOSYS), unknown[i], 0))
            return false;
    if (gpu && (!allow(rules, of_gpu, COUNT(of_gpu)) ||
                !allow_carefully(rules, careful_of_gpu, COUNT(careful_of_gpu))))
        return false;
    return allow(rules, allowed, COUNT(allowed)) &&
           allow_carefully(rules, careful, COUNT(careful)) &&
           !seccomp_attr_set(rules, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
}

/* Makes the filter. Calls that are not listed fail with EPERM, as if they were for root alone,
 * because libraries cope with that. */
static void
make_filter(bool gpu)
{
    scmp_filter_ctx rules = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    const int fd = qvm_shared_memory();
    if (rules && fd >= 0 && add_rules(rules, gpu) && !seccomp_export_bpf(rules, fd)) {
        const off_t bytes = lseek(fd, 0, SEEK_END);
        void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        if (at != MAP_FAILED)
            filter =
                (struct sock_fprog){ (unsigned short)((size_t)bytes / sizeof *filter.filter), at };
    }
    close(fd);
    seccomp_release(rules);
}

void
qvm_sandbox_prepare(void)
{
    make_filter(false);
}

/* Filters the system calls of this thread, or with SECCOMP_FILTER_FLAG_TSYNC of all threads.
 * Returns NULL, or what has failed, with errno. */
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
    if (!QVM_SANITIZED) { /* they report on standard error */
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
    make_filter(true);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    const char *failed = limit_memory(GPU_MEMORY);
    return failed ? failed : filter_calls(SECCOMP_FILTER_FLAG_TSYNC);
#else
    errno = ENOTSUP;
    return "this system";
#endif
}
