/* SPDX-License-Identifier: MIT */
/*
 * Decoders that work beside the device while `qwenvit bench job` times it: a GPU decodes clips of
 * the list over and over, in so many processes of so many streams. It shows what the contexts of
 * decoders cost a tower on the same GPU.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "error.h"
#include "job_bench.h"

enum { MOST_PROCESSES = 8 };

struct job_beside {
    struct job_bench *j;
    qv_decoder *decoders[MOST_PROCESSES]; /* each has a process of its own on the GPU */
    int processes, n_threads;
    pthread_t *threads;
    pthread_mutex_t lock; /* guards what follows */
    bool stop;
    size_t next, decoded; /* clips that were begun, and that ended */
    int64_t frames;
    double began_s;
    qv_status status;
    qv_error error;
};

static qv_status
decode_one(struct job_beside *b, size_t i, int64_t *frames, qv_error *err)
{
    const size_t entry = i % b->j->list.n;
    if (b->processes)
        return job_decode(b->j, entry, b->decoders[i % (size_t)b->processes], QV_DECODE_GPU, frames,
                          err);
    return job_bare_decode(b->j, entry, frames, err);
}

static void *
decode_on(void *user)
{
    struct job_beside *b = user;
    for (;;) {
        qv_error err = { 0 };
        int64_t frames = 0;
        pthread_mutex_lock(&b->lock);
        const size_t i = b->next++;
        const bool stop = b->stop || b->status;
        pthread_mutex_unlock(&b->lock);
        if (stop)
            return NULL;
        const qv_status s = decode_one(b, i, &frames, &err);
        pthread_mutex_lock(&b->lock);
        b->frames += b->stop ? 0 : frames;
        b->decoded++;
        if (s && !b->status) {
            b->status = s;
            b->error = err;
        }
        pthread_mutex_unlock(&b->lock);
    }
}

static qv_status
start_decoders(struct job_beside *b, qv_error *err)
{
    const qv_clip_options *o = &b->j->o.clip;
    qv_status s = b->processes ? QV_OK : job_bare_open(b->j, err);
    for (int i = 0; i < b->processes && !s; i++) {
        s = qv_decoder_start(NULL, &b->decoders[i], err);
        if (!s)
            s = qv_decoder_gpu(b->decoders[i], o->gpu, o->trusted, true, err);
    }
    return s;
}

/* Waits until each stream has decoded a clip, because opening its decoder takes long. */
static void
warm_up(struct job_beside *b)
{
    size_t decoded = 0;
    while (decoded < (size_t)b->n_threads) {
        usleep(1000);
        pthread_mutex_lock(&b->lock);
        decoded = b->status ? SIZE_MAX : b->decoded;
        pthread_mutex_unlock(&b->lock);
    }
    pthread_mutex_lock(&b->lock);
    b->frames = 0;
    b->began_s = qv_seconds();
    pthread_mutex_unlock(&b->lock);
}

qv_status
job_beside_start(struct job_bench *j, int processes, int streams, qv_error *err)
{
    struct job_beside *b = calloc(1, sizeof *b);
    const int n = processes ? processes * streams : streams;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    if (!b || !threads) {
        free(b);
        free(threads);
        return qv_fail(err, QV_ENOMEM, "no memory for decoders beside the device");
    }
    *b = (struct job_beside){ .j = j, .processes = processes, .threads = threads };
    pthread_mutex_init(&b->lock, NULL);
    j->beside = b;
    const qv_status s = start_decoders(b, err);
    while (!s && b->n_threads < n) {
        if (pthread_create(&b->threads[b->n_threads], NULL, decode_on, b))
            return qv_fail(err, QV_ENOMEM, "%d threads cannot be made", n);
        b->n_threads++;
    }
    if (!s)
        warm_up(b);
    return s;
}

qv_status
job_beside_stop(struct job_bench *j, double *fps, qv_error *err)
{
    struct job_beside *b = j->beside;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    *fps = (double)b->frames / (qv_seconds() - b->began_s);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_threads; i++)
        pthread_join(b->threads[i], NULL);
    for (int i = 0; i < b->processes; i++)
        qv_decoder_stop(&b->decoders[i]);
    const qv_status s = b->status;
    if (s)
        *err = b->error;
    pthread_mutex_destroy(&b->lock);
    free(b->threads);
    free(b);
    j->beside = NULL;
    return s;
}
