/* SPDX-License-Identifier: MIT */
/* Bounds: the roofline of a device, from the best GEMM and the best rate at which memory is read or
 * copied; the limit and the floor of a tower, from its GEMMs and its attention alone, and the bytes
 * between. */
#include <stdlib.h>

#include "bench.h"
#include "error.h"

/* ---- the roofline ---------------------------------------------------------------------------- */

/* Returns how long a run should be: sizes grow until one takes a good part of it. A user who asks
 * for few repeats wants a quick answer, so it is less then. */
static double
long_ms(const struct bench *b)
{
    return b->o->repeats < 7 ? 100 * (double)b->o->repeats / 7 : 100;
}

/* Finds the shortest of several runs after one that warms up: anything that makes a run longer is
 * not the machine's limit. */
static qv_status
best_ms(const struct bench *b, struct bench_ops *ops, double *best, qv_error *err)
{
    double began = qv_seconds(), least_s = 0.06 + 0.04 * (double)b->o->repeats, ms;
    qv_status status = bench_list_run(&ops->list, &ms, err);
    *best = 1e30;
    for (int i = 0; i < 1000 && !status; i++) {
        if (bench_is_spent(b) ? i > 0 : i >= 3 && qv_seconds() - began >= least_s)
            break;
        status = bench_list_run(&ops->list, &ms, err);
        *best = ms < *best ? ms : *best;
    }
    return status;
}

static qv_status
time_gemm(const struct bench *b, qv_dtype dtype, int64_t rows, int64_t size, double *ms,
          double *flops, double *bytes, qv_error *err)
{
    const struct qv_op_gemm gemm = { .m = rows, .n = size, .k = size, .alpha = 1 };
    struct bench_ops ops = { 0 };
    qv_status status = bench_gemm_open(b->ctx, &gemm, dtype, &ops, err);
    *flops = ops.program.flops;
    *bytes = ops.program.bytes;
    if (!status)
        status = best_ms(b, &ops, ms, err);
    bench_ops_close(&ops);
    return status;
}

/* Times a copy of a buffer, as the mean of one there and one back. */
static qv_status
time_copy(const struct bench *b, size_t bytes, double *ms, qv_error *err)
{
    struct qv_op there = { .kind = QV_OP_convert, .u.convert = { .n = (int64_t)(bytes / 4) } };
    struct bench_ops ops;
    qv_op_set_dtype(&there, QV_F32);
    struct qv_step steps[2] = { bench_step(&there, 0), bench_step(&there, 0) };
    steps[1].operands[0] = steps[0].operands[1];
    steps[1].operands[1] = steps[0].operands[0];
    qv_status status = bench_ops_open(b->ctx, steps, 2, 1, NULL, &ops, err);
    if (!status)
        status = best_ms(b, &ops, ms, err);
    *ms /= 2;
    bench_ops_close(&ops);
    return status;
}

/* What is measured of a device. */
enum rated {
    PEAK, /* the best square GEMM */
    /* a GEMM of one row, which reads a matrix once and writes almost nothing. It is up to twice as
     * fast as a copy, since CPUs read memory before they write it. */
    READING,
    COPY
};

static qv_status
time_rate(const struct bench *b, enum rated what, qv_dtype dtype, int64_t size, double *ms,
          double *per_s, qv_error *err)
{
    double flops = 0, bytes = 2.0 * (double)size; /* of a copy */
    const qv_status status =
        what == COPY ? time_copy(b, (size_t)size, ms, err)
                     : time_gemm(b, dtype, what == PEAK ? size : 1, size, ms, &flops, &bytes, err);
    *per_s = status ? 0 : (what == PEAK ? flops : bytes) / *ms * 1e3;
    return status;
}

/* Sizes grow while a run is short. Sizes of copies are far larger than any cache, except on a slow
 * device, where caches do not matter; the largest are for GPUs, which copy them in a fraction of a
 * millisecond. Only the last size is certain not to come from a cache. */
static const struct {
    enum rated what;
    int64_t size;
    double most; /* the size is tried if the one before took less than this share of long_ms() */
} rated_sizes[] = {
    { PEAK, 256, 1 },          { PEAK, 512, 0.25 },       { PEAK, 1024, 0.25 },
    { PEAK, 2048, 0.25 },      { PEAK, 4096, 0.25 },      { PEAK, 8192, 0.25 },
    { READING, 4096, 1 },      { READING, 8192, 0.125 },  { READING, 16384, 0.01 },
    { COPY, 16 << 20, 1 },     { COPY, 64 << 20, 0.125 }, { COPY, 256 << 20, 0.125 },
    { COPY, 512 << 20, 0.01 },
};

/* Finds the size that shows the rate, and measures there until two measurements agree. */
static qv_status
measure(const struct bench *b, enum rated what, qv_dtype dtype, struct bench_rate *out,
        qv_error *err)
{
    double rates[BENCH_MOST_RATES] = { 0 }, ms = 0, per_s;
    int64_t size = 0;
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof rated_sizes / sizeof *rated_sizes && !status; i++) {
        if (rated_sizes[i].what != what || ms >= rated_sizes[i].most * long_ms(b) ||
            (size && bench_is_spent(b)))
            continue;
        status = time_rate(b, what, dtype, rated_sizes[i].size, &ms, &per_s, err);
        if (what != PEAK || per_s > rates[0]) {
            rates[0] = per_s;
            size = rated_sizes[i].size;
        }
    }
    *out = bench_rate_of(rates, 1);
    for (int n = 1; n < BENCH_MOST_RATES && !status && !out->known && !bench_is_spent(b); n++) {
        status = time_rate(b, what, dtype, size, &ms, &rates[n], err);
        *out = bench_rate_of(rates, n + 1);
    }
    return status;
}

/* Memory is measured once, by the first dtype: a run has one roofline. */
qv_status
bench_measure_roofline(struct bench *b, qv_dtype dtype, qv_error *err)
{
    struct bench_rate peak = { 0 }, reading;
    qv_status status = b->copy.per_s > 0 ? QV_OK : measure(b, COPY, dtype, &b->copy, err);
    if (status || b->peak[dtype].per_s > 0)
        return status;
    status = measure(b, PEAK, dtype, &peak, err);
    if (status)
        return status;
    b->peak[dtype] = peak;
    if (b->memory.per_s > 0)
        return QV_OK;
    status = measure(b, READING, dtype, &reading, err);
    if (!status)
        b->memory = reading.per_s > b->copy.per_s ? reading : b->copy;
    return status;
}

/* ---- the limit and the floor ----------------------------------------------------------------- */

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
