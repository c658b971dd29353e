/* SPDX-License-Identifier: MIT */
#include "copier.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "error.h"
#include "threads.h"

/* More threads bring no gain on PCIe 5. A slice is large enough that copying it takes longer than
 * handing it to a thread. */
enum { MOST_THREADS = 6, SLICE_BYTES = 256 << 10 };

struct qv_copier {
    pthread_t threads[MOST_THREADS - 1];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    /* Guarded by the lock: the current copy, which ends when every slice has been taken and no
     * thread is busy. */
    char *dst;
    const char *src;
    size_t bytes, taken;
    int busy;
    bool closing;
};

/* Copies slices until none is left. The caller holds the lock. */
static void
copy_slices(struct qv_copier *c)
{
    while (c->taken < c->bytes) {
        const size_t at = c->taken, left = c->bytes - at;
        const size_t n = left < SLICE_BYTES ? left : SLICE_BYTES;
        char *dst = c->dst + at;
        const char *src = c->src + at;
        c->taken += n;
        c->busy++;
        pthread_mutex_unlock(&c->lock);
        memcpy(dst, src, n);
        pthread_mutex_lock(&c->lock);
        c->busy--;
    }
    if (!c->busy)
        pthread_cond_signal(&c->done);
}

static void *
help(void *copier)
{
    struct qv_copier *c = copier;
    pthread_mutex_lock(&c->lock);
    while (!c->closing) {
        if (c->taken < c->bytes)
            copy_slices(c);
        else
            pthread_cond_wait(&c->begun, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void
qv_copier_copy(struct qv_copier *c, void *dst, const void *src, size_t bytes)
{
    if (bytes <= SLICE_BYTES || !c->n_threads) {
        memcpy(dst, src, bytes);
        return;
    }
    pthread_mutex_lock(&c->lock);
    c->dst = dst;
    c->src = src;
    c->bytes = bytes;
    c->taken = 0;
    pthread_cond_broadcast(&c->begun);
    copy_slices(c);
    while (c->busy)
        pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

qv_status
qv_copier_open(int threads, struct qv_copier **out, qv_error *err)
{
    struct qv_copier *c = calloc(1, sizeof *c);
    if (!c)
        return qv_fail(err, QV_ENOMEM, "no memory for a copier");
    c->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    c->begun = c->done = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if (threads <= 0)
        threads = qv_usable_cores();
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    int failed = 0;
    while (c->n_threads < threads - 1 && !failed) {
        failed = qv_thread_start(&c->threads[c->n_threads], help, c);
        c->n_threads += !failed;
    }
    if (failed) {
        qv_copier_close(c);
        return qv_fail(err, QV_ENOMEM, "cannot start a thread for copies (%s)", strerror(failed));
    }
    *out = c;
    return QV_OK;
}

void
qv_copier_close(struct qv_copier *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_cond_broadcast(&c->begun);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_threads; i++)
        pthread_join(c->threads[i], NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->begun);
    pthread_cond_destroy(&c->done);
    free(c);
}
