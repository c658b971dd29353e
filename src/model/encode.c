/* SPDX-License-Identifier: MIT */
/* The short case: items at once, packed into chunks, with as many under way as the device takes. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "packer.h"
#include "plan.h"

/* A chunk that was pushed: the rows of the output at which its items' tokens begin. */
struct pushed {
    qv_plan *plan;
    int64_t first_rows[QV_LOOK_AHEAD];
};

struct encoder {
    qv_model *model;
    qv_plan_options options;
    const qv_item *items;
    size_t n;
    const qv_tokens *out;
    int64_t *first_rows;                  /* [n], of the output */
    struct pushed pushed[QV_MOST_CHUNKS]; /* oldest first */
    int n_pushed;
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

/* n items, whose tokens go to rows of the output. */
static qv_status
push(struct encoder *e, qv_plan *plan, const qv_item *items, const int64_t *first_rows, size_t n,
     qv_error *err)
{
    qv_status status = QV_OK;
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
    const struct qv_config *c = &e->model->config;
    const qv_item *item = &e->items[i];
    const bool frames = e->options.input == QV_INPUT_FRAMES;
    qv_plan_options options = e->options;
    qv_plan *plan = NULL;
    qv_plan_info info;
    qv_status status = qv_plan_options_for(e->model, item->grid_thw, &options, err);
    if (!status)
        status = qv_plan_create(e->model, &options, &plan, err);
    if (status)
        return status;
    qv_plan_get_info(plan, &info);
    int64_t patches = item->grid_thw[1] * item->grid_thw[2], row = e->first_rows[i];
    int64_t at_once = info.segment_rows ? info.segments : item->grid_thw[0];
    size_t pair_bytes = frames
                            ? (size_t)(c->temporal * patches * c->patch * c->patch * c->in_channels)
                            : (size_t)(patches * qv_config_row_dim(c)) *
                                  qv_dtype_bytes(qv_input_dtype(e->options.input));
    for (int64_t pair = 0; pair < item->grid_thw[0] && !status; pair += at_once) {
        qv_item piece = *item;
        int64_t left = item->grid_thw[0] - pair;
        piece.grid_thw[0] = left < at_once ? left : at_once;
        if (!item->is_image) {
            piece.data = (const char *)item->data + (size_t)pair * pair_bytes;
            piece.n_frames =
                left > at_once || !item->n_frames ? 0 : item->n_frames - pair * c->temporal;
        }
        status = push(e, plan, &piece, &row, 1, err);
        row += item_tokens(c, &piece);
    }
    if (!status)
        status = pull_all(e, err);
    e->n_pushed = status ? 0 : e->n_pushed;
    qv_plan_free(&plan);
    return status;
}

/* The items of a chunk, in the order given. */
static qv_status
push_chosen(struct encoder *e, qv_plan *plan, struct qv_waiting *waiting, size_t *n, qv_error *err)
{
    size_t chosen[QV_LOOK_AHEAD];
    qv_item items[QV_LOOK_AHEAD];
    int64_t first_rows[QV_LOOK_AHEAD];
    size_t used = qv_packer_choose(&plan->capacity, waiting, *n, chosen);
    for (size_t i = 0; i < used; i++) {
        size_t item = waiting[chosen[i]].item;
        items[i] = e->items[item];
        first_rows[i] = e->first_rows[item];
    }
    for (size_t i = used; i-- > 0;) {
        *n -= 1;
        memmove(&waiting[chosen[i]], &waiting[chosen[i] + 1], (*n - chosen[i]) * sizeof *waiting);
    }
    return push(e, plan, items, first_rows, used, err);
}

/* All that are small enough, with a window of those that wait. */
static qv_status
encode_packed(struct encoder *e, qv_plan *plan, qv_error *err)
{
    struct qv_waiting waiting[QV_LOOK_AHEAD];
    size_t n = 0, next = 0;
    qv_status status = QV_OK;
    while ((next < e->n || n) && !status) {
        for (; next < e->n && n < QV_LOOK_AHEAD; next++) {
            const int64_t *g = e->items[next].grid_thw;
            if (qv_capacity_is_small(&plan->capacity, &e->model->config, g))
                waiting[n++] = qv_waiting_of(&e->model->config, g, next);
        }
        if (n)
            status = push_chosen(e, plan, waiting, &n, err);
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
    const struct qv_capacity_bits bits =
        qv_capacity_bits(caps, e->model->dtype, c->merge, qv_config_head_dim(c));
    struct qv_capacity all = { 0 };
    for (size_t i = 0; i < e->n && all.rows <= pack.rows; i++)
        if (qv_capacity_is_small(&pack, c, e->items[i].grid_thw)) {
            const struct qv_waiting item = qv_waiting_of(c, e->items[i].grid_thw, i);
            all.rows += item.rows;
            all.segments += item.segments;
            all.windows += item.windows;
        }
    return qv_capacity_for_part(caps, c, &bits, &pack, &all).rows;
}

static qv_status
encode_several(struct encoder *e, qv_error *err)
{
    qv_plan_options options = e->options;
    qv_plan *plan = NULL;
    if (!options.rows && !options.segments && !options.segment_rows && !options.windows)
        options.rows = rows_of_all(e);
    qv_status status = qv_plan_create(e->model, &options, &plan, err);
    if (status)
        return status;
    struct qv_capacity pack = plan->capacity;
    status = encode_packed(e, plan, err);
    e->n_pushed = status ? 0 : e->n_pushed;
    qv_plan_free(&plan);
    for (size_t i = 0; i < e->n && !status; i++)
        if (!qv_capacity_is_small(&pack, &e->model->config, e->items[i].grid_thw))
            status = encode_alone(e, i, err);
    return status;
}

/* Every item's place in the output; QV_EINVAL for what is no item, before any work. */
static qv_status
place_items(struct encoder *e, int64_t capacity, int64_t *rows, qv_error *err)
{
    *rows = 0;
    for (size_t i = 0; i < e->n; i++) {
        qv_status status = qv_item_check(e->model, e->options.input, &e->items[i], i, err);
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
    struct encoder e = { .model = model,
                         .options = options ? *options : (qv_plan_options){ 0 },
                         .items = items,
                         .n = n_items,
                         .out = out };
    int64_t rows;
    e.options.input = input;
    e.first_rows = calloc(n_items, sizeof *e.first_rows);
    if (!e.first_rows)
        return qv_fail(err, QV_ENOMEM, "no memory for the places of %zu items", n_items);
    qv_status status = place_items(&e, out->capacity, &rows, err);
    if (!status)
        status = n_items == 1 && !e.options.rows && !e.options.segment_rows
                     ? encode_alone(&e, 0, err)
                     : encode_several(&e, err);
    free(e.first_rows);
    if (!status)
        out->n = rows;
    return status;
}
