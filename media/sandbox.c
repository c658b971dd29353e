/* SPDX-License-Identifier: MIT */
/* Locks a decoding process in: it may read the clip, fill the shared memory, and end. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "media.h"

#ifdef __linux__
#include <fcntl.h>
#include <glob.h>
#include <linux/filter.h>
#if __has_include(<linux/landlock.h>)
#include <linux/landlock.h>
#endif
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef __s390__
#define CLONE_FLAGS_AT 1 /* the number of clone's argument `flags` */
#else
#define CLONE_FLAGS_AT 0
#endif
#endif

/* The sanitizers reserve terabytes before main, so a sanitized process has no memory limit. */
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

/* Closes descriptors that were inherited because a parent did not mark them close-on-exec. */
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

#ifdef __linux__

/* The system calls that the C library, FFmpeg's threads and the sanitizers' reports need. None of
 * them opens a file, makes a socket or a process, or changes a file. newfstatat is how newer C
 * libraries do fstat. */
/* clang-format off */
static const int allowed[] = {
    SCMP_SYS(read), SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(fstat), SCMP_SYS(newfstatat),
    SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(close), SCMP_SYS(sendto), SCMP_SYS(recvfrom),
    SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mprotect), SCMP_SYS(mremap), SCMP_SYS(madvise),
    SCMP_SYS(brk), SCMP_SYS(futex), SCMP_SYS(set_robust_list), SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(getrandom), SCMP_SYS(getpid),
    SCMP_SYS(gettid), SCMP_SYS(sysinfo), SCMP_SYS(uname), SCMP_SYS(getrusage),
    SCMP_SYS(restart_syscall), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(membarrier),
    SCMP_SYS(rseq), SCMP_SYS(poll), SCMP_SYS(ppoll),
};

/* The system calls that a process with a GPU open needs besides, for NVIDIA's driver, which opens
 * its devices anew for each decoder, and for taking orders. Landlock limits the files that it may
 * open. */
static const int of_device[] = {
    SCMP_SYS(ioctl), SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(stat), SCMP_SYS(lstat),
    SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getuid), SCMP_SYS(geteuid),
    SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getppid), SCMP_SYS(fcntl), SCMP_SYS(recvmsg),
};
/* clang-format on */

/* Stands in the filter for the process's own number, which is filled in after the fork. */
#define ITSELF 0x7fffffff

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
add_rules(scmp_filter_ctx rules)
{
    const struct scmp_arg_cmp of_threads = { CLONE_FLAGS_AT, SCMP_CMP_MASKED_EQ, CLONE_THREAD,
                                             CLONE_THREAD };
    const struct scmp_arg_cmp of_itself = { 0, SCMP_CMP_EQ, ITSELF,
                                            0 }; /* abort() signals its own process */
    if (!allow(rules, allowed, sizeof allowed / sizeof *allowed))
        return false;
    /* without clone3 the C library makes threads by clone, whose flags a filter can see */
    return !seccomp_rule_add(rules, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) &&
           !seccomp_rule_add_array(rules, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, &of_threads) &&
           !seccomp_rule_add_array(rules, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, &of_itself) &&
           !seccomp_attr_set(rules, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
}

/* Makes the filter. Calls that are not listed fail with EPERM, as if they were for root alone,
 * because libraries cope with that. */
static void
make_filter(const int *more, size_t n)
{
    scmp_filter_ctx rules = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    const int fd = qvm_shared_memory();
    if (rules && fd >= 0 && add_rules(rules) && allow(rules, more, n) &&
        !seccomp_export_bpf(rules, fd)) {
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
    make_filter(NULL, 0);
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
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) ? "seccomp" : NULL;
}

#ifdef LANDLOCK_ACCESS_FS_READ_FILE

#define MAY_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define MAY_WRITE (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE)

/* Allows access to the files below a path. A path that does not exist needs no rule. */
static bool
let(int rules, const char *path, uint64_t access)
{
    struct landlock_path_beneath_attr beneath = { .allowed_access = access,
                                                  .parent_fd = open(path, O_PATH | O_CLOEXEC) };
    if (beneath.parent_fd < 0)
        return true;
    const bool done =
        !syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
    close(beneath.parent_fd);
    return done;
}

static bool
let_all(int rules)
{
    static const char *const systems[] = { "/usr", "/lib", "/lib64", "/proc", "/sys" };
    glob_t devices = { .gl_pathc = 0 };
    bool done =
        let(rules, "/proc/self", MAY_READ | LANDLOCK_ACCESS_FS_WRITE_FILE); /* for naming threads */
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++)
        done = done && let(rules, systems[i], MAY_READ);
    if (!glob("/dev/nvidia[0-9cu]*", 0, NULL, &devices)) /* nvidia0, nvidiactl and nvidia-uvm */
        for (size_t i = 0; i < devices.gl_pathc; i++)
            done = done && let(rules, devices.gl_pathv[i], MAY_WRITE);
    globfree(&devices);
    return done && let(rules, "/dev/nvidia-uvm", MAY_WRITE);
}

const char *
qvm_sandbox_files(void)
{
    /* all rights that Landlock's first version knows */
    const struct landlock_ruleset_attr all = {
        .handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1,
    };
    const int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0)
        return "Landlock";
    const bool done = let_all(rules) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
                      !syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    return done ? NULL : "Landlock";
}

#else

const char *
qvm_sandbox_files(void)
{
    errno = ENOTSUP;
    return "Landlock";
}

#endif

#else

void
qvm_sandbox_prepare(void)
{
}

static const char *
filter_calls(unsigned flags)
{
    (void)flags;
    return NULL;
}

const char *
qvm_sandbox_files(void)
{
    errno = ENOTSUP;
    return "this system";
}

#endif

const char *
qvm_sandbox(int64_t memory, int first_fd)
{
#ifdef SANITIZED
    memory = 0;
#else
    close(STDOUT_FILENO); /* a terminal obeys control sequences that are written to it */
    close(STDERR_FILENO);
#endif
    close_from(first_fd);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    if (memory && !set_limit(RLIMIT_DATA, (rlim_t)memory))
        return "setrlimit(RLIMIT_DATA)";
    return filter_calls(0);
}

const char *
qvm_sandbox_device(void)
{
#ifdef __linux__
    make_filter(of_device, sizeof of_device / sizeof *of_device);
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_FSIZE, 0))
        return "setrlimit";
    return filter_calls(SECCOMP_FILTER_FLAG_TSYNC);
#else
    errno = ENOTSUP;
    return "this system";
#endif
}
