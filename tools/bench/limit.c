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

/* Opens the bare operations of one kind in the plan's list, with its weights, for n chunks. */
static qv_status
open_bare(qv_context *ctx, const qv_plan *plan, enum qv_op_kind kind, size_t n_chunks,
          struct bench_ops *out, qv_error *err)
{
    const struct qv_program *p = &plan->program;
    size_t n = 0;
    struct qv_step *steps = malloc((p->n + 1) * sizeof *steps);
    if (!steps)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    for (const struct qv_step *from = p->steps; from < p->steps + p->n; from++) {
        if (from->op.kind != kind)
            continue;
        const struct qv_op op = bare(from->op);
        steps[n] = bench_step(&op, from->operands[1] - SLOT_COUNT);
        if (from->operands[0] == SLOT_WINDOWS)
            steps[n].operands[0] = BENCH_WINDOWS;
        n++;
    }
    const qv_status status =
        bench_ops_open(ctx, steps, n, (int)n_chunks, plan->model->weights.buffers, out, err);
    free(steps);
    return status;
}

/* Uploads each chunk's lists of segments and of windows, if attention takes them. */
static qv_status
upload_lists(const struct qv_program *p, const qv_plan *plan, const struct bench_chunk *chunks,
             qv_error *err)
{
    const struct qv_config *c = &plan->model->config;
    struct qv_tables tables = { 0 };
    qv_status status = qv_tables_open(&plan->capacity, c, &tables, err);
    const struct {
        int place;
        const void *list;
    } lists[] = { { BENCH_LIST, tables.segments }, { BENCH_WINDOWS, tables.windows } };
    for (int i = 0; i < p->n_chunks && !status; i++) {
        qv_tables_fill(&tables, &plan->capacity, c, plan->model->dtype, chunks[i].items,
                       chunks[i].n);
        for (int j = 0; j < 2 && !status; j++)
            if (p->places[lists[j].place].bytes)
                status =
                    p->ctx->backend->upload(p->ctx->dev, qv_program_place(p, i, lists[j].place),
                                            lists[j].list, p->places[lists[j].place].bytes, err);
    }
    qv_tables_close(&tables);
    return status;
}

qv_status
bench_limit_open(qv_context *ctx, const qv_plan *plan, const struct bench_chunk *chunks, size_t n,
                 struct bench_limit *l, qv_error *err)
{
    *l = (struct bench_limit){ .chunks = (int64_t)n, .counted = ctx->caps.attention_of_gemms };
    for (size_t i = 0; i < plan->program.n; i++) {
        const struct qv_step *step = &plan->program.steps[i];
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
        status = upload_lists(&l->attention.program, plan, chunks, err);
    return status;
}

void
bench_limit_close(struct bench_limit *l)
{
    bench_ops_close(&l->gemms);
    bench_ops_close(&l->attention);
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
                                   .attention_ms = l->counted
                                                       ? l->attention_flops /
                                                             l->gemms.program.flops * g->median_ms
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
