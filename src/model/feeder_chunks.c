/* SPDX-License-Identifier: MIT */
/* A feeder's chunks: which frame pairs go into the next one, which plan it takes, and its way
 * through the device. */
#include <math.h>
#include <string.h>

#include "error.h"
#include "feeder.h"
#include "packer.h"
#include "plan.h"

/* ---- choosing -------------------------------------------------------------------------------- */

/* The pieces of a pack that a device may take. An item stays on the device that its first pair went
 * to, so that its tokens come in order. */
struct offer {
    struct qv_pack_run runs[QV_FEEDER_PARTS];
    size_t at[QV_FEEDER_PARTS]; /* each run's place in the pack */
    size_t n;
    qv_capacity all;
    double oldest_s;
    bool blocks; /* nothing more can be put until some of these go */
};

/* Lists what the device may take. With the option `alone` a chunk has pairs of one item only. */
static void
gather(const qv_feeder *f, int device, const struct qv_feeder_pack *pack, struct offer *offer)
{
    const size_t n = pack->end - pack->begin;
    const struct qv_fed *first = NULL;
    *offer = (struct offer){ .oldest_s = INFINITY, .blocks = n >= QV_FEEDER_PARTS };
    for (size_t i = 0; i < n && i < QV_FEEDER_PARTS; i++) {
        const struct qv_feeder_piece *p = &pack->waiting[pack->begin + i];
        const struct qv_fed *fed = p->fed;
        if ((fed->device >= 0 && fed->device != device) || (first && f->alone && fed != first))
            continue;
        const qv_capacity size = qv_capacity_of(&f->devices[0].model->config, p->item.grid_thw);
        if (!first)
            offer->oldest_s = p->ready_s;
        first = first ? first : fed;
        qv_capacity_count(&offer->all, &size, 1);
        offer->blocks |= fed->put < fed->whole.grid_thw[0] && fed->shown.full;
        offer->at[offer->n] = i;
        offer->runs[offer->n++] = (struct qv_pack_run){ fed->pair, p->item.grid_thw[0] };
    }
}

/* Returns whether enough pairs wait. For the usual pack these are two chunks, so that there is a
 * choice of what fits together. Pairs with a capacity of their own are all alike, so one chunk is
 * enough. */
static bool
is_enough(const qv_feeder *f, const qv_capacity *c, const struct offer *offer)
{
    const qv_capacity *all = &offer->all;
    if (!qv_capacity_equal(c, &f->pack))
        return all->segments >= qv_capacity_fits(c, &offer->runs[0].pair);
    return all->rows >= QV_CHOICE_CHUNKS * c->rows ||
           all->segments >= QV_CHOICE_CHUNKS * c->segments ||
           (c->windows && all->windows >= QV_CHOICE_CHUNKS * c->windows);
}

/* Returns whether a chunk is filled now, because enough pairs wait or nothing more is expected. If
 * not, *wait_s is lowered to the time after which to look again. */
static bool
may_go(const qv_feeder *f, const struct qv_feeder_pack *pack, const struct offer *offer,
       double now_s, qv_feeder_expects expects, double *wait_s)
{
    if (!offer->n)
        return false;
    double until_s = offer->oldest_s + f->max_wait_s;
    if (expects != QV_FEEDER_MORE && until_s > f->ready_s + QV_GRACE_S)
        until_s = f->ready_s + QV_GRACE_S;
    if (f->alone || offer->blocks || expects == QV_FEEDER_NOTHING ||
        is_enough(f, &pack->capacity, offer) || now_s >= until_s)
        return true;
    if (until_s - now_s < *wait_s)
        *wait_s = until_s - now_s;
    return false;
}

/* Moves taken[i] pairs of each offered run from the pack into the chunk. */
static void
take(const qv_feeder *f, int device, struct qv_feeder_pack *pack, const struct offer *offer,
     const int64_t taken[QV_FEEDER_PARTS], struct qv_filled *chunk)
{
    const size_t n = pack->end - pack->begin, seen = n < QV_FEEDER_PARTS ? n : QV_FEEDER_PARTS;
    for (size_t i = 0; i < offer->n; i++) {
        struct qv_feeder_piece *p = &pack->waiting[pack->begin + offer->at[i]];
        chunk->shown.is_rest &= taken[i] == offer->runs[i].pairs;
        if (!taken[i])
            continue;
        p->fed->device = device;
        const qv_feeder_part part = qv_feeder_cut(f, p, taken[i]);
        chunk->parts[chunk->shown.n++] = part;
        if (part.ends)
            p->fed = NULL;
    }
    size_t begin = pack->begin + seen; /* those that stay move up */
    for (size_t at = begin; at-- > pack->begin;)
        if (pack->waiting[at].fed)
            pack->waiting[--begin] = pack->waiting[at];
    pack->begin = begin;
}

/* ---- capacities ------------------------------------------------------------------------------ */

/* Returns what the chunk's pairs take. segment_rows is their size if all have the same, else 0. */
static qv_capacity
size_of(const qv_feeder *f, const struct qv_filled *chunk)
{
    qv_capacity used = { 0 };
    for (size_t i = 0; i < chunk->shown.n; i++) {
        const qv_capacity size =
            qv_capacity_of(&f->devices[0].model->config, chunk->parts[i].item.grid_thw);
        qv_capacity_count(&used, &size, 1);
        used.segment_rows =
            i == 0 || used.segment_rows == size.segment_rows ? size.segment_rows : 0;
    }
    return used;
}

/* Returns whether a chunk is one of many: either more chunks wait, or the rows that it leaves
 * empty are few beside all that were computed, and cost the device less time than a plan of its
 * own would. qv_encode has no chunks before it. */
static bool
is_one_of_many(const qv_feeder *f, struct qv_feeder_device *d, const struct qv_filled *chunk,
               const qv_capacity *used)
{
    const bool more = !chunk->shown.is_rest;
    const int64_t spared = d->spared + chunk->room.rows - used->rows;
    const bool little = QV_MANY_ROWS * spared <= d->rows && !f->is_call;
    d->rows += used->rows;
    if (!more && little)
        d->spared = spared;
    return more || little;
}

/* Decides the capacity of a chunk's plan. A chunk that is not full takes a smaller one with the
 * same bits, or any smaller one if the device promises no bits. A call of qv_encode makes no dense
 * plans. */
static void
set_capacity(const qv_feeder *f, struct qv_feeder_device *d, struct qv_filled *chunk)
{
    qv_capacity used = size_of(f, chunk);
    if (f->is_call)
        used.segment_rows = 0;
    d->repeats = qv_capacity_equal(&used, &d->last) ? d->repeats + 1 : 0;
    d->last = used;
    chunk->shown.rows = used.rows;
    chunk->capacity = chunk->room;
    if (!f->fixed) {
        const bool many = is_one_of_many(f, d, chunk, &used);
        chunk->capacity = qv_pack_part(d->model, &chunk->room, &used, many, d->repeats);
    }
}

/* Lowers the room of a pack to the smallest bucket that holds all that waits in it and gives the
 * same bits, when its first chunk is chosen for qv_encode. */
static void
lower_room(const qv_feeder *f, struct qv_feeder_pack *pack)
{
    const qv_model *model = f->devices[0].model;
    const struct qv_capacity_bits bits = qv_model_bits(model);
    qv_capacity all = { 0 };
    for (size_t i = 0; i < pack->end && all.rows <= pack->capacity.rows; i++) {
        const qv_capacity size = qv_capacity_of(&model->config, pack->waiting[i].item.grid_thw);
        qv_capacity_count(&all, &size, 1);
    }
    pack->room =
        qv_capacity_for_part(&model->ctx->caps, &model->config, &bits, &pack->capacity, &all);
}

/* Fills the chunk from the pack whose oldest pair waits longest of those that may go. */
static bool
choose(qv_feeder *f, int device, struct qv_filled *chunk, double now_s, qv_feeder_expects expects,
       double *wait_s)
{
    struct qv_feeder_pack *best = NULL;
    struct offer offer;
    double oldest_s = INFINITY;
    int64_t taken[QV_FEEDER_PARTS];
    for (struct qv_feeder_pack *pack = f->packs; pack; pack = pack->next) {
        gather(f, device, pack, &offer);
        if (may_go(f, pack, &offer, now_s, expects, wait_s) &&
            (!best || offer.oldest_s < oldest_s)) {
            oldest_s = offer.oldest_s;
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
    chunk->shown = (qv_feeder_chunk){ .parts = chunk->parts, .is_rest = true };
    chunk->room = best->room;
    chunk->input = best->input;
    take(f, device, best, &offer, taken, chunk);
    qv_feeder_free_empty(f, best);
    set_capacity(f, &f->devices[device], chunk);
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static qv_plan_options
options_of(const qv_feeder *f, const struct qv_filled *chunk)
{
    qv_plan_options options = f->plan;
    options.capacity = chunk->capacity;
    options.input = chunk->input;
    return options;
}

/* Puts a new plan into a slot in which no chunk is under way. */
static qv_status
make(struct qv_feeder_device *d, struct qv_feeder_slot *slot, const qv_plan_options *options,
     qv_error *err)
{
    qv_plan_free(&slot->plan);
    const qv_status status = qv_plan_create(d->model, options, &slot->plan, err);
    if (status)
        return status;
    slot->options = *options;
    qv_plan_get_info(slot->plan, &slot->info);
    return QV_OK;
}

static bool
has_plan(const struct qv_feeder_slot *slot, const qv_plan_options *options)
{
    return slot->plan && qv_capacity_equal(&slot->options.capacity, &options->capacity) &&
           slot->options.input == options->input;
}

/* Makes or finds the chunk's plan. Plans for packs have slots of their own, one for each input. Any
 * other plan takes a slot in which no chunk is under way; there is always one, since there are as
 * many slots as chunks. A call of qv_encode has one slot, so that its plans do not add up. */
static qv_status
take_plan(const qv_feeder *f, struct qv_feeder_device *d, struct qv_filled *chunk, qv_error *err)
{
    const qv_plan_options options = options_of(f, chunk);
    const bool pack = qv_capacity_equal(&options.capacity, &f->usual);
    const int first = f->is_call ? 0 : pack ? (int)options.input : QV_FEEDER_INPUTS;
    const int end = f->is_call || pack ? first + 1 : QV_FEEDER_SLOTS;
    struct qv_feeder_slot *slot = NULL;
    chunk->slot = NULL;
    for (int i = first; i < end && !chunk->slot; i++) {
        struct qv_feeder_slot *s = &d->slots[i];
        if (has_plan(s, &options))
            chunk->slot = s;
        else if (!s->users && (!slot || !s->plan))
            slot = s;
    }
    if (chunk->slot)
        return QV_OK;
    if (!slot)
        return qv_fail(err, QV_ESTATE, "more plans in use than chunks under way");
    chunk->slot = slot;
    return make(d, slot, &options, err);
}

/* Makes the plan that the next chunk takes if it is like this one and two before, while the device
 * computes them. The chunk that takes it reports a failure. */
static void
make_next_plan(const qv_feeder *f, struct qv_feeder_device *d, const struct qv_filled *chunk)
{
    qv_plan_options options = options_of(f, chunk);
    qv_plan *plan = NULL;
    qv_error ignored;
    if (chunk->shown.is_rest || d->repeats < QV_ALIKE_BEFORE || f->fixed || f->is_call ||
        chunk->slot->info.chunks_ahead < 2)
        return;
    options.capacity = qv_pack_part(d->model, &chunk->room, &d->last, true, d->repeats + 1);
    if (!qv_capacity_equal(&options.capacity, &chunk->capacity) &&
        !qv_plan_create(d->model, &options, &plan, &ignored))
        qv_plan_free(&plan);
}

qv_status
qv_feeder_open_device(const qv_feeder *f, struct qv_feeder_device *d, qv_error *err)
{
    qv_plan_options options = f->plan;
    options.capacity = f->usual;
    return make(d, &d->slots[QV_INPUT_FRAMES], &options, err);
}

void
qv_feeder_close_device(struct qv_feeder_device *d)
{
    for (int i = 0; i < QV_FEEDER_SLOTS; i++)
        qv_plan_free(&d->slots[i].plan);
}

/* ---- chunks under way ------------------------------------------------------------------------ */

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

const qv_feeder_chunk *
qv_feeder_ready(qv_feeder *f, int device, double now_s, qv_feeder_expects expects, double *wait_s)
{
    if (!f || !wait_s || device < 0 || device >= f->n_devices)
        return NULL;
    struct qv_feeder_device *d = &f->devices[device];
    struct qv_filled *chunk = next_of(d);
    if (d->n_pushed - d->n_pulled >= d->model->ctx->caps.chunks)
        return NULL;
    d->is_chosen = d->is_chosen || choose(f, device, chunk, now_s, expects, wait_s);
    if (!d->is_chosen)
        return NULL;
    const qv_plan_options options = options_of(f, chunk);
    /* with one slot a plan is replaced once its chunks are pulled */
    const bool waits = f->is_call && d->slots[0].users && !has_plan(&d->slots[0], &options);
    return waits ? NULL : &chunk->shown;
}

void
qv_feeder_pass(qv_feeder *f, int device)
{
    f->devices[device].is_chosen = false;
}

qv_status
qv_feeder_push(qv_feeder *f, int device, qv_error *err)
{
    if (!f || device < 0 || device >= f->n_devices || !f->devices[device].is_chosen)
        return qv_fail(err, QV_ESTATE, "push: no chunk was chosen for device %d", device);
    struct qv_feeder_device *d = &f->devices[device];
    struct qv_filled *chunk = next_of(d);
    qv_item items[QV_FEEDER_PARTS];
    d->is_chosen = false;
    qv_status status = take_plan(f, d, chunk, err);
    chunk->shown.refused = status != QV_OK;
    if (status)
        return status;
    for (size_t i = 0; i < chunk->shown.n; i++)
        items[i] = chunk->parts[i].item;
    status = qv_plan_push(chunk->slot->plan, items, chunk->shown.n, err);
    if (status)
        return status;
    chunk->slot->users++;
    d->n_pushed++;
    chunk->shown.capacity_rows = chunk->slot->info.capacity.rows;
    chunk->shown.capacity_tokens = chunk->slot->info.tokens;
    make_next_plan(f, d, chunk);
    return QV_OK;
}

static void
pulled(struct qv_feeder_device *d)
{
    d->chunks[d->n_pulled++ % QV_MOST_CHUNKS].slot->users--;
}

qv_status
qv_feeder_pull(qv_feeder *f, int device, qv_tokens *out, qv_error *err)
{
    if (!f || device < 0 || device >= f->n_devices || !qv_feeder_oldest(f, device))
        return qv_fail(err, QV_ESTATE, "pull: device %d has no chunk under way", device);
    struct qv_feeder_device *d = &f->devices[device];
    const qv_status status =
        qv_plan_pull(d->chunks[d->n_pulled % QV_MOST_CHUNKS].slot->plan, out, err);
    if (!status)
        pulled(d);
    return status;
}

qv_status
qv_feeder_pull_parts(qv_feeder *f, int device, const qv_tokens *out, const int64_t *first_rows,
                     qv_error *err)
{
    struct qv_feeder_device *d = &f->devices[device];
    const qv_status status = qv_plan_pull_items(d->chunks[d->n_pulled % QV_MOST_CHUNKS].slot->plan,
                                                out, first_rows, err);
    if (!status)
        pulled(d);
    return status;
}
