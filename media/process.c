/* SPDX-License-Identifier: MIT */
/* Starts and ends the program that decodes, and makes the memory that is shared with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "media.h"

#define PROGRAM "qwenvit-decoder"

#ifdef __APPLE__
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#endif

struct qv_decoder {
    pid_t pid;
    pid_t owner; /* the process that started it: one that was forked off it must not use it */
    int socket;
    bool used;
    pthread_mutex_t lock; /* an order and its answer are one */
};

/* ---- means to talk --------------------------------------------------------------------------- */

int
qvm_shared_memory(void)
{
#ifdef __linux__
    return memfd_create("qwenvit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
#else
    static atomic_int count;
    char name[32];
    snprintf(name, sizeof name, "/qwenvit.%ld.%d", (long)getpid(), atomic_fetch_add(&count, 1));
    const int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0) {
        shm_unlink(name);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    return fd;
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

bool
qvm_stream(int *here, int *there)
{
    int pair[2];
#ifdef SOCK_CLOEXEC
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return false;
#else
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return false;
    for (int i = 0; i < 2; i++) {
        fcntl(pair[i], F_SETFD, FD_CLOEXEC);
        setsockopt(pair[i], SOL_SOCKET, SO_NOSIGPIPE, &(int){ 1 }, sizeof(int));
    }
#endif
    *here = pair[0];
    *there = pair[1];
    return true;
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

/* ---- the program ----------------------------------------------------------------------------- */

/* With the socket as its standard input, no blocked or changed signals, and in a group of its own:
 * an interrupt from the terminal is for the program that started it. */
static int
spawn(const char *path, int socket, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    char name[] = PROGRAM;
    char *const argv[] = { name, NULL };
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
    code = posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
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
qv_decoder_start(const char *program, qv_decoder **out, qv_error *err)
{
    char found[PATH_MAX];
    if (!out)
        return qv_fail(err, QV_EINVAL, "start decoder: out is NULL");
    if (!program && !find_program(found, sizeof found))
        return qv_fail(err, QV_EBACKEND,
                       "the program " PROGRAM ", which decodes, is neither beside this one nor in "
                       "%s: qv_decoder_start takes its path, `trusted` does without",
                       QVM_LIBEXEC);
    const char *path = program ? program : found;
    qv_decoder *d = calloc(1, sizeof *d);
    int there = -1;
    if (!d || !qvm_stream(&d->socket, &there)) {
        free(d);
        return qv_fail(err, QV_ENOMEM, "%s: no means to talk to it", path);
    }
    const int code = spawn(path, there, &d->pid);
    close(there); /* so that its end is heard */
    if (code) {
        close(d->socket);
        free(d);
        return qv_fail(err, QV_EBACKEND, "%s cannot be started: %s", path, strerror(code));
    }
    d->owner = getpid();
    pthread_mutex_init(&d->lock, NULL); /* allocates nothing */
    *out = d;
    return QV_OK;
}

void
qv_decoder_stop(qv_decoder **decoder)
{
    qv_decoder *d = decoder ? *decoder : NULL;
    if (!d)
        return;
    close(d->socket); /* it hears that, once it runs */
    if (d->owner == getpid() && !d->used)
        kill(d->pid, SIGKILL);
    while (d->owner == getpid() && waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    pthread_mutex_destroy(&d->lock);
    free(d);
    *decoder = NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

bool
qvm_order_send(int socket, const qvm_order *order, const int fds[QVM_SESSION_FDS])
{
    const size_t bytes = QVM_SESSION_FDS * sizeof *fds;
    union qvm_control control = { .bytes = { 0 } };
    struct iovec data = { (void *)(uintptr_t)order, sizeof *order };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };
    if (fds) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        control.align = (struct cmsghdr){ .cmsg_len = CMSG_LEN(bytes),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.align), fds, bytes);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, QVM_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof *order;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* The order's answer; -1 if there is none. */
static int32_t
ask(qv_decoder *d, const qvm_order *order, const int *fds)
{
    int32_t answer = -1;
    if (d->owner != getpid())
        return -1;
    pthread_mutex_lock(&d->lock);
    bool answered = qvm_order_send(d->socket, order, fds);
    if (answered && order->kind != QVM_DROP)
        answered = qvm_receive(d->socket, &answer, sizeof answer);
    pthread_mutex_unlock(&d->lock);
    return answered ? answer : -1;
}

qv_status
qvm_session_start(qv_decoder *decoder, const qvm_session *session, int64_t memory, pid_t *pid,
                  qv_error *err)
{
    const int fds[QVM_SESSION_FDS] = { session->socket, session->clip, session->shared };
    const int32_t got = ask(decoder, &(qvm_order){ .kind = QVM_SERVE, .memory = memory }, fds);
    if (got <= 0)
        return qv_fail(
            err, QV_EBACKEND,
            "the program that decodes has ended, makes no more processes, or was started "
            "by another one");
    decoder->used = true;
    *pid = got;
    return QV_OK;
}

int
qvm_session_end(qv_decoder *decoder, pid_t pid)
{
    return ask(decoder, &(qvm_order){ .kind = QVM_KILL, .pid = pid }, NULL);
}

void
qvm_session_drop(qv_decoder *decoder, pid_t pid)
{
    ask(decoder, &(qvm_order){ .kind = QVM_DROP, .pid = pid }, NULL);
}
