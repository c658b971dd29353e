/* SPDX-License-Identifier: MIT */
/*
 * A plan: the program of a tower's steps for one capacity, in an arena that the model's plans
 * share. Everything that can fail on a capacity fails here.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "items.h"

/* ---- capacity -------------------------------------------------------------------------------- */

qv_status
qv_plan_options_check(const qv_model *model, const qv_plan_options *o, qv_error *err)
{
    int64_t area = model->config.merge * model->config.merge;
    const qv_capacity *c = &o->capacity;
    const struct {
        const char *name;
        int64_t value;
    } chosen[] = { { "patches", c->patches },
                   { "segments", c->segments },
                   { "windows", c->windows } };
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        if (chosen[i].value < 0 || chosen[i].value > QV_MOST_ROWS)
            return qv_fail(err, QV_EINVAL, "%s is %lld; it must be from 0 (automatic) to %d",
                           chosen[i].name, (long long)chosen[i].value, QV_MOST_ROWS);
    if (c->segment_rows < 0 || c->segment_rows > QV_MOST_ROWS || c->segment_rows % area)
        return qv_fail(err, QV_EINVAL,
                       "segment_rows is %lld; it must be 0 (any) or a multiple of %lld "
                       "up to %d",
                       (long long)c->segment_rows, (long long)area, QV_MOST_ROWS);
    if (c->segment_rows && c->patches && c->patches < c->segment_rows)
        return qv_fail(err, QV_EINVAL,
                       "patches is %lld, too few for one segment (segment_rows is %lld)",
                       (long long)c->patches, (long long)c->segment_rows);
    if (o->input != QV_INPUT_FRAMES && o->input != QV_INPUT_PATCHES &&
        o->input != QV_INPUT_PATCHES_BF16)
        return qv_fail(err, QV_EINVAL, "input is %d, not a qv_input", (int)o->input);
    if (o->output != QV_DTYPE_AUTO && o->output != QV_F32 && o->output != QV_BF16)
        return qv_fail(err, QV_EINVAL, "output is %d; it must be QV_F32 or QV_BF16",
                       (int)o->output);
    if (o->hidden && model->config.family->names->downsample)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "hidden states are not available for %s, whose merger begins with a Conv2d",
                       model->config.model_type);
    return QV_OK;
}

qv_capacity
qv_plan_capacity(const qv_model *model, const qv_capacity *asked)
{
    const struct qv_caps *caps = &model->ctx->caps;
    qv_capacity c = qv_capacity_pack(caps, &model->config, asked->patches);
    if (asked->segments)
        c.segments = asked->segments;
    /* dense: as many segments of segment_rows rows as fit into the requested rows */
    if (asked->segment_rows) {
        int64_t rows = asked->patches ? asked->patches : caps->chunk_rows;
        c.segments = rows < asked->segment_rows ? 1 : rows / asked->segment_rows;
        c.segment_rows = asked->segment_rows;
        c.patches = c.segments * c.segment_rows;
    }
    if (asked->windows && model->config.window)
        c.windows = asked->windows;
    return c;
}

static struct qv_tower_shape
shape_of(const qv_model *model, const qv_plan_options *o, const qv_capacity *asked)
{
    const struct qv_caps *caps = &model->ctx->caps;
    return (struct qv_tower_shape){ .capacity = qv_plan_capacity(model, asked),
                                    .input = o->input,
                                    .gated_rows = caps->gated_rows,
                                    .residual_apart = caps->residual_apart,
                                    .side = caps->side,
                                    .hidden = o->hidden,
                                    .dtype = model->dtype,
                                    .output = o->output ? o->output : QV_F32 };
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Prepares the program of the tower's steps. Other chunks may be in progress while a chunk's input
 * is uploaded and its outputs are pulled, so each chunk has its own input and outputs. */
static qv_status
prepare(struct qv_plan *plan, qv_error *err)
{
    const qv_model *model = plan->model;
    struct qv_place slots[SLOT_COUNT] = { 0 };
    struct qv_steps list = { 0 };
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        slots[slot].own = slot <= SLOT_LAST_INPUT || slot >= SLOT_HIDDEN;
    qv_status status = qv_steps_build(&model->config, &model->tower, &plan->shape,
                                      model->patch_embed.lowering, &list, err);
    if (!status)
        status = qv_program_prepare(model->ctx, list.steps, list.n, slots, SLOT_COUNT,
                                    model->ctx->caps.chunks, &plan->program, err);
    free(list.steps);
    return status;
}

static void
destroy(qv_plan *plan)
{
    qv_context *ctx = plan->model->ctx;
    for (int i = 0; i < QV_MOST_CHUNKS; i++)
        if (plan->recordings[i])
            ctx->backend->forget(ctx->dev, plan->recordings[i]);
    qv_program_free(&plan->program);
    qv_tables_close(&plan->tables);
    free(plan->item_rows);
    free(plan);
}

static qv_plan *
remove_idle(qv_model *model, int i)
{
    qv_plan *plan = model->idle[i];
    memmove(&model->idle[i], &model->idle[i + 1],
            (size_t)(--model->n_idle - i) * sizeof *model->idle);
    return plan;
}

static void
drop_idle(qv_model *model)
{
    while (model->n_idle)
        destroy(remove_idle(model, model->n_idle - 1));
}

/* Uses the model's arena if it is large enough. Otherwise opens a larger one, of the size that a
 * full chunk will need, so that buckets of growing size do not each open another. Idle plans on the
 * smaller arena are dropped. */
static qv_status
load(struct qv_plan *plan, qv_error *err)
{
    qv_model *model = plan->model;
    const int64_t full = model->ctx->caps.chunk_rows, rows = plan->capacity.patches;
    qv_status status = QV_OK;
    if (!qv_arena_holds(model->arena, &plan->program)) {
        drop_idle(model);
        status = qv_arena_replace(&model->arena, &plan->program,
                                  rows < full ? (double)full / (double)rows : 1, err);
    }
    return status ? status
                  : qv_program_load(&plan->program, model->arena, model->weights.buffers, err);
}

/* Records each chunk's calls as one piece of work, on devices that can. */
static qv_status
record(struct qv_plan *plan, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    qv_status status = QV_OK;
    for (int i = 0; i < plan->program.n_chunks && ctx->backend->record && !status; i++)
        status = ctx->backend->record(ctx->dev, qv_program_calls(&plan->program, i),
                                      plan->program.n, &plan->recordings[i], err);
    return status;
}

static qv_status
make(struct qv_plan *plan, qv_error *err)
{
    const qv_model *model = plan->model;
    qv_status status = prepare(plan, err);
    if (status || model->describe)
        return status;
    plan->item_rows =
        calloc(QV_MOST_CHUNKS * (size_t)plan->capacity.segments, sizeof *plan->item_rows);
    if (!plan->item_rows)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld items",
                       (long long)plan->capacity.segments);
    status = qv_tables_open(&plan->capacity, &model->config, &plan->tables, err);
    if (!status)
        status = load(plan, err);
    return status ? status : record(plan, err);
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* Removes and returns an idle plan of this shape; NULL if there is none. */
static qv_plan *
take_idle(qv_model *model, const struct qv_tower_shape *shape)
{
    for (int i = 0; i < model->n_idle; i++) {
        const struct qv_tower_shape *s = &model->idle[i]->shape;
        if (qv_capacity_equal(&s->capacity, &shape->capacity) && s->input == shape->input &&
            s->output == shape->output && s->hidden == shape->hidden)
            return remove_idle(model, i);
    }
    return NULL;
}

void
qv_plans_free_idle(qv_model *model)
{
    drop_idle(model);
    qv_arena_leave(model->ctx, &model->arena);
}

/* Returns the requested capacity or, if a grid was given instead, the capacity for an item with
 * that grid. */
static qv_status
choose_capacity(const qv_model *model, const qv_plan_options *o, qv_capacity *out, qv_error *err)
{
    static const qv_capacity none;
    const int64_t *g = o->grid_thw;
    *out = o->capacity;
    if (!(g[0] || g[1] || g[2]) || !qv_capacity_equal(&o->capacity, &none))
        return QV_OK;
    const qv_status status = qv_item_check_grid(&model->config, g, "an item", err);
    if (!status)
        *out = qv_capacity_alone(&model->ctx->caps, &model->config, &model->bits, g);
    return status;
}

qv_status
qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out, qv_error *err)
{
    QV_NEED(err, model, out);
    static const qv_plan_options defaults;
    const qv_plan_options *o = options ? options : &defaults;
    qv_capacity asked;
    qv_status status = qv_plan_options_check(model, o, err);
    if (!status)
        status = choose_capacity(model, o, &asked, err);
    if (status)
        return status;
    const struct qv_tower_shape shape = shape_of(model, o, &asked);
    qv_plan *plan = take_idle(model, &shape);
    if (!plan) {
        plan = calloc(1, sizeof *plan);
        if (!plan)
            return qv_fail(err, QV_ENOMEM, "no memory for a plan");
        plan->model = model;
        plan->capacity = shape.capacity;
        plan->shape = shape;
        status = make(plan, err);
    }
    plan->options = *o;
    if (status)
        destroy(plan);
    else
        *out = plan;
    return status;
}

/* The plan becomes idle. Work in progress still uses the arena, so wait for it first. */
void
qv_plan_free(qv_plan **plan)
{
    qv_plan *p = plan ? *plan : NULL;
    if (!p)
        return;
    qv_model *model = p->model;
    if (p->n_pending)
        model->ctx->backend->sync(model->ctx->dev, NULL);
    while (p->n_pending)
        p->program.arena->busy[p->pending[--p->n_pending].chunk] = false;
    p->probe = NULL;
    if (model->n_idle == QV_IDLE_PLANS)
        destroy(remove_idle(model, model->n_idle - 1));
    memmove(&model->idle[1], &model->idle[0], (size_t)model->n_idle * sizeof *model->idle);
    model->idle[0] = p;
    model->n_idle++;
    *plan = NULL;
}

void
qv_plan_get_info(const qv_plan *plan, qv_plan_info *out)
{
    QV_NEED_OR(, plan, out);
    const struct qv_config *c = &plan->model->config;
    const struct qv_program *p = &plan->program;
    *out = (qv_plan_info){ .capacity = plan->capacity,
                           .tokens = plan->capacity.patches / (c->merge * c->merge),
                           .chunks_ahead = p->n_chunks,
                           .arena_bytes = qv_program_bytes(p),
                           .weight_bytes = plan->model->weights.bytes,
                           .flops = p->flops,
                           .bytes = p->bytes };
}
