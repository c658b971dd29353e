/* SPDX-License-Identifier: MIT */
/* Starts and ends the GPU processes (gpu_process.c): when a clip first asks, and to replace one
 * that has ended, is suspect, or has served QVM_GPU_CLIPS clips. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

#define END_S 5.0      /* how long a monitor may take to end its process */
#define START_S 60.0   /* the longest wait for a process to get ready, which takes about 1 s */
#define CLIPS_AHEAD 64 /* the next process is started this many clips before QVM_GPU_CLIPS */
#define MOST_TRIES 3   /* how many processes a clip is passed to, if each turns out to have ended */
/* A process that failed to start is tried again after 1 s, then 2, up to 512: whatever was missing
 * may appear later, but a missing driver must not make every clip try a start. */
#define FIRST_RETRY_S 1
#define MOST_DOUBLINGS 9

/* ---- its life -------------------------------------------------------------------------------- */

/* Asks a process to end: the monitor kills the process that has the GPU open, waits for it, and
 * exits too. */
static void
end(qvm_child *child)
{
    if (child->pid)
        qvm_child_signal(child, SIGTERM);
}

/* Kills a process, and waits for its end. */
static void
stop(qvm_child *child)
{
    if (!child->pid)
        return;
    end(child);
    for (const double until_s = qv_seconds() + END_S; !qvm_child_has_ended(child);) {
        if (qv_seconds() > until_s)
            qvm_child_signal(child, SIGKILL);
        usleep(1000);
    }
}

/* Signals to a process that no more orders will come, so that it ends with its last stream. */
static void
retire(struct qvm_gpus *gpus, struct qvm_gpu_process *p)
{
    if (!p->child.pid)
        return;
    shutdown(p->child.socket, SHUT_WR);
    qvm_child *oldest = &gpus->retired[gpus->next_retired];
    gpus->next_retired = (gpus->next_retired + 1) % QVM_MOST_RETIRED;
    stop(oldest);
    *oldest = p->child;
    *p = (struct qvm_gpu_process){ 0 };
}

static bool
start(const qv_decoder *d, int gpu, struct qvm_gpu_process *p)
{
    char number[16];
    char name[] = "qwenvit-decoder", device[] = "--device";
    snprintf(number, sizeof number, "%d", gpu);
    *p = (struct qvm_gpu_process){ .began_s = qv_seconds() };
    errno = qvm_child_start(d->program, (char *[]){ name, device, number, NULL }, d->environment,
                            &p->child);
    return !errno;
}

/* Delays the next start after a failure. */
static void
postpone(struct qvm_gpu *g, bool momentary)
{
    g->momentary = momentary;
    g->retry_s = qv_seconds() + (FIRST_RETRY_S << g->failures);
    g->failures += g->failures < MOST_DOUBLINGS;
}

/* Returns whether a process is ready. If it never will be, g->why is the reason. */
static bool
hear(struct qvm_gpus *gpus, struct qvm_gpu *g, struct qvm_gpu_process *p, bool wait)
{
    qvm_gpu_hello hello;
    if (p->ready)
        return true;
    const double until_s = wait ? p->began_s + START_S : qv_seconds();
    const int code = qvm_receive_until(p->child.socket, &hello, sizeof hello, until_s);
    if (code == ETIMEDOUT && qv_seconds() < p->began_s + START_S)
        return false;
    hello.text[sizeof hello.text - 1] = 0;
    if (!code && hello.ready) {
        p->ready = true;
        g->failures = 0;
        return true;
    }
    if (code)
        snprintf(g->why, sizeof g->why, "its process %s",
                 code == ETIMEDOUT ? "was not ready after 60 s" : "exited during start-up");
    else
        snprintf(g->why, sizeof g->why, "%s", hello.text);
    postpone(g, false);
    end(&p->child);
    retire(gpus, p);
    return false;
}

/* Returns whether the process has ended, or ends within 0.1 s. */
static bool
has_ended(struct qvm_gpu_process *p)
{
    for (int i = 0; i < 20; i++) {
        if (qvm_child_has_ended(&p->child))
            return true;
        usleep(5000);
    }
    return false;
}

/* Gives up the current process, which is suspect, and the GPU if that happens too often. */
static void
lose(struct qvm_gpus *gpus, struct qvm_gpu *g)
{
    struct qvm_gpu_process *p = &g->now;
    g->doubts += QVM_GPU_DOUBT;
    if (g->doubts > QVM_MOST_DOUBTS) {
        snprintf(g->why, sizeof g->why, "its processes fail repeatedly");
        g->retry_s = INFINITY;
        g->momentary = false;
    }
    if (!has_ended(p))
        retire(gpus, p);
    *p = (struct qvm_gpu_process){ 0 };
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Starts a missing process, unless that failed recently. While `now` serves, a failure to start the
 * next process affects no clip; once `now` has stopped serving, a start is tried at once. */
static void
start_missing(const qv_decoder *d, int gpu, struct qvm_gpu_process *missing)
{
    struct qvm_gpu *g = &d->gpus->at[gpu];
    const bool is_now = missing == &g->now, is_due = qv_seconds() >= g->retry_s;
    if (is_due)
        *g->why = 0;
    if ((is_now ? *g->why != 0 : !is_due) || start(d, gpu, missing))
        return;
    if (is_now)
        snprintf(g->why, sizeof g->why, "%s cannot be started: %s", d->program, strerror(errno));
    postpone(g, true);
}

/* Returns the process for the next clip; NULL: none is ready, and g->why is set if none will be
 * soon. */
static struct qvm_gpu_process *
find(qv_decoder *d, int gpu, bool wait)
{
    struct qvm_gpus *gpus = d->gpus;
    struct qvm_gpu *g = &gpus->at[gpu];
    for (int i = 0; i < QVM_MOST_RETIRED; i++)
        if (gpus->retired[i].pid)
            qvm_child_has_ended(&gpus->retired[i]);
    if (g->now.child.pid && g->now.given >= QVM_GPU_CLIPS)
        retire(gpus, &g->now);
    if (!g->now.child.pid) {
        g->now = g->next;
        g->next = (struct qvm_gpu_process){ 0 };
    }
    struct qvm_gpu_process *missing =
        !g->now.child.pid                                                   ? &g->now
        : g->now.given >= QVM_GPU_CLIPS - CLIPS_AHEAD && !g->next.child.pid ? &g->next
                                                                            : NULL;
    if (missing)
        start_missing(d, gpu, missing);
    return g->now.child.pid && !*g->why && hear(gpus, g, &g->now, wait) ? &g->now : NULL;
}

qv_status
qvm_gpu_give(qv_decoder *d, const qvm_gpu_request *request, pid_t *pid, qv_error *err)
{
    const int gpu = request->gpu;
    qv_status status = QV_OK;
    pthread_mutex_lock(&d->gpus->lock);
    struct qvm_gpu *g = &d->gpus->at[gpu];
    struct qvm_gpu_process *p = NULL;
    for (int tries = 0; tries <= MOST_TRIES && !*pid; tries++) {
        p = find(d, gpu, true);
        if (!p)
            break;
        if (qvm_order_send(p->child.socket, &request->order, request->fds, QVM_GPU_FDS)) {
            *pid = p->child.pid;
            p->given++;
            g->doubts -= g->doubts > 0;
        } else {
            end(&p->child); /* the process has ended, or accepts no orders */
            lose(d->gpus, g);
        }
    }
    if (!*pid)
        status = qv_fail(err, g->doubts > QVM_MOST_DOUBTS ? QV_ESTATE : QV_EBACKEND,
                         "GPU %d cannot decode: %s", gpu, g->why);
    pthread_mutex_unlock(&d->gpus->lock);
    return status;
}

int64_t
qv_decoder_gpu_bytes(void)
{
    return QVM_GPU_PICTURES + QVM_GPU_CONTEXT;
}

#define NO_SUCH_GPU "its index must be from 0 to %d, and the decoder not NULL"
#define NOT_OURS "qwenvit-decoder was started by another process, not this one"

qv_status
qv_decoder_gpu(qv_decoder *d, int gpu, bool wait, qv_error *err)
{
    qv_status status = QV_OK;
    if (!d || gpu < 0 || gpu >= QVM_MOST_GPUS)
        return qv_fail(err, QV_EINVAL, "GPU %d: " NO_SUCH_GPU, gpu, QVM_MOST_GPUS - 1);
    if (d->owner != getpid())
        return qv_fail(err, QV_EBACKEND, NOT_OURS);
    pthread_mutex_lock(&d->gpus->lock);
    const struct qvm_gpu *g = &d->gpus->at[gpu];
    if (!find(d, gpu, wait))
        status = *g->why ? qv_fail(err, g->momentary ? QV_ESTATE : QV_EBACKEND,
                                   "GPU %d cannot decode: %s", gpu, g->why)
                         : qv_fail(err, QV_ESTATE, "GPU %d is being opened", gpu);
    pthread_mutex_unlock(&d->gpus->lock);
    return status;
}

bool
qv_decoder_has_gpu(qv_decoder *d, int gpu, char why[64])
{
    char none[64];
    why = why ? why : none;
    if (!d || gpu < 0 || gpu >= QVM_MOST_GPUS) {
        snprintf(why, 64, NO_SUCH_GPU, QVM_MOST_GPUS - 1);
        return false;
    }
    if (d->owner != getpid()) {
        snprintf(why, 64, "%.63s", NOT_OURS);
        return false;
    }
    pthread_mutex_lock(&d->gpus->lock);
    const struct qvm_gpu *g = &d->gpus->at[gpu];
    const bool has = g->now.ready && !*g->why;
    snprintf(why, 64, "%.63s", g->why);
    pthread_mutex_unlock(&d->gpus->lock);
    return has;
}

void
qvm_gpu_doubt(qv_decoder *d, int gpu, pid_t pid)
{
    pthread_mutex_lock(&d->gpus->lock);
    struct qvm_gpu *g = &d->gpus->at[gpu];
    if (g->now.child.pid == pid)
        lose(d->gpus, g);
    pthread_mutex_unlock(&d->gpus->lock);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void
for_all(struct qvm_gpus *gpus, void (*act)(qvm_child *child))
{
    for (int i = 0; i < QVM_MOST_GPUS; i++) {
        act(&gpus->at[i].now.child);
        act(&gpus->at[i].next.child);
    }
    for (int i = 0; i < QVM_MOST_RETIRED; i++)
        act(&gpus->retired[i]);
}

void
qvm_gpus_end(struct qvm_gpus *gpus, bool are_ours)
{
    if (are_ours)
        for_all(gpus, end); /* all at once: closing a GPU takes a quarter of a second */
    for_all(gpus, are_ours ? stop : qvm_child_leave);
}
