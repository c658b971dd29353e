/* SPDX-License-Identifier: MIT */
/* The program qwenvit-decoder as the GPU process. It decodes for many clips, with one thread per
 * clip, and outlives them. It never sees a file, only packets from each clip's decoder process
 * (gpu_decoder.h). The program that started it passes it each clip's socket and memory. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nvdec.h"

enum { MOST_STREAMS = 32 };

struct gpu_process {
    qvm_nvdec *gpu;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int n_streams; /* open streams; guarded by the lock */
};

/* The stream of one clip. */
struct stream {
    struct gpu_process *process;
    int socket;
    uint8_t *planes; /* [n_slots, slot_bytes] */
    int64_t slot_bytes;
    int n_slots;
    struct {
        bool wanted;
        int64_t pts;
    } slots[QVM_MOST_SLOTS];
    qvm_nvstream *nv;
    uint8_t *data; /* [room] bytes of a packet */
    size_t room;
};

/* ---- answers --------------------------------------------------------------------------------- */

static bool
answer(const struct stream *s, qvm_gpu_decoder_answer kind)
{
    const qvm_gpu_decoder_event e = { .kind = (int32_t)kind, .slot = -1 };
    return qvm_send(s->socket, &e, sizeof e);
}

static bool
refuse(const struct stream *s, const char *why)
{
    qvm_gpu_decoder_event e = { .kind = QVM_GPU_FAILED, .slot = -1 };
    snprintf(e.why, sizeof e.why, "%s", why);
    qvm_send(s->socket, &e, sizeof e);
    return false;
}

static uint8_t *
find_slot(void *user, int64_t pts, int64_t bytes, int32_t *slot)
{
    struct stream *s = user;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].wanted && s->slots[i].pts == pts && bytes <= s->slot_bytes) {
            s->slots[i].wanted = false;
            *slot = i;
            return s->planes + i * s->slot_bytes;
        }
    return NULL;
}

static void
send_frame(void *user, const qvm_gpu_decoder_event *event)
{
    const struct stream *s = user;
    qvm_send(s->socket, event, sizeof *event); /* if it fails, no further request comes */
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Receives the bytes that follow a request into s->data. */
static bool
receive_data(struct stream *s, int32_t bytes)
{
    if (bytes < 0 || bytes > QVM_MOST_PACKET)
        return refuse(s, "a packet is too large");
    if ((size_t)bytes > s->room) {
        free(s->data);
        s->room = (size_t)bytes;
        s->data = malloc(s->room);
    }
    if (!s->data && bytes) {
        s->room = 0;
        return refuse(s, "the GPU process is out of memory");
    }
    return qvm_receive(s->socket, s->data, (size_t)bytes);
}

static bool
open_stream(struct stream *s, int32_t bytes)
{
    const qvm_nvdec_sink sink = { find_slot, send_frame, s };
    qvm_gpu_decoder_stream about;
    const char *why;
    if (s->nv || bytes != (int32_t)sizeof about)
        return refuse(s, "it made an impossible request");
    memcpy(&about, s->data, sizeof about);
    s->nv = qvm_nvstream_open(s->process->gpu, &about, &sink, &why);
    return s->nv ? answer(s, QVM_GPU_OPENED) : refuse(s, why);
}

static bool
decode(struct stream *s, const qvm_gpu_decoder_request *r)
{
    if (r->slot >= s->n_slots || !r->bytes)
        return refuse(s, "it made an impossible request");
    if (r->slot >= 0) {
        s->slots[r->slot].wanted = true;
        s->slots[r->slot].pts = r->pts;
    }
    const char *why = qvm_nvstream_give(s->nv, r, s->data);
    return why ? refuse(s, why) : true;
}

/* Executes a request. Returns false if the clip is done. */
static bool
obey(struct stream *s, const qvm_gpu_decoder_request *r)
{
    const char *why;
    if (!receive_data(s, r->bytes))
        return false;
    if (r->kind == QVM_GPU_OPEN)
        return open_stream(s, r->bytes);
    if (!s->nv)
        return refuse(s, "it made an impossible request");
    switch ((qvm_gpu_decoder_kind)r->kind) {
    case QVM_GPU_PACKET: return decode(s, r);
    case QVM_GPU_EMPTY:
        why = qvm_nvstream_give(s->nv, r, NULL);
        return why ? refuse(s, why) : answer(s, QVM_GPU_EMPTIED);
    case QVM_GPU_ANEW: why = qvm_nvstream_begin_anew(s->nv); return why ? refuse(s, why) : true;
    default: return refuse(s, "it made an impossible request");
    }
}

static void
end_stream(struct stream *s)
{
    struct gpu_process *p = s->process;
    close(s->socket);
    if (s->planes)
        munmap(s->planes, (size_t)(s->n_slots * s->slot_bytes));
    free(s->data);
    free(s);
    pthread_mutex_lock(&p->lock);
    p->n_streams--;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
}

static void *
serve(void *user)
{
    struct stream *s = user;
    qvm_gpu_decoder_request request;
    while (qvm_receive(s->socket, &request, sizeof request) && obey(s, &request))
        ;
    if (s->nv)
        qvm_nvstream_close(s->nv);
    end_stream(s);
    return NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* Starts a stream, which owns the descriptors. The order is trusted, because clips cannot send
 * orders. */
static void
start_stream(struct gpu_process *p, const qvm_order *order, const int fds[QVM_GPU_FDS])
{
    pthread_t thread;
    struct stream *s = calloc(1, sizeof *s);
    void *at = MAP_FAILED;
    if (s)
        at = mmap(NULL, (size_t)(order->n_planes * order->plane_bytes), PROT_READ | PROT_WRITE,
                  MAP_SHARED, fds[1], (off_t)order->memory);
    close(fds[1]);
    if (!s) {
        close(fds[0]);
        return;
    }
    *s = (struct stream){ .process = p,
                          .socket = fds[0],
                          .slot_bytes = order->plane_bytes,
                          .n_slots = (int)order->n_planes };
    s->planes = at == MAP_FAILED ? NULL : at;
    pthread_mutex_lock(&p->lock);
    const bool full = p->n_streams++ == MOST_STREAMS;
    pthread_mutex_unlock(&p->lock);
    if (!full && s->planes && !pthread_create(&thread, NULL, serve, s)) {
        pthread_detach(thread);
        return;
    }
    refuse(s, full ? "the GPU has too many streams" : "the GPU process is out of memory");
    end_stream(s);
}

/* Opens the GPU and locks the process down. `hello` reports a failure. */
static void
open_gpu(struct gpu_process *p, const char *number, qvm_gpu_hello *hello)
{
    const char *why = qvm_nvdec_load(&p->gpu);
    const bool loaded = !why;
    const char *failed = why ? NULL : qvm_sandbox_files();
    if (!why && !failed) /* the number is ours and needs no checks */
        why = qvm_nvdec_open(p->gpu, (int)strtol(number, NULL, 10));
    if (!why && !failed)
        failed = qvm_sandbox_gpu();
    if (!why && !failed && !qvm_nvdec_try(p->gpu))
        failed = "its driver then fails to make a decoder";
    if (failed)
        snprintf(hello->text, sizeof hello->text, "cannot lock down the GPU process (%s: %s)",
                 failed, strerror(errno));
    else if (why)
        snprintf(hello->text, sizeof hello->text, "%s%s", why,
                 loaded ? " (perhaps because its process is locked down)" : "");
    hello->ready = !why && !failed;
}

/* Serves clips with the GPU open. Returns the exit code if that fails. */
static int
run(int socket, const char *number)
{
    struct gpu_process p = { .gpu = NULL };
    const pid_t parent = getppid();
    qvm_gpu_hello hello = { .ready = 0 };
    qvm_order order = { 0 };
    int fds[QVM_SESSION_FDS], n;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.ended, NULL);
    open_gpu(&p, number, &hello);
    if (!qvm_send(socket, &hello, sizeof hello) || !hello.ready)
        return 1;
    while (qvm_order_wait(socket, parent) && qvm_order_take(socket, &order, fds, &n)) {
        if (order.kind == QVM_DECODE && n == QVM_GPU_FDS && order.plane_bytes > 0)
            start_stream(&p, &order, fds);
        else
            qvm_close_all(fds, n);
    }
    pthread_mutex_lock(&p.lock);
    while (p.n_streams)
        pthread_cond_wait(&p.ended, &p.lock);
    return 0;
}

/* ---- the watcher ----------------------------------------------------------------------------- */

/* Waits for the GPU process, and ends it if `caller` has exited or SIGTERM arrives. Both signals of
 * `waited` are blocked. */
static int
watch(pid_t process, pid_t caller, const sigset_t *waited)
{
    const struct timespec look = { .tv_sec = 1 };
    int how;
    for (;;) {
        if (waitpid(process, &how, WNOHANG) == process)
            return WIFEXITED(how) ? WEXITSTATUS(how) : 1;
        if (sigtimedwait(waited, NULL, &look) == SIGTERM || getppid() != caller)
            kill(process, SIGKILL);
    }
}

/* A GPU process may be stuck in its driver or taken over, so the kernel must end it together with
 * its parent (qvm_end_with). To the kernel the parent is the thread that called fork(), and the
 * caller's threads come and go. So this single-threaded process is the parent. */
int
qvm_gpu_process_run(int socket, const char *number)
{
    const pid_t caller = qvm_caller(socket), watcher = getpid();
    sigset_t waited, before;
    sigemptyset(&waited);
    sigaddset(&waited, SIGCHLD);
    sigaddset(&waited, SIGTERM);
    sigprocmask(SIG_BLOCK, &waited, &before);
    const pid_t process = fork();
    if (!process) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        qvm_end_with(watcher);
        _exit(run(socket, number)); /* this ends the driver's own threads as well */
    }
    close(socket); /* otherwise the caller would not notice that the process has ended */
    return process < 0 ? 1 : watch(process, caller, &waited);
}
