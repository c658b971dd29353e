/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench tower: times a chunk's work on the device and compares it with its limit, which is
 * the GEMMs and the attention of the same chunk alone (each layer with its own weights, nothing
 * between them), and with its floor, which is the limit plus the time to move the bytes of all
 * other operations at the copy rate. It also times the same chunk as callers see it (calls.c),
 * alone and in a stream. A model whose weights stay quantised is set beside the same model with its
 * weights widened when they are loaded. All of these run alternately, so that their ratios mean something even on
 * a machine that is disturbed.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"

enum { ENCODE, STREAMED, CALLS, N_RUNS = CALLS + BENCH_CALLS + BENCH_LIMIT_RUNS + 1 };
enum { STREAMED_CHUNKS = 8 }; /* used if the grid is one chunk */

struct tower_bench {
    struct bench b;
    qv_model *model;
    qv_model_info m;
    qv_plan *plan;
    qv_plan_info info;
    struct {
        qv_model *model; /* NULL, as is the plan: the model has no weights that stay quantised */
        qv_plan *plan;
        qv_plan_info info;
        struct bench_run *run;
    } widened;
    int64_t pairs; /* frame pairs in a chunk */
    double flops;  /* FLOPs of a chunk */
    struct bench_calls calls;
    struct bench_limit limit;
    int64_t stream_chunks, stream_pairs; /* chunks and frame pairs of one stream */
    struct bench_run runs[N_RUNS];       /* the calls begin at CALLS, and the limit's runs follow
                                          * them */
    struct bench_run *limit_runs;
    char weights[32]; /* how weights stay quantised, such as "q4g64"; "": none does */
    double plan_new_ms, plan_seen_ms;
    double kind_ms[QV_OP_COUNT]; /* times of the operations one by one, by kind */
};

static void
close_all(struct tower_bench *t)
{
    bench_limit_close(t->b.ctx, &t->limit);
    bench_calls_close(t->b.ctx, &t->calls);
    qv_plan_free(&t->plan);
    qv_plan_free(&t->widened.plan);
    qv_model_free(&t->widened.model);
    qv_model_free(&t->model);
    bench_close(&t->b);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Opens a dense plan of so many frame pairs, or the plan that suits the grid. */
static qv_status
open_plan(struct tower_bench *t, qv_error *err)
{
    const struct tool_options *o = t->b.o;
    const int64_t *g = o->grid, pair_rows = g[1] * g[2];
    const int64_t rows = (o->bench_chunk < 0 ? g[0] : o->bench_chunk) * pair_rows;
    qv_plan_options options = { .grid_thw = { g[0], g[1], g[2] }, .output = t->m.dtype };
    if (o->bench_chunk)
        options.capacity = (qv_capacity){ .patches = rows, .segment_rows = pair_rows };
    qv_status status =
        bench_make_plan(t->model, &options, &t->plan, &t->plan_new_ms, &t->plan_seen_ms, err);
    if (status)
        return status;
    qv_plan_get_info(t->plan, &t->info);
    t->pairs = t->info.capacity.patches / pair_rows;
    if (!o->bench_chunk) /* the plan may have room for more */
        t->pairs = t->pairs < g[0] ? t->pairs : g[0];
    return QV_OK;
}

/* Names how weights stay quantised, as `bench gemm --weights` does. A tower's matrices are mostly
 * of one kind, so the first stands for all. */
static void
name_weights(struct tower_bench *t)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    const size_t n = qv_plan_steps(t->plan, &steps, &calls);
    for (size_t i = 0; i < n && !*t->weights; i++) {
        const struct qv_op *op = &steps[i].op;
        if (op->kind == QV_OP_gemm && op->u.gemm.w_bits)
            snprintf(t->weights, sizeof t->weights, "q%lldg%lld", (long long)op->u.gemm.w_bits,
                     (long long)op->u.gemm.w_group);
    }
}

/* Opens the same model with its weights widened, and a plan for the same chunks. */
static qv_status
open_widened(struct tower_bench *t, qv_error *err)
{
    struct tool_options o = *t->b.o;
    double new_ms = 0, seen_ms = 0;
    name_weights(t);
    o.weights.stored = false;
    qv_status status = tool_load_model(&o, t->b.ctx, o.model, false, &t->widened.model, err);
    const qv_plan_options options = { .capacity = t->info.capacity, .output = t->m.dtype };
    if (!status)
        status =
            bench_make_plan(t->widened.model, &options, &t->widened.plan, &new_ms, &seen_ms, err);
    if (!status)
        qv_plan_get_info(t->widened.plan, &t->widened.info);
    return status;
}

static bool
is_clip(const struct tower_bench *t) /* whether the grid takes several chunks */
{
    return t->b.o->grid[0] > t->pairs;
}

static struct bench_call *
whole_call(struct tower_bench *t)
{
    return &t->calls.calls[0];
}

static qv_status
open_all(struct tower_bench *t, const struct tool_options *o, qv_error *err)
{
    qv_status status = bench_open_model(&t->b, o, "tower", &t->model, &t->m, err);
    if (!status)
        status = open_plan(t, err);
    if (!status && t->m.stored_matrices)
        status = open_widened(t, err);
    if (!status)
        status = bench_calls_open(t->plan, t->pairs, o->grid, &t->calls, err);
    if (status)
        return status;
    t->stream_pairs = is_clip(t) ? o->grid[0] : t->pairs * STREAMED_CHUNKS;
    t->stream_chunks = (t->stream_pairs + t->pairs - 1) / t->pairs;
    const struct bench_chunk chunk = { &whole_call(t)->item, 1 };
    t->flops = qv_plan_flops(t->plan, NULL, chunk.items, chunk.n);
    return o->no_limit ? QV_OK : bench_limit_open(t->b.ctx, t->plan, &chunk, 1, &t->limit, err);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Makes sure that a full chunk is on the device, since other plans and streams may have left
 * something else. */
static qv_status
be_there(struct tower_bench *t, qv_error *err)
{
    double ms;
    return t->calls.there == t->plan ? QV_OK : bench_call_run(whole_call(t), &ms, err);
}

/* On a device to which work is launched, the chunk is run twice and the second run is timed: the
 * first keeps the device busy until the second is launched. */
static qv_status
encode(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    qv_status status = be_there(t, err);
    if (!status && t->b.ctx->backend->record)
        status = qv_plan_work(t->plan, err);
    if (!status)
        status = qv_plan_work(t->plan, err);
    return status ? status : bench_elapsed(t->b.ctx, ms, err);
}

/* Runs the same chunk through the widened model. */
static qv_status
encode_widened(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    struct bench_call *call = whole_call(t);
    t->calls.there = NULL;
    return bench_run_chunk(t->widened.plan, &call->item, 1, &call->tokens, ms, err);
}

/* Streams chunks one behind the other, as many pushed ahead as the plan takes; timed by the host's
 * clock. */
static qv_status
stream(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    int64_t left = t->stream_pairs, ahead = 0;
    qv_status status = QV_OK;
    (void)ms;
    while ((left || ahead) && !status) {
        if (!left || ahead == t->info.chunks_ahead) {
            status = qv_plan_pull(t->plan, &whole_call(t)->tokens, err);
            ahead--;
            continue;
        }
        int64_t n = left < t->pairs ? left : t->pairs;
        status = bench_call_push(whole_call(t), n, err);
        left -= n;
        ahead++;
    }
    return status;
}

static qv_status
time_kinds(struct tower_bench *t, qv_error *err)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(t->plan, &steps, &calls);
    double *ms = calloc(n, sizeof *ms);
    if (!ms)
        return qv_fail(err, QV_ENOMEM, "no memory for times");
    qv_status status = bench_step_through(t->b.ctx, t->plan, ms, err);
    for (size_t i = 0; i < n && !status; i++)
        t->kind_ms[steps[i].op.kind] += ms[i];
    free(ms);
    return status;
}

static qv_status
run_all(struct tower_bench *t, qv_error *err)
{
    int n = CALLS;
    t->runs[ENCODE] = (struct bench_run){ .work = encode, .user = t };
    t->runs[STREAMED] = (struct bench_run){ .work = stream, .user = t };
    for (int i = 0; i < t->calls.n; i++)
        t->runs[n++] = (struct bench_run){ .work = bench_call_run, .user = &t->calls.calls[i] };
    t->limit_runs = &t->runs[n];
    n += t->b.o->no_limit ? 0 : bench_limit_runs(&t->limit, t->limit_runs);
    t->widened.run = &t->runs[n];
    if (t->widened.plan)
        t->runs[n++] = (struct bench_run){ .work = encode_widened, .user = t };
    qv_status status = bench_time(&t->b, t->runs, n, err);
    if (!status)
        status = be_there(t, err);
    return status ? status : time_kinds(t, err);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static struct bench_bounds
bounds_of(const struct tower_bench *t)
{
    return bench_limit_bounds(&t->b, &t->limit, t->limit_runs);
}

static double
encode_ms(const struct tower_bench *t)
{
    return t->runs[ENCODE].times.median_ms;
}

static int64_t
patches(const struct tower_bench *t, int64_t pairs)
{
    return pairs * t->b.o->grid[1] * t->b.o->grid[2];
}

static double
over_widened(const struct tower_bench *t)
{
    return encode_ms(t) / t->widened.run->times.median_ms;
}

/* Returns the time per chunk in a stream. */
static double
streamed_ms(const struct tower_bench *t)
{
    return t->runs[STREAMED].times.median_ms / (double)t->stream_chunks;
}

/* Returns the time per patch in a stream. */
static double
patch_us(const struct tower_bench *t)
{
    return t->runs[STREAMED].times.median_ms * 1e3 / (double)patches(t, t->stream_pairs);
}

static json_t *
shape_json(const struct tower_bench *t, int64_t pairs)
{
    const int64_t *grid = t->b.o->grid;
    json_t *j = json_pack("{s:I, s:[I,I,I]}", "patches", (json_int_t)patches(t, pairs), "grid_thw",
                          (json_int_t)pairs, (json_int_t)grid[1], (json_int_t)grid[2]);
    if (*t->weights)
        json_object_set_new(j, "stored", json_string(t->weights));
    return j;
}

static json_t *
encode_json(const struct tower_bench *t)
{
    json_t *j = shape_json(t, t->pairs), *kinds = json_object();
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (t->kind_ms[kind] > 0)
            json_object_set_new(kinds, qv_op_name((enum qv_op_kind)kind),
                                json_real(t->kind_ms[kind]));
    json_object_update_new(j, json_pack("{s:f, s:f, s:o, s:I, s:I}", "plan_new_ms", t->plan_new_ms,
                                        "plan_seen_ms", t->plan_seen_ms, "kinds_ms", kinds,
                                        "arena_bytes", (json_int_t)t->info.arena_bytes,
                                        "weight_bytes", (json_int_t)t->info.weight_bytes));
    if (t->widened.plan)
        json_object_update_new(j, json_pack("{s:f, s:f, s:I}", "widened_ms",
                                            t->widened.run->times.median_ms, "over_widened",
                                            over_widened(t), "widened_weight_bytes",
                                            (json_int_t)t->widened.info.weight_bytes));
    const struct bench_bounds bounds = bounds_of(t);
    if (!t->b.o->no_limit)
        json_object_update_new(j, bench_bounds_json(&bounds, encode_ms(t)));
    return j;
}

/* Reports the stream: for a clip of several chunks all of it, else one chunk in a stream of
 * several. */
static qv_status
report_stream(struct tower_bench *t, const char *model, struct bench_record r, qv_error *err)
{
    int64_t pairs = is_clip(t) ? t->b.o->grid[0] : t->pairs;
    double parts = is_clip(t) ? 1 : (double)t->stream_chunks;
    double chunks = (double)t->stream_chunks / parts;
    char work[160];
    snprintf(work, sizeof work, "%s %lld patches", model, (long long)patches(t, pairs));
    r.work = work;
    r.way = "streamed";
    r.times = t->runs[STREAMED].times;
    r.times.median_ms /= parts;
    r.times.p90_ms /= parts;
    r.flops = t->flops * (double)t->stream_pairs / (double)t->pairs / parts;
    r.bytes = t->info.bytes * chunks;
    r.extras = shape_json(t, pairs);
    json_object_update_new(r.extras, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "memory",
                                               t->calls.calls[0].memory, "chunks",
                                               (json_int_t)t->stream_chunks, "chunk_pairs",
                                               (json_int_t)t->pairs, "chunks_ahead",
                                               (json_int_t)t->info.chunks_ahead, "ms_per_chunk",
                                               streamed_ms(t), "us_per_patch", patch_us(t),
                                               "over_encode", streamed_ms(t) / encode_ms(t),
                                               "arena_bytes", (json_int_t)t->info.arena_bytes));
    if (!t->b.o->no_limit) {
        const struct bench_bounds bounds = bounds_of(t);
        bench_put_over_bounds(r.extras, &bounds, streamed_ms(t));
    }
    return bench_report(&t->b, &r, err);
}

static qv_status
report_calls(struct tower_bench *t, struct bench_record r, qv_error *err)
{
    qv_status status = QV_OK;
    for (int i = 0; i < t->calls.n && !status; i++) {
        char note[40];
        qv_plan_info info;
        const struct bench_call *call = &t->calls.calls[i];
        qv_plan_get_info(call->plan, &info);
        r.way = call->name;
        r.times = t->runs[CALLS + i].times;
        r.bytes = info.bytes;
        const double over_encode = r.times.median_ms / encode_ms(t);
        snprintf(note, sizeof note, "%.3f times encode", over_encode);
        r.note = note;
        r.extras = shape_json(t, t->pairs);
        json_object_update_new(r.extras, json_pack("{s:s, s:f}", "memory", call->memory,
                                                   "over_encode", over_encode));
        status = bench_report(&t->b, &r, err);
    }
    return status;
}

static void
print_summary(const struct tower_bench *t)
{
    const struct bench_bounds bounds = bounds_of(t);
    const double ms = encode_ms(t);
    tool_print("\n");
    if (!t->b.o->no_limit)
        bench_print_bounds(&bounds, ms);
    tool_print(
        "  stream       %lld chunks of %lld frame pair%s: %.2f ms each, %.3f us a patch, %.3f "
        "times encode\n",
        (long long)t->stream_chunks, (long long)t->pairs, t->pairs == 1 ? "" : "s", streamed_ms(t),
        patch_us(t), streamed_ms(t) / ms);
    tool_print("  memory       weights %.1f MB, arena %.1f MB\n",
               (double)t->info.weight_bytes * 1e-6, (double)t->info.arena_bytes * 1e-6);
    if (t->widened.plan)
        tool_print(
            "  widened      weights %.1f MB when loaded: %.3f ms, so %s takes %.3f times as long\n",
            (double)t->widened.info.weight_bytes * 1e-6, t->widened.run->times.median_ms,
            t->weights, over_widened(t));
    tool_print("  plan         %.2f ms for a new shape, %.3f ms for a seen one\n  one by one  ",
               t->plan_new_ms, t->plan_seen_ms);
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (t->kind_ms[kind] > 0)
            tool_print(" %s %.2f ms", qv_op_name((enum qv_op_kind)kind), t->kind_ms[kind]);
    tool_print("\n");
}

static qv_status
report(struct tower_bench *t, qv_error *err)
{
    char base[60], name[100], work[160];
    bench_base_name(t->b.o->model, base, sizeof base);
    snprintf(name, sizeof name, "%s%s%s", base, *t->weights ? " " : "", t->weights);
    snprintf(work, sizeof work, "%s %lld patches", name, (long long)patches(t, t->pairs));
    struct bench_record r = { .work = work,
                              .way = "encode",
                              .dtype = t->m.dtype,
                              .times = t->runs[ENCODE].times,
                              .flops = t->flops,
                              .bytes = t->info.bytes,
                              .extras = encode_json(t) };
    qv_status status = bench_report(&t->b, &r, err);
    if (!status)
        status = report_calls(t, r, err);
    if (!status && !t->b.o->no_limit) {
        const struct bench_bounds bounds = bounds_of(t);
        r.extras = shape_json(t, t->pairs);
        status = bench_report_bounds(&t->b, &t->limit, &bounds, "", r, err);
    }
    if (!status)
        status = report_stream(t, name, r, err);
    if (!status && bench_talks(&t->b))
        print_summary(t);
    return status;
}

qv_status
bench_tower(const struct tool_options *o, qv_error *err)
{
    struct tower_bench t = { 0 };
    if (o->alone && !o->pack)
        return qv_fail(err, QV_EINVAL, "bench tower: --alone goes with --pack FILE");
    if (o->pack)
        return bench_tower_pack(o, err);
    qv_status status = open_all(&t, o, err);
    if (!status)
        status = bench_begin(&t.b, t.m.dtype,
                             "encode: a chunk's work on the device; whole call and streamed: from "
                             "pixels to tokens in memory of qv_host_alloc\nlimit: the same GEMMs, "
                             "without epilogues, "
                             "and the same attention, each layer with its own weights",
                             err);
    if (!status)
        status = run_all(&t, err);
    if (!status)
        status = report(&t, err);
    close_all(&t);
    return status;
}
