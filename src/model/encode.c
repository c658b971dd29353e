/* SPDX-License-Identifier: MIT */
/* qv_encode(): all items are there at once. They are packed into chunks, with as many chunks
 * under way as the device takes. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "items.h"
#include "packer.h"
#include "plan.h"

/* A chunk that was pushed. Its items' tokens begin at these rows of the output. */
struct pushed {
    int64_t first_rows[QV_PACK_ITEMS];
};

struct encoder {
    qv_model *model;
    qv_plan_options options;
    const qv_item *items;
    size_t n;
    const qv_tokens *out;
    int64_t *first_rows;     /* [n]: the output row at which an item's tokens begin */
    qv_capacity *capacities; /* [n]: the capacity that an item is packed by */
    bool began;              /* at least one chunk was pushed */
    qv_plan *plan;           /* the plan in use; NULL before the first chunk */
    qv_capacity capacity;    /* what the plan was asked for */
    qv_capacity last;        /* the room that the last chunk of a pack needed */
    int64_t repeats;         /* chunks right before that one that needed the same */
    int n_pushed;
    struct pushed pushed[QV_MOST_CHUNKS]; /* the oldest comes first */
};

static int64_t
item_tokens(const struct qv_config *c, const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2] / (c->merge * c->merge);
}

static qv_status
pull(struct encoder *e, qv_error *err)
{
    struct pushed *oldest = &e->pushed[0];
    qv_status status = qv_plan_pull_items(e->plan, e->out, oldest->first_rows, err);
    e->n_pushed--;
    memmove(&e->pushed[0], &e->pushed[1], (size_t)e->n_pushed * sizeof *e->pushed);
    return status;
}

static qv_status
pull_all(struct encoder *e, qv_error *err)
{
    qv_status status = QV_OK;
    while (e->n_pushed && !status)
        status = pull(e, err);
    return status;
}

/* Makes the plan of this capacity the one in use. Chunks under way belong to the plan before it,
 * so they are pulled first. */
static qv_status
take_plan(struct encoder *e, const qv_capacity *capacity, qv_error *err)
{
    qv_plan_options options = e->options;
    if (e->plan && qv_capacity_equal(&e->capacity, capacity))
        return QV_OK;
    const qv_status status = pull_all(e, err);
    if (status)
        return status;
    qv_plan_free(&e->plan);
    options.capacity = e->capacity = *capacity;
    return qv_plan_create(e->model, &options, &e->plan, err);
}

/* Pushes a chunk of n items, whose tokens go to first_rows[n] of the output. The caller's `stop`
 * is asked before every chunk but the first. */
static qv_status
push(struct encoder *e, const qv_item *items, const int64_t *first_rows, size_t n, qv_error *err)
{
    qv_status status = QV_OK;
    if (e->began && e->options.stop && e->options.stop(e->options.stop_user))
        return qv_fail(err, QV_ESTATE, "encode: its caller stopped it between two chunks");
    e->began = true;
    if (e->n_pushed == e->model->ctx->caps.chunks)
        status = pull(e, err);
    if (!status)
        status = qv_plan_push(e->plan, items, n, err);
    if (!status)
        memcpy(e->pushed[e->n_pushed++].first_rows, first_rows, n * sizeof *first_rows);
    return status;
}

/* Returns n frame pairs of item i, from pair `first` on. *row is the output row at which their
 * tokens begin. */
static qv_item
piece_of(const struct encoder *e, size_t i, int64_t first, int64_t n, int64_t *row)
{
    const qv_item *item = &e->items[i];
    *row = e->first_rows[i] + first * (item_tokens(&e->model->config, item) / item->grid_thw[0]);
    return qv_item_piece(e->model, e->options.input, item, first, n);
}

static qv_capacity
pair_of(const struct encoder *e, size_t i)
{
    const int64_t *g = e->items[i].grid_thw;
    return qv_item_size(e->model, (int64_t[3]){ 1, g[1], g[2] });
}

/* ---- one item -------------------------------------------------------------------------------- */

/* A chunk of one item holds whole frame pairs, as many as fit. */
static qv_status
encode_alone(struct encoder *e, qv_error *err)
{
    qv_plan_options own = { 0 };
    qv_plan_info info;
    qv_status status = qv_plan_options_for(e->model, e->items[0].grid_thw, &own, err);
    if (!status)
        status = take_plan(e, &own.capacity, err);
    if (status)
        return status;
    qv_plan_get_info(e->plan, &info);
    const qv_capacity pair = pair_of(e, 0);
    const int64_t pairs = e->items[0].grid_thw[0], step = qv_capacity_fits(&info.capacity, &pair);
    for (int64_t first = 0, row; first < pairs && !status; first += step) {
        const qv_item piece = piece_of(e, 0, first, step, &row);
        status = push(e, &piece, &row, 1, err);
    }
    return status;
}

/* ---- several --------------------------------------------------------------------------------- */

/* Sets the capacity that each item is packed by. A capacity that the caller has described is
 * taken if a frame pair fits it; otherwise one is chosen that suits the pair. */
static void
choose_capacities(struct encoder *e)
{
    const qv_capacity *asked = &e->options.capacity;
    const bool described = asked->segments || asked->segment_rows || asked->windows;
    const qv_capacity chunk = qv_plan_capacity(e->model, asked);
    for (size_t i = 0; i < e->n; i++) {
        const qv_capacity pair = pair_of(e, i);
        e->capacities[i] =
            described && qv_capacity_fits(&chunk, &pair)
                ? *asked
                : qv_pack_capacity(e->model, described ? 0 : asked->rows, e->items[i].grid_thw);
    }
}

/* The capacity of the chunks for those items from `first` on that are packed by the same one. If
 * the caller asked for no size, it is the smallest bucket that holds all of them and gives the
 * same bits. */
static qv_capacity
capacity_of_all(const struct encoder *e, size_t first)
{
    const qv_capacity chunk = e->capacities[first];
    const struct qv_capacity_bits bits = qv_model_bits(e->model);
    qv_capacity all = { 0 };
    if (!qv_capacity_equal(&e->options.capacity, &all))
        return chunk;
    for (size_t i = first; i < e->n && all.rows <= chunk.rows; i++)
        if (qv_capacity_equal(&e->capacities[i], &chunk)) {
            const qv_capacity size = qv_item_size(e->model, e->items[i].grid_thw);
            qv_capacity_count(&all, &size, 1);
        }
    return qv_capacity_for_part(&e->model->ctx->caps, &e->model->config, &bits, &chunk, &all);
}

/* Packs the next chunk from the waiting items and pushes it. If the caller asked for no size, a
 * chunk that is not full takes a smaller plan, as it does in a job. */
static qv_status
push_next(struct encoder *e, struct qv_packer *packer, const qv_capacity *chunk, qv_error *err)
{
    const qv_capacity none = { 0 }, room = qv_plan_capacity(e->model, chunk);
    struct qv_pack_piece pieces[QV_PACK_ITEMS];
    qv_item items[QV_PACK_ITEMS];
    int64_t rows[QV_PACK_ITEMS];
    qv_capacity used = none;
    const size_t n = qv_packer_next(packer, &room, pieces);
    for (size_t i = 0; i < n; i++) {
        items[i] = piece_of(e, pieces[i].item, pieces[i].first, pieces[i].n, &rows[i]);
        const qv_capacity size = qv_item_size(e->model, items[i].grid_thw);
        qv_capacity_count(&used, &size, 1);
    }
    e->repeats = qv_capacity_equal(&used, &e->last) ? e->repeats + 1 : 0;
    e->last = used;
    const qv_capacity part = qv_capacity_equal(&e->options.capacity, &none)
                                 ? qv_pack_part(e->model, chunk, &used, packer->n > 0, e->repeats)
                                 : *chunk;
    const qv_status status = take_plan(e, &part, err);
    return status ? status : push(e, items, rows, n, err);
}

/* Encodes the items from `first` on that are packed by the same capacity as item `first`. Only a
 * window of them waits in the packer at a time. The capacity of an item that went in is cleared,
 * which marks it as done. */
static qv_status
encode_packed(struct encoder *e, size_t first, qv_error *err)
{
    const qv_capacity own = e->capacities[first], chunk = capacity_of_all(e, first), gone = { 0 };
    struct qv_packer packer = { .n = 0 };
    qv_status status = QV_OK;
    for (size_t next = first; (next < e->n || packer.n) && !status;) {
        for (; next < e->n && packer.n < QV_PACK_ITEMS; next++)
            if (qv_capacity_equal(&e->capacities[next], &own)) {
                const qv_capacity pair = pair_of(e, next);
                qv_packer_add(&packer, next, &pair, e->items[next].grid_thw[0]);
                e->capacities[next] = gone;
            }
        if (packer.n)
            status = push_next(e, &packer, &chunk, err);
    }
    return status;
}

static qv_status
encode_several(struct encoder *e, qv_error *err)
{
    const qv_capacity gone = { 0 };
    qv_status status = qv_plan_options_check(e->model, &e->options, err);
    e->capacities = calloc(e->n, sizeof *e->capacities);
    if (!e->capacities)
        status = qv_fail(err, QV_ENOMEM, "no memory for the chunks of %zu items", e->n);
    if (!status)
        choose_capacities(e);
    for (size_t i = 0; i < e->n && !status; i++)
        if (!qv_capacity_equal(&e->capacities[i], &gone))
            status = encode_packed(e, i, err);
    free(e->capacities);
    return status;
}

/* Gives every item its place in the output. A bad item is QV_EINVAL here, before any work. */
static qv_status
place_items(struct encoder *e, int64_t capacity, int64_t *rows, qv_error *err)
{
    *rows = 0;
    for (size_t i = 0; i < e->n; i++) {
        qv_status status = qv_item_check_nth(e->model, e->options.input, &e->items[i], i, err);
        if (status)
            return status;
        e->first_rows[i] = *rows;
        if (__builtin_add_overflow(*rows, item_tokens(&e->model->config, &e->items[i]), rows))
            return qv_fail(err, QV_EINVAL, "items 0 to %zu have more rows than can be counted", i);
    }
    return capacity >= *rows ? QV_OK
                             : qv_fail(err, QV_EINVAL, "capacity is %lld rows, %lld are needed",
                                       (long long)capacity, (long long)*rows);
}

qv_status
qv_encode(qv_model *model, qv_input input, const qv_item *items, size_t n_items,
          const qv_plan_options *options, qv_tokens *out, qv_error *err)
{
    if (!model || !items || !n_items || !out)
        return qv_fail(err, QV_EINVAL, "model, items or out is NULL, or n_items is 0");
    struct encoder e = { .model = model, .items = items, .n = n_items, .out = out };
    int64_t rows;
    if (options)
        e.options = *options;
    e.options.input = input;
    e.first_rows = calloc(n_items, sizeof *e.first_rows);
    if (!e.first_rows)
        return qv_fail(err, QV_ENOMEM, "no memory for the places of %zu items", n_items);
    qv_status status = place_items(&e, out->capacity, &rows, err);
    if (!status)
        status = n_items == 1 && !e.options.capacity.rows && !e.options.capacity.segment_rows
                     ? encode_alone(&e, err)
                     : encode_several(&e, err);
    if (!status)
        status = pull_all(&e, err);
    qv_plan_free(&e.plan);
    free(e.first_rows);
    if (!status)
        out->n = rows;
    return status;
}
