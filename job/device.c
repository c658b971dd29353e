/* SPDX-License-Identifier: MIT */
/*
 * A device: chooses pieces for the next chunk, pushes it, pulls the oldest where no more may be under way
 * or nothing is ready, and hands the pieces with their tokens to the sink.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "job.h"

#define GRACE_S 0.002 /* after which sources that come one by one come no more */

/* Counts a piece among those that are together, or (sign -1) no longer. */
void
qv_job_count(qv_capacity *all, const qv_capacity *one, int sign)
{
    all->rows += sign * one->rows;
    all->segments += sign * one->segments;
    all->windows += sign * one->windows;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool
same_plan(const qv_plan_options *a, const qv_plan_options *b)
{
    return qv_capacity_equal(&a->capacity, &b->capacity) && a->input == b->input &&
           a->output == b->output;
}

/* Packs' plans have places of their own, by input; others' place is taken where no chunk
 * is under way in it, which of as many places as there are chunks is true of one. */
static qv_status
take_plan(struct qv_job_device *d, const qv_plan_options *options, struct qv_job_plan **out,
          qv_error *err)
{
    struct qv_job_plan *place = NULL;
    const bool pack = qv_capacity_equal(&options->capacity, &d->job->pack.capacity);
    const int first = pack ? (int)options->input : QV_JOB_INPUTS,
              end = pack ? first + 1 : QV_JOB_PLANS;
    for (int i = first; i < end; i++) {
        struct qv_job_plan *p = &d->plans[i];
        if (p->plan && same_plan(&p->options, options)) {
            p->users++;
            *out = p;
            return QV_OK;
        }
        if (!p->users && (!place || !p->plan))
            place = p;
    }
    if (!place)
        return qv_fail(err, QV_ESTATE, "more plans in use than chunks under way");
    qv_plan_free(&place->plan);
    qv_status status = qv_plan_create(d->model, options, &place->plan, err);
    if (status)
        return status;
    place->options = *options;
    place->users = 1;
    qv_plan_get_info(place->plan, &place->info);
    *out = place;
    return QV_OK;
}

qv_status
qv_job_device_open(struct qv_job_device *d, qv_error *err)
{
    qv_job *job = d->job;
    struct qv_job_plan *first = &d->plans[QV_INPUT_FRAMES];
    d->ahead = QV_JOB_AHEAD; /* as the first plan says */
    if (job->o.alone && !job->o.chunk_rows)
        return QV_OK;
    qv_plan_options options = { .capacity.rows = job->o.chunk_rows, .output = job->o.output };
    qv_status status =
        qv_plan_create(d->model, d->index ? &job->pack : &options, &first->plan, err);
    if (status)
        return status;
    qv_plan_get_info(first->plan, &first->info);
    if (!d->index) {
        job->pack = options;
        job->pack.capacity = first->info.capacity;
        job->pack_item = qv_pack_item(d->model, job->o.chunk_rows);
    }
    first->options = job->pack;
    return QV_OK;
}

void
qv_job_device_close(struct qv_job_device *d)
{
    for (int i = 0; i < QV_JOB_PLANS; i++)
        qv_plan_free(&d->plans[i].plan);
    for (int i = 0; i < QV_JOB_BUFFERS; i++)
        qv_host_free(d->buffers[i].ctx, d->buffers[i].tokens.tokens);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

int64_t
qv_job_token_bytes(const qv_job *job, int64_t tokens)
{
    return tokens * (1 + job->model.n_deepstack) * job->model.out_hidden *
           (int64_t)qv_dtype_bytes(job->o.output);
}

static qv_status
size_buffer(const struct qv_job_device *d, struct qv_job_buffer *buffer, int64_t n, qv_error *err)
{
    const qv_job *job = d->job;
    qv_tokens *t = &buffer->tokens;
    if (t->tokens && t->capacity >= n)
        return QV_OK;
    qv_host_free(buffer->ctx, t->tokens);
    *t = (qv_tokens){ 0 };
    buffer->ctx = qv_model_context(d->model);
    qv_status status =
        qv_host_alloc(buffer->ctx, (size_t)qv_job_token_bytes(job, n), &t->tokens, err);
    if (status)
        return status;
    t->capacity = n;
    const size_t one = (size_t)qv_job_token_bytes(job, n) / (size_t)(1 + job->model.n_deepstack);
    for (int i = 0; i < job->model.n_deepstack; i++)
        t->deepstack[i] = (char *)t->tokens + (size_t)(1 + i) * one;
    return QV_OK;
}

static qv_status
push(struct qv_job_device *d, struct qv_job_chunk *chunk, qv_error *err)
{
    qv_item items[QV_PACK_ITEMS];
    for (size_t i = 0; i < chunk->n; i++)
        items[i] = chunk->pieces[i]->part;
    qv_status status = size_buffer(d, chunk->buffer, chunk->plan->info.tokens, err);
    return status ? status : qv_plan_push(chunk->plan->plan, items, chunk->n, err);
}

/* A plan that cannot be made is the matter of its items: the sink has pieces that say nothing more. */
static void
give_back(struct qv_job_device *d, struct qv_job_chunk *chunk, qv_status status,
          const qv_error *err)
{
    qv_job *job = d->job;
    chunk->buffer->taken = false;
    chunk->buffer->users = chunk->n;
    for (size_t i = 0; i < chunk->n; i++) {
        qv_job_fail_item(job, chunk->pieces[i]->item, status, err);
        chunk->pieces[i]->buffer = chunk->buffer;
        qv_job_queue_put(&job->told, chunk->pieces[i]);
    }
    qv_job_wake(job, QV_JOB_SINKS);
}

/* The plan that a chunk goes through is its items'. A pack that is not full goes through a
 * smaller one with the same bits, or, where the device promises no bits, through any. */
static qv_plan_options
options_for(const struct qv_job_device *d, const struct qv_job_chunk *chunk)
{
    qv_plan_options options = chunk->pieces[0]->item->options;
    qv_capacity used = { 0 };
    for (size_t i = 0; i < chunk->n; i++)
        qv_job_count(&used, &chunk->pieces[i]->size, 1);
    if (chunk->packed)
        options.capacity = qv_pack_part(d->model, &d->job->pack.capacity, &used);
    return options;
}

/* Pushes the chunk that was chosen. The lock is held before and after, and given back while the
 * device works. */
static void
push_chunk(struct qv_job_device *d, struct qv_job_chunk *chunk)
{
    qv_job *job = d->job;
    qv_error err = { 0 };
    const double began_s = qv_seconds();
    struct qv_job_item *first = chunk->pieces[0]->item;
    qv_job_clock_start(&d->busy, began_s);
    pthread_mutex_unlock(&job->lock);
    const qv_plan_options options = options_for(d, chunk);
    qv_status unsuited = take_plan(d, &options, &chunk->plan, &err), status = unsuited;
    if (!status) {
        if (d->ahead > chunk->plan->info.chunks_ahead)
            d->ahead = chunk->plan->info.chunks_ahead;
        status = push(d, chunk, &err);
    }
    const double ended_s = qv_seconds();
    qv_job_span(job, "push", d->index, chunk->n == 1 ? first->source.key : NULL, began_s, ended_s);
    pthread_mutex_lock(&job->lock);
    qv_job_clock_stop(&d->busy, ended_s);
    chunk->device_s = ended_s - began_s;
    if (!unsuited && status)
        qv_job_lose(job, status, &err);
    for (size_t i = 0; i < chunk->n && !job->o.keep_frames; i++)
        qv_job_free_frames(job, chunk->pieces[i]); /* the device has them */
    if (unsuited)
        give_back(d, chunk, unsuited, &err);
    else
        d->n_pushed++;
}

/* Hands the pieces of a chunk with their tokens to the sink, under the lock. */
static void
hand_over(struct qv_job_device *d, struct qv_job_chunk *chunk)
{
    qv_job *job = d->job;
    const int64_t area = job->model.merge_size * job->model.merge_size;
    int64_t row = 0;
    chunk->buffer->taken = false;
    chunk->buffer->users = chunk->n;
    for (size_t i = 0; i < chunk->n; i++) {
        struct qv_job_piece *p = chunk->pieces[i];
        p->buffer = chunk->buffer;
        p->buffer_row = row / area;
        p->ready_s = qv_seconds();
        p->item->wait_device_s += chunk->device_s;
        row += p->size.rows;
        qv_job_queue_put(&job->told, p);
    }
    job->progress.tokens += row / area;
    job->progress.chunks++;
    job->progress.rows += row;
    job->progress.capacity_rows += chunk->plan->info.capacity.rows;
    if (chunk->packed) {
        job->progress.packed += (int64_t)chunk->n;
        job->progress.packed_chunks++;
        job->progress.packed_rows += row;
    }
    qv_job_wake(job, QV_JOB_SINKS);
}

static void
pull_chunk(struct qv_job_device *d)
{
    qv_job *job = d->job;
    qv_error err = { 0 };
    struct qv_job_chunk *chunk = &d->chunks[d->n_pulled % QV_JOB_AHEAD];
    const double began_s = qv_seconds();
    qv_job_clock_start(&d->busy, began_s);
    pthread_mutex_unlock(&job->lock);
    qv_status status = qv_plan_pull(chunk->plan->plan, &chunk->buffer->tokens, &err);
    const double ended_s = qv_seconds();
    qv_job_span(job, "pull", d->index, NULL, began_s, ended_s);
    pthread_mutex_lock(&job->lock);
    qv_job_clock_stop(&d->busy, ended_s);
    chunk->device_s += ended_s - began_s;
    if (status) {
        qv_job_lose(job, status, &err);
        return;
    }
    chunk->plan->users--;
    d->n_pulled++;
    hand_over(d, chunk);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static double
oldest_s(const struct qv_job_queue *q)
{
    return q->n ? ((const struct qv_job_piece *)qv_job_queue_at(q, 0))->ready_s : INFINITY;
}

/* Whether there are small pieces for a chunk, and as much again to choose from. */
static bool
is_enough(const qv_job *job, int kind)
{
    const qv_capacity *c = &job->pack.capacity;
    const qv_capacity *all = &job->waits[kind];
    return job->packed[kind].n == QV_PACK_ITEMS || all->rows >= 2 * c->rows ||
           all->segments >= 2 * c->segments || (c->windows && all->windows >= 2 * c->windows);
}

/* Whether small pieces are packed now, because there are enough or nothing to wait for.
 * Otherwise *wait_s becomes the time after which to look again, if that is sooner. */
static bool
may_pack(const qv_job *job, int kind, double now_s, double *wait_s)
{
    const struct qv_job_queue *q = &job->packed[kind];
    if (!q->n)
        return false;
    const bool comes = job->sources.n || job->n_reading;
    double until_s = oldest_s(q) + job->o.max_wait_s;
    if (!comes && until_s > job->ready_s + GRACE_S)
        until_s = job->ready_s + GRACE_S;
    if (is_enough(job, kind) || (!comes && job->ended) || job->serving != job->ticket ||
        now_s >= until_s)
        return true;
    if (until_s - now_s < *wait_s)
        *wait_s = until_s - now_s;
    return false;
}

static void
choose_pack(qv_job *job, int kind, struct qv_job_chunk *chunk)
{
    struct qv_job_queue *q = &job->packed[kind];
    qv_capacity waiting[QV_PACK_ITEMS];
    size_t chosen[QV_PACK_ITEMS];
    for (size_t i = 0; i < q->n; i++) {
        const struct qv_job_piece *p = qv_job_queue_at(q, i);
        waiting[i] = p->size;
    }
    chunk->packed = true;
    chunk->n = qv_pack_choose(&job->pack.capacity, waiting, q->n, chosen);
    for (size_t i = chunk->n; i-- > 0;) { /* from behind: the others' places stay */
        struct qv_job_piece *p = qv_job_queue_take(q, chosen[i]);
        chunk->pieces[i] = p;
        qv_job_count(&job->waits[kind], &p->size, -1);
    }
}

/* The place of the oldest piece that is a chunk by itself and of an item that no other device
 * has; large.n: there is none. */
static size_t
find_large(const qv_job *job, int device)
{
    for (size_t i = 0; i < job->large.n; i++) {
        const struct qv_job_piece *p = qv_job_queue_at(&job->large, i);
        if (p->item->device < 0 || p->item->device == device)
            return i;
    }
    return job->large.n;
}

/* Chooses, under the lock, the oldest of what may go; false: nothing may. */
static bool
choose(struct qv_job_device *d, struct qv_job_chunk *chunk, double *wait_s)
{
    qv_job *job = d->job;
    const double now_s = qv_seconds();
    const size_t large = find_large(job, d->index);
    double oldest = INFINITY;
    int kind = -1;
    for (int k = 0; k < QV_JOB_INPUTS; k++)
        if (may_pack(job, k, now_s, wait_s) && oldest_s(&job->packed[k]) < oldest) {
            oldest = oldest_s(&job->packed[k]);
            kind = k;
        }
    *chunk = (struct qv_job_chunk){ 0 };
    if (large < job->large.n) {
        const struct qv_job_piece *p = qv_job_queue_at(&job->large, large);
        if (p->ready_s < oldest) {
            chunk->n = 1;
            chunk->pieces[0] = qv_job_queue_take(&job->large, large);
            chunk->pieces[0]->item->device = d->index;
        }
    }
    if (!chunk->n && kind >= 0)
        choose_pack(job, kind, chunk);
    for (size_t i = 0; i < chunk->n; i++)
        chunk->pieces[i]->item->ready--;
    if (chunk->n)
        qv_job_wake(job, QV_JOB_READERS);
    return chunk->n;
}

static struct qv_job_buffer *
free_buffer(struct qv_job_device *d)
{
    for (int i = 0; i < QV_JOB_BUFFERS; i++)
        if (!d->buffers[i].users && !d->buffers[i].taken)
            return &d->buffers[i];
    return NULL;
}

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
    while (!job->stopping) {
        struct qv_job_chunk *next = &d->chunks[d->n_pushed % QV_JOB_AHEAD];
        const bool room = d->n_pushed - d->n_pulled < d->ahead;
        struct qv_job_buffer *buffer = room ? free_buffer(d) : NULL;
        double wait_s = INFINITY;
        if (buffer && choose(d, next, &wait_s)) {
            next->buffer = buffer;
            buffer->taken = true;
            push_chunk(d, next);
        } else if (d->n_pushed > d->n_pulled) {
            pull_chunk(d);
        } else {
            wait_for_work(d, !buffer, wait_s);
        }
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}
