/* SPDX-License-Identifier: MIT */
/* Reads weights from the disk ahead of their use, on several threads. */
#include "weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "threads.h"

/* More threads do not read faster, because memory or the single consuming thread is the
 * bottleneck. */
enum { MOST_THREADS = 8 };

struct slot {
    bool ready;
    qv_status status;
    qv_error err;
};

struct qv_prefetch {
    struct qv_prefetch_work work;
    pthread_t threads[MOST_THREADS - 1];
    int n_threads;
    pthread_mutex_t lock;
    /* room: a slot is free (threads wait for it); ready: anything else (the caller waits for it) */
    pthread_cond_t room, ready;
    /* counts of items in their order, guarded by the lock */
    size_t begun, followed, taken, released;
    bool following, ending;
    struct slot slots[];
};

/* Returns the slot of item i, which has been begun and not yet released. */
static struct slot *
slot_of(struct qv_prefetch *p, size_t i)
{
    return &p->slots[i % (size_t)p->work.slots];
}

static bool
may_begin(const struct qv_prefetch *p)
{
    const size_t done = p->followed < p->released ? p->followed : p->released;
    return !p->ending && p->begun < p->work.n && p->begun < done + (size_t)p->work.slots;
}

static bool
may_follow(struct qv_prefetch *p)
{
    if (p->following || p->followed == p->begun)
        return false;
    const struct slot *slot = slot_of(p, p->followed);
    return slot->ready && !slot->status;
}

/* Calls follow() for the ready items, in order. A thread does this after it has made an item ready,
 * unless another thread is already doing it. */
static void
follow_ready(struct qv_prefetch *p)
{
    while (may_follow(p)) {
        p->following = true;
        pthread_mutex_unlock(&p->lock);
        p->work.follow(p->work.user, p->followed);
        pthread_mutex_lock(&p->lock);
        p->following = false;
        p->followed++;
        pthread_cond_signal(&p->room);
        pthread_cond_signal(&p->ready);
    }
}

static void
prepare_next(struct qv_prefetch *p)
{
    const size_t i = p->begun++;
    struct slot *slot = slot_of(p, i);
    slot->ready = false;
    pthread_mutex_unlock(&p->lock);
    const qv_status status = p->work.prepare(p->work.user, i, &slot->err);
    pthread_mutex_lock(&p->lock);
    slot->status = status;
    slot->ready = true;
    p->ending |= status != QV_OK;
    pthread_cond_signal(&p->ready);
    follow_ready(p);
}

static void *
help(void *prefetch)
{
    struct qv_prefetch *p = prefetch;
    pthread_mutex_lock(&p->lock);
    while (!p->ending && p->begun < p->work.n) {
        if (may_begin(p))
            prepare_next(p);
        else
            pthread_cond_wait(&p->room, &p->lock);
    }
    pthread_cond_broadcast(&p->room); /* the other threads need not wait any longer */
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

qv_status
qv_prefetch_next(struct qv_prefetch *p, size_t *i, qv_error *err)
{
    qv_status status = QV_OK;
    pthread_mutex_lock(&p->lock);
    p->released = p->taken;
    pthread_cond_signal(&p->room);
    *i = p->taken;
    const bool last = *i == p->work.n;
    while (last ? p->followed < *i : p->begun == *i || !slot_of(p, *i)->ready) {
        if (may_begin(p))
            prepare_next(p);
        else
            pthread_cond_wait(&p->ready, &p->lock);
    }
    if (!last) {
        p->taken++;
        status = slot_of(p, *i)->status;
        if (status && err)
            *err = slot_of(p, *i)->err;
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

qv_status
qv_prefetch_open(const struct qv_prefetch_work *work, struct qv_prefetch **out, qv_error *err)
{
    struct qv_prefetch *p = calloc(1, sizeof *p + (size_t)work->slots * sizeof *p->slots);
    if (!p)
        return qv_fail(err, QV_ENOMEM, "no memory to read %d slices ahead", work->slots);
    p->work = *work;
    p->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    p->room = p->ready = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    int threads = work->threads < MOST_THREADS ? work->threads : MOST_THREADS;
    if (threads > work->slots)
        threads = work->slots;
    int failed = 0;
    while (p->n_threads < threads - 1 && !failed) {
        failed = qv_thread_start(&p->threads[p->n_threads], help, p);
        p->n_threads += !failed;
    }
    if (failed) {
        qv_prefetch_close(p);
        return qv_fail(err, QV_ENOMEM, "cannot start a thread to read ahead (%s)",
                       strerror(failed));
    }
    *out = p;
    return QV_OK;
}

void
qv_prefetch_close(struct qv_prefetch *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->room);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->room);
    pthread_cond_destroy(&p->ready);
    free(p);
}
