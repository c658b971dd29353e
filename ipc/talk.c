/* SPDX-License-Identifier: MIT */
/* How both sides communicate and share memory, and how programs receive orders. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "messages.h"

#define ASK_S 0.05

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
    /* sealed, because reading memory that the other side has truncated kills a process (SIGBUS) */
    return !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
#else
    return true; /* macOS lets a shared memory object be sized only once */
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

int
qvm_wait_for(int socket, short events, double until_s)
{
    struct pollfd wait = { .fd = socket, .events = events };
    for (;;) {
        const double left_s = until_s - qv_seconds();
        const int ready = poll(&wait, 1,
                               isinf(left_s) ? -1
                               : left_s > 0  ? (int)(left_s * 1e3) + 1
                                             : 0);
        if (ready > 0)
            return 0;
        if (!ready)
            return ETIMEDOUT;
        if (errno != EINTR)
            return errno;
    }
}

/* Waits for a socket, for a short time only if go_on must be called again. */
static int
wait_asking(int socket, short events, const struct qvm_patience *patience)
{
    const double soon_s = patience->go_on ? qv_seconds() + ASK_S : INFINITY;
    const bool is_last = patience->until_s <= soon_s;
    const int code = qvm_wait_for(socket, events, is_last ? patience->until_s : soon_s);
    return code == ETIMEDOUT && !is_last ? 0 : code;
}

int
qvm_transfer(int socket, bool out, void *bytes, size_t n, const struct qvm_patience *patience)
{
    char *at = bytes;
    while (n) {
        if (patience->go_on && !patience->go_on(patience->user))
            return ECANCELED;
        const ssize_t some = out ? send(socket, at, n, QVM_NOSIGNAL | MSG_DONTWAIT)
                                 : recv(socket, at, n, MSG_DONTWAIT);
        int code = some > 0 ? 0 : some ? errno : ECONNRESET;
        if (code == EAGAIN)
            code = wait_asking(socket, out ? POLLOUT : POLLIN, patience);
        if (code && code != EINTR)
            return code;
        at += some > 0 ? some : 0;
        n -= some > 0 ? (size_t)some : 0;
    }
    return 0;
}

int
qvm_receive_until(int socket, void *message, size_t n, double until_s)
{
    return qvm_transfer(socket, false, message, n, &(struct qvm_patience){ .until_s = until_s });
}

bool
qvm_send(int socket, const void *message, size_t n)
{
    return !qvm_transfer(socket, true, (void *)(uintptr_t)message, n,
                         &(struct qvm_patience){ .until_s = INFINITY });
}

bool
qvm_receive(int socket, void *message, size_t n)
{
    return !qvm_receive_until(socket, message, n, INFINITY);
}

/* ---- orders ---------------------------------------------------------------------------------- */

#ifdef MSG_CMSG_CLOEXEC
#define CLOSE_ON_EXEC MSG_CMSG_CLOEXEC
#else
/* macOS has no such flag, and a process that takes orders executes no other program. */
#define CLOSE_ON_EXEC 0
#endif

void
qvm_close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

bool
qvm_order_send(int socket, const qvm_order *order, const int *fds, int n)
{
    const size_t bytes = (size_t)n * sizeof *fds;
    union qvm_control control = { .bytes = { 0 } };
    struct iovec data = { (void *)(uintptr_t)order, sizeof *order };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };
    if (n) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        control.align = (struct cmsghdr){ .cmsg_len = CMSG_LEN(bytes),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.align), fds, bytes);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, QVM_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof *order;
}

/* Takes a message's descriptors and returns their number. If there are more than a session has, all
 * are closed; the system has already closed descriptors that did not fit (MSG_CTRUNC). */
static int
take_fds(struct msghdr *message, int fds[QVM_SESSION_FDS])
{
    int came[sizeof(union qvm_control) / sizeof *fds], n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(came + n, CMSG_DATA(c), bytes);
        n += (int)(bytes / sizeof *came);
    }
    if (n <= QVM_SESSION_FDS && !(message->msg_flags & MSG_CTRUNC)) {
        memcpy(fds, came, (size_t)n * sizeof *fds);
        return n;
    }
    qvm_close_all(came, n);
    return 0;
}

bool
qvm_order_take(int socket, qvm_order *order, int fds[QVM_SESSION_FDS], int *n)
{
    union qvm_control control;
    struct iovec data = { order, sizeof *order };
    struct msghdr message = { .msg_iov = &data,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    ssize_t bytes;
    do
        bytes = recvmsg(socket, &message, CLOSE_ON_EXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return false;
    *n = take_fds(&message, fds);
    if (bytes == (ssize_t)sizeof *order)
        return true;
    qvm_close_all(fds, *n);
    return false;
}

/* By now the parent may be a different process that adopted this one. The socket knows the
 * original. */
pid_t
qvm_caller(int socket)
{
#ifdef __linux__
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n))
        return peer.pid;
#else
    (void)socket;
#endif
    return getppid();
}

/* A process forked from the parent may still hold its end of the socket. */
bool
qvm_order_wait(int socket, pid_t parent)
{
    enum { LOOK_MS = 1000 };
    struct pollfd order = { .fd = socket, .events = POLLIN };
    int ready;
    do
        ready = poll(&order, 1, LOOK_MS);
    while (getppid() == parent && (!ready || (ready < 0 && errno == EINTR)));
    return getppid() == parent && ready > 0;
}
