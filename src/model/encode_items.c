/* SPDX-License-Identifier: MIT */
/* qv_encode(): runs a feeder over items that are all available at once. */
#include <stdlib.h>

#include "error.h"
#include "feeder_inside.h"
#include "items.h"

/* Hands all items to the feeder. rows[i] becomes the output row at which item i's tokens begin, *n
 * the total number of tokens. An invalid item is QV_EINVAL here, before any work begins. */
static qv_status
put_all(qv_feeder *f, const qv_item *items, size_t n_items, int64_t *rows, int64_t *n,
        qv_error *err)
{
    const int64_t area = f->devices[0].model->config.merge * f->devices[0].model->config.merge;
    qv_status status = QV_OK;
    *n = 0;
    for (size_t i = 0; i < n_items && !status; i++) {
        const int64_t *g = items[i].grid_thw;
        qv_feed *feed = NULL;
        status = qv_item_check_nth(f->devices[0].model, f->plan.input, &items[i], i, err);
        if (!status)
            status = qv_feeder_add(f, f->plan.input, &items[i], "an item", &rows[i], &feed, err);
        if (!status)
            status = qv_feeder_put(f, feed, NULL, NULL, err);
        rows[i] = *n;
        if (!status && __builtin_add_overflow(*n, g[0] * g[1] * g[2] / area, n))
            status =
                qv_fail(err, QV_EINVAL, "items 0 to %zu have more rows than can be counted", i);
    }
    return status;
}

/* Pulls the oldest chunk. An item's tokens come in order, and its row advances past them. */
static qv_status
pull(qv_feeder *f, const qv_feeder_chunk *chunk, qv_tokens *out, qv_error *err)
{
    const int64_t area = f->devices[0].model->config.merge * f->devices[0].model->config.merge;
    int64_t first_rows[QV_FEEDER_PIECES];
    for (size_t i = 0; i < chunk->n; i++) {
        const int64_t *g = chunk->pieces[i].item.grid_thw;
        int64_t *row = chunk->pieces[i].feed->user;
        first_rows[i] = *row;
        *row += g[0] * g[1] * g[2] / area;
    }
    return qv_feeder_pull(f, 0, out, first_rows, err);
}

/* Encodes everything that was put. Calls the caller's `stop` before every chunk except the
 * first. */
static qv_status
run(qv_feeder *f, const qv_plan_options *o, qv_tokens *out, qv_error *err)
{
    const qv_feeder_chunk *chunk;
    qv_status status = QV_OK;
    bool began = false;
    double never = 0;
    while (!status) {
        if (qv_feeder_ready(f, 0, 0, false, &never)) {
            if (began && o->stop && o->stop(o->stop_user))
                return qv_fail(err, QV_ESTATE, "encode: stopped by its caller between two chunks");
            began = true;
            status = qv_feeder_push(f, 0, err);
        } else if ((chunk = qv_feeder_oldest(f, 0)) != NULL) {
            status = pull(f, chunk, out, err);
        } else {
            break;
        }
    }
    return status;
}

qv_status
qv_encode(qv_model *model, qv_input input, const qv_item *items, size_t n_items,
          const qv_plan_options *options, qv_tokens *out, qv_error *err)
{
    QV_NEED(err, model, items, out);
    if (!n_items)
        return qv_fail(err, QV_EINVAL, "n_items is 0; it must be at least 1");
    qv_plan_options o = { 0 };
    qv_feeder *feeder = NULL;
    int64_t n, *rows = calloc(n_items, sizeof *rows);
    if (!rows)
        return qv_fail(err, QV_ENOMEM, "no memory for the offsets of %zu items", n_items);
    if (options)
        o = *options;
    o.input = input;
    const bool alone = n_items == 1 && !o.capacity.patches && !o.capacity.segment_rows;
    qv_status status = qv_feeder_open_call(model, &o, alone, &feeder, err);
    if (!status)
        status = put_all(feeder, items, n_items, rows, &n, err);
    if (!status && out->capacity < n)
        status = qv_fail(err, QV_EINVAL, "out->capacity is %lld tokens; it must be at least %lld",
                         (long long)out->capacity, (long long)n);
    if (!status)
        status = run(feeder, &o, out, err);
    qv_feeder_close(&feeder);
    free(rows);
    if (!status)
        out->n = n;
    return status;
}
