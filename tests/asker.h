/* SPDX-License-Identifier: MIT */
/* A thread that keeps asking a job for its progress. Include this file after test.h. */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "qwenvit_clips.h"

struct asker {
    qv_job *job;
    useconds_t pause_us; /* The pause between two calls; 0 means no pause. */
    atomic_bool stop;
    atomic_long asked;
    pthread_t thread;
};

static inline void *
asker_run(void *user)
{
    struct asker *a = user;
    qv_job_progress p = { 0 };
    while (!atomic_load(&a->stop)) {
        const int64_t added = p.added, done = p.done;
        qv_job_get_progress(a->job, &p);
        if (p.added < added || p.done < done || p.done > p.added || !p.limit)
            abort();
        atomic_fetch_add(&a->asked, 1);
        if (a->pause_us)
            usleep(a->pause_us);
        else
            sched_yield();
    }
    return NULL;
}

static inline void
asker_start(struct asker *a, qv_job *job)
{
    a->job = job;
    atomic_store(&a->stop, false);
    atomic_store(&a->asked, 0);
    assert_int_equal(pthread_create(&a->thread, NULL, asker_run, a), 0);
}

/* Call this before the job is closed: no other thread may use a job while it is being closed. */
static inline void
asker_stop(struct asker *a)
{
    if (!a->job)
        return;
    atomic_store(&a->stop, true);
    assert_int_equal(pthread_join(a->thread, NULL), 0);
    a->job = NULL;
}
