/* SPDX-License-Identifier: MIT */
/* A feeder's chunks: chooses the frame pairs of the next one and its plan, and has the device
 * compute it. */
#include <math.h>
#include <string.h>

#include "error.h"
#include "feeder_inside.h"
#include "packer.h"

/* ---- choosing -------------------------------------------------------------------------------- */

/* The pieces of a pack that a device may take. An item stays on the device that computed its first
 * pair, so that its tokens come in order. */
struct offer {
    struct qv_pack_run runs[QV_FEEDER_PIECES];
    size_t n;
    qv_capacity all;
    int64_t oldest; /* the number of its put */
};

/* Returns whether a device may take a piece, where `first` is the first item that it may take. With
 * the option `alone` a chunk has pairs of only one item. */
static bool
may_take(const qv_feeder *f, int device, const struct qv_fed *first, const struct qv_fed *fed)
{
    return (fed->shown.device < 0 || fed->shown.device == device) &&
           (!first || !f->alone || fed == first);
}

/* Lists the pieces that the device may take. */
static void
gather(const qv_feeder *f, int device, const struct qv_feeder_pack *pack, struct offer *offer)
{
    const struct qv_fed *first = NULL;
    const struct qv_waiting *p = pack->waiting;
    *offer = (struct offer){ .oldest = INT64_MAX };
    for (int i = 0; p && i < QV_FEEDER_PIECES; i++, p = p->next) {
        const struct qv_fed *fed = p->fed;
        if (!may_take(f, device, first, fed))
            continue;
        const int64_t pairs = p->piece.item.grid_thw[0];
        if (!first)
            offer->oldest = p->number;
        first = first ? first : fed;
        qv_capacity_count(&offer->all, pairs, &fed->pair);
        offer->runs[offer->n++] = (struct qv_pack_run){ fed->pair, pairs };
    }
}

/* Returns whether a chunk's worth of pairs waits. Pairs with their own capacity all have the same
 * size, so as many as fit are enough. */
static bool
is_enough(const qv_feeder *f, const qv_capacity *c, const struct offer *offer)
{
    const qv_capacity *all = &offer->all;
    if (!qv_capacity_equal(c, &f->pack))
        return all->segments >= qv_capacity_fits(c, &offer->runs[0].pair);
    return all->patches >= c->patches || all->segments >= c->segments ||
           (c->windows && all->windows >= c->windows);
}

/* Returns whether a chunk is filled now: enough pairs wait, or no more are expected, or no more can
 * be put until some leave. */
static bool
may_go(const qv_feeder *f, const struct qv_feeder_pack *pack, const struct offer *offer, bool waits)
{
    return offer->n && (!waits || f->alone || pack->n >= QV_FEEDER_PIECES ||
                        is_enough(f, &pack->capacity, offer));
}

/* Moves taken[i] pairs of each offered run from the pack into the chunk. */
static void
take(const qv_feeder *f, int device, struct qv_feeder_pack *pack, const struct offer *offer,
     const int64_t taken[QV_FEEDER_PIECES], struct qv_filled *chunk)
{
    const struct qv_fed *first = NULL;
    struct qv_waiting **link = &pack->waiting;
    for (size_t i = 0; *link && i < offer->n;) {
        struct qv_fed *fed = (*link)->fed;
        const bool offered = may_take(f, device, first, fed);
        const int64_t n = offered ? taken[i] : 0, left = offered ? offer->runs[i].pairs - n : 1;
        first = first || !offered ? first : fed;
        i += offered;
        chunk->shown.is_rest &= !offered || !left;
        if (n) {
            fed->shown.device = device;
            chunk->pieces[chunk->shown.n++] = qv_feeder_take(f, pack, link, n);
        }
        if (left)
            link = &(*link)->next;
    }
}

/* ---- capacities ------------------------------------------------------------------------------ */

/* Returns what the chunk's pairs need. segment_rows is their size if all have the same, else 0. */
static qv_capacity
size_of(const struct qv_filled *chunk)
{
    qv_capacity used = { 0 };
    for (size_t i = 0; i < chunk->shown.n; i++) {
        const qv_feeder_piece *piece = &chunk->pieces[i];
        const qv_capacity *pair = &((const struct qv_fed *)piece->feed)->pair;
        qv_capacity_count(&used, piece->item.grid_thw[0], pair);
        used.segment_rows =
            i == 0 || used.segment_rows == pair->segment_rows ? pair->segment_rows : 0;
    }
    return used;
}

/* Decides the capacity of a chunk's plan. A chunk that is not full gets a smaller one with the same
 * bits, or any smaller one if the device never gives the same bits. A call of qv_encode makes no
 * dense plans. */
static void
set_capacity(const qv_feeder *f, struct qv_feeder_device *d, struct qv_filled *chunk)
{
    qv_capacity used = size_of(chunk);
    if (f->is_call)
        used.segment_rows = 0;
    d->repeats = qv_capacity_equal(&used, &d->last) ? d->repeats + 1 : 0;
    d->last = used;
    chunk->shown.rows = used.patches;
    chunk->capacity = chunk->room;
    if (!f->fixed)
        chunk->capacity =
            qv_chunk_capacity(d->model, &chunk->room, &used, !chunk->shown.is_rest, d->repeats);
}

/* When the first chunk is chosen for qv_encode, lowers the room of the pack to the smallest bucket
 * that holds everything waiting in it and gives the same bits. */
static void
lower_room(const qv_feeder *f, struct qv_feeder_pack *pack)
{
    const qv_model *model = f->devices[0].model;
    qv_capacity all = { 0 };
    const struct qv_waiting *p = pack->waiting;
    for (; p && all.patches <= pack->capacity.patches; p = p->next)
        qv_capacity_count(&all, p->piece.item.grid_thw[0], &p->fed->pair);
    pack->room = qv_capacity_for_fill(&model->ctx->caps, &model->config, &model->bits,
                                      &pack->capacity, &all);
}

/* Fills the chunk from the pack that may go and whose oldest pair has waited longest. */
static bool
choose(qv_feeder *f, int device, struct qv_filled *chunk, bool waits)
{
    struct qv_feeder_pack *best = NULL;
    struct offer offer;
    int64_t oldest = INT64_MAX;
    int64_t taken[QV_FEEDER_PIECES];
    for (struct qv_feeder_pack *pack = f->packs; pack; pack = pack->next) {
        gather(f, device, pack, &offer);
        if (may_go(f, pack, &offer, waits) && offer.oldest < oldest) {
            oldest = offer.oldest;
            best = pack;
        }
    }
    if (!best)
        return false;
    if (f->is_call && !f->fixed && !best->begun)
        lower_room(f, best);
    best->begun = true;
    gather(f, device, best, &offer);
    qv_pack_choose(&best->room, offer.runs, offer.n, taken);
    chunk->shown = (qv_feeder_chunk){ .pieces = chunk->pieces, .is_rest = true };
    chunk->room = best->room;
    chunk->input = best->input;
    take(f, device, best, &offer, taken, chunk);
    qv_feeder_free_empty(f, best);
    set_capacity(f, &f->devices[device], chunk);
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool
is_plan_of(const qv_plan *plan, const struct qv_filled *chunk)
{
    return qv_capacity_equal(&plan->options.capacity, &chunk->capacity) &&
           plan->options.input == chunk->input;
}

/* Uses the plan of a chunk in progress if it fits, otherwise one from the model. */
static qv_status
take_plan(const qv_feeder *f, struct qv_feeder_device *d, struct qv_filled *chunk, qv_error *err)
{
    qv_plan_options options = f->plan;
    options.capacity = chunk->capacity;
    options.input = chunk->input;
    for (int64_t i = d->n_pulled; i < d->n_pushed && !chunk->plan; i++)
        if (is_plan_of(d->chunks[i % QV_MOST_CHUNKS].plan, chunk))
            chunk->plan = d->chunks[i % QV_MOST_CHUNKS].plan;
    return chunk->plan ? QV_OK : qv_plan_create(d->model, &options, &chunk->plan, err);
}

/* Returns a chunk's plan to the model, which keeps it, unless another chunk in progress uses it. */
static void
give_plan(struct qv_filled *chunk)
{
    if (!chunk->plan->n_pending)
        qv_plan_free(&chunk->plan);
    chunk->plan = NULL;
}

/* ---- chunks in progress ---------------------------------------------------------------------- */

static struct qv_filled *
next_of(struct qv_feeder_device *d)
{
    return &d->chunks[d->n_pushed % QV_MOST_CHUNKS];
}

const qv_feeder_chunk *
qv_feeder_oldest(const qv_feeder *f, int device)
{
    const struct qv_feeder_device *d = &f->devices[device];
    return d->n_pulled < d->n_pushed ? &d->chunks[d->n_pulled % QV_MOST_CHUNKS].shown : NULL;
}

/* Records when the device began its next chunk or ran out of chunks. */
static void
take_time(struct qv_feeder_device *d, double now_s)
{
    if (d->n_timed < d->n_pulled) {
        const struct qv_filled *last = &d->chunks[(d->n_pulled - 1) % QV_MOST_CHUNKS];
        d->took_s = (now_s - d->began_s) * (double)last->room.patches / (double)last->shown.rows;
        d->began_s = now_s;
        d->n_timed = d->n_pulled;
    }
    if (d->n_pulled == d->n_pushed)
        d->began_s = now_s;
}

/* Returns whether the device waits for its next chunk to fill: while it computes another chunk, and
 * then for as long as that chunk would have taken if full. So it never waits longer than it
 * computes. *wait_s is lowered to the time after which to look again. */
static bool
waits_on(const qv_feeder *f, struct qv_feeder_device *d, double now_s, double *wait_s)
{
    if (d->n_pulled < d->n_pushed)
        return true;
    if (isinf(d->until_s) && f->packs)
        d->until_s = now_s + d->took_s;
    if (now_s >= d->until_s)
        return false;
    if (d->until_s - now_s < *wait_s)
        *wait_s = d->until_s - now_s;
    return true;
}

const qv_feeder_chunk *
qv_feeder_ready(qv_feeder *f, int device, double now_s, bool more, double *wait_s)
{
    struct qv_feeder_device *d = &f->devices[device];
    struct qv_filled *chunk = next_of(d);
    if (d->n_pushed - d->n_pulled >= d->model->ctx->caps.chunks)
        return NULL;
    take_time(d, now_s);
    if (d->has_turn && qv_turn_is_wanted(d->model->ctx)) /* it ends once all chunks are pulled */
        return NULL;
    d->is_chosen = d->is_chosen || choose(f, device, chunk, more && waits_on(f, d, now_s, wait_s));
    if (!d->is_chosen)
        return NULL;
    d->until_s = INFINITY;
    /* a call has only one plan at a time, so that the memory of plans does not add up */
    const bool other = f->is_call && d->n_pulled < d->n_pushed &&
                       !is_plan_of(d->chunks[d->n_pulled % QV_MOST_CHUNKS].plan, chunk);
    return other ? NULL : &chunk->shown;
}

void
qv_feeder_pass(qv_feeder *f, int device)
{
    f->devices[device].is_chosen = false;
}

static qv_status
push(const qv_feeder *f, struct qv_feeder_device *d, qv_error *err)
{
    struct qv_filled *chunk = next_of(d);
    qv_item items[QV_FEEDER_PIECES];
    d->is_chosen = false;
    qv_status status = take_plan(f, d, chunk, err);
    chunk->shown.refused = status && (status == QV_ENOMEM || !qv_ends_all(status));
    if (status)
        return status;
    for (size_t i = 0; i < chunk->shown.n; i++)
        items[i] = chunk->pieces[i].item;
    status = qv_plan_push(chunk->plan, items, chunk->shown.n, err);
    if (status) {
        give_plan(chunk);
        return status;
    }
    d->n_pushed++;
    chunk->shown.capacity_rows = chunk->plan->capacity.patches;
    chunk->shown.capacity_tokens =
        chunk->plan->capacity.patches / (d->model->config.merge * d->model->config.merge);
    return QV_OK;
}

qv_status
qv_feeder_push(qv_feeder *f, int device, qv_error *err)
{
    if (!f->devices[device].is_chosen)
        return qv_fail(err, QV_ESTATE, "push: no chunk was chosen for device %d", device);
    struct qv_feeder_device *d = &f->devices[device];
    qv_feeder_take_turn(d);
    const struct qv_filled *chunk = next_of(d);
    const qv_status status = push(f, d, err);
    /* a device that is lost may never be pulled from */
    if (d->n_pushed == d->n_pulled || (status && !chunk->shown.refused))
        qv_feeder_end_turn(d);
    return status;
}

qv_status
qv_feeder_pull(qv_feeder *f, int device, qv_tokens *out, const int64_t *first_rows, qv_error *err)
{
    if (!qv_feeder_oldest(f, device))
        return qv_fail(err, QV_ESTATE, "pull: device %d has no chunk in progress", device);
    struct qv_feeder_device *d = &f->devices[device];
    struct qv_filled *chunk = &d->chunks[d->n_pulled % QV_MOST_CHUNKS];
    const qv_status status = first_rows ? qv_plan_pull_items(chunk->plan, out, first_rows, err)
                                        : qv_plan_pull(chunk->plan, out, err);
    if (!status) {
        give_plan(chunk);
        d->n_pulled++;
    }
    if (status || d->n_pushed == d->n_pulled)
        qv_feeder_end_turn(d);
    return status;
}
