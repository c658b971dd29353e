/* SPDX-License-Identifier: MIT */
/* Runs chunks through a plan: items go in, tokens come out. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "plan.h"
#include "items.h"

/* ---- input ----------------------------------------------------------------------------------- */

/* Uploads an item's frames to *at and advances *at past them. If a clip has an odd number of
 * frames, its last frame is uploaded twice. */
static qv_status
upload_frames(struct qv_plan *plan, const qv_item *item, struct qv_buffer *at, qv_error *err)
{
    const struct qv_config *c = &plan->model->config;
    qv_context *ctx = plan->model->ctx;
    int64_t n = qv_item_frames(c, item), missing = qv_item_pair_frames(c, item) - n;
    size_t frame =
        (size_t)(item->grid_thw[1] * item->grid_thw[2] * c->patch * c->patch * c->in_channels);
    qv_status status = ctx->backend->upload(ctx->dev, *at, item->data, (size_t)n * frame, err);
    at->offset += (size_t)n * frame;
    for (; missing > 0 && !status; missing--, at->offset += frame)
        status =
            ctx->backend->upload(ctx->dev, *at, (const char *)item->data + (size_t)(n - 1) * frame,
                                 frame, err);
    return status;
}

static qv_status
upload_rows(struct qv_plan *plan, const qv_item *item, struct qv_buffer *at, qv_error *err)
{
    const int64_t *g = item->grid_thw;
    qv_context *ctx = plan->model->ctx;
    size_t bytes = (size_t)(g[0] * g[1] * g[2] * qv_config_row_dim(&plan->model->config)) *
                   qv_dtype_bytes(qv_input_dtype(plan->options.input));
    qv_status status = ctx->backend->upload(ctx->dev, *at, item->data, bytes, err);
    at->offset += bytes;
    return status;
}

/* The tables are uploaded for all rows of the capacity, not only for the items' rows. Operations
 * run on every row, and the arena may hold another plan's indices, which could point anywhere. */
static qv_status
upload_tables(struct qv_plan *plan, int chunk, qv_error *err)
{
    const struct qv_tables *t = &plan->tables;
    const struct qv_place *slots = plan->program.places;
    qv_context *ctx = plan->model->ctx;
    const size_t rows = (size_t)plan->capacity.patches, items = (size_t)t->n_items;
    const struct {
        int slot;
        const void *data;
        size_t bytes;
    } uploads[] = {
        { SLOT_PLACES, t->places, items * sizeof *t->places },
        { SLOT_NORMS, t->norms, items * sizeof *t->norms },
        { SLOT_COORDS, t->coords, rows * sizeof *t->coords },
        { SLOT_INDEX, t->index, slots[SLOT_INDEX].bytes },
        { SLOT_WEIGHT, t->weight, slots[SLOT_WEIGHT].bytes },
        { SLOT_SEGMENTS, t->segments, slots[SLOT_SEGMENTS].bytes },
        { SLOT_WINDOWS, t->windows, slots[SLOT_WINDOWS].bytes },
        { SLOT_ORDER, t->order, slots[SLOT_ORDER].bytes },
        { SLOT_BACK, t->back, slots[SLOT_BACK].bytes },
    };
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof uploads / sizeof *uploads && !status; i++)
        /* a slot without bytes is not read by any operation of this list */
        if (slots[uploads[i].slot].bytes)
            status = ctx->backend->upload(ctx->dev,
                                          qv_program_place(&plan->program, chunk, uploads[i].slot),
                                          uploads[i].data, uploads[i].bytes, err);
    return status;
}

static qv_status
upload_input(struct qv_plan *plan, int chunk, const qv_item *items, size_t n, qv_error *err)
{
    struct qv_buffer at = qv_program_place(&plan->program, chunk, SLOT_INPUT);
    qv_status status = QV_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = plan->options.input == QV_INPUT_FRAMES ? upload_frames(plan, &items[i], &at, err)
                                                        : upload_rows(plan, &items[i], &at, err);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Passes the rows of a layer that belong to items to the caller's hook, as f32. */
static qv_status
show_layer(struct qv_plan *plan, const struct qv_step *step, const struct qv_call *call,
           int64_t chunk_rows, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    int y = qv_op_output(&step->op);
    struct qv_view view = qv_op_view(&step->op, y);
    /* the output of a convert is one long row, hence the division */
    int64_t all = view.rows * view.cols / step->layer_cols;
    int64_t rows = all * chunk_rows / plan->capacity.patches, values = rows * step->layer_cols;
    size_t bytes = (size_t)values * qv_dtype_bytes(view.dtype);
    float *values_f32 = malloc((size_t)values * sizeof *values_f32);
    void *raw = malloc(bytes);
    qv_status status = QV_OK;
    if (!values_f32 || !raw)
        status = qv_fail(err, QV_ENOMEM, "no memory to show layer %s", step->layer);
    if (!status)
        status =
            ctx->backend->download(ctx->dev, &(struct qv_download){ raw, call->operands[y], bytes },
                                   1, err);
    for (int64_t i = 0; i < values && !status; i++)
        values_f32[i] = (float)qv_load(raw, view.dtype, i);
    if (!status)
        plan->options.hook(plan->options.hook_user, step->layer, values_f32, rows,
                           step->layer_cols);
    free(values_f32);
    free(raw);
    return status;
}

/* Enqueues the operations of a chunk: as its recording if there is one, otherwise one by one. */
static qv_status
enqueue(struct qv_plan *plan, int chunk, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    if (plan->recordings[chunk])
        return ctx->backend->replay(ctx->dev, plan->recordings[chunk], err);
    return ctx->backend->run(ctx->dev, qv_program_calls(&plan->program, chunk), plan->program.n,
                             err);
}

/* Runs a chunk's list. If a hook or a probe is set, it runs step by step. */
static qv_status
run(struct qv_plan *plan, int chunk, int64_t rows, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    const struct qv_step *steps = plan->program.steps;
    const struct qv_call *calls = qv_program_calls(&plan->program, chunk);
    if (!plan->options.hook && !plan->probe)
        return enqueue(plan, chunk, err);
    qv_status status = QV_OK;
    for (size_t i = 0; i < plan->program.n && !status; i++) {
        status = ctx->backend->run(ctx->dev, &calls[i], 1, err);
        if (!status)
            status = ctx->backend->sync(ctx->dev, err);
        if (!status && plan->probe)
            plan->probe(plan->probe_user, &steps[i], &calls[i]);
        if (!status && plan->options.hook && steps[i].layer[0])
            status = show_layer(plan, &steps[i], &calls[i], rows, err);
    }
    return status;
}

qv_status
qv_plan_work(qv_plan *plan, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    qv_status status = ctx->backend->mark(ctx->dev, QV_MARK_BEGIN, err);
    if (!status)
        status = enqueue(plan, 0, err);
    return status ? status : ctx->backend->mark(ctx->dev, QV_MARK_END, err);
}

/* Returns the index of a chunk that is not in progress, or -1. */
static int
free_chunk(const struct qv_arena *arena)
{
    for (int i = 0; i < arena->n_chunks; i++)
        if (!arena->busy[i])
            return i;
    return -1;
}

qv_status
qv_plan_push(qv_plan *plan, const qv_item *items, size_t n, qv_error *err)
{
    QV_NEED(err, plan, items);
    if (plan->model->describe)
        return qv_fail(err, QV_ESTATE, "the model has no weights: it was loaded with describe");
    int64_t rows;
    qv_status status =
        qv_items_check(plan->model, plan->options.input, &plan->capacity, items, n, &rows, err);
    if (status)
        return status;
    int chunk = free_chunk(plan->program.arena);
    if (chunk < 0)
        return qv_fail(err, QV_ESTATE,
                       "%d chunks are in progress, which is the limit; pull the oldest first",
                       plan->program.arena->n_chunks);
    qv_context *ctx = plan->model->ctx;
    status = upload_input(plan, chunk, items, n, err);
    /* the tables are made during the copy, on devices that copy asynchronously */
    if (!status) {
        qv_tables_fill(&plan->tables, &plan->capacity, &plan->model->config, plan->model->dtype,
                       items, n);
        status = upload_tables(plan, chunk, err);
    }
    if (!status)
        status = run(plan, chunk, rows, err);
    if (!status)
        status = ctx->backend->mark(ctx->dev, QV_MARK_CHUNK + chunk, err);
    if (status)
        return status;
    struct qv_pending *pending = &plan->pending[plan->n_pending++];
    *pending = (struct qv_pending){ chunk, n, rows };
    for (size_t i = 0; i < n; i++) {
        const int64_t *g = items[i].grid_thw;
        plan->item_rows[(size_t)chunk * (size_t)plan->capacity.segments + i] = g[0] * g[1] * g[2];
    }
    plan->program.arena->busy[chunk] = true;
    return QV_OK;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* An output that the caller wants: its slot, where it goes, and the bytes per token. */
struct output {
    int slot;
    void *to;
    size_t bytes;
};

enum { MOST_OUTPUTS = 2 + QV_MAX_DEEPSTACK };

/* Lists the wanted outputs, DeepStack's first. Returns how many there are. */
static int
list_outputs(const struct qv_plan *plan, const qv_tokens *out, struct output list[MOST_OUTPUTS])
{
    const struct qv_config *c = &plan->model->config;
    const size_t element = qv_dtype_bytes(plan->shape.output);
    const size_t row = (size_t)c->out_hidden * element;
    int n = 0;
    for (int i = 0; i < c->n_deepstack; i++)
        if (out->deepstack[i])
            list[n++] = (struct output){ SLOT_TOKENS + 1 + i, out->deepstack[i], row };
    if (out->tokens)
        list[n++] = (struct output){ SLOT_TOKENS, out->tokens, row };
    if (out->hidden)
        list[n++] = (struct output){ SLOT_HIDDEN, out->hidden,
                                     (size_t)(c->merge * c->merge * c->hidden) * element };
    return n;
}

/* Returns how many of the listed outputs, from the first on, a chunk computes on a side stream.
 * They are complete before its last blocks. */
static int
count_early(const struct qv_plan *plan, int chunk, const struct output *list, int n)
{
    int early = 0;
    if (plan->shape.side && plan->recordings[chunk])
        while (early < n && list[early].slot > SLOT_TOKENS)
            early++;
    return early;
}

/* Returns whether every listed output is in the device's memory, and work is enqueued on the
 * caller's stream. */
static bool
stays_on_device(const struct qv_plan *plan, const struct output *list, int n, int64_t tokens)
{
    qv_context *ctx = plan->model->ctx;
    bool all = ctx->in_order;
    for (int i = 0; i < n && all; i++) {
        struct qv_memory there;
        all = ctx->backend->wrap(ctx->dev, list[i].to, (size_t)tokens * list[i].bytes, &there);
        if (all)
            qv_unwrap(ctx->dev, &there);
    }
    return all;
}

/* Downloads the listed outputs. first_rows: where each item's tokens begin; NULL: all tokens are
 * downloaded as one run. */
static qv_status
download(struct qv_plan *plan, const struct qv_pending *chunk, const int64_t *first_rows,
         const struct output *list, int n_outputs, qv_error *err)
{
    enum { AT_ONCE = 8 }; /* runs */
    const int64_t area = plan->model->config.merge * plan->model->config.merge;
    const int64_t *rows = plan->item_rows + (size_t)chunk->chunk * (size_t)plan->capacity.segments;
    qv_context *ctx = plan->model->ctx;
    struct qv_download parts[AT_ONCE * MOST_OUTPUTS];
    const size_t runs = first_rows ? chunk->n_items : 1;
    qv_status status = QV_OK;
    int64_t first = 0; /* token of the chunk */
    size_t n = 0;
    for (size_t i = 0; i < runs && !status; i++) {
        const int64_t tokens = (first_rows ? rows[i] : chunk->rows) / area;
        const int64_t to = first_rows ? first_rows[i] : 0;
        for (int j = 0; j < n_outputs; j++) {
            struct qv_buffer from = qv_program_place(&plan->program, chunk->chunk, list[j].slot);
            from.offset += (size_t)first * list[j].bytes;
            parts[n++] = (struct qv_download){ (char *)list[j].to + (size_t)to * list[j].bytes,
                                               from, (size_t)tokens * list[j].bytes };
        }
        first += tokens;
        if (n + MOST_OUTPUTS > sizeof parts / sizeof *parts || i + 1 == runs) {
            status = ctx->backend->download(ctx->dev, parts, n, err);
            n = 0;
        }
    }
    return status;
}

qv_status
qv_plan_pull_items(qv_plan *plan, const qv_tokens *out, const int64_t *first_rows, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    const int64_t area = plan->model->config.merge * plan->model->config.merge;
    const struct qv_pending oldest = plan->pending[0];
    struct output list[MOST_OUTPUTS];
    const int n = list_outputs(plan, out, list);
    int early = 0;
    qv_status status = QV_OK;
    if (out->hidden && !plan->shape.hidden)
        return qv_fail(err, QV_EINVAL,
                       "out->hidden is set, but the plan was created without options.hidden");
    if (!stays_on_device(plan, list, n, first_rows ? 1 : oldest.rows / area)) {
        early = count_early(plan, oldest.chunk, list, n);
        if (early)
            status = ctx->backend->wait_side(ctx->dev, plan->recordings[oldest.chunk], err);
        if (early && !status)
            status = download(plan, &oldest, first_rows, list, early, err);
        if (!status)
            status = ctx->backend->wait(ctx->dev, QV_MARK_CHUNK + oldest.chunk, err);
    }
    if (!status)
        status = download(plan, &oldest, first_rows, list + early, n - early, err);
    if (status)
        return status;
    plan->program.arena->busy[oldest.chunk] = false;
    plan->n_pending--;
    memmove(plan->pending, plan->pending + 1, (size_t)plan->n_pending * sizeof *plan->pending);
    return QV_OK;
}

qv_status
qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err)
{
    QV_NEED(err, plan, out);
    if (!plan->n_pending)
        return qv_fail(err, QV_ESTATE, "nothing to pull: no chunk was pushed");
    int64_t area = plan->model->config.merge * plan->model->config.merge;
    int64_t rows = plan->pending[0].rows / area;
    if (out->capacity < rows)
        return qv_fail(err, QV_EINVAL, "out->capacity is %lld tokens; it must be at least %lld",
                       (long long)out->capacity, (long long)rows);
    qv_status status = qv_plan_pull_items(plan, out, NULL, err);
    if (!status)
        out->n = rows;
    return status;
}
