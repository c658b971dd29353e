/* SPDX-License-Identifier: MIT */
/* A device's thread: gets the next chunk from the feeder and pushes it; pulls the oldest chunk when
 * no more may be in progress or nothing is ready; and hands its pieces to the sink. */
#include <math.h>
#include <string.h>

#include "dtype.h"
#include "item.h"

/* ---- buffers --------------------------------------------------------------------------------- */

static qv_status
size_buffer(const struct qv_job_device *d, struct qv_job_buffer *buffer, int64_t n, qv_error *err)
{
    const qv_job *job = d->job;
    qv_tokens *t = &buffer->tokens;
    if (t->tokens && t->capacity >= n)
        return QV_OK;
    qv_host_free(buffer->ctx, t->tokens);
    /* without memory the chunk's tokens stay where they are */
    *t = (qv_tokens){ .capacity = n };
    buffer->ctx = qv_model_context(d->model);
    const qv_status status =
        qv_host_alloc(buffer->ctx, (size_t)(n * job->token_bytes), &t->tokens, err);
    if (status)
        return status;
    const size_t one = (size_t)(n * job->model.out_hidden) * qv_dtype_bytes(job->o.output);
    char *at = t->tokens;
    for (int i = 0; i < job->model.n_deepstack; i++)
        t->deepstack[i] = at += one;
    t->hidden = job->o.hidden ? at + one : NULL;
    return QV_OK;
}

void
qv_job_device_close(struct qv_job_device *d)
{
    for (int i = 0; i < QV_JOB_BUFFERS; i++)
        qv_host_free(d->buffers[i].ctx, d->buffers[i].tokens.tokens);
}

static struct qv_job_buffer *
free_buffer(struct qv_job_device *d)
{
    for (int i = 0; i < QV_JOB_BUFFERS; i++)
        if (!d->buffers[i].users)
            return &d->buffers[i];
    return NULL;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Gets the feeder's next chunk, whose pieces become the buffer's; false if none may go yet. */
static bool
choose(struct qv_job_device *d, struct qv_job_buffer *buffer, double *wait_s)
{
    qv_job *job = d->job;
    /* readers that wait for memory get it once chunks have been pushed */
    const bool more = (qv_job_next_waiting(job) || job->n_putting) && !job->wants_memory;
    buffer->chunk = qv_feeder_ready(job->feeder, d->index, qv_seconds(), more, wait_s);
    if (!buffer->chunk)
        return false;
    buffer->users = buffer->n = buffer->chunk->n;
    for (size_t i = 0, row = 0; i < buffer->n; i++) {
        const qv_feeder_piece *from = &buffer->chunk->pieces[i];
        struct qv_job_item *item = from->feed->user;
        const int64_t pair = item->n_tokens / item->whole.grid_thw[0];
        struct qv_job_piece *p = &buffer->pieces[i];
        *p = (struct qv_job_piece){ .item = item,
                                    .pairs = from->item,
                                    .frames = from->user,
                                    .buffer = buffer,
                                    .buffer_row = (int64_t)row,
                                    .first_row = from->first * pair,
                                    .n = from->item.grid_thw[0] * pair,
                                    .last = from->last };
        row += (size_t)p->n;
        item->holders += !from->ends; /* all pieces from one put share one hold of their item */
        if (p->frames)
            p->frames->users += !from->ends;
    }
    qv_job_wake(job, QV_JOB_READERS);
    return true;
}

/* Hands a chunk's pieces to the sink: with their tokens, unless their items have failed. */
static void
hand_over(qv_job *job, struct qv_job_buffer *buffer)
{
    job->n_handed++;
    for (size_t i = 0; i < buffer->n; i++) {
        struct qv_job_piece *p = &buffer->pieces[i];
        p->ready_s = qv_seconds();
        p->item->n_computed += p->n;
        p->item->wait_device_s += p->item->chunk == job->n_handed ? 0 : buffer->device_s;
        p->item->chunk = job->n_handed;
        qv_job_tell(job, p);
    }
}

static void
fail_chunk(qv_job *job, const struct qv_job_buffer *buffer, qv_status status, const qv_error *err)
{
    for (size_t i = 0; i < buffer->n; i++)
        qv_job_fail_item(job, buffer->pieces[i].item, status, err);
}

/* Fails the items that the device has begun but not finished. After the last device the job
 * ends. */
static void
lose_device(struct qv_job_device *d, qv_status status, const qv_error *err)
{
    qv_job *job = d->job;
    d->is_lost = true;
    if (++job->n_lost == job->n_devices) {
        qv_job_lose(job, status, err);
        return;
    }
    for (struct qv_job_item *item = job->items, *next; item; item = next) {
        next = item->next;
        if (item->feed && item->feed->device == d->index && item->n_computed < item->n_tokens)
            qv_job_lose_item(job, item, status, err);
    }
    for (int i = 0; i < d->n_under_way; i++)
        hand_over(job, d->under_way[i]);
    qv_job_wake(job, QV_JOB_DEVICES);
}

/* Pushes the chunk that was chosen. The lock is released while the device works. */
static void
push_chunk(struct qv_job_device *d, struct qv_job_buffer *buffer)
{
    qv_job *job = d->job;
    qv_error err = { 0 };
    qv_job_span_begin(job, &d->busy);
    const qv_status status = qv_feeder_push(job->feeder, d->index, &err);
    buffer->device_s = qv_job_span_end(job, &d->busy);
    for (size_t i = 0; i < buffer->n && !job->o.keep_frames; i++) /* they are on the device now */
        qv_job_free_frames(job, &buffer->pieces[i].frames);
    if (status && buffer->chunk->refused) {
        fail_chunk(job, buffer, status, &err);
        hand_over(job, buffer);
        return;
    }
    d->under_way[d->n_under_way++] = buffer;
    if (status)
        lose_device(d, status, &err);
}

static void
count_chunk(qv_job *job, const struct qv_job_buffer *buffer)
{
    const qv_feeder_chunk *chunk = buffer->chunk;
    qv_job_progress *p = &job->progress;
    p->tokens += chunk->rows / (job->model.merge_size * job->model.merge_size);
    p->chunks++;
    p->rows += chunk->rows;
    p->capacity_rows += chunk->capacity_rows;
    if (job->o.alone)
        return;
    for (size_t i = 0; i < buffer->n; i++)
        p->packed += buffer->pieces[i].last;
    p->packed_chunks++;
    p->packed_rows += chunk->rows;
    p->rest_rows += chunk->is_rest ? chunk->rows : 0;
    p->rest_capacity_rows += chunk->is_rest ? chunk->capacity_rows : 0;
}

/* Pulls the oldest chunk. Memory for its tokens is allocated here, because page-locking takes as
 * long as the device needs for a chunk, and it is computing one meanwhile. */
static void
pull_chunk(struct qv_job_device *d)
{
    qv_job *job = d->job;
    qv_error err = { 0 }, no_memory;
    struct qv_job_buffer *buffer = d->under_way[0];
    qv_job_span_begin(job, &d->busy);
    const qv_status room = size_buffer(d, buffer, buffer->chunk->capacity_tokens, &no_memory);
    const qv_status status = qv_feeder_pull(job->feeder, d->index, &buffer->tokens, NULL, &err);
    buffer->device_s += qv_job_span_end(job, &d->busy);
    if (room)
        fail_chunk(job, buffer, room, &no_memory);
    if (status) {
        lose_device(d, status, &err);
        return;
    }
    d->n_under_way--;
    memmove(&d->under_way[0], &d->under_way[1], (size_t)d->n_under_way * sizeof *d->under_way);
    count_chunk(job, buffer);
    hand_over(job, buffer);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void
wait_for_work(struct qv_job_device *d, bool full, double seconds)
{
    qv_job *job = d->job;
    const double began_s = qv_seconds();
    qv_job_wait_for(job, QV_JOB_DEVICES, seconds);
    *(full ? &job->progress.full_s : &job->progress.starved_s) += qv_seconds() - began_s;
}

void *
qv_job_compute(void *device)
{
    struct qv_job_device *d = device;
    qv_job *job = d->job;
    pthread_mutex_lock(&job->lock);
    while (!job->stopping && !d->is_lost) {
        struct qv_job_buffer *buffer = free_buffer(d);
        double wait_s = INFINITY;
        if (buffer && choose(d, buffer, &wait_s))
            push_chunk(d, buffer);
        else if (d->n_under_way)
            pull_chunk(d);
        else
            wait_for_work(d, !buffer, wait_s);
    }
    while (d->n_under_way && !d->is_lost) /* other threads may wait for the device */
        pull_chunk(d);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}
