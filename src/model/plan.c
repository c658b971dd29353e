/* SPDX-License-Identifier: MIT */
/*
 * A plan: the tower's list for one capacity, with a kernel for each operation, in an arena that the
 * model's plans share. Everything that can fail on a capacity fails here.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "items.h"

/* ---- capacity -------------------------------------------------------------------------------- */

struct qv_capacity_bits
qv_model_bits(const qv_model *model)
{
    const struct qv_config *c = &model->config;
    return qv_capacity_bits(&model->ctx->caps, model->dtype, c->merge, qv_config_head_dim(c));
}

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
            return qv_fail(err, QV_EINVAL, "%s is %lld; must be 0 (chosen) to %d", chosen[i].name,
                           (long long)chosen[i].value, QV_MOST_ROWS);
    if (c->segment_rows < 0 || c->segment_rows > QV_MOST_ROWS || c->segment_rows % area)
        return qv_fail(err, QV_EINVAL,
                       "segment_rows is %lld; must be 0 (any) or a multiple of %lld "
                       "up to %d",
                       (long long)c->segment_rows, (long long)area, QV_MOST_ROWS);
    if (c->segment_rows && c->patches && c->patches < c->segment_rows)
        return qv_fail(err, QV_EINVAL,
                       "patches is %lld; too few for one segment of segment_rows, %lld",
                       (long long)c->patches, (long long)c->segment_rows);
    if (o->input != QV_INPUT_FRAMES && o->input != QV_INPUT_PATCHES &&
        o->input != QV_INPUT_PATCHES_BF16)
        return qv_fail(err, QV_EINVAL, "input is %d, not a qv_input", (int)o->input);
    if (o->output != QV_DTYPE_AUTO && o->output != QV_F32 && o->output != QV_BF16)
        return qv_fail(err, QV_EINVAL, "output is %d; must be QV_F32 or QV_BF16", (int)o->output);
    if (o->hidden && model->config.family->names->downsample)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "hidden: not supported for %s, whose merger begins with a Conv2d",
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
    /* dense: as many segments of segment_rows rows as fit the rows that were asked for */
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
shape_of(const struct qv_plan *plan)
{
    const struct qv_caps *caps = &plan->model->ctx->caps;
    const qv_plan_options *o = &plan->options;
    return (struct qv_tower_shape){ .capacity = plan->capacity,
                                    .input = o->input,
                                    .gated_rows = caps->gated_rows,
                                    .residual_apart = caps->residual_apart,
                                    .side = caps->side,
                                    .hidden = o->hidden,
                                    .dtype = plan->model->dtype,
                                    .output = o->output ? o->output : QV_F32 };
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Prepares a kernel for each operation. scratch[0] is the most scratch that a call on the main
 * stream needs, scratch[1] the most on the side stream. */
static qv_status
prepare(struct qv_plan *plan, size_t scratch[2], qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    /* one more, as calloc(0) may return NULL; an empty list is refused elsewhere */
    const size_t room = plan->steps.n + 1;
    plan->kernels = calloc(room, sizeof *plan->kernels);
    plan->calls = calloc(QV_MOST_CHUNKS * room, sizeof *plan->calls);
    if (!plan->kernels || !plan->calls)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu operations", plan->steps.n);
    for (size_t i = 0; i < plan->steps.n; i++) {
        size_t *most = &scratch[plan->steps.steps[i].side];
        qv_status status = qv_kernel_get(ctx, &plan->steps.steps[i].op, &plan->kernels[i], err);
        if (status)
            return status;
        plan->n_kernels++;
        size_t bytes = ctx->kernels.entries[plan->kernels[i]].scratch_bytes;
        *most = bytes > *most ? bytes : *most;
    }
    return QV_OK;
}

/* Returns whether a slot is a chunk's own while other chunks are under way. */
static bool
is_own(int slot)
{
    return slot <= SLOT_LAST_INPUT || slot >= SLOT_HIDDEN;
}

/* Gives each slot the bytes of its largest use, and an offset. Scratch comes last. */
static void
lay_out(struct qv_plan *plan, const size_t scratch[2])
{
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++) {
            int slot = step->operands[j];
            size_t bytes = (size_t)step->offsets[j] + qv_op_view(&step->op, j).bytes;
            if (slot >= 0 && slot < SLOT_COUNT && bytes > plan->slot_bytes[slot])
                plan->slot_bytes[slot] = bytes;
        }
    }
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        size_t *bytes = is_own(slot) ? &plan->own_bytes : &plan->work_bytes;
        plan->slots[slot] = *bytes;
        *bytes += qv_aligned(plan->slot_bytes[slot]);
    }
    const size_t places[2] = { plan->work_bytes, plan->work_bytes + qv_aligned(scratch[0]) };
    for (size_t i = 0; i < QV_MOST_CHUNKS * plan->steps.n; i++)
        plan->calls[i].scratch.offset = places[plan->steps.steps[i % plan->steps.n].side];
    plan->work_bytes = places[1] + qv_aligned(scratch[1]);
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
        qv_plan_destroy(remove_idle(model, model->n_idle - 1));
}

static qv_status
open_arena(qv_context *ctx, size_t own_bytes, size_t work_bytes, struct qv_arena **out,
           qv_error *err)
{
    struct qv_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return qv_fail(err, QV_ENOMEM, "no memory for an arena");
    *arena = (struct qv_arena){ .own_bytes = qv_aligned(own_bytes),
                                .work_bytes = qv_aligned(work_bytes),
                                .n_chunks = ctx->caps.chunks,
                                .users = 1 };
    qv_status status =
        ctx->backend->alloc(ctx->dev,
                            (size_t)arena->n_chunks * arena->own_bytes + arena->work_bytes,
                            &arena->memory, err);
    if (status)
        free(arena);
    else
        *out = arena;
    return status;
}

/* The last user frees it. */
static void
leave_arena(qv_context *ctx, struct qv_arena **arena)
{
    struct qv_arena *a = *arena;
    *arena = NULL;
    if (!a || --a->users)
        return;
    ctx->backend->free(ctx->dev, a->memory);
    free(a);
}

/* Takes the model's arena if it is large enough. Otherwise a larger one is opened, of the size
 * that a full chunk will want, so that buckets of growing size do not each open another. Idle
 * plans on the smaller arena are dropped. */
static qv_status
take_arena(struct qv_plan *plan, qv_error *err)
{
    qv_model *model = plan->model;
    qv_context *ctx = model->ctx;
    struct qv_arena *arena = model->arena;
    if (!arena || arena->own_bytes < plan->own_bytes || arena->work_bytes < plan->work_bytes) {
        int64_t full = ctx->caps.chunk_rows, rows = plan->capacity.patches;
        double ratio = rows < full ? (double)full / (double)rows : 1;
        size_t own = (size_t)((double)plan->own_bytes * ratio);
        size_t work = (size_t)((double)plan->work_bytes * ratio);
        if (arena && own < arena->own_bytes)
            own = arena->own_bytes;
        if (arena && work < arena->work_bytes)
            work = arena->work_bytes;
        drop_idle(model);
        leave_arena(ctx, &model->arena);
        qv_status status = open_arena(ctx, own, work, &model->arena, err);
        if (status)
            return status;
    }
    plan->arena = model->arena;
    plan->arena->users++;
    return QV_OK;
}

const struct qv_call *
qv_plan_calls(const qv_plan *plan, int chunk)
{
    return plan->calls + (size_t)chunk * plan->steps.n;
}

static size_t
work_begins(const struct qv_arena *arena)
{
    return (size_t)arena->n_chunks * arena->own_bytes;
}

struct qv_buffer
qv_plan_operand(const qv_plan *plan, int chunk, int id)
{
    if (id == QV_NO_OPERAND)
        return (struct qv_buffer){ 0 };
    if (id >= SLOT_COUNT)
        return plan->model->weights.buffers[id - SLOT_COUNT];
    const size_t before =
        is_own(id) ? (size_t)chunk * plan->arena->own_bytes : work_begins(plan->arena);
    return (struct qv_buffer){ plan->arena->memory, before + plan->slots[id] };
}

static void
wire(struct qv_plan *plan, int chunk)
{
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        struct qv_call *call = &plan->calls[(size_t)chunk * plan->steps.n + i];
        call->kernel = plan->model->ctx->kernels.entries[plan->kernels[i]].kernel;
        call->scratch.memory = plan->arena->memory;
        call->scratch.offset += work_begins(plan->arena);
        call->side = step->side;
        call->waits = step->waits;
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++) {
            call->operands[j] = qv_plan_operand(plan, chunk, step->operands[j]);
            call->operands[j].offset += (size_t)step->offsets[j];
        }
    }
}

/* Records each chunk's calls as one piece of work, on devices that can. */
static qv_status
record(struct qv_plan *plan, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    qv_status status = QV_OK;
    for (int i = 0; i < plan->arena->n_chunks && ctx->backend->record && !status; i++)
        status = ctx->backend->record(ctx->dev, qv_plan_calls(plan, i), plan->steps.n,
                                      &plan->recordings[i], err);
    return status;
}

void
qv_plan_destroy(qv_plan *plan)
{
    qv_context *ctx = plan->model->ctx;
    for (int i = 0; i < QV_MOST_CHUNKS; i++)
        if (plan->recordings[i])
            ctx->backend->forget(ctx->dev, plan->recordings[i]);
    for (size_t i = 0; i < plan->n_kernels; i++)
        qv_kernel_put(ctx, plan->kernels[i]);
    leave_arena(ctx, &plan->arena);
    qv_tables_close(&plan->tables);
    free(plan->item_rows);
    free(plan->steps.steps);
    free(plan->kernels);
    free(plan->calls);
    free(plan);
}

static qv_status
make(struct qv_plan *plan, qv_error *err)
{
    size_t scratch[2] = { 0, 0 };
    const qv_model *model = plan->model;
    qv_status status = qv_steps_build(&model->config, &model->tower, &plan->shape,
                                      model->patch_embed.lowering, &plan->steps, err);
    if (!status)
        status = prepare(plan, scratch, err);
    if (status)
        return status;
    lay_out(plan, scratch);
    if (model->describe)
        return QV_OK;
    plan->item_rows =
        calloc(QV_MOST_CHUNKS * (size_t)plan->capacity.segments, sizeof *plan->item_rows);
    if (!plan->item_rows)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld items",
                       (long long)plan->capacity.segments);
    status = qv_tables_open(&plan->capacity, &model->config, &plan->tables, err);
    if (!status)
        status = take_arena(plan, err);
    if (status)
        return status;
    for (int i = 0; i < plan->arena->n_chunks; i++)
        wire(plan, i);
    return record(plan, err);
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* Takes an idle plan of this shape out of the idle ones; NULL if there is none. */
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
    leave_arena(model->ctx, &model->arena);
}

/* Returns the capacity that was asked for or, if a grid was given instead, that of an item with
 * that grid. */
static qv_status
choose_capacity(const qv_model *model, const qv_plan_options *o, qv_capacity *out, qv_error *err)
{
    static const qv_capacity none;
    const int64_t *g = o->grid_thw;
    *out = o->capacity;
    if (!(g[0] || g[1] || g[2]) || !qv_capacity_equal(&o->capacity, &none))
        return QV_OK;
    const struct qv_capacity_bits bits = qv_model_bits(model);
    const qv_status status = qv_item_check_grid(&model->config, g, "an item", err);
    if (!status)
        *out = qv_capacity_alone(&model->ctx->caps, &model->config, &bits, g);
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
    qv_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return qv_fail(err, QV_ENOMEM, "no memory for a plan");
    plan->model = model;
    plan->options = *o;
    plan->capacity = qv_plan_capacity(model, &asked);
    plan->shape = shape_of(plan);
    qv_plan *idle = take_idle(model, &plan->shape);
    if (idle) {
        idle->options = *o;
        free(plan);
        *out = idle;
        return QV_OK;
    }
    status = make(plan, err);
    if (status)
        qv_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

/* The plan becomes idle. Work under way still uses the arena, so it is waited for first. */
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
        p->arena->chunks[p->pending[--p->n_pending].chunk] = NULL;
    p->probe = NULL;
    if (model->n_idle == QV_IDLE_PLANS)
        qv_plan_destroy(remove_idle(model, model->n_idle - 1));
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
    int chunks = plan->model->ctx->caps.chunks;
    *out = (qv_plan_info){ .capacity = plan->capacity,
                           .tokens = plan->capacity.patches / (c->merge * c->merge),
                           .chunks_ahead = chunks,
                           .arena_bytes = (size_t)chunks * plan->own_bytes + plan->work_bytes,
                           .weight_bytes = plan->model->weights.bytes };
    for (size_t i = 0; i < plan->steps.n; i++) {
        out->flops += qv_op_flops(&plan->steps.steps[i].op);
        out->bytes += qv_op_bytes(&plan->steps.steps[i].op);
    }
}
