/* SPDX-License-Identifier: MIT */
/* Both ends of a clip talk to each other through these functions, and programs take orders through them. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "media.h"

bool
qvm_send(int socket, const void *message, size_t n)
{
    const char *at = message;
    while (n) {
        const ssize_t sent = send(socket, at, n, QVM_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool
qvm_receive(int socket, void *message, size_t n)
{
    char *at = message;
    while (n) {
        const ssize_t got = recv(socket, at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
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

/* Takes the descriptors that came with a message and returns their number. If there are more than a session has, all are
 * closed; the system itself closes those for which the message had no room (MSG_CTRUNC). */
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

/* The parent at the time of this call may already be another process, which adopted this one. The socket still knows. */
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

/* The parent is watched because a process that was forked off it may still hold its end of the socket. */
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
