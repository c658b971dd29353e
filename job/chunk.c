/* SPDX-License-Identifier: MIT */
/* Chooses the frame pairs that go into a device's next chunk. The job's lock is held throughout. */
#include <math.h>
#include <stdlib.h>

#include "job.h"

#define GRACE_S 0.002 /* with no piece for so long, no more sources are expected to come */

qv_capacity
qv_job_size(const struct qv_job_piece *piece, int64_t n)
{
    const qv_capacity *pair = &piece->item->pair;
    return (qv_capacity){ .rows = n * pair->rows,
                          .segments = n * pair->segments,
                          .windows = n * pair->windows };
}

/* The pieces of a pack that a device may take. An item stays on the device that its first piece
 * went to, so that its tokens come in order, and from one device. */
struct offer {
    qv_pack_run runs[QV_PACK_ITEMS];
    size_t at[QV_PACK_ITEMS]; /* each run's place in the pack's queue */
    size_t n;
    qv_capacity all;
    double oldest_s;
    bool blocks; /* a reader waits until some of these pieces go */
};

/* Lists what the device may take. With the option `alone` a chunk has pieces of one item only. */
static void
gather(const struct qv_job_device *d, const struct qv_job_pack *pack, struct offer *offer)
{
    const struct qv_job_queue *q = &pack->queue;
    const struct qv_job_item *first = NULL;
    *offer = (struct offer){ .oldest_s = INFINITY, .blocks = q->n == q->room };
    for (size_t i = 0; i < q->n; i++) {
        const struct qv_job_piece *p = qv_job_queue_at(q, i);
        const struct qv_job_item *item = p->item;
        if ((item->device >= 0 && item->device != d->index) ||
            (first && d->job->o.alone && item != first))
            continue;
        const qv_capacity size = qv_job_size(p, p->part.grid_thw[0]);
        if (!first)
            offer->oldest_s = p->ready_s;
        first = first ? first : item;
        offer->all.rows += size.rows;
        offer->all.segments += size.segments;
        offer->all.windows += size.windows;
        offer->blocks |= item->state == QV_JOB_READING && !qv_job_has_room(item);
        offer->at[offer->n] = i;
        offer->runs[offer->n++] = (qv_pack_run){ item->pair, p->part.grid_thw[0] };
    }
}

/* Returns whether enough pairs wait. For the usual pack these are two chunks, so that there is a
 * choice of what fits together. Pairs with a capacity of their own are all alike, so one chunk is
 * enough. */
static bool
is_enough(const qv_job *job, const qv_capacity *c, const struct offer *offer)
{
    const qv_capacity *all = &offer->all;
    if (!qv_capacity_equal(c, &job->pack.capacity))
        return all->segments >= qv_capacity_fits(c, &offer->runs[0].pair);
    return all->rows >= 2 * c->rows || all->segments >= 2 * c->segments ||
           (c->windows && all->windows >= 2 * c->windows);
}

/* Returns whether a chunk is filled now, because enough pairs wait or nothing more is expected. If
 * not, *wait_s is lowered to the time after which to look again. */
static bool
may_go(const qv_job *job, const struct qv_job_pack *pack, const struct offer *offer, double now_s,
       double *wait_s)
{
    if (!offer->n)
        return false;
    const bool comes = qv_job_may_take_up(job) || job->n_reading;
    double until_s = offer->oldest_s + job->o.max_wait_s;
    if (!comes && until_s > job->ready_s + GRACE_S)
        until_s = job->ready_s + GRACE_S;
    if (job->o.alone || offer->blocks || is_enough(job, &pack->options.capacity, offer) ||
        (!comes && job->ended) || job->serving != job->ticket || now_s >= until_s)
        return true;
    if (until_s - now_s < *wait_s)
        *wait_s = until_s - now_s;
    return false;
}

/* Cuts the first n frame pairs off a piece, which keeps the rest, and returns them as a new piece
 * outside of the queue; NULL if there is no memory. */
static struct qv_job_piece *
cut(const qv_job *job, struct qv_job_piece *piece, int64_t n)
{
    const qv_input input = piece->item->pack->options.input;
    const qv_item whole = piece->part;
    const int64_t pairs = whole.grid_thw[0], tokens = piece->n / pairs * n;
    struct qv_job_piece *head = malloc(sizeof *head);
    if (!head)
        return NULL;
    *head = *piece;
    head->part = qv_item_piece(qv_job_model(job), input, &whole, 0, n);
    head->n = tokens;
    head->last = false;
    piece->part = qv_item_piece(qv_job_model(job), input, &whole, n, pairs - n);
    piece->first_row += tokens;
    piece->n -= tokens;
    piece->item->holders++;
    if (piece->frames)
        piece->frames->users++;
    return head;
}

/* Moves taken[i] pairs of each offered run from the pack into the chunk. */
static bool
take(struct qv_job_device *d, struct qv_job_pack *pack, const struct offer *offer,
     const int64_t taken[QV_PACK_ITEMS], struct qv_job_chunk *chunk)
{
    size_t gone = 0; /* pieces before this one that have left the queue */
    for (size_t i = 0; i < offer->n; i++) {
        const size_t at = offer->at[i] - gone;
        struct qv_job_piece *p = taken[i] ? qv_job_queue_at(&pack->queue, at) : NULL;
        chunk->more |= taken[i] < offer->runs[i].pairs;
        if (!p)
            continue;
        if (taken[i] < p->part.grid_thw[0]) {
            p = cut(d->job, p, taken[i]);
        } else {
            qv_job_queue_take(&pack->queue, at);
            gone++;
        }
        if (!p)
            return false;
        p->item->ready -= taken[i];
        p->item->device = d->index;
        chunk->pieces[chunk->n++] = p;
    }
    return true;
}

bool
qv_job_choose(struct qv_job_device *d, struct qv_job_chunk *chunk, double *wait_s)
{
    qv_job *job = d->job;
    const double now_s = qv_seconds();
    struct qv_job_pack *best = NULL;
    struct offer offer;
    double oldest_s = INFINITY;
    int64_t taken[QV_PACK_ITEMS];
    for (struct qv_job_pack *pack = job->packs; pack; pack = pack->next) {
        gather(d, pack, &offer);
        if (may_go(job, pack, &offer, now_s, wait_s) && (!best || offer.oldest_s < oldest_s)) {
            oldest_s = offer.oldest_s;
            best = pack;
        }
    }
    *chunk = (struct qv_job_chunk){ 0 };
    if (!best)
        return false;
    gather(d, best, &offer);
    qv_pack_choose(&best->options.capacity, offer.runs, offer.n, taken);
    if (!take(d, best, &offer, taken, chunk)) {
        qv_error err;
        while (chunk->n)
            qv_job_drop_piece(job, chunk->pieces[--chunk->n]);
        qv_job_lose(job, qv_fail(&err, QV_ENOMEM, "no memory for a piece"), &err);
        return false;
    }
    qv_job_wake(job, QV_JOB_READERS);
    return chunk->n;
}
