/* SPDX-License-Identifier: MIT */
/* Starts and ends processes. The application may wait for all of its children, or ignore SIGCHLD,
 * and then the number of a process that ended may be reused. So Linux identifies the process by a
 * pidfd, and elsewhere only children are ever signalled. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clips.h"

#ifdef POSIX_SPAWN_SETSID
#define APART POSIX_SPAWN_SETSID
#else
#define APART POSIX_SPAWN_SETPGROUP
#endif

#define HANDLE ((idtype_t)3) /* Linux's P_PIDFD, which older C libraries do not declare */

/* ---- starting -------------------------------------------------------------------------------- */

/* Text written to a terminal may control it, so the program's output goes to /dev/null; only
 * sanitizers keep stderr. Where posix_spawn can close descriptors, the program inherits no others,
 * even if they were not marked close-on-exec. */
static int
set_descriptors(posix_spawn_file_actions_t *actions, int socket)
{
    int code = posix_spawn_file_actions_adddup2(actions, socket, STDIN_FILENO);
    for (int fd = STDOUT_FILENO; !code && fd <= (QVM_SANITIZED ? STDOUT_FILENO : STDERR_FILENO);
         fd++)
        code = posix_spawn_file_actions_addopen(actions, fd, "/dev/null", O_WRONLY, 0);
#ifdef QVM_SPAWN_CLOSES
    if (!code)
        code = posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
#endif
    return code;
}

/* Unblocks all signals, with their defaults. A terminal's interrupt must not reach the program. */
static int
set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int code = posix_spawnattr_setflags(attributes, (short)(POSIX_SPAWN_SETSIGMASK |
                                                            POSIX_SPAWN_SETSIGDEF | APART));
    if (!code)
        code = posix_spawnattr_setsigmask(attributes, &none);
    return code ? code : posix_spawnattr_setsigdefault(attributes, &all);
}

static int
spawn(const char *path, char *const *argv, char *const *environment, int socket, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return code;
    code = posix_spawnattr_init(&attributes);
    if (!code) {
        code = set_descriptors(&actions, socket);
        if (!code)
            code = set_attributes(&attributes);
        if (!code)
            code = posix_spawn(pid, path, &actions, &attributes, argv, environment);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* Returns whether this is still a child: nobody has waited for it yet. */
static bool
is_child(pid_t pid)
{
    siginfo_t info;
    return !waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
}

static int
open_handle(pid_t pid)
{
#ifdef SYS_pidfd_open
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    siginfo_t info;
    if (fd >= 0 && is_child(pid) && /* so no other process had the number yet */
        !waitid(HANDLE, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT))
        return fd;
    if (fd >= 0)
        close(fd);
#else
    (void)pid;
#endif
    return -1;
}

int
qvm_child_start(const char *path, char *const *argv, char *const *environment, qvm_child *child)
{
    int here, there;
    pid_t pid;
    *child = (qvm_child){ .pid = 0 };
    if (!qvm_stream(&here, &there))
        return errno;
    const int code = spawn(path, argv, environment, there, &pid);
    close(there); /* otherwise `here` would stay open after the process has ended */
    if (code)
        close(here);
    else
        *child = (qvm_child){ pid, open_handle(pid), here };
    return code;
}

/* ---- ending ---------------------------------------------------------------------------------- */

void
qvm_child_signal(const qvm_child *child, int number)
{
#ifdef SYS_pidfd_send_signal
    if (child->handle >= 0) {
        syscall(SYS_pidfd_send_signal, child->handle, number, NULL, 0);
        return;
    }
#endif
    if (is_child(child->pid))
        kill(child->pid, number);
}

const char *
qvm_signal_text(int number, char text[128])
{
    snprintf(text, 128, "killed by signal %d (%s)%s", number, strsignal(number),
             number == SIGKILL ? ", perhaps because memory ran out" : "");
    return text;
}

/* Waits for the process. Returns whether it has ended, or is not ours to wait for. */
static bool
await(const qvm_child *child, int flags, siginfo_t *info)
{
    int code;
    do
        code = child->handle >= 0 ? waitid(HANDLE, (id_t)child->handle, info, WEXITED | flags)
                                  : waitid(P_PID, (id_t)child->pid, info, WEXITED | flags);
    while (code && errno == EINTR);
    return code || info->si_pid;
}

void
qvm_child_leave(qvm_child *child)
{
    if (child->pid && child->handle >= 0)
        close(child->handle);
    if (child->pid)
        close(child->socket);
    *child = (qvm_child){ .pid = 0 };
}

bool
qvm_child_has_ended(qvm_child *child)
{
    siginfo_t info = { .si_pid = 0 };
    const bool ended = await(child, WNOHANG, &info);
    if (ended)
        qvm_child_leave(child);
    return ended;
}

int
qvm_child_await(qvm_child *child)
{
    siginfo_t info = { .si_pid = 0 };
    await(child, 0, &info);
    qvm_child_leave(child);
    return info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
}
