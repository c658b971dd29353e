/* SPDX-License-Identifier: MIT */
/* qwenvit-decoder: forks a process for each clip of the program that started it. The new process
 * starts at once, because all libraries are already loaded, and can do nothing but decode. This
 * process never sees a byte of a clip. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "nvdec.h"

enum { FIRST_FD = 3, END_FD = FIRST_FD + QVM_SESSION_FDS };
enum { MOST_SERVING = 4096, MOST_DROPPED = 16 };

/* ---- orders ---------------------------------------------------------------------------------- */

/* Returns whether n is a session's descriptors; the last, to the GPU process, may be
 * missing. */
static bool
is_session(int n)
{
    return n == QVM_SESSION_FDS || n == QVM_SESSION_FDS - 1;
}

/* ---- in a process for a clip ----------------------------------------------------------------- */

static void
serve(const qvm_order *order, const int *fds, int n)
{
    int high[QVM_SESSION_FDS];
    for (int i = 0; i < n; i++)
        high[i] = fcntl(fds[i], F_DUPFD, END_FD);
    for (int i = 0; i < n; i++)
        dup2(high[i], FIRST_FD + i);
    close(STDIN_FILENO); /* the first of them arrived there */
    const char *failed = qvm_sandbox(order->memory, FIRST_FD + n);
    if (!failed) {
        const int codec = n == QVM_SESSION_FDS ? FIRST_FD + 3 : -1;
        static qvm_serving serving;
        qvm_serve(&serving, &(qvm_session){ FIRST_FD, FIRST_FD + 1, FIRST_FD + 2, codec });
        if (serving.listens)
            pthread_detach(serving.listener); /* it ends with the process */
        return;
    }
    qvm_event event;
    memset(&event, 0, sizeof event);
    event.kind = QVM_END;
    event.outcome.decoded_by = QV_DECODE_CPU;
    event.status = QV_EBACKEND;
    snprintf(event.text, sizeof event.text, "its decoder cannot be locked down: %s: %s", failed,
             strerror(errno));
    qvm_send(FIRST_FD, &event, sizeof event);
}

/* ---- in the program -------------------------------------------------------------------------- */

/* A process forked in advance that waits for its order, so that no clip waits for a fork. */
struct spare {
    pid_t pid; /* -1: there is none */
    int socket;
};

static struct spare
make_spare(void)
{
    struct spare s = { -1, -1 };
    int there;
    const pid_t parent = getpid();
    if (!qvm_stream(&s.socket, &there))
        return s;
    s.pid = fork();
    if (!s.pid) {
        qvm_order order = { 0 };
        int fds[QVM_SESSION_FDS], n;
        qvm_end_with(parent);
        close(s.socket);
        close(STDIN_FILENO);
        if (qvm_order_take(there, &order, fds, &n) && is_session(n))
            serve(&order, fds, n);
        _exit(0);
    }
    close(there);
    if (s.pid < 0)
        close(s.socket);
    return s;
}

/* Returns the wait status of one of our processes, which is killed if it still runs. */
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

/* Kills a process without waiting for its memory to be freed, which takes milliseconds. It is
 * reaped once MOST_DROPPED more have been dropped. */
static void
drop_process(pid_t pid)
{
    static pid_t dropped[MOST_DROPPED];
    static unsigned next;
    if (waitpid(pid, NULL, WNOHANG))
        return;
    kill(pid, SIGKILL);
    if (dropped[next])
        end_process(dropped[next]);
    dropped[next] = pid;
    next = (next + 1) % MOST_DROPPED;
}

/* The processes that serve a clip. Orders may name no others. An entry of 0 is free. */
static pid_t serving[MOST_SERVING];

static pid_t *
find_serving(pid_t pid)
{
    for (int i = 0; i < MOST_SERVING; i++)
        if (serving[i] == pid)
            return &serving[i];
    return NULL;
}

/* Removes a process from the table; false if it is not there. */
static bool
strike(pid_t pid)
{
    pid_t *at = pid > 0 ? find_serving(pid) : NULL;
    if (at)
        *at = 0;
    return at != NULL;
}

/* Sends an order to the spare and stops counting it as spare. Returns its number; kills it and
 * returns -1 if it is unreachable. */
static pid_t
give_order(struct spare *s, const qvm_order *order, const int *fds, int n)
{
    const pid_t pid = s->pid;
    const bool sent = qvm_order_send(s->socket, order, fds, n);
    close(s->socket);
    s->pid = -1;
    if (!sent)
        end_process(pid);
    return sent ? pid : -1;
}

/* Returns the process that now serves the session, or -1. If a spare died while it waited (killed
 * when memory ran out, for example), no clip fails: another process is made. */
static pid_t
use_spare(struct spare *s, const qvm_order *order, const int *fds, int n)
{
    pid_t *at = find_serving(0), pid = -1;
    if (!is_session(n) || !at)
        return -1;
    for (int tries = 0; tries < 8 && pid < 0; tries++) {
        if (s->pid < 0)
            *s = make_spare();
        if (s->pid < 0)
            return -1;
        pid = give_order(s, order, fds, n);
    }
    if (pid > 0)
        *at = pid;
    return pid;
}

/* Executes an order and returns the answer, or -1 on failure. */
static int32_t
obey(struct spare *spare, const qvm_order *order, const int *fds, int n)
{
    switch ((qvm_order_kind)order->kind) {
    case QVM_SERVE: return use_spare(spare, order, fds, n);
    case QVM_KILL: return strike(order->pid) ? end_process(order->pid) : -1;
    case QVM_DROP:
        if (strike(order->pid))
            drop_process(order->pid);
        return 0;
    case QVM_DECODE: break; /* only a GPU process takes this order */
    }
    return -1;
}

/* Makes malloc keep freed frames: a clip is decoded twice, first only to inspect it, and the second
 * decoder reuses the first one's pages instead of faulting in new ones. */
static void
keep_freed_memory(void)
{
#ifdef __GLIBC__
    enum { FRAME_BYTES = 16 << 20 }; /* larger blocks are mapped individually, and returned */
    mallopt(M_MMAP_THRESHOLD, FRAME_BYTES);
    mallopt(M_TRIM_THRESHOLD, 16 * FRAME_BYTES);
#endif
}

/* Prints the versions of the program and its libraries. It cannot run if FFmpeg's are missing. */
static int
print_version(int fd)
{
    const char *nvdec = qvm_no_nvdec();
    if (!*nvdec)
        nvdec = QV_WITH_KERNELS ? "in this build, for --decode gpu; the GPU resizes frames too"
                                : "in this build, for --decode gpu; the CPU resizes frames, since "
                                  "there was no nvcc";
    return dprintf(fd, "qwenvit-decoder " QV_VERSION "\n" QVM_FFMPEG_FIELD "%s\n  NVDEC    %s\n",
                   av_version_info(), nvdec) < 0;
}

int
main(int argc, char **argv)
{
    struct stat input;
    const bool is_started = !fstat(STDIN_FILENO, &input) && S_ISSOCK(input.st_mode);
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return print_version(is_started ? STDIN_FILENO : STDOUT_FILENO);
    if (!is_started) {
        fputs("qwenvit-decoder is started by libqwenvit; its only option is "
              "--version\n",
              stderr);
        return 2;
    }
#ifndef QVM_SPAWN_CLOSES
    qvm_close_from(FIRST_FD); /* descriptors left open by the caller's exec */
#endif
    if (argc == 4 && !strcmp(argv[1], QVM_MAKE_CLIP))
        return qvm_make_clip(STDIN_FILENO, argv + 2);
    if (argc >= 3 && !strcmp(argv[1], "--device"))
        return qvm_gpu_process_run(STDIN_FILENO, argv[2]);
    const pid_t caller = qvm_caller(STDIN_FILENO);
    keep_freed_memory();
    qvm_warm_up();
    qvm_sandbox_prepare();
    struct spare spare = make_spare();
    qvm_share_libraries(); /* after that fork, because the first clip waits for it */
    qvm_order order = { 0 };
    int fds[QVM_SESSION_FDS], n;
    while (qvm_order_wait(STDIN_FILENO, caller) && qvm_order_take(STDIN_FILENO, &order, fds, &n)) {
        const int32_t answer = obey(&spare, &order, fds, n);
        qvm_close_all(fds, n);
        if (order.kind != QVM_DROP && !qvm_send(STDIN_FILENO, &answer, sizeof answer))
            break;
        if (spare.pid < 0)
            spare = make_spare();
    }
    if (spare.pid > 0) {
        close(spare.socket); /* it then exits by itself */
        end_process(spare.pid);
    }
    return 0;
}
