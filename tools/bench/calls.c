/* SPDX-License-Identifier: MIT */
/* A chunk as callers see it: from the memory of their pixels to the memory in which they want
 * tokens. */
#include <stdlib.h>

#include "bench.h"
#include "dtype.h"
#include "error.h"

static const struct way {
    const char *name;
    qv_input input;
    qv_dtype output; /* QV_DTYPE_AUTO: the model's own */
    enum bench_place place;
} ways[BENCH_CALLS] = {
    { "whole call", QV_INPUT_FRAMES, QV_DTYPE_AUTO, BENCH_LOCKED },
    { "whole call, pageable", QV_INPUT_FRAMES, QV_DTYPE_AUTO, BENCH_PAGEABLE },
    { "whole call, f32 tokens", QV_INPUT_FRAMES, QV_F32, BENCH_LOCKED },
    { "whole call, pixel_values", QV_INPUT_PATCHES, QV_DTYPE_AUTO, BENCH_LOCKED },
    { "device call", QV_INPUT_PATCHES, QV_DTYPE_AUTO, BENCH_ON_DEVICE },
    { "device call, bf16 pixel_values", QV_INPUT_PATCHES_BF16, QV_DTYPE_AUTO, BENCH_ON_DEVICE },
};

/* Returns whether the device has memory of its own; it copies the host's pages fastest when they
 * are locked. */
static bool
has_own_memory(const qv_context *ctx)
{
    return ctx->backend->lock_pages != NULL;
}

static const char *
memory_name(const qv_context *ctx, enum bench_place place)
{
    static const char *const names[] = {
        [BENCH_LOCKED] = "page-locked", [BENCH_PAGEABLE] = "pageable", [BENCH_ON_DEVICE] = "device"
    };
    return place == BENCH_LOCKED && !has_own_memory(ctx) ? "whole pages" : names[place];
}

/* ---- memory ---------------------------------------------------------------------------------- */

static qv_status
open_block(qv_context *ctx, enum bench_place place, size_t bytes, struct bench_block *out,
           qv_error *err)
{
    *out = (struct bench_block){ .place = place };
    if (place == BENCH_LOCKED)
        return qv_host_alloc(ctx, bytes, &out->at, err);
    if (place == BENCH_PAGEABLE) {
        out->at = malloc(bytes);
        return out->at ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for %zu bytes", bytes);
    }
    qv_status status = ctx->backend->alloc(ctx->dev, bytes, &out->memory, err);
    if (!status)
        out->at = out->memory->base; /* an address, as callers have it */
    return status;
}

static void
close_block(qv_context *ctx, struct bench_block *b)
{
    if (b->place == BENCH_LOCKED)
        qv_host_free(ctx, b->at);
    else if (b->place == BENCH_PAGEABLE)
        free(b->at);
    else if (b->memory)
        ctx->backend->free(ctx->dev, b->memory);
    *b = (struct bench_block){ 0 };
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Makes random pixels, and room for tokens. */
static qv_status
open_data(struct bench_call *c, enum bench_place place, const qv_model_info *m, int64_t pairs,
          const int64_t grid[3], qv_error *err)
{
    const qv_plan_options *options = &c->plan->options;
    const qv_dtype values = qv_input_dtype(options->input);
    const size_t in = (size_t)(pairs * grid[1] * grid[2] * m->row_dim) * qv_dtype_bytes(values);
    qv_plan_info info;
    qv_plan_get_info(c->plan, &info);
    const size_t tokens =
        qv_aligned((size_t)(info.tokens * m->out_hidden) * qv_dtype_bytes(options->output));
    qv_status status = open_block(c->ctx, place, in, &c->data, err);
    if (!status && c->data.memory)
        status =
            bench_fill_device(c->ctx, (struct qv_buffer){ c->data.memory, 0 }, values, in, err);
    else if (!status)
        bench_fill(c->data.at, values, in);
    if (!status)
        status = open_block(c->ctx, place, tokens * (size_t)(1 + m->n_deepstack), &c->room, err);
    if (status)
        return status;
    c->item = (qv_item){ .data = c->data.at, .grid_thw = { pairs, grid[1], grid[2] } };
    c->tokens = (qv_tokens){ .tokens = c->room.at, .capacity = info.tokens };
    for (int i = 0; i < m->n_deepstack; i++)
        c->tokens.deepstack[i] = (char *)c->room.at + (size_t)(1 + i) * tokens;
    return QV_OK;
}

/* Opens one way; ways with the same input and output share a plan. */
static qv_status
open_call(struct bench_calls *all, const struct way *way, qv_model *model, const qv_model_info *m,
          int64_t pairs, const int64_t grid[3], qv_error *err)
{
    struct bench_call *c = &all->calls[all->n++];
    qv_plan_options options = all->own->options;
    options.input = way->input;
    options.output = way->output ? way->output : all->own->options.output;
    qv_plan **plan = &all->plans[options.input][options.output == QV_F32];
    qv_status status = *plan ? QV_OK : qv_plan_create(model, &options, plan, err);
    *c = (struct bench_call){ .name = way->name,
                              .memory = memory_name(model->ctx, way->place),
                              .all = all,
                              .ctx = model->ctx,
                              .plan = *plan };
    return status ? status : open_data(c, way->place, m, pairs, grid, err);
}

qv_status
bench_calls_open(qv_plan *plan, int64_t pairs, const int64_t grid[3], struct bench_calls *out,
                 qv_error *err)
{
    qv_model *model = plan->model;
    qv_model_info m;
    qv_model_get_info(model, &m);
    *out = (struct bench_calls){ .own = plan };
    out->plans[QV_INPUT_FRAMES][plan->options.output == QV_F32] = plan;
    qv_status status = QV_OK;
    for (const struct way *way = ways; way < ways + BENCH_CALLS && !status; way++)
        if ((way->output != plan->options.output) &&
            (way->place != BENCH_ON_DEVICE || has_own_memory(model->ctx)))
            status = open_call(out, way, model, &m, pairs, grid, err);
    return status;
}

void
bench_calls_close(qv_context *ctx, struct bench_calls *all)
{
    for (int i = 0; i < all->n; i++) {
        close_block(ctx, &all->calls[i].data);
        close_block(ctx, &all->calls[i].room);
    }
    for (int input = 0; input < BENCH_INPUTS; input++)
        for (int f32 = 0; f32 < 2; f32++)
            if (all->plans[input][f32] != all->own)
                qv_plan_free(&all->plans[input][f32]);
    *all = (struct bench_calls){ 0 };
}

qv_status
bench_call_push(struct bench_call *c, int64_t pairs, qv_error *err)
{
    qv_item item = c->item;
    c->all->there = pairs == item.grid_thw[0] ? c->plan : NULL;
    item.grid_thw[0] = pairs;
    return qv_plan_push(c->plan, &item, 1, err);
}

qv_status
bench_call_run(void *call, double *ms, qv_error *err)
{
    struct bench_call *c = call;
    (void)ms;
    qv_status status = bench_call_push(c, c->item.grid_thw[0], err);
    if (!status)
        status = qv_plan_pull(c->plan, &c->tokens, err);
    /* on a stream of the caller's, the pull does not wait for tokens that stay on the device */
    return status || !c->room.memory ? status : c->ctx->backend->sync(c->ctx->dev, err);
}
