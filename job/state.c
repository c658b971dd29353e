/* SPDX-License-Identifier: MIT */
/* A job's lock, the conditions that its threads wait for, the clocks of its stages, and its end. */
#include <math.h>
#include <time.h>

#include "state.h"

#define ASK_S 0.02

/* ---- the lock -------------------------------------------------------------------------------- */

qv_status
qv_job_lock_open(qv_job *job, qv_error *err)
{
    if (pthread_mutex_init(&job->lock, NULL))
        return qv_fail(err, QV_ENOMEM, "cannot create a lock for a job");
    job->has_lock = true;
    for (; job->n_conds <= QV_JOB_ENDERS; job->n_conds++)
        if (pthread_cond_init(&job->changed[job->n_conds], NULL))
            return qv_fail(err, QV_ENOMEM, "cannot create a condition variable for a job");
    return QV_OK;
}

void
qv_job_lock_close(qv_job *job)
{
    while (job->n_conds)
        pthread_cond_destroy(&job->changed[--job->n_conds]);
    if (job->has_lock)
        pthread_mutex_destroy(&job->lock);
}

/* ---- waiting --------------------------------------------------------------------------------- */

void
qv_job_wake(qv_job *job, enum qv_job_who who)
{
    pthread_cond_broadcast(&job->changed[who]);
}

void
qv_job_wait(qv_job *job, enum qv_job_who who)
{
    pthread_cond_wait(&job->changed[who], &job->lock);
}

/* Uses CLOCK_REALTIME, which every system supports here, and never waits long, since that clock may
 * be changed. */
void
qv_job_wait_for(qv_job *job, enum qv_job_who who, double seconds)
{
    if (isinf(seconds)) {
        qv_job_wait(job, who);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(1e9 * (seconds < 0.2 ? seconds : 0.2));
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&job->changed[who], &job->lock, &until);
}

void
qv_job_wait_asking(qv_job *job, enum qv_job_who who)
{
    qv_job_wait_for(job, who, job->o.go_on ? ASK_S : INFINITY);
    if (!job->o.go_on)
        return;
    pthread_mutex_unlock(&job->lock);
    const bool goes_on = job->o.go_on(job->o.sink.user, job);
    pthread_mutex_lock(&job->lock);
    if (!goes_on)
        qv_job_stop(job);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

double
qv_job_clock_read(const struct qv_job_clock *c, double now_s)
{
    return c->sum_s + (c->since_s > 0 ? now_s - c->since_s : 0);
}

double
qv_job_clock_stop(struct qv_job_clock *c, double now_s)
{
    const double s = now_s - c->since_s;
    *c = (struct qv_job_clock){ .sum_s = c->sum_s + s };
    return s;
}

void
qv_job_span_begin(qv_job *job, struct qv_job_clock *c)
{
    c->since_s = qv_seconds();
    pthread_mutex_unlock(&job->lock);
}

double
qv_job_span_end(qv_job *job, struct qv_job_clock *c)
{
    const double now_s = qv_seconds(); /* waiting for the lock does not count as work */
    pthread_mutex_lock(&job->lock);
    return qv_job_clock_stop(c, now_s);
}

/* ---- what is counted and reported ------------------------------------------------------------ */

void
qv_job_count(struct qv_job_client *client, int64_t ahead, int64_t results)
{
    if (!client->most_ahead)
        return;
    client->ahead += ahead;
    client->results += results;
    if (ahead >= 0)
        return;
    qv_job_wake(client->job, QV_JOB_ADDERS);
    qv_job_wake(client->job, QV_JOB_READERS);
}

void
qv_job_tell(qv_job *job, struct qv_job_piece *piece)
{
    piece->next = NULL;
    *job->last_told = piece;
    job->last_told = &piece->next;
    qv_job_wake(job, QV_JOB_SINKS);
}

/* ---- the end --------------------------------------------------------------------------------- */

void
qv_job_stop(qv_job *job)
{
    job->stopping = true;
    for (int who = QV_JOB_ADDERS; who <= QV_JOB_ENDERS; who++)
        qv_job_wake(job, who);
}

void
qv_job_lose(qv_job *job, qv_status status, const qv_error *err)
{
    const bool first = !job->status;
    if (first) {
        job->status = status;
        job->error = *err;
    }
    qv_job_stop(job);
    if (!first || !job->o.lost)
        return;
    pthread_mutex_unlock(&job->lock);
    job->o.lost(job->o.sink.user, status, job->error.text);
    pthread_mutex_lock(&job->lock);
}
