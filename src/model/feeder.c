/* SPDX-License-Identifier: MIT */
/* A feeder's items, and the packs in which their frame pairs wait for chunks. */
#include "feeder_inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "items.h"

/* ---- capacities ------------------------------------------------------------------------------ */

static qv_capacity
pair_of(const qv_model *model, const int64_t grid_thw[3])
{
    return qv_capacity_of(&model->config, (int64_t[3]){ 1, grid_thw[1], grid_thw[2] });
}

qv_capacity
qv_pack_capacity(const qv_model *model, int64_t rows, const int64_t grid_thw[3])
{
    const qv_capacity pair = pair_of(model, grid_thw);
    return qv_capacity_for_pairs(&model->ctx->caps, &model->config, &model->bits, rows, &pair);
}

qv_capacity
qv_chunk_capacity(const qv_model *model, const qv_capacity *chunk, const qv_capacity *used,
                  bool more, int64_t repeats)
{
    return qv_capacity_for_chunk(&model->ctx->caps, &model->config, &model->bits, chunk, used, more,
                                 repeats);
}

qv_packing
qv_model_packing(const qv_model *model, int64_t chunk_rows)
{
    const struct qv_caps *caps = &model->ctx->caps;
    const struct qv_config *c = &model->config;
    const int64_t many[3] = { 1 << 20, c->merge, c->merge };
    return (qv_packing){ .rows = qv_capacity_pack(caps, c, chunk_rows).patches,
                         .rule = "pairs",
                         .alone_tokens = qv_capacity_alone(caps, c, &model->bits, many).patches /
                                         (c->merge * c->merge) };
}

/* Decides what an item's pairs are packed in, from the item and the feeder's options alone, so that
 * its tokens have the same bits in any order. A capacity passed to qv_encode is used if a pair fits
 * it. */
static qv_capacity
capacity_for(const qv_feeder *f, const int64_t grid_thw[3], const qv_capacity *pair)
{
    const qv_model *model = f->devices[0].model;
    const qv_capacity *asked = &f->plan.capacity;
    const bool described = asked->segments || asked->segment_rows || asked->windows;
    if (f->alone)
        return qv_capacity_alone(&model->ctx->caps, &model->config, &model->bits, grid_thw);
    const qv_capacity chunk = qv_plan_capacity(model, asked);
    if (described && qv_capacity_fits(&chunk, pair))
        return chunk;
    return qv_pack_capacity(model, described ? 0 : asked->patches, grid_thw);
}

/* ---- turns ----------------------------------------------------------------------------------- */

void
qv_feeder_take_turn(struct qv_feeder_device *d)
{
    if (!d->has_turn)
        qv_turn_take(d->model->ctx);
    d->has_turn = true;
}

void
qv_feeder_end_turn(struct qv_feeder_device *d)
{
    if (d->has_turn)
        qv_turn_end(d->model->ctx);
    d->has_turn = false;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static qv_status
allocate(qv_model *const *models, size_t n, const qv_plan_options *plan, qv_feeder **out,
         qv_error *err)
{
    const qv_status status = qv_plan_options_check(models[0], plan, err);
    if (status)
        return status;
    qv_feeder *f = calloc(1, sizeof *f + n * sizeof *f->devices);
    if (!f)
        return qv_fail(err, QV_ENOMEM, "no memory to feed %zu devices", n);
    f->plan = *plan;
    f->n_devices = (int)n;
    for (size_t i = 0; i < n; i++) {
        f->devices[i].model = models[i];
        f->devices[i].until_s = INFINITY;
    }
    *out = f;
    return QV_OK;
}

qv_status
qv_feeder_open_call(qv_model *model, const qv_plan_options *options, bool alone, qv_feeder **out,
                    qv_error *err)
{
    static const qv_capacity none;
    const qv_status status = allocate(&model, 1, options, out, err);
    if (status)
        return status;
    (*out)->is_call = true;
    (*out)->alone = alone;
    (*out)->fixed = alone || !qv_capacity_equal(&options->capacity, &none);
    return QV_OK;
}

/* If plans are slow to make, makes the plans for chunks that are not full (half of the pack, a
 * quarter and so on). They become idle plans of the model. */
static qv_status
warm_up(const qv_feeder *f, qv_model *model, qv_error *err)
{
    qv_plan_options options = f->plan;
    qv_status status = QV_OK;
    qv_capacity used = { .patches = f->pack.patches / 2, .segments = 1 };
    for (; used.patches && !model->ctx->caps.quick_plans && !status; used.patches /= 2) {
        qv_plan *plan = NULL;
        options.capacity = qv_chunk_capacity(model, &f->pack, &used, false, 0);
        status = qv_plan_create(model, &options, &plan, err);
        qv_plan_free(&plan);
    }
    return status;
}

qv_status
qv_feeder_open(qv_model *const *models, size_t n_models, const qv_feeder_options *options,
               qv_feeder **out, qv_error *err)
{
    const qv_plan_options plan = { .output = options->output, .hidden = options->hidden };
    qv_feeder *f = NULL;
    qv_status status = allocate(models, n_models, &plan, &f, err);
    if (status)
        return status;
    f->plan.capacity.patches = options->chunk_rows;
    f->alone = f->fixed = options->alone;
    if (!f->alone || options->chunk_rows) {
        const int64_t m = models[0]->config.merge, least[3] = { 1, m, m };
        f->pack = qv_pack_capacity(models[0], options->chunk_rows, least);
        const qv_capacity full = { .patches = f->pack.patches, .segments = 1 };
        f->usual = qv_chunk_capacity(models[0], &f->pack, &full, false, 0);
        qv_plan_options first = plan;
        first.capacity = f->usual;
        for (int i = 0; i < f->n_devices && !status; i++) {
            qv_feeder_take_turn(&f->devices[i]);
            qv_plan *made = NULL; /* the model keeps it */
            status = qv_plan_create(models[i], &first, &made, err);
            qv_plan_free(&made);
            if (!status && options->warm_up)
                status = warm_up(f, models[i], err);
            qv_feeder_end_turn(&f->devices[i]);
        }
    }
    if (status)
        qv_feeder_close(&f);
    else
        *out = f;
    return status;
}

static void
free_feed(struct qv_fed *fed)
{
    *fed->link = fed->next;
    if (fed->next)
        fed->next->link = fed->link;
    free(fed);
}

void
qv_feeder_close(qv_feeder **feeder)
{
    qv_feeder *f = *feeder;
    if (!f)
        return;
    for (struct qv_feeder_device *d = f->devices; d < f->devices + f->n_devices; d++) {
        qv_feeder_take_turn(d);
        for (int i = 0; i < QV_MOST_CHUNKS; i++) { /* chunks in progress may share a plan */
            qv_plan *plan = d->chunks[i].plan;
            for (int j = i; j < QV_MOST_CHUNKS; j++)
                if (d->chunks[j].plan == plan)
                    d->chunks[j].plan = NULL;
            qv_plan_free(&plan);
        }
        qv_feeder_end_turn(d);
    }
    for (struct qv_feeder_pack *pack; (pack = f->packs) != NULL; qv_feeder_free_empty(f, pack))
        while (pack->n)
            qv_feeder_take(f, pack, &pack->waiting, pack->waiting->piece.item.grid_thw[0]);
    for (struct qv_fed *fed = f->feeds, *next; fed; fed = next) {
        next = fed->next;
        free(fed);
    }
    free(f);
    *feeder = NULL;
}

static void
count(struct qv_fed *fed, int64_t pairs)
{
    fed->waiting += pairs;
    fed->shown.full = fed->waiting + fed->shown.step >
                      QV_ITEM_CHUNKS * qv_capacity_fits(&fed->capacity, &fed->pair);
}

/* ---- packs ----------------------------------------------------------------------------------- */

/* Returns the link to the item's pack. If no such pack exists, it is the last link, which is NULL,
 * so that packs stay in the order of their creation. */
static struct qv_feeder_pack **
find_pack(qv_feeder *f, const struct qv_fed *fed)
{
    struct qv_feeder_pack **link = &f->packs;
    while (*link &&
           !(qv_capacity_equal(&(*link)->capacity, &fed->capacity) && (*link)->input == fed->input))
        link = &(*link)->next;
    return link;
}

void
qv_feeder_free_empty(qv_feeder *f, struct qv_feeder_pack *pack)
{
    struct qv_feeder_pack **link = &f->packs;
    if (pack->n)
        return;
    while (*link != pack)
        link = &(*link)->next;
    *link = pack->next;
    free(pack);
}

qv_feeder_piece
qv_feeder_take(const qv_feeder *f, struct qv_feeder_pack *pack, struct qv_waiting **link, int64_t n)
{
    struct qv_waiting *waits = *link;
    struct qv_fed *fed = waits->fed;
    const qv_model *model = f->devices[0].model;
    const qv_item whole = waits->piece.item;
    qv_feeder_piece piece = waits->piece;
    piece.item = qv_item_piece(model, fed->input, &whole, 0, n);
    piece.ends = n == whole.grid_thw[0];
    piece.last = piece.first + n == fed->whole.grid_thw[0];
    count(fed, -n);
    if (!piece.ends) {
        waits->piece.item = qv_item_piece(model, fed->input, &whole, n, whole.grid_thw[0] - n);
        waits->piece.first += n;
        return piece;
    }
    *link = waits->next;
    if (!*link)
        pack->last = link;
    pack->n--;
    free(waits);
    return piece;
}

/* ---- items ----------------------------------------------------------------------------------- */

qv_status
qv_feeder_add(qv_feeder *f, qv_input input, const qv_item *item, const char *name, void *user,
              qv_feed **out, qv_error *err)
{
    if ((unsigned)input > QV_INPUT_PATCHES_BF16)
        return qv_fail(err, QV_EINVAL, "%s: input is %d, not a qv_input", name, (int)input);
    const qv_model *model = f->devices[0].model;
    const qv_status status = qv_item_check_shape(model, input, item, name, err);
    if (status)
        return status;
    struct qv_fed *fed = malloc(sizeof *fed);
    if (!fed)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for an item", name);
    const qv_capacity pair = pair_of(model, item->grid_thw);
    const qv_capacity capacity = capacity_for(f, item->grid_thw, &pair);
    int64_t step = f->is_call ? item->grid_thw[0] : qv_capacity_fits(&capacity, &pair);
    if (!item->data && !f->alone) /* small, so that chunks can be filled while it is decoded */
        step = step > QV_CHUNK_PIECES ? step / QV_CHUNK_PIECES : 1;
    step = step < item->grid_thw[0] ? step : item->grid_thw[0];
    *fed = (struct qv_fed){ .shown = { .user = user, .step = step, .device = -1 },
                            .next = f->feeds,
                            .link = &f->feeds,
                            .whole = *item,
                            .input = input,
                            .capacity = capacity,
                            .pair = pair };
    if (f->feeds)
        f->feeds->link = &fed->next;
    f->feeds = fed;
    count(fed, 0);
    *out = &fed->shown;
    return QV_OK;
}

qv_status
qv_feeder_put(qv_feeder *f, qv_feed *feed, const void *data, void *user, qv_error *err)
{
    struct qv_fed *fed = (struct qv_fed *)feed;
    if (fed->put == fed->whole.grid_thw[0] || !(data || fed->whole.data))
        return qv_fail(err, QV_EINVAL,
                       "put: feeder, feed or data is NULL, or the item is complete");
    struct qv_feeder_pack **link = find_pack(f, fed), *pack = *link;
    if (pack && pack->n == QV_FEEDER_PIECES && !f->is_call)
        return qv_fail(err, QV_EFULL, "put: %d puts already wait for chunks of this kind",
                       QV_FEEDER_PIECES);
    struct qv_waiting *waits = malloc(sizeof *waits);
    if (!pack && waits)
        pack = malloc(sizeof *pack);
    if (!waits || !pack) {
        free(waits);
        return qv_fail(err, QV_ENOMEM, "no memory for frame pairs that wait");
    }
    if (!*link) {
        *pack = (struct qv_feeder_pack){ .capacity = fed->capacity,
                                         .room = fed->capacity,
                                         .input = fed->input,
                                         .last = &pack->waiting };
        *link = pack;
    }
    *waits = (struct qv_waiting){ .fed = fed, .number = f->n_puts++ };
    waits->piece = (qv_feeder_piece){ .feed = feed, .user = user, .first = fed->put };
    waits->piece.item =
        qv_item_piece(f->devices[0].model, fed->input, &fed->whole, fed->put, feed->step);
    if (data)
        waits->piece.item.data = data;
    *pack->last = waits;
    pack->last = &waits->next;
    pack->n++;
    fed->put += waits->piece.item.grid_thw[0];
    count(fed, waits->piece.item.grid_thw[0]);
    return QV_OK;
}

bool
qv_feeder_drop(qv_feeder *f, qv_feed *feed, qv_feeder_piece *piece)
{
    struct qv_fed *fed = (struct qv_fed *)feed;
    if (!fed)
        return false;
    struct qv_feeder_pack *pack = *find_pack(f, fed);
    struct qv_waiting **link = pack ? &pack->waiting : NULL;
    while (link && *link && (*link)->fed != fed)
        link = &(*link)->next;
    if (!link || !*link) {
        free_feed(fed);
        return false;
    }
    *piece = qv_feeder_take(f, pack, link, (*link)->piece.item.grid_thw[0]);
    qv_feeder_free_empty(f, pack);
    return true;
}
