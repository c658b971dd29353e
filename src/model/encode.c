/* SPDX-License-Identifier: MIT */
/* The short case: items at once, packed into chunks, with as many under way as the device takes. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "items.h"
#include "plan.h"

/* A chunk that was pushed: the rows of the output at which its items' tokens begin. */
struct pushed {
    qv_plan *plan;
    int64_t first_rows[QV_PACK_ITEMS];
};

struct encoder {
    qv_model *model;
    qv_plan_options options;
    const qv_item *items;
    size_t n;
    const qv_tokens *out;
    int64_t *first_rows; /* [n], of the output */
    bool began;          /* a chunk was pushed */
    int n_pushed;
    struct pushed pushed[QV_MOST_CHUNKS]; /* oldest first */
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
    qv_status status = qv_plan_pull_items(oldest->plan, e->out, oldest->first_rows, err);
    e->n_pushed--;
    memmove(&e->pushed[0], &e->pushed[1], (size_t)e->n_pushed * sizeof *e->pushed);
    return status;
}

/* n items, whose tokens go to rows of the output. Before every chunk but the first the caller may stop it. */
static qv_status
push(struct encoder *e, qv_plan *plan, const qv_item *items, const int64_t *first_rows, size_t n,
     qv_error *err)
{
    qv_status status = QV_OK;
    if (e->began && e->options.stop && e->options.stop(e->options.stop_user))
        return qv_fail(err, QV_ESTATE, "encode: its caller stopped it between two chunks");
    e->began = true;
    if (e->n_pushed == e->model->ctx->caps.chunks)
        status = pull(e, err);
    if (!status)
        status = qv_plan_push(plan, items, n, err);
    if (status)
        return status;
    struct pushed *p = &e->pushed[e->n_pushed++];
    p->plan = plan;
    memcpy(p->first_rows, first_rows, n * sizeof *first_rows);
    return QV_OK;
}

static qv_status
pull_all(struct encoder *e, qv_error *err)
{
    qv_status status = QV_OK;
    while (e->n_pushed && !status)
        status = pull(e, err);
    return status;
}

/* Whole frame pairs at a time. What is under way is pulled before the plan goes. */
static qv_status
encode_alone(struct encoder *e, size_t i, qv_error *err)
{
    const qv_item *item = &e->items[i];
    qv_plan_options options = e->options;
    qv_plan *plan = NULL;
    qv_status status = qv_plan_options_for(e->model, item->grid_thw, &options, err);
    if (!status)
        status = qv_plan_create(e->model, &options, &plan, err);
    if (status)
        return status;
    const int64_t pair_grid[3] = { 1, item->grid_thw[1], item->grid_thw[2] };
    const qv_capacity pair = qv_item_size(e->model, pair_grid);
    const int64_t pairs = item->grid_thw[0], step = qv_capacity_fits(&plan->capacity, &pair);
    int64_t row = e->first_rows[i];
    for (int64_t first = 0; first < pairs && !status; first += step) {
        const qv_item piece = qv_item_piece(e->model, options.input, item, first, step);
        status = push(e, plan, &piece, &row, 1, err);
        row += item_tokens(&e->model->config, &piece);
    }
    if (!status)
        status = pull_all(e, err);
    e->n_pushed = status ? 0 : e->n_pushed;
    qv_plan_free(&plan);
    return status;
}

/* Items that wait for a chunk, oldest first: what each takes, and its number. */
struct waiting {
    qv_capacity sizes[QV_PACK_ITEMS];
    size_t items[QV_PACK_ITEMS], n;
};

/* The items of a chunk, in the order given. */
static qv_status
push_chosen(struct encoder *e, qv_plan *plan, struct waiting *w, qv_error *err)
{
    size_t chosen[QV_PACK_ITEMS];
    qv_item items[QV_PACK_ITEMS];
    int64_t first_rows[QV_PACK_ITEMS];
    size_t used = qv_pack_choose(&plan->capacity, w->sizes, w->n, chosen);
    for (size_t i = 0; i < used; i++) {
        size_t item = w->items[chosen[i]];
        items[i] = e->items[item];
        first_rows[i] = e->first_rows[item];
    }
    for (size_t i = used; i-- > 0;) {
        const size_t at = chosen[i], behind = --w->n - at;
        memmove(&w->sizes[at], &w->sizes[at + 1], behind * sizeof *w->sizes);
        memmove(&w->items[at], &w->items[at + 1], behind * sizeof *w->items);
    }
    return push(e, plan, items, first_rows, used, err);
}

/* Whether an item is packed with others, or has chunks to itself. */
static bool
is_packed(const struct encoder *e, const struct qv_capacity *most, size_t i)
{
    const struct qv_capacity size = qv_item_size(e->model, e->items[i].grid_thw);
    return qv_capacity_fits(most, &size);
}

/* All that are small enough, with a window of those that wait. */
static qv_status
encode_packed(struct encoder *e, qv_plan *plan, qv_error *err)
{
    struct waiting w = { .n = 0 };
    size_t next = 0;
    qv_status status = QV_OK;
    while ((next < e->n || w.n) && !status) {
        for (; next < e->n && w.n < QV_PACK_ITEMS; next++)
            if (is_packed(e, &plan->packed_item, next)) {
                w.sizes[w.n] = qv_item_size(e->model, e->items[next].grid_thw);
                w.items[w.n++] = next;
            }
        if (w.n)
            status = push_chosen(e, plan, &w, err);
    }
    return status ? status : pull_all(e, err);
}

/* Rows of the smallest bucket that holds at once all that are packed, where it has the bits of the device's
 * own pack; else of that. */
static int64_t
rows_of_all(const struct encoder *e)
{
    const struct qv_config *c = &e->model->config;
    const struct qv_caps *caps = &e->model->ctx->caps;
    const struct qv_capacity pack = qv_capacity_pack(caps, c, 0);
    const struct qv_capacity most = qv_capacity_pack_item(caps, c, 0);
    const struct qv_capacity_bits bits =
        qv_capacity_bits(caps, e->model->dtype, c->merge, qv_config_head_dim(c));
    struct qv_capacity all = { 0 };
    for (size_t i = 0; i < e->n && all.rows <= pack.rows; i++)
        if (is_packed(e, &most, i)) {
            const struct qv_capacity size = qv_capacity_of(c, e->items[i].grid_thw);
            qv_capacity_count(&all, &size, 1);
        }
    return qv_capacity_for_part(caps, c, &bits, &pack, &all).rows;
}

static qv_status
encode_several(struct encoder *e, qv_error *err)
{
    qv_plan_options options = e->options;
    qv_plan *plan = NULL;
    if (qv_capacity_equal(&options.capacity, &(qv_capacity){ 0 }))
        options.capacity.rows = rows_of_all(e);
    qv_status status = qv_plan_create(e->model, &options, &plan, err);
    if (status)
        return status;
    const struct qv_capacity most = plan->packed_item;
    status = encode_packed(e, plan, err);
    e->n_pushed = status ? 0 : e->n_pushed;
    qv_plan_free(&plan);
    for (size_t i = 0; i < e->n && !status; i++)
        if (!is_packed(e, &most, i))
            status = encode_alone(e, i, err);
    return status;
}

/* Every item's place in the output; QV_EINVAL for what is no item, before any work. */
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
            return qv_fail(err, QV_EINVAL, "items 0 to %zu are more rows than can be counted", i);
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
                     ? encode_alone(&e, 0, err)
                     : encode_several(&e, err);
    free(e.first_rows);
    if (!status)
        out->n = rows;
    return status;
}
