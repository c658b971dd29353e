/* SPDX-License-Identifier: MIT */
/* Bounds of a tower: its limit and its floor, from its GEMMs and attention alone, and the bytes
 * moved between them. */
#include <stdlib.h>

#include "bench.h"
#include "error.h"

/* Returns a GEMM without the epilogue that is fused to it; any other operation unchanged. */
static struct qv_op
bare(struct qv_op op)
{
    if (op.kind == QV_OP_gemm) {
        op.u.gemm.alpha = 1;
        op.u.gemm.bias = 0;
        op.u.gemm.act = QV_ACT_NONE;
        op.u.gemm.residual_rows = 0;
    }
    return op;
}

/* Opens the bare operations of one kind in the plan's list, repeated `times` times; each GEMM has
 * its own weight. */
static qv_status
open_bare(qv_context *ctx, const qv_plan *plan, enum qv_op_kind kind, size_t times,
          struct bench_ops *out, qv_error *err)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(plan, &steps, &calls), used = 0;
    struct qv_op *ops = malloc((times * n + 1) * sizeof *ops);
    if (!ops)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    for (size_t i = 0; i < times * n; i++)
        if (steps[i % n].op.kind == kind)
            ops[used++] = bare(steps[i % n].op);
    qv_status status = bench_ops_open(ctx, ops, used, out, err);
    free(ops);
    used = 0;
    for (size_t i = 0; i < n && !status && kind == QV_OP_gemm; i++)
        if (steps[i].op.kind == kind)
            out->calls[used++].operands[1] = calls[i].operands[1];
    return status;
}

/* Sets the chunk's list of segments, or of windows, in the attention of each of its layers. */
static void
hand_out_lists(const qv_plan *plan, size_t chunk, size_t layers, const struct qv_buffer lists[2],
               struct bench_limit *l)
{
    struct qv_call *call = &l->attention.calls[chunk * layers];
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        if (step->op.kind == QV_OP_attention && step->operands[0] != QV_NO_OPERAND)
            call->operands[0] = lists[step->operands[0] == SLOT_WINDOWS];
        call += step->op.kind == QV_OP_attention;
    }
}

static qv_status
upload_lists(qv_context *ctx, const qv_plan *plan, const struct bench_chunk *chunks, size_t n,
             struct bench_limit *l, qv_error *err)
{
    const struct qv_capacity *capacity = &plan->capacity;
    const size_t bytes[2] = {
        (size_t)(QV_SEGMENT_LISTS * (capacity->segments + 1)) * sizeof(int32_t),
        (size_t)(QV_SEGMENT_LISTS * (capacity->windows + 1)) * sizeof(int32_t)
    };
    const size_t apart = qv_aligned(bytes[0]) + qv_aligned(bytes[1]);
    struct qv_tables tables = { 0 };
    qv_status status = qv_tables_open(capacity, &plan->model->config, &tables, err);
    if (!status)
        status = ctx->backend->alloc(ctx->dev, n * apart, &l->lists, err);
    for (size_t i = 0; i < n && !status; i++) {
        const struct qv_buffer at[2] = { { l->lists, i * apart },
                                         { l->lists, i * apart + qv_aligned(bytes[0]) } };
        qv_tables_fill(&tables, capacity, &plan->model->config, plan->model->dtype, chunks[i].items,
                       chunks[i].n);
        status = ctx->backend->upload(ctx->dev, at[0], tables.segments, bytes[0], err);
        if (!status)
            status = ctx->backend->upload(ctx->dev, at[1], tables.windows, bytes[1], err);
        hand_out_lists(plan, i, l->attention.n / n, at, l);
    }
    qv_tables_close(&tables);
    return status;
}

qv_status
bench_limit_open(qv_context *ctx, const qv_plan *plan, const struct bench_chunk *chunks, size_t n,
                 struct bench_limit *l, qv_error *err)
{
    *l = (struct bench_limit){ .chunks = (int64_t)n, .counted = ctx->caps.attention_of_gemms };
    for (size_t i = 0; i < plan->steps.n; i++) {
        const struct qv_step *step = &plan->steps.steps[i];
        const struct qv_op *op = &step->op;
        bool bounds = op->kind == QV_OP_gemm || op->kind == QV_OP_attention;
        *(bounds ? &l->bytes : &l->between_bytes) += (double)n * qv_op_bytes(op);
        for (size_t j = 0; j < n && bounds; j++)
            *(op->kind == QV_OP_gemm ? &l->flops : &l->attention_flops) +=
                qv_plan_flops(plan, step, chunks[j].items, chunks[j].n);
    }
    l->flops += l->attention_flops;
    qv_status status = open_bare(ctx, plan, QV_OP_gemm, 1, &l->gemms, err);
    if (!status && !l->counted)
        status = open_bare(ctx, plan, QV_OP_attention, n, &l->attention, err);
    if (!status && !l->counted)
        status = upload_lists(ctx, plan, chunks, n, l, err);
    return status;
}

void
bench_limit_close(qv_context *ctx, struct bench_limit *l)
{
    bench_ops_close(&l->gemms);
    bench_ops_close(&l->attention);
    if (l->lists)
        ctx->backend->free(ctx->dev, l->lists);
    l->lists = NULL;
}

void
bench_limit_runs(struct bench_limit *l, struct bench_run runs[BENCH_LIMIT_RUNS])
{
    runs[0] = (struct bench_run){ .work = bench_list_run, .user = &l->gemms.list };
    if (!l->counted)
        runs[1] = (struct bench_run){ .work = bench_list_run, .user = &l->attention.list };
}

struct bench_bounds
bench_limit_bounds(const struct bench *b, const struct bench_limit *l,
                   const struct bench_run runs[BENCH_LIMIT_RUNS])
{
    const struct bench_times *g = &runs[0].times, *a = &runs[1].times;
    const double chunks = (double)l->chunks;
    struct bench_bounds bounds = { .gemm_ms = chunks * g->median_ms,
                                   .attention_ms = l->counted ? l->attention_flops /
                                                                    l->gemms.flops * g->median_ms
                                                              : a->median_ms };
    double limit_ms = bounds.gemm_ms + bounds.attention_ms;
    double p90 = chunks * g->p90_ms + (l->counted ? bounds.attention_ms : a->p90_ms);
    bounds.limit =
        (struct bench_times){ limit_ms, p90,
                              l->counted || g->repeats < a->repeats ? g->repeats : a->repeats };
    bounds.floor_ms = limit_ms + l->between_bytes / b->copy.per_s * 1e3;
    bounds.floor_known = b->copy.known;
    return bounds;
}

void
bench_put_bounds(json_t *record, const struct bench_bounds *bounds, double ms)
{
    json_t *parts = tool_json("gemm_ms:f attention_ms:f", bounds->gemm_ms, bounds->attention_ms);
    bench_put_figure(parts, "between_ms", bench_beyond_ms(ms, bounds->limit.median_ms));
    json_object_set_new(record, "parts", parts);
    json_object_set_new(record, "limit_ms", json_real(bounds->limit.median_ms));
    if (bounds->floor_known)
        json_object_set_new(record, "floor_ms", json_real(bounds->floor_ms));
    bench_put_figure(record, "over_limit", bench_over(ms, bounds->limit.median_ms, true));
    bench_put_figure(record, "over_floor", bench_over(ms, bounds->floor_ms, bounds->floor_known));
}

qv_status
bench_report_bounds(struct bench *b, const struct bench_limit *l, const struct bench_bounds *bounds,
                    const char *prefix, struct bench_record r, qv_error *err)
{
    char ways[2][40];
    struct bench_record limit = r, floor = r;
    snprintf(ways[0], sizeof ways[0], "%slimit", prefix);
    snprintf(ways[1], sizeof ways[1], "%sfloor", prefix);
    limit.way = ways[0];
    limit.times = floor.times = bounds->limit;
    limit.flops = l->flops;
    limit.bytes = l->bytes;
    limit.extras = json_copy(r.extras);
    tool_json_add(&limit.extras, "gemm_ms:f attention_ms:f attention_counted:b", bounds->gemm_ms,
                  bounds->attention_ms, l->counted);
    limit.show = "gemm_ms attention_ms attention_counted";
    floor.way = ways[1];
    floor.computed = true;
    floor.times.median_ms = bounds->floor_ms;
    floor.times.p90_ms += bounds->floor_ms - bounds->limit.median_ms;
    floor.bytes = l->bytes + l->between_bytes;
    qv_status status = bench_report(b, &limit, err);
    if (!status && bounds->floor_known)
        return bench_report(b, &floor, err);
    json_decref(r.extras);
    return status;
}
