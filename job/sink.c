/* SPDX-License-Identifier: MIT */
/* The sink's threads. Each handles one piece at a time; an item's pieces are handled in order. This
 * file enforces the rules of the sink's three functions: one entry and one end per item. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "item.h"

static qv_job_result
describe(const qv_job *job, const struct qv_job_item *item)
{
    return (qv_job_result){ .key = item->source.key,
                            .user = item->source.user,
                            .error = "",
                            .cancelled = item->is_dropped,
                            .outcome = item->outcome,
                            .n_tokens = item->n_tokens,
                            .dtype = job->o.output,
                            .seconds = item->began_s > 0 ? qv_seconds() - item->began_s : 0,
                            .wait_decode_s = item->wait_decode_s,
                            .wait_device_s = item->wait_device_s,
                            .wait_sink_s = item->wait_sink_s };
}

static qv_job_rows
rows_of(const qv_job *job, const struct qv_job_piece *piece)
{
    const qv_tokens *t = &piece->buffer->tokens;
    const size_t before = (size_t)piece->buffer_row * qv_dtype_bytes(job->o.output);
    const size_t at = before * (size_t)job->model.out_hidden;
    qv_job_rows rows = {
        .first = piece->first_row,
        .tokens = { .tokens = (char *)t->tokens + at, .capacity = piece->n, .n = piece->n },
        .frames = piece->frames ? piece->pairs.data : NULL,
        .n_frames = piece->frames ? piece->pairs.n_frames : 0
    };
    for (int i = 0; i < job->model.n_deepstack; i++)
        rows.tokens.deepstack[i] = (char *)t->deepstack[i] + at;
    if (t->hidden)
        rows.tokens.hidden = (char *)t->hidden + before * (size_t)job->hidden;
    return rows;
}

/* Passes a piece's rows to the sink. Before an item's first piece the sink creates an entry. */
static qv_status
give(const qv_job *job, const struct qv_job_piece *piece, const qv_job_result *r, qv_error *err)
{
    const qv_job_sink *sink = &job->o.sink;
    struct qv_job_item *item = piece->item;
    const qv_job_rows rows = rows_of(job, piece);
    qv_status status = QV_OK;
    if (!item->has_begun && sink->begin)
        status = sink->begin(sink->user, r, &item->entry, err);
    item->has_begun = true;
    return status || !sink->rows ? status : sink->rows(sink->user, item->entry, r, &rows, err);
}

static qv_status
end(const qv_job *job, const struct qv_job_item *item, qv_job_result *r, qv_error *err)
{
    const qv_job_sink *sink = &job->o.sink;
    const double *seconds = item->timestamps_s ? item->timestamps_s : item->source.timestamps_s;
    r->timestamps_s = r->status ? NULL : seconds;
    r->ahead_bytes = !item->client->most_ahead || !sink->end || r->cancelled ? 0
                     : r->status                                             ? QV_JOB_TEXTS
                                                                             : item->held;
    return sink->end ? sink->end(sink->user, item->entry, r, err) : QV_OK;
}

/* Calls the sink with a piece and, after the last piece, with the item's end; a NULL piece means
 * only the end of a failed item. The lock is released meanwhile. */
static void
call(qv_job *job, struct qv_job_worker *w, struct qv_job_item *item,
     const struct qv_job_piece *piece)
{
    qv_error err = { 0 };
    const qv_error error = item->error;
    qv_job_result r = describe(job, item);
    r.status = item->status;
    r.error = error.text;
    qv_job_span_begin(job, &w->busy);
    qv_status status = piece ? give(job, piece, &r, &err) : QV_OK;
    const bool ends = !status && (!piece || piece->last);
    if (ends)
        status = end(job, item, &r, &err);
    qv_job_span_end(job, &w->busy);
    if (ends) {
        item->state = QV_JOB_TOLD;
        const int64_t left = status ? 0 : r.ahead_bytes;
        qv_job_count(item->client, left - item->held - item->lent, left - item->held);
    }
    if (status)
        qv_job_fail_item(job, item, status, &err);
    if (ends && !r.cancelled && qv_ends_all(status)) /* the end call may end the job */
        qv_job_lose(job, status, &err);
}

static void
retire(qv_job *job, struct qv_job_piece *piece)
{
    struct qv_job_buffer *buffer = piece->buffer;
    qv_job_free_frames(job, &piece->frames);
    if (buffer && !--buffer->users) {
        if (buffer->tokens.capacity > job->usual_tokens) { /* it was made for one large item */
            qv_host_free(buffer->ctx, buffer->tokens.tokens);
            buffer->tokens = (qv_tokens){ 0 };
        }
        qv_job_wake(job, QV_JOB_DEVICES);
    }
}

/* Takes the next piece whose item no other thread is reporting. */
static struct qv_job_piece *
take_piece(qv_job *job)
{
    for (struct qv_job_piece **at = &job->told, *p; (p = *at) != NULL; at = &p->next) {
        if (p->item->sink)
            continue;
        *at = p->next;
        if (!p->next)
            job->last_told = at;
        if (p == &p->item->end && job->n_failures-- == job->lanes.n)
            qv_job_wake(job, QV_JOB_READERS);
        return p;
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
        item->is_ending = piece->last;
        call(job, w, item, piece);
    }
    retire(job, piece);
    item->sink = NULL;
    if (qv_job_let_go(job, item) == QV_JOB_FAILED) {
        item->holders++; /* this thread is a holder during the call */
        call(job, w, item, NULL);
        qv_job_let_go(job, item);
    }
    qv_job_wake(job, QV_JOB_SINKS); /* another piece of the item may be waiting */
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
    r.cancelled = item->is_dropped || !item->status;
    r.status = item->status ? item->status : job->status ? job->status : QV_ESTATE;
    r.error = item->status || job->status ? error.text : "the job was closed before this was done";
    if (item->state < QV_JOB_TOLD)
        end(job, item, &r, &ignored);
}
