/* SPDX-License-Identifier: MIT */
/*
 * A plan: the tower's list for one chunk shape, with a kernel for each operation and one arena for
 * all activations, constants and scratch. Everything that can fail on a shape fails here.
 */
#include "model/plan.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "towers/geometry.h"

enum { MOST_CHUNKS = QV_MARK_BEGIN - QV_MARK_CHUNK };

struct qv_plan {
    qv_model *model;
    qv_plan_options options;
    struct qv_tower_shape shape;
    struct qv_conv3d_decision patch_embed;
    struct qv_steps steps;
    size_t *kernels; /* [steps.n] entries of the context's cache, of which n_kernels are held */
    size_t n_kernels;
    /* Chunks that may be under way at once differ in where their input and tokens lie. */
    int n_chunks;
    struct qv_call *calls; /* [n_chunks][steps.n] */
    struct qv_recording *recordings[MOST_CHUNKS];
    struct qv_memory *arena;
    size_t slots[MOST_CHUNKS][SLOT_COUNT], slot_bytes[SLOT_COUNT], arena_bytes;
    int64_t pending_pairs[MOST_CHUNKS]; /* pushed and not pulled, oldest first */
    int n_pending, next;                /* next: the chunk that the next push fills */
    qv_probe *probe;
    void *probe_user;
};

/* ---- making ---------------------------------------------------------------------------------- */

static int64_t
merge_area(const struct qv_plan *plan)
{
    return plan->model->config.merge * plan->model->config.merge;
}

static qv_status
check_options(const struct qv_model *model, const qv_plan_options *o, qv_error *err)
{
    enum { MOST_SIDE = 1 << 14, MOST_PAIRS = 1 << 16, MOST_ROWS = 1 << 22 };
    int64_t m = model->config.merge;
    if (!o)
        return qv_fail(err, QV_EINVAL, "plan options are NULL: a grid is required");
    if (!QV_RESERVED_IS_ZERO(o))
        return qv_fail(err, QV_EINVAL, "reserved plan options must be 0");
    if (o->grid_h < m || o->grid_w < m || o->grid_h > MOST_SIDE || o->grid_w > MOST_SIDE ||
        o->grid_h % m || o->grid_w % m || o->grid_h * o->grid_w > MOST_ROWS)
        return qv_fail(err, QV_EINVAL,
                       "grid is %lld x %lld patches; each side must be a multiple of %lld up to "
                       "%d, %d patches in all",
                       (long long)o->grid_h, (long long)o->grid_w, (long long)m, MOST_SIDE,
                       MOST_ROWS);
    if (o->chunk_pairs < 0 || o->chunk_pairs > MOST_PAIRS ||
        o->chunk_pairs * o->grid_h * o->grid_w > MOST_ROWS)
        return qv_fail(err, QV_EINVAL,
                       "chunk_pairs is %lld; must be 0 (chosen) to %d, with at most %d patches in "
                       "a chunk",
                       (long long)o->chunk_pairs, MOST_PAIRS, MOST_ROWS);
    if (o->input != QV_INPUT_FRAMES && o->input != QV_INPUT_PATCHES)
        return qv_fail(err, QV_EINVAL, "input is %d, no qv_input", (int)o->input);
    if (o->output != QV_DTYPE_AUTO && o->output != QV_F32 && o->output != QV_BF16)
        return qv_fail(err, QV_EINVAL, "output is %d; must be QV_F32 or QV_BF16", (int)o->output);
    if (o->still && o->input != QV_INPUT_FRAMES)
        return qv_fail(err, QV_EINVAL, "still is a promise about frames; the input is patches");
    return QV_OK;
}

static void
choose_shape(struct qv_plan *plan)
{
    const qv_plan_options *o = &plan->options;
    int64_t pairs = o->chunk_pairs;
    if (!pairs && o->still)
        pairs = 1;
    if (!pairs)
        pairs = plan->model->ctx->caps.chunk_rows / (o->grid_h * o->grid_w);
    if (!pairs)
        pairs = 1;
    plan->shape = (struct qv_tower_shape){ .pairs = pairs,
                                           .grid_h = o->grid_h,
                                           .grid_w = o->grid_w,
                                           .input = o->input,
                                           .still = o->still,
                                           .image_norm = o->image_norm,
                                           .addend_apart = plan->model->ctx->caps.addend_apart,
                                           .beside = plan->model->ctx->caps.beside,
                                           .dtype = plan->model->dtype,
                                           .output = o->output ? o->output : QV_F32 };
}

/* What is pushed of a pair: its frames, of which a still has one, or all its patches at once. */
static int64_t
units_per_pair(const struct qv_plan *plan)
{
    if (plan->shape.input != QV_INPUT_FRAMES || plan->shape.still)
        return 1;
    return plan->model->config.temporal;
}

static qv_status
build(struct qv_plan *plan, qv_error *err)
{
    struct qv_conv3d_list list;
    qv_conv3d_desc d = qv_tower_patch_embed(&plan->model->config, &plan->shape);
    const qv_context *ctx = plan->model->ctx;
    qv_status status =
        qv_conv3d_decide(&d, &ctx->caps, qv_conv3d_thresholds_of(ctx->backend->name, &ctx->caps),
                         -1, &plan->patch_embed, err);
    if (status)
        return status;
    qv_conv3d_lower(&d, plan->patch_embed.lowering, &list);
    return qv_tower_build(&plan->model->config, &plan->shape, &list, &plan->steps, err);
}

/* scratch: of calls in turn, and of those beside them. */
static qv_status
prepare(struct qv_plan *plan, size_t scratch[2], qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    plan->kernels = calloc(plan->steps.n, sizeof *plan->kernels);
    plan->calls = calloc((size_t)plan->n_chunks * plan->steps.n, sizeof *plan->calls);
    if (!plan->kernels || !plan->calls)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu operations", plan->steps.n);
    for (size_t i = 0; i < plan->steps.n; i++) {
        size_t *most = &scratch[plan->steps.steps[i].beside];
        qv_status status = qv_kernel_get(ctx, &plan->steps.steps[i].op, &plan->kernels[i], err);
        if (status)
            return status;
        plan->n_kernels++;
        size_t bytes = ctx->kernels.entries[plan->kernels[i]].scratch_bytes;
        *most = bytes > *most ? bytes : *most;
    }
    return QV_OK;
}

/* What is a chunk's own while others are under way. */
static bool
is_own(int slot)
{
    return slot == SLOT_INPUT || slot >= SLOT_TOKENS;
}

/* Each slot is as large as its largest use; scratch comes last. */
static void
lay_out(struct qv_plan *plan, const size_t scratch[2])
{
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++) {
            int slot = step->operands[j];
            size_t bytes = qv_op_operand(&step->op, j).bytes;
            if (slot >= 0 && slot < SLOT_COUNT && bytes > plan->slot_bytes[slot])
                plan->slot_bytes[slot] = bytes;
        }
    }
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        for (int chunk = 0; chunk < plan->n_chunks; chunk++) {
            if (chunk && !is_own(slot)) {
                plan->slots[chunk][slot] = plan->slots[0][slot];
                continue;
            }
            plan->slots[chunk][slot] = plan->arena_bytes;
            plan->arena_bytes += qv_aligned(plan->slot_bytes[slot]);
        }
    const size_t places[2] = { plan->arena_bytes, plan->arena_bytes + qv_aligned(scratch[0]) };
    for (size_t i = 0; i < (size_t)plan->n_chunks * plan->steps.n; i++)
        plan->calls[i].scratch.offset = places[plan->steps.steps[i % plan->steps.n].beside];
    plan->arena_bytes = places[1] + qv_aligned(scratch[1]);
}

static struct qv_buffer
operand(const struct qv_plan *plan, int chunk, int id)
{
    if (id == QV_NO_OPERAND)
        return (struct qv_buffer){ 0 };
    if (id >= SLOT_COUNT)
        return plan->model->weights.buffers[id - SLOT_COUNT];
    return (struct qv_buffer){ plan->arena, plan->slots[chunk][id] };
}

static void
wire(struct qv_plan *plan, int chunk)
{
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        struct qv_call *call = &plan->calls[(size_t)chunk * plan->steps.n + i];
        call->kernel = plan->model->ctx->kernels.entries[plan->kernels[i]].kernel;
        call->scratch.memory = plan->arena;
        call->beside = step->beside;
        call->waits = step->waits;
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++)
            call->operands[j] = operand(plan, chunk, step->operands[j]);
    }
}

/* The calls of a chunk, without those that run once. */
static const struct qv_call *
chunk_calls(const struct qv_plan *plan, int chunk)
{
    return plan->calls + (size_t)chunk * plan->steps.n + plan->steps.n_setup;
}

/* Each chunk's list as one, where the device can. */
static qv_status
record(struct qv_plan *plan, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    qv_status status = QV_OK;
    for (int i = 0; i < plan->n_chunks && ctx->backend->record && !status; i++)
        status =
            ctx->backend->record(ctx->dev, chunk_calls(plan, i),
                                 plan->steps.n - plan->steps.n_setup, &plan->recordings[i], err);
    return status;
}

/* Tables that depend on the grid alone, then the operations that run once. */
static qv_status
set_up(struct qv_plan *plan, qv_error *err)
{
    const struct qv_config *c = &plan->model->config;
    qv_context *ctx = plan->model->ctx;
    int64_t h = plan->shape.grid_h, w = plan->shape.grid_w, hd = qv_config_head_dim(c), side = 0;
    while (side * side < c->n_positions)
        side++;
    size_t angles = (size_t)(h * w * (hd / 2)) * sizeof(float);
    size_t taps = (size_t)(h * w * 4) * sizeof(float);
    char *tables = malloc(2 * angles + 2 * taps);
    if (!tables)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of position tables",
                       2 * angles + 2 * taps);
    char *sines = tables + angles, *index = sines + angles, *weight = index + taps;
    qv_geometry_rotary(h, w, c->merge, hd, c->rope_theta, (float *)tables, (float *)sines);
    qv_geometry_taps(h, w, c->merge, side, (int32_t(*)[4])index, (float(*)[4])weight);
    const struct {
        int slot;
        const void *data;
        size_t bytes;
    } uploads[] = { { SLOT_COS, tables, angles },
                    { SLOT_SIN, sines, angles },
                    { SLOT_INDEX, index, taps },
                    { SLOT_WEIGHT, weight, taps } };
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof uploads / sizeof *uploads && !status; i++)
        status = ctx->backend->upload(ctx->dev, operand(plan, 0, uploads[i].slot), uploads[i].data,
                                      uploads[i].bytes, err);
    if (!status)
        status = ctx->backend->run(ctx->dev, plan->calls, plan->steps.n_setup, err);
    if (!status)
        status = ctx->backend->sync(ctx->dev, err);
    free(tables);
    return status;
}

static void
destroy(qv_plan *plan)
{
    qv_context *ctx = plan->model->ctx;
    for (int i = 0; i < plan->n_chunks; i++)
        if (plan->recordings[i])
            ctx->backend->forget(ctx->dev, plan->recordings[i]);
    for (size_t i = 0; i < plan->n_kernels; i++)
        qv_kernel_put(ctx, plan->kernels[i]);
    if (plan->arena)
        ctx->backend->free(ctx->dev, plan->arena);
    free(plan->steps.steps);
    free(plan->kernels);
    free(plan->calls);
    free(plan);
}

static qv_status
make(struct qv_plan *plan, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    size_t scratch[2] = { 0, 0 };
    qv_status status = build(plan, err);
    if (!status)
        status = prepare(plan, scratch, err);
    if (status)
        return status;
    lay_out(plan, scratch);
    if (plan->model->describe)
        return QV_OK;
    status = ctx->backend->alloc(ctx->dev, plan->arena_bytes, &plan->arena, err);
    if (status)
        return status;
    for (int i = 0; i < plan->n_chunks; i++)
        wire(plan, i);
    status = set_up(plan, err);
    return status ? status : record(plan, err);
}

/* ---- keeping --------------------------------------------------------------------------------- */

static bool
same_shape(const struct qv_tower_shape *a, const struct qv_tower_shape *b)
{
    return a->pairs == b->pairs && a->grid_h == b->grid_h && a->grid_w == b->grid_w &&
           a->input == b->input && a->still == b->still && a->image_norm == b->image_norm &&
           a->output == b->output;
}

/* An idle plan of this shape, no longer idle; NULL if there is none. */
static qv_plan *
take_idle(qv_model *model, const struct qv_tower_shape *shape)
{
    for (int i = 0; i < model->n_idle; i++)
        if (same_shape(&model->idle[i]->shape, shape)) {
            qv_plan *plan = model->idle[i];
            memmove(&model->idle[i], &model->idle[i + 1],
                    (size_t)(--model->n_idle - i) * sizeof *model->idle);
            return plan;
        }
    return NULL;
}

/* Keeps a plan as the most recent one; drops the oldest that are too many or too large. */
static void
keep_idle(qv_model *model, qv_plan *plan)
{
    if (model->n_idle == QV_IDLE_PLANS)
        destroy(model->idle[--model->n_idle]);
    memmove(&model->idle[1], &model->idle[0], (size_t)model->n_idle * sizeof *model->idle);
    model->idle[0] = plan;
    model->n_idle++;
    size_t bytes = 0;
    for (int i = 0; i < model->n_idle; i++)
        bytes += model->idle[i]->arena_bytes;
    while (bytes > QV_IDLE_BYTES && model->n_idle) {
        bytes -= model->idle[--model->n_idle]->arena_bytes;
        destroy(model->idle[model->n_idle]);
    }
}

void
qv_plans_free_idle(qv_model *model)
{
    while (model->n_idle)
        destroy(model->idle[--model->n_idle]);
}

qv_status
qv_plan_create(qv_model *model, const qv_plan_options *options, qv_plan **out, qv_error *err)
{
    if (!model || !out)
        return qv_fail(err, QV_EINVAL, "model or out is NULL");
    qv_status status = check_options(model, options, err);
    if (status)
        return status;
    qv_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return qv_fail(err, QV_ENOMEM, "no memory for a plan");
    plan->model = model;
    plan->options = *options;
    plan->n_chunks = model->ctx->caps.chunks;
    choose_shape(plan);
    qv_plan *idle = take_idle(model, &plan->shape);
    if (idle) {
        idle->options = *options;
        idle->n_pending = 0;
        free(plan);
        *out = idle;
        return QV_OK;
    }
    status = make(plan, err);
    if (status)
        destroy(plan);
    else
        *out = plan;
    return status;
}

void
qv_plan_free(qv_plan **plan)
{
    if (!plan || !*plan)
        return;
    qv_context *ctx = (*plan)->model->ctx;
    if ((*plan)->n_pending) /* what is under way still uses the arena */
        ctx->backend->sync(ctx->dev, NULL);
    (*plan)->probe = NULL;
    keep_idle((*plan)->model, *plan);
    *plan = NULL;
}

void
qv_plan_get_info(const qv_plan *plan, qv_plan_info *out)
{
    int64_t pair_rows = plan->shape.grid_h * plan->shape.grid_w;
    *out = (qv_plan_info){ .chunk_pairs = plan->shape.pairs,
                           .chunk_frames = plan->shape.pairs * units_per_pair(plan),
                           .chunks_ahead = plan->n_chunks,
                           .tokens_per_pair = pair_rows / merge_area(plan),
                           .arena_bytes = plan->arena_bytes,
                           .weight_bytes = plan->model->weights.bytes };
    for (size_t i = plan->steps.n_setup; i < plan->steps.n; i++) {
        out->flops += qv_op_flops(&plan->steps.steps[i].op);
        out->bytes += qv_op_bytes(&plan->steps.steps[i].op);
    }
    snprintf(out->lowering, sizeof out->lowering, "%s",
             qv_lowering_name(plan->patch_embed.lowering));
    snprintf(out->lowering_reason, sizeof out->lowering_reason, "%s", plan->patch_embed.reason);
}

/* ---- running --------------------------------------------------------------------------------- */

static size_t
input_unit_bytes(const struct qv_plan *plan)
{
    const struct qv_config *c = &plan->model->config;
    int64_t patches = plan->shape.grid_h * plan->shape.grid_w;
    if (plan->shape.input == QV_INPUT_PATCHES)
        return (size_t)(patches * qv_config_row_dim(c)) * sizeof(float);
    return (size_t)(patches * c->patch * c->patch * c->in_channels);
}

/* The last, incomplete pair is filled with copies of the last frame. */
static qv_status
upload_input(struct qv_plan *plan, int chunk, const void *data, int64_t n, int64_t missing,
             qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    size_t unit = input_unit_bytes(plan);
    struct qv_buffer at = operand(plan, chunk, SLOT_INPUT);
    qv_status status = ctx->backend->upload(ctx->dev, at, data, (size_t)n * unit, err);
    at.offset += (size_t)n * unit;
    for (; missing > 0 && !status; missing--, at.offset += unit)
        status = ctx->backend->upload(ctx->dev, at, (const char *)data + (size_t)(n - 1) * unit,
                                      unit, err);
    return status;
}

/* Shows a layer's rows that are not padding, in f32. */
static qv_status
show_layer(struct qv_plan *plan, const struct qv_step *step, const struct qv_call *call,
           int64_t pairs, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    int y = qv_op_n_operands(step->op.kind) - 1;
    struct qv_operand shape = qv_op_operand(&step->op, y);
    int64_t rows = shape.rows / plan->shape.pairs * pairs, values = rows * step->layer_cols;
    size_t bytes = (size_t)values * qv_dtype_bytes(shape.dtype);
    float *wide = malloc((size_t)values * sizeof *wide);
    void *raw = malloc(bytes);
    qv_status status = QV_OK;
    if (!wide || !raw)
        status = qv_fail(err, QV_ENOMEM, "no memory to show layer %s", step->layer);
    if (!status)
        status = ctx->backend->download(ctx->dev, raw, call->operands[y], bytes, err);
    for (int64_t i = 0; i < values && !status; i++)
        wide[i] = (float)qv_load(raw, shape.dtype, i);
    if (!status)
        plan->options.tap(plan->options.tap_user, step->layer, wide, rows, step->layer_cols);
    free(wide);
    free(raw);
    return status;
}

/* Enqueues a chunk's list. */
static qv_status
enqueue(struct qv_plan *plan, int chunk, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    if (plan->recordings[chunk])
        return ctx->backend->replay(ctx->dev, plan->recordings[chunk], err);
    return ctx->backend->run(ctx->dev, chunk_calls(plan, chunk),
                             plan->steps.n - plan->steps.n_setup, err);
}

/* The list; step by step where someone looks on. */
static qv_status
run(struct qv_plan *plan, int chunk, int64_t pairs, qv_error *err)
{
    qv_context *ctx = plan->model->ctx;
    const struct qv_step *steps = plan->steps.steps + plan->steps.n_setup;
    const struct qv_call *calls = chunk_calls(plan, chunk);
    size_t n = plan->steps.n - plan->steps.n_setup;
    if (!plan->options.tap && !plan->probe)
        return enqueue(plan, chunk, err);
    qv_status status = QV_OK;
    for (size_t i = 0; i < n && !status; i++) {
        status = ctx->backend->run(ctx->dev, &calls[i], 1, err);
        if (!status)
            status = ctx->backend->sync(ctx->dev, err);
        if (!status && plan->probe)
            plan->probe(plan->probe_user, &steps[i], &calls[i]);
        if (!status && plan->options.tap && steps[i].layer[0])
            status = show_layer(plan, &steps[i], &calls[i], pairs, err);
    }
    return status;
}

void
qv_plan_set_probe(qv_plan *plan, qv_probe *probe, void *user)
{
    plan->probe = probe;
    plan->probe_user = user;
}

size_t
qv_plan_steps(const qv_plan *plan, const struct qv_step **steps, const struct qv_call **calls)
{
    *steps = plan->steps.steps + plan->steps.n_setup;
    *calls = chunk_calls(plan, 0);
    return plan->steps.n - plan->steps.n_setup;
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

qv_status
qv_plan_push(qv_plan *plan, const void *data, int64_t n, qv_error *err)
{
    if (!plan || !data)
        return qv_fail(err, QV_EINVAL, "plan or data is NULL");
    if (plan->model->describe)
        return qv_fail(err, QV_ESTATE, "the model was opened to be described: it has no weights");
    if (plan->n_pending == plan->n_chunks)
        return qv_fail(err, QV_ESTATE, "%s before has not been pulled",
                       plan->n_chunks > 1 ? "the chunk before the last" : "the chunk");
    int64_t unit = units_per_pair(plan), most = plan->shape.pairs * unit;
    if (n < 1 || n > most)
        return qv_fail(err, QV_EINVAL, "n is %lld, must be 1 to %lld (a chunk of this plan)",
                       (long long)n, (long long)most);
    int64_t pairs = (n + unit - 1) / unit;
    qv_context *ctx = plan->model->ctx;
    int chunk = plan->next;
    qv_status status = upload_input(plan, chunk, data, n, pairs * unit - n, err);
    if (!status)
        status = run(plan, chunk, pairs, err);
    if (!status)
        status = ctx->backend->mark(ctx->dev, QV_MARK_CHUNK + chunk, err);
    if (status)
        return status;
    plan->pending_pairs[plan->n_pending++] = pairs;
    plan->next = (chunk + 1) % plan->n_chunks;
    return QV_OK;
}

/* Every output wanted goes to the device's memory, in the order of the caller's stream. */
static bool
stays_on_device(const struct qv_plan *plan, const qv_tokens *out, size_t bytes)
{
    qv_context *ctx = plan->model->ctx;
    bool all = ctx->in_order;
    for (int64_t i = 0; i < 1 + plan->model->config.n_deepstack && all; i++) {
        struct qv_memory there;
        const void *to = i ? out->deepstack[i - 1] : out->tokens;
        all = !to || ctx->backend->wrap(ctx->dev, to, bytes, &there);
        if (to && all)
            qv_unwrap(ctx->dev, &there);
    }
    return all;
}

qv_status
qv_plan_pull(qv_plan *plan, qv_tokens *out, qv_error *err)
{
    if (!plan || !out)
        return qv_fail(err, QV_EINVAL, "plan or out is NULL");
    if (!plan->n_pending)
        return qv_fail(err, QV_ESTATE, "nothing to pull: no chunk was pushed");
    const struct qv_config *c = &plan->model->config;
    qv_context *ctx = plan->model->ctx;
    int64_t rows =
        plan->pending_pairs[0] * plan->shape.grid_h * plan->shape.grid_w / merge_area(plan);
    int chunk = (plan->next + plan->n_chunks - plan->n_pending) % plan->n_chunks;
    if (out->capacity < rows)
        return qv_fail(err, QV_EINVAL, "capacity is %lld rows, %lld are needed",
                       (long long)out->capacity, (long long)rows);
    size_t bytes = (size_t)(rows * c->out_hidden) * qv_dtype_bytes(plan->shape.output);
    qv_status status = QV_OK;
    if (!stays_on_device(plan, out, bytes))
        status = ctx->backend->wait(ctx->dev, QV_MARK_CHUNK + chunk, err);
    for (int64_t i = 0; i < 1 + c->n_deepstack && !status; i++) {
        void *to = i ? out->deepstack[i - 1] : out->tokens;
        if (to)
            status = ctx->backend->download(ctx->dev, to,
                                            operand(plan, chunk, SLOT_TOKENS + (int)i), bytes, err);
    }
    if (status)
        return status;
    plan->n_pending--;
    memmove(plan->pending_pairs, plan->pending_pairs + 1,
            (size_t)plan->n_pending * sizeof *plan->pending_pairs);
    out->n = rows;
    return QV_OK;
}
