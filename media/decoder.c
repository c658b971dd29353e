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

/* The next order, and the descriptors that came with it (-1: none). False: nobody gives any more. */
static bool
take_order(qvm_order *order, int fds[QVM_SESSION_FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(QVM_SESSION_FDS * sizeof(int))];
    } control;
    struct iovec data = { order, sizeof *order };
    struct msghdr message = { .msg_iov = &data,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    ssize_t n;
    do
        n = recvmsg(STDIN_FILENO, &message, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *order)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    const size_t bytes = QVM_SESSION_FDS * sizeof *fds;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(bytes))
        memcpy(fds, CMSG_DATA(c), bytes);
    else
        fds[0] = -1;
    return true;
}

/* In the new process. */
static void
serve(const qvm_order *order, const int fds[QVM_SESSION_FDS])
{
    int high[QVM_SESSION_FDS];
    for (int i = 0; i < QVM_SESSION_FDS; i++)
        high[i] = fcntl(fds[i], F_DUPFD, END_FD);
    for (int i = 0; i < QVM_SESSION_FDS; i++)
        dup2(high[i], FIRST_FD + i);
    close(STDIN_FILENO);
    const char *failed = qvm_sandbox(order->memory, END_FD);
    if (!failed)
        qvm_serve(&(qvm_session){ FIRST_FD, FIRST_FD + 1, FIRST_FD + 2, true });
    qvm_event event;
    memset(&event, 0, sizeof event);
    event.kind = QVM_END;
    event.status = QV_EBACKEND;
    snprintf(event.text, sizeof event.text, "its decoder cannot be locked in: %s: %s", failed,
             strerror(errno));
    qvm_send(FIRST_FD, &event, sizeof event);
    _exit(1);
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

int
main(void)
{
    struct stat input;
    if (fstat(STDIN_FILENO, &input) || !S_ISSOCK(input.st_mode)) {
        fputs("qwenvit-decoder is started by libqwenvit_media and by qwenvit; it has no options\n",
              stderr);
        return 2;
    }
    qvm_order order;
    int fds[QVM_SESSION_FDS];
    while (take_order(&order, fds)) {
        int32_t answer = -1;
        if (order.pid > 0) {
            answer = end_process(order.pid);
        } else if (fds[0] >= 0) {
            answer = (int32_t)fork();
            if (!answer)
                serve(&order, fds);
            for (int i = 0; i < QVM_SESSION_FDS; i++)
                close(fds[i]);
        }
        if (!qvm_send(STDIN_FILENO, &answer, sizeof answer))
            break;
    }
    return 0;
}
