/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "job.h"

qv_status
qv_job_queue_open(struct qv_job_queue *q, size_t room, qv_error *err)
{
    q->at = calloc(room, sizeof *q->at);
    if (!q->at)
        return qv_fail(err, QV_ENOMEM, "no memory for a queue of %zu", room);
    q->room = room;
    return QV_OK;
}

void
qv_job_queue_close(struct qv_job_queue *q)
{
    free(q->at);
    *q = (struct qv_job_queue){ 0 };
}

static void **
place_of(const struct qv_job_queue *q, size_t i)
{
    size_t place = q->first + i;
    return &q->at[place < q->room ? place : place - q->room];
}

void
qv_job_queue_put(struct qv_job_queue *q, void *what)
{
    *place_of(q, q->n++) = what;
}

void *
qv_job_queue_at(const struct qv_job_queue *q, size_t i)
{
    return *place_of(q, i);
}

/* Takes entry i out; the entries before it move up. */
void *
qv_job_queue_take(struct qv_job_queue *q, size_t i)
{
    void *taken = *place_of(q, i);
    for (; i > 0; i--)
        *place_of(q, i) = *place_of(q, i - 1);
    q->first = q->first + 1 < q->room ? q->first + 1 : 0;
    q->n--;
    return taken;
}
