/* SPDX-License-Identifier: MIT */
/*
 * qwenvit-decoder: makes a process for each clip that the program which started it wants decoded.
 * Such a process starts at once, as all libraries are loaded here already, and can do nothing but
 * decode. This one never sees a byte of a clip.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "media.h"

enum { FIRST_FD = 3, END_FD = FIRST_FD + QVM_SESSION_FDS };

/* The next order; fds[0] is -1 if none came with it. False: nobody gives any more. */
static bool
take_order(int socket, qvm_order *order, int fds[QVM_SESSION_FDS])
{
    const size_t bytes = QVM_SESSION_FDS * sizeof *fds;
    union qvm_control control;
    struct iovec data = { order, sizeof *order };
    struct msghdr message = { .msg_iov = &data,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    ssize_t n;
    do
        n = recvmsg(socket, &message, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *order)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(bytes))
        memcpy(fds, CMSG_DATA(c), bytes);
    else
        fds[0] = -1;
    return true;
}

/* ---- in a process for a clip ----------------------------------------------------------------- */

static void
serve(const qvm_order *order, const int fds[QVM_SESSION_FDS])
{
    int high[QVM_SESSION_FDS];
    for (int i = 0; i < QVM_SESSION_FDS; i++)
        high[i] = fcntl(fds[i], F_DUPFD, END_FD);
    for (int i = 0; i < QVM_SESSION_FDS; i++)
        dup2(high[i], FIRST_FD + i);
    const char *failed = qvm_sandbox(order->memory, END_FD);
    if (!failed) {
        qvm_serve(&(qvm_session){ FIRST_FD, FIRST_FD + 1, FIRST_FD + 2, true });
        return;
    }
    qvm_event event;
    memset(&event, 0, sizeof event);
    event.kind = QVM_END;
    event.status = QV_EBACKEND;
    snprintf(event.text, sizeof event.text, "its decoder cannot be locked in: %s: %s", failed,
             strerror(errno));
    qvm_send(FIRST_FD, &event, sizeof event);
}

/* ---- in the program -------------------------------------------------------------------------- */

/* A process that waits for its order, so that no clip waits for a process. */
struct spare {
    pid_t pid; /* or -1 */
    int socket;
};

static struct spare
make_spare(void)
{
    struct spare s = { -1, -1 };
    int there;
    if (!qvm_stream(&s.socket, &there))
        return s;
    s.pid = fork();
    if (!s.pid) {
        qvm_order order;
        int fds[QVM_SESSION_FDS];
        close(s.socket);
        close(STDIN_FILENO);
        if (take_order(there, &order, fds) && fds[0] >= 0)
            serve(&order, fds);
        _exit(0);
    }
    close(there);
    if (s.pid < 0)
        close(s.socket);
    return s;
}

/* How a process of ours ended; one that has not is ended now. */
static int32_t
end_process(pid_t pid)
{
    int how = -1;
    if (waitpid(pid, &how, WNOHANG) == 0) {
        kill(pid, SIGKILL);
        while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
            ;
    }
    return how;
}

/* Its number, or -1. */
static pid_t
use_spare(struct spare *s, const qvm_order *order, const int fds[QVM_SESSION_FDS])
{
    if (s->pid < 0)
        *s = make_spare();
    if (s->pid < 0)
        return -1;
    const bool sent = qvm_order_send(s->socket, order, fds);
    close(s->socket);
    if (!sent)
        end_process(s->pid);
    return sent ? s->pid : -1;
}

/* Ends a process whose end nobody waits for: giving back its memory takes milliseconds. It is
 * waited for once the next ones are dropped. */
static void
drop_process(pid_t pid)
{
    enum { MOST = 16 };
    static pid_t dropped[MOST];
    static unsigned next;
    if (waitpid(pid, NULL, WNOHANG))
        return;
    kill(pid, SIGKILL);
    if (dropped[next])
        end_process(dropped[next]);
    dropped[next] = pid;
    next = (next + 1) % MOST;
}

int
main(void)
{
    struct stat input;
    if (fstat(STDIN_FILENO, &input) || !S_ISSOCK(input.st_mode)) {
        fputs("qwenvit-decoder is started by libqwenvit_media and by qwenvit; it has no options\n",
              stderr);
        return 2;
    }
    qvm_warm_up();
    struct spare spare = make_spare();
    qvm_order order;
    int fds[QVM_SESSION_FDS];
    while (take_order(STDIN_FILENO, &order, fds)) {
        if (order.kind == QVM_DROP) {
            drop_process(order.pid);
            continue;
        }
        const bool wanted = order.kind == QVM_SERVE && fds[0] >= 0;
        const int32_t answer =
            wanted ? (int32_t)use_spare(&spare, &order, fds) : end_process(order.pid);
        if (!qvm_send(STDIN_FILENO, &answer, sizeof answer))
            break;
        for (int i = 0; wanted && i < QVM_SESSION_FDS; i++)
            close(fds[i]);
        if (wanted)
            spare = make_spare();
    }
    if (spare.pid > 0) {
        close(spare.socket); /* it hears that */
        end_process(spare.pid);
    }
    return 0;
}
