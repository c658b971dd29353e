/* SPDX-License-Identifier: MIT */
/*
 * A device's thread. It chooses pieces for the next chunk and pushes it; it pulls the oldest chunk
 * when no more may be under way or nothing is ready, and hands the pieces with their tokens to the
 * sink.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "job.h"

enum { MANY_ROWS = 16 }; /* patches for each row that may be left empty for want of a plan */

/* ---- plans ----------------------------------------------------------------------------------- */

static bool
same_plan(const qv_plan_options *a, const qv_plan_options *b)
{
    return qv_capacity_equal(&a->capacity, &b->capacity) && a->input == b->input &&
           a->output == b->output;
}

/* Makes or finds the plan for these options. Plans for packs have places of their own, one for
 * each input. Any other plan takes a place in which no chunk is under way; there is always one,
 * since there are as many places as chunks. */
static qv_status
take_plan(struct qv_job_device *d, const qv_plan_options *options, struct qv_job_plan **out,
          qv_error *err)
{
    struct qv_job_plan *place = NULL;
    const bool pack = qv_capacity_equal(&options->capacity, &d->job->usual);
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

/* Sets the capacity that most pairs are packed in: it is the one that the smallest pairs have. */
static void
set_pack(qv_job *job, const qv_model *model)
{
    const int64_t m = job->model.merge_size, least[3] = { 1, m, m };
    job->pack.output = job->o.output;
    job->pack.capacity = qv_pack_capacity(model, job->o.chunk_rows, least);
    const qv_capacity full = { .rows = job->pack.capacity.rows, .segments = 1 };
    job->usual = qv_pack_part(model, &job->pack.capacity, &full, false, 0);
}

qv_status
qv_job_device_open(struct qv_job_device *d, qv_error *err)
{
    qv_job *job = d->job;
    struct qv_job_plan *first = &d->plans[QV_INPUT_FRAMES];
    d->ahead = QV_JOB_AHEAD; /* push_chunk lowers it to what each plan allows */
    if (job->o.alone && !job->o.chunk_rows)
        return QV_OK;
    if (!d->index)
        set_pack(job, d->model);
    first->options = job->pack;
    first->options.capacity = job->usual;
    const qv_status status = qv_plan_create(d->model, &first->options, &first->plan, err);
    if (!status)
        qv_plan_get_info(first->plan, &first->info);
    return status;
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
    qv_status status = qv_plan_push(chunk->plan->plan, items, chunk->n, err);
    /* locking pages takes as long as a chunk, which the device computes meanwhile */
    return status ? status : size_buffer(d, chunk->buffer, chunk->plan->info.tokens, err);
}

/* Fails a chunk whose plan could not be made, which concerns only its items: the sink gets its
 * pieces, without tokens. */
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

/* Returns what the chunk's pairs take. segment_rows is their size if all have the same, else 0. */
static qv_capacity
size_of(const struct qv_job_chunk *chunk)
{
    qv_capacity used = { .segment_rows = chunk->pieces[0]->item->pair.rows };
    for (size_t i = 0; i < chunk->n; i++) {
        const struct qv_job_piece *p = chunk->pieces[i];
        const qv_capacity size = qv_job_size(p, p->part.grid_thw[0]);
        used.rows += size.rows;
        used.segments += size.segments;
        used.windows += size.windows;
        if (p->item->pair.rows != used.segment_rows)
            used.segment_rows = 0;
    }
    return used;
}

/* Returns whether a chunk is one of many: either more chunks wait, or the rows that it leaves empty are few beside all
 * that were computed, and cost the device less time than a plan of its own would. */
static bool
is_one_of_many(struct qv_job_device *d, const struct qv_job_chunk *chunk, const qv_capacity *pack,
               const qv_capacity *used)
{
    const int64_t spared = d->spared + pack->rows - used->rows;
    const bool little = MANY_ROWS * spared <= d->rows;
    d->rows += used->rows;
    if (!chunk->more && little)
        d->spared = spared;
    return chunk->more || little;
}

/* Returns the options of the plan for a chunk's pairs, which they all share. A chunk that is not
 * full takes a smaller plan with the same bits, or any smaller one if the device promises no
 * bits. */
static qv_plan_options
options_for(struct qv_job_device *d, const struct qv_job_chunk *chunk)
{
    qv_plan_options options = chunk->pieces[0]->item->pack->options;
    const qv_capacity used = size_of(chunk);
    d->repeats = qv_capacity_equal(&used, &d->last) ? d->repeats + 1 : 0;
    d->last = used;
    if (!d->job->o.alone) {
        const bool many = is_one_of_many(d, chunk, &options.capacity, &used);
        options.capacity = qv_pack_part(d->model, &options.capacity, &used, many, d->repeats);
    }
    return options;
}

/* Makes the plan that the next chunk takes if it is like this one and two before, where the device computes them
 * meanwhile. The chunk that takes it tells of what fails here. */
static void
make_next_plan(struct qv_job_device *d, const struct qv_job_chunk *chunk)
{
    qv_plan_options options = chunk->pieces[0]->item->pack->options;
    qv_plan *plan = NULL;
    qv_error ignored;
    if (!chunk->more || d->repeats < 2 || d->job->o.alone || d->ahead < 2)
        return;
    options.capacity =
        qv_pack_part(d->model, &options.capacity, &d->last, chunk->more, d->repeats + 1);
    if (!qv_capacity_equal(&options.capacity, &chunk->plan->options.capacity) &&
        !qv_plan_create(d->model, &options, &plan, &ignored))
        qv_plan_free(&plan);
}

/* Pushes the chunk that was chosen. The lock is held before and after, and released while the
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
        if (!status)
            make_next_plan(d, chunk);
    }
    const double ended_s = qv_seconds();
    qv_job_span(job, "push", d->index, chunk->n == 1 ? first->source.key : NULL, began_s, ended_s);
    pthread_mutex_lock(&job->lock);
    qv_job_clock_stop(&d->busy, ended_s);
    chunk->device_s = ended_s - began_s;
    if (!unsuited && status)
        qv_job_lose(job, status, &err);
    for (size_t i = 0; i < chunk->n && !job->o.keep_frames; i++)
        qv_job_free_frames(job, chunk->pieces[i]); /* the device has the frames now */
    if (unsuited)
        give_back(d, chunk, unsuited, &err);
    else
        d->n_pushed++;
}

/* Hands the pieces of a chunk with their tokens to the sink. The lock must be held. */
static void
hand_over(struct qv_job_device *d, struct qv_job_chunk *chunk)
{
    qv_job *job = d->job;
    const int64_t area = job->model.merge_size * job->model.merge_size;
    int64_t row = 0, packed = 0;
    chunk->buffer->taken = false;
    chunk->buffer->users = chunk->n;
    for (size_t i = 0; i < chunk->n; i++) {
        struct qv_job_piece *p = chunk->pieces[i];
        p->buffer = chunk->buffer;
        p->buffer_row = row / area;
        p->ready_s = qv_seconds();
        p->item->wait_device_s += chunk->device_s;
        row += qv_job_size(p, p->part.grid_thw[0]).rows;
        packed += p->last && !job->o.alone;
        qv_job_queue_put(&job->told, p);
    }
    job->progress.tokens += row / area;
    job->progress.chunks++;
    job->progress.rows += row;
    job->progress.capacity_rows += chunk->plan->info.capacity.rows;
    if (!job->o.alone) {
        job->progress.packed += packed;
        job->progress.packed_chunks++;
        job->progress.packed_rows += row;
    }
    if (!job->o.alone && !chunk->more) {
        job->progress.rest_rows += row;
        job->progress.rest_capacity_rows += chunk->plan->info.capacity.rows;
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

/* ---- the thread ------------------------------------------------------------------------------ */

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
        if (buffer && qv_job_choose(d, next, &wait_s)) {
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
