/* SPDX-License-Identifier: MIT */
/* The sink's threads. Each takes one piece with its tokens at a time; an item's pieces go in
 * their order. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "job.h"

static qv_job_result
describe(const qv_job *job, const struct qv_job_item *item)
{
    const bool is_clip = qv_job_kind_of(item)->is_clip;
    qv_job_result r = { .key = item->source.key,
                        .user = item->source.user,
                        .error = "",
                        .decoder = !is_clip                     ? ""
                                   : item->clip_options.trusted ? "thread"
                                                                : "process",
                        .clip = item->has_info ? &item->info : NULL,
                        .is_image = item->whole.is_image,
                        .n_tokens = item->n_tokens,
                        .dtype = job->o.output,
                        .damaged_frames = item->damaged,
                        .decoded_frames = item->decoded,
                        .decoded_by = item->decoded_by,
                        .seconds = item->began_s > 0 ? qv_seconds() - item->began_s : 0,
                        .decode_s = item->decode_s,
                        .wait_decode_s = item->wait_decode_s,
                        .wait_device_s = item->wait_device_s,
                        .wait_sink_s = item->wait_sink_s };
    memcpy(r.grid_thw, item->whole.grid_thw, sizeof r.grid_thw);
    memcpy(r.not_gpu, item->not_gpu, sizeof r.not_gpu);
    return r;
}

static void
add_tokens(const qv_job *job, const struct qv_job_piece *piece, qv_job_result *r)
{
    const qv_tokens *t = &piece->buffer->tokens;
    const size_t row = (size_t)job->model.out_hidden * qv_dtype_bytes(job->o.output);
    const size_t at = (size_t)piece->buffer_row * row;
    r->last = piece->last;
    r->first_row = piece->first_row;
    r->n = piece->n;
    r->tokens = (const char *)t->tokens + at;
    for (int i = 0; i < job->model.n_deepstack; i++)
        r->deepstack[i] = (const char *)t->deepstack[i] + at;
    r->timestamps_s = piece->last ? piece->item->timestamps_s : NULL;
    r->frames = piece->frames ? piece->part.data : NULL;
    r->n_frames = piece->frames ? piece->part.n_frames : 0;
}

/* Calls the sink. The lock is held before and after, and released meanwhile. */
static void
call(qv_job *job, struct qv_job_worker *w, struct qv_job_item *item, const qv_job_result *r)
{
    qv_error err = { 0 };
    const double began_s = qv_seconds();
    qv_job_clock_start(&w->busy, began_s);
    pthread_mutex_unlock(&job->lock);
    qv_status status = job->o.sink(job->o.user, r, &err);
    const double ended_s = qv_seconds();
    qv_job_span(job, "sink", w->lane, item->source.key, began_s, ended_s);
    pthread_mutex_lock(&job->lock);
    qv_job_clock_stop(&w->busy, ended_s);
    if (r->last)
        item->state = QV_JOB_TOLD;
    if (status)
        qv_job_fail_item(job, item, status, &err);
}

static void
call_failure(qv_job *job, struct qv_job_worker *w, struct qv_job_item *item)
{
    qv_job_result r = describe(job, item);
    qv_error error = item->error;
    r.last = true;
    r.status = item->status;
    r.error = error.text;
    call(job, w, item, &r);
}

static void
retire(qv_job *job, struct qv_job_piece *piece)
{
    struct qv_job_buffer *buffer = piece->buffer;
    if (piece == &piece->item->end)
        return;
    qv_job_free_frames(job, &piece->frames);
    if (!--buffer->users) {
        if (buffer->tokens.capacity > job->usual_tokens) { /* it was made for one large item */
            qv_host_free(buffer->ctx, buffer->tokens.tokens);
            buffer->tokens = (qv_tokens){ 0 };
        }
        qv_job_wake(job, QV_JOB_DEVICES);
    }
}

/* Takes the next piece whose item no other thread is telling of. */
static struct qv_job_piece *
take_piece(qv_job *job)
{
    if (job->failures.n) {
        qv_job_wake(job, QV_JOB_READERS);
        return qv_job_queue_take(&job->failures, 0);
    }
    for (size_t i = 0; i < job->told.n; i++) {
        const struct qv_job_piece *p = qv_job_queue_at(&job->told, i);
        if (!p->item->sink)
            return qv_job_queue_take(&job->told, i);
    }
    return NULL;
}

static void
tell(qv_job *job, struct qv_job_worker *w, struct qv_job_piece *piece)
{
    struct qv_job_item *item = piece->item;
    item->sink = w;
    if (!item->status) {
        item->wait_sink_s += qv_seconds() - piece->ready_s;
        qv_job_result r = describe(job, item);
        add_tokens(job, piece, &r);
        call(job, w, item, &r);
    }
    retire(job, piece);
    item->sink = NULL;
    if (qv_job_let_go(job, item) == QV_JOB_FAILED) {
        item->holders++; /* this thread is a holder during the call */
        call_failure(job, w, item);
        qv_job_let_go(job, item);
    }
    qv_job_wake(job, QV_JOB_SINKS); /* another piece of the item may have waited */
}

void *
qv_job_sink_thread(void *worker)
{
    struct qv_job_worker *w = worker;
    qv_job *job = w->job;
    pthread_mutex_lock(&job->lock);
    while (!job->stopping) {
        struct qv_job_piece *piece = take_piece(job);
        if (piece)
            tell(job, w, piece);
        else
            qv_job_wait(job, QV_JOB_SINKS);
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

void
qv_job_cancel_item(qv_job *job, struct qv_job_item *item)
{
    qv_job_result r = describe(job, item);
    qv_error error = item->status ? item->error : job->error, ignored;
    r.last = true;
    r.cancelled = !item->status;
    r.status = item->status ? item->status : job->status ? job->status : QV_ESTATE;
    r.error = item->status || job->status ? error.text : "the job was closed before it was done";
    if (item->state < QV_JOB_TOLD)
        job->o.sink(job->o.user, &r, &ignored);
}
