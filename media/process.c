/* SPDX-License-Identifier: MIT */
/* Starts and ends the program that decodes, and makes the memory that is shared with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "media.h"

#define PROGRAM "qwenvit-decoder"

#ifdef __APPLE__
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#endif

/* ---- descriptors ----------------------------------------------------------------------------- */

int
qvm_lift_fd(int fd)
{
    if (fd < 0 || fd >= QVM_FDS)
        return fd;
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, QVM_FDS);
    const int why = errno;
    close(fd);
    errno = why;
    return high;
}

int
qvm_shared_memory(void)
{
#ifdef __linux__
    return qvm_lift_fd(memfd_create("qwenvit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
#else
    static atomic_int count;
    char name[32];
    snprintf(name, sizeof name, "/qwenvit.%ld.%d", (long)getpid(), atomic_fetch_add(&count, 1));
    const int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) {
        shm_unlink(name);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    return qvm_lift_fd(fd);
#endif
}

bool
qvm_shared_memory_size(int fd, int64_t bytes)
{
    if (ftruncate(fd, (off_t)bytes))
        return false;
#ifdef __linux__
    /* who shrinks it would end the process that reads it */
    return !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
#else
    return true; /* macOS sizes it once */
#endif
}

/* ---- where the program is -------------------------------------------------------------------- */

/* The folder of the running program, or of the library that this code is in, with the slash behind;
 * empty if unknown. */
static void
own_folder(bool program, char *out, size_t size)
{
    static const char here;
    Dl_info info;
    *out = 0;
    if (!program && dladdr(&here, &info) && info.dli_fname)
        snprintf(out, size, "%s", info.dli_fname);
#ifdef __linux__
    if (program) {
        const ssize_t n = readlink("/proc/self/exe", out, size - 1);
        out[n > 0 ? n : 0] = 0;
    }
#endif
    char *slash = strrchr(out, '/');
    if (slash && *out == '/')
        slash[1] = 0;
    else
        *out = 0;
}

/* Beside this code (a build folder), where an installed library or program has it, or where it was
 * meant to be installed. False: nowhere. */
static bool
find_program(char *path, size_t size)
{
    static const char *const below[] = { PROGRAM, QVM_LIBEXEC_FROM_LIB "/" PROGRAM,
                                         QVM_LIBEXEC_FROM_BIN "/" PROGRAM };
    char folder[PATH_MAX];
    for (int program = 0; program < 2; program++) {
        own_folder(program, folder, sizeof folder);
        for (size_t i = 0; *folder && i < sizeof below / sizeof *below; i++) {
            const int n = snprintf(path, size, "%s%s", folder, below[i]);
            if (n > 0 && (size_t)n < size && !access(path, X_OK))
                return true;
        }
    }
    snprintf(path, size, "%s", QVM_LIBEXEC "/" PROGRAM);
    return !access(path, X_OK);
}

/* ---- start and end --------------------------------------------------------------------------- */

/* With its three descriptors, no blocked or changed signals, and in a group of its own: an
 * interrupt from the terminal is for the program that started it. */
static int
spawn(const char *path, char *const *argv, const qvm_session *session, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return code;
    code = posix_spawnattr_init(&attributes);
    if (code) {
        posix_spawn_file_actions_destroy(&actions);
        return code;
    }
    const int given[] = { session->socket, session->clip, session->shared };
    code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    for (int i = 0; !code && i < QVM_FDS - QVM_FD_SOCKET; i++)
        code = posix_spawn_file_actions_adddup2(&actions, given[i], QVM_FD_SOCKET + i);
    if (!code)
        code =
            posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                      POSIX_SPAWN_SETPGROUP);
    if (!code)
        code = posix_spawnattr_setsigmask(&attributes, &none);
    if (!code)
        code = posix_spawnattr_setsigdefault(&attributes, &all);
    if (!code)
        code = posix_spawn(pid, path, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

qv_status
qvm_process_start(const char *path, int64_t memory, const qvm_session *session, pid_t *pid,
                  qv_error *err)
{
    char found[PATH_MAX], bytes[32];
    if (!path && !find_program(found, sizeof found))
        return qv_fail(err, QV_EBACKEND,
                       "the program " PROGRAM ", which decodes, is neither beside the program nor "
                       "in %s: `decoder` says where it is, `trusted` does without",
                       QVM_LIBEXEC);
    snprintf(bytes, sizeof bytes, "%lld", (long long)memory);
    char program[] = PROGRAM;
    char *const argv[] = { program, bytes, NULL };
    const int code = spawn(path ? path : found, argv, session, pid);
    return code ? qv_fail(err, QV_EBACKEND, "%s cannot be started: %s", path ? path : found,
                          strerror(code))
                : QV_OK;
}

int
qvm_process_end(pid_t pid)
{
    int how = 0;
    kill(pid, SIGKILL);
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    return how;
}
