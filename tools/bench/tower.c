/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench tower: a chunk's work on the device against its limit, the GEMMs and the attention
 * of the same chunk alone (each layer with its own weights, nothing between them, run in turn), and
 * its floor: the limit and what moving the bytes of everything between takes at the copy rate. Then
 * the same chunk as a caller sees it, from host memory to host memory: alone, and in a stream.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "error.h"

enum { ENCODE, GEMMS, ATTENTION, N_BOUNDED, WHOLE_CALL = N_BOUNDED, STREAMED, N_RUNS };
enum { STREAMED_CHUNKS = 8 }; /* where the grid is one chunk */

struct tower_bench {
    struct bench b;
    qv_model *model;
    qv_model_info m;
    qv_plan *plan;
    qv_plan_info info;
    uint8_t *frames;
    size_t frame_bytes;
    qv_tokens tokens;
    struct bench_ops gemms, attention;
    double between_bytes;
    int64_t stream_chunks, stream_frames; /* of one stream */
    struct bench_run runs[N_RUNS];
    double plan_new_ms, plan_seen_ms;
    double kind_ms[QV_OP_COUNT]; /* step by step */
};

static void
close_all(struct tower_bench *t)
{
    bench_ops_close(&t->gemms);
    bench_ops_close(&t->attention);
    free(t->frames);
    free(t->tokens.tokens);
    for (int i = 0; i < QV_MAX_DEEPSTACK; i++)
        free(t->tokens.deepstack[i]);
    qv_plan_free(&t->plan);
    qv_model_free(&t->model);
    bench_close(&t->b);
}

/* ---- the limit ------------------------------------------------------------------------------- */

/* The bare operations of one kind in the plan's list, each gemm with its own weight. */
static qv_status
open_bare(struct tower_bench *t, enum qv_op_kind kind, struct bench_ops *out, qv_error *err)
{
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(t->plan, &steps, &calls), used = 0;
    struct qv_op *ops = malloc((n + 1) * sizeof *ops);
    if (!ops)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    for (size_t i = 0; i < n; i++)
        if (steps[i].op.kind == kind)
            ops[used++] = bench_bare(steps[i].op);
    qv_status status = bench_ops_open(t->b.ctx, ops, used, out, err);
    free(ops);
    used = 0;
    for (size_t i = 0; i < n && !status && kind == QV_OP_gemm; i++)
        if (steps[i].op.kind == kind)
            out->calls[used++].operands[1] = calls[i].operands[1];
    return status;
}

static qv_status
open_limit(struct tower_bench *t, qv_error *err)
{
    qv_status status = open_bare(t, QV_OP_gemm, &t->gemms, err);
    if (!status)
        status = open_bare(t, QV_OP_attention, &t->attention, err);
    t->between_bytes = t->info.bytes;
    const struct qv_step *steps;
    const struct qv_call *calls;
    size_t n = qv_plan_steps(t->plan, &steps, &calls);
    for (size_t i = 0; i < n; i++)
        if (steps[i].op.kind == QV_OP_gemm || steps[i].op.kind == QV_OP_attention)
            t->between_bytes -= qv_op_bytes(&steps[i].op);
    return status;
}

/* ---- making ---------------------------------------------------------------------------------- */

static qv_status
open_plan(struct tower_bench *t, qv_error *err)
{
    const struct tool_options *o = t->b.o;
    qv_plan_options shape = { .grid_h = o->grid[1],
                              .grid_w = o->grid[2],
                              .chunk_pairs = o->bench_chunk < 0 ? o->grid[0] : o->bench_chunk };
    qv_status status = QV_OK;
    for (int i = 0; i < 2 && !status; i++) {
        qv_plan_free(&t->plan);
        double began = tool_seconds();
        status = qv_plan_create(t->model, &shape, &t->plan, err);
        *(i ? &t->plan_seen_ms : &t->plan_new_ms) = (tool_seconds() - began) * 1e3;
    }
    if (!status)
        qv_plan_get_info(t->plan, &t->info);
    return status;
}

static bool
is_clip(const struct tower_bench *t) /* of several chunks */
{
    return t->b.o->grid[0] > t->info.chunk_pairs;
}

static qv_status
open_data(struct tower_bench *t, qv_error *err)
{
    const int64_t *grid = t->b.o->grid;
    t->stream_frames = t->info.chunk_frames * STREAMED_CHUNKS;
    if (is_clip(t))
        t->stream_frames = t->info.chunk_frames / t->info.chunk_pairs * grid[0];
    t->stream_chunks = (t->stream_frames + t->info.chunk_frames - 1) / t->info.chunk_frames;
    t->frame_bytes =
        (size_t)(grid[1] * grid[2] * t->m.patch_size * t->m.patch_size * t->m.in_channels);
    t->frames = malloc((size_t)t->info.chunk_frames * t->frame_bytes);
    t->tokens.capacity = t->info.chunk_pairs * t->info.tokens_per_pair;
    size_t bytes = (size_t)(t->tokens.capacity * t->m.out_hidden) * sizeof(float);
    bool ok = t->frames && (t->tokens.tokens = malloc(bytes)) != NULL;
    for (int i = 0; i < t->m.n_deepstack; i++)
        ok = (t->tokens.deepstack[i] = malloc(bytes)) != NULL && ok;
    if (!ok)
        return qv_fail(err, QV_ENOMEM, "no memory for a chunk of frames and its tokens");
    bench_fill(t->frames, QV_U8, (size_t)t->info.chunk_frames * t->frame_bytes);
    return QV_OK;
}

static qv_status
open_all(struct tower_bench *t, const struct tool_options *o, qv_error *err)
{
    qv_model_options options = { .dtype = o->dtype };
    qv_status status = bench_open(&t->b, o, "tower", err);
    if (!status)
        status = qv_model_load(t->b.ctx, o->model, &options, &t->model, err);
    if (!status)
        status = open_plan(t, err);
    if (status)
        return status;
    qv_model_get_info(t->model, &t->m);
    status = open_data(t, err);
    return status || o->no_limit ? status : open_limit(t, err);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Where work is launched it is done twice, and timed the second time: the first keeps the device
 * busy meanwhile. */
static qv_status
encode(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    qv_status status = t->b.ctx->backend->record ? qv_plan_work(t->plan, err) : QV_OK;
    if (!status)
        status = qv_plan_work(t->plan, err);
    return status ? status : bench_elapsed(t->b.ctx, ms, err);
}

/* By the host's clock, as are streams. */
static qv_status
call(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    (void)ms;
    qv_status status = qv_plan_push(t->plan, t->frames, t->info.chunk_frames, err);
    return status ? status : qv_plan_pull(t->plan, &t->tokens, err);
}

/* Chunks one behind the other, as many pushed ahead as the plan takes. */
static qv_status
stream(void *user, double *ms, qv_error *err)
{
    struct tower_bench *t = user;
    int64_t left = t->stream_frames, ahead = 0;
    qv_status status = QV_OK;
    (void)ms;
    while ((left || ahead) && !status) {
        if (!left || ahead == t->info.chunks_ahead) {
            status = qv_plan_pull(t->plan, &t->tokens, err);
            ahead--;
            continue;
        }
        int64_t n = left < t->info.chunk_frames ? left : t->info.chunk_frames;
        status = qv_plan_push(t->plan, t->frames, n, err);
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
    double ms;
    t->runs[ENCODE] = (struct bench_run){ .work = encode, .user = t };
    t->runs[GEMMS] = (struct bench_run){ .work = bench_ops_run, .user = &t->gemms };
    t->runs[ATTENTION] = (struct bench_run){ .work = bench_ops_run, .user = &t->attention };
    t->runs[WHOLE_CALL] = (struct bench_run){ .work = call, .user = t };
    t->runs[STREAMED] = (struct bench_run){ .work = stream, .user = t };
    qv_status status = call(t, &ms, err); /* from here on there is input on the device */
    if (!status)
        status = bench_time(&t->b, t->runs, t->b.o->no_limit ? 1 : N_BOUNDED, err);
    if (!status)
        status = bench_time(&t->b, &t->runs[WHOLE_CALL], 1, err);
    if (!status)
        status = bench_time(&t->b, &t->runs[STREAMED], 1, err);
    return status ? status : time_kinds(t, err);
}

/* ---- telling --------------------------------------------------------------------------------- */

struct bounds {
    double encode_ms, gemm_ms, attention_ms, limit_ms, between_ms, floor_ms;
};

static struct bounds
bounds_of(const struct tower_bench *t)
{
    struct bounds b = { .encode_ms = t->runs[ENCODE].times.median_ms,
                        .gemm_ms = t->runs[GEMMS].times.median_ms,
                        .attention_ms = t->runs[ATTENTION].times.median_ms };
    b.limit_ms = b.gemm_ms + b.attention_ms;
    b.between_ms = b.encode_ms - b.limit_ms;
    b.floor_ms = b.limit_ms + t->between_bytes / t->b.copy_bytes * 1e3;
    return b;
}

static int64_t
patches(const struct tower_bench *t, int64_t pairs)
{
    return pairs * t->b.o->grid[1] * t->b.o->grid[2];
}

/* In a stream: of a chunk; of a patch. */
static double
streamed_ms(const struct tower_bench *t)
{
    return t->runs[STREAMED].times.median_ms / (double)t->stream_chunks;
}

static double
patch_us(const struct tower_bench *t)
{
    int64_t all = is_clip(t) ? t->b.o->grid[0] : t->stream_chunks * t->info.chunk_pairs;
    return t->runs[STREAMED].times.median_ms * 1e3 / (double)patches(t, all);
}

static json_t *
shape_json(const struct tower_bench *t, int64_t pairs)
{
    const int64_t *grid = t->b.o->grid;
    return json_pack("{s:I, s:[I,I,I]}", "patches", (json_int_t)patches(t, pairs), "grid_thw",
                     (json_int_t)pairs, (json_int_t)grid[1], (json_int_t)grid[2]);
}

static json_t *
encode_json(const struct tower_bench *t)
{
    json_t *j = shape_json(t, t->info.chunk_pairs), *kinds = json_object();
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (t->kind_ms[kind] > 0)
            json_object_set_new(kinds, qv_op_name((enum qv_op_kind)kind),
                                json_real(t->kind_ms[kind]));
    json_object_update_new(j, json_pack("{s:f, s:f, s:o, s:I, s:I}", "plan_new_ms", t->plan_new_ms,
                                        "plan_seen_ms", t->plan_seen_ms, "kinds_ms", kinds,
                                        "arena_bytes", (json_int_t)t->info.arena_bytes,
                                        "weight_bytes", (json_int_t)t->info.weight_bytes));
    if (t->b.o->no_limit)
        return j;
    struct bounds b = bounds_of(t);
    json_object_update_new(j,
                           json_pack("{s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "limit_ms",
                                     b.limit_ms, "floor_ms", b.floor_ms, "over_limit",
                                     b.encode_ms / b.limit_ms, "over_floor",
                                     b.encode_ms / b.floor_ms, "parts", "gemm_ms", b.gemm_ms,
                                     "attention_ms", b.attention_ms, "between_ms", b.between_ms));
    return j;
}

static qv_status
report_bounds(struct tower_bench *t, struct bench_record *r, qv_error *err)
{
    const struct bench_times *g = &t->runs[GEMMS].times, *a = &t->runs[ATTENTION].times;
    struct bounds b = bounds_of(t);
    r->way = "limit";
    r->times = (struct bench_times){ b.limit_ms, g->p90_ms + a->p90_ms,
                                     g->repeats < a->repeats ? g->repeats : a->repeats };
    r->flops = t->gemms.flops + t->attention.flops;
    r->bytes = t->gemms.bytes + t->attention.bytes;
    r->extras = shape_json(t, t->info.chunk_pairs);
    qv_status status = bench_report(&t->b, r, err);
    if (status)
        return status;
    r->way = "floor";
    r->times.median_ms = b.floor_ms;
    r->times.p90_ms += b.floor_ms - b.limit_ms;
    r->flops = t->info.flops;
    r->bytes = t->info.bytes;
    r->extras = shape_json(t, t->info.chunk_pairs);
    return bench_report(&t->b, r, err);
}

/* Of a clip of several chunks all of it; else a chunk in a stream of several. */
static qv_status
report_stream(struct tower_bench *t, const char *model, struct bench_record r, qv_error *err)
{
    int64_t pairs = is_clip(t) ? t->b.o->grid[0] : t->info.chunk_pairs;
    double parts = is_clip(t) ? 1 : (double)t->stream_chunks;
    double chunks = (double)t->stream_chunks / parts;
    char work[160];
    snprintf(work, sizeof work, "%s %lld patches", model, (long long)patches(t, pairs));
    r.work = work;
    r.way = "streamed";
    r.times = t->runs[STREAMED].times;
    r.times.median_ms /= parts;
    r.times.p90_ms /= parts;
    r.flops = t->info.flops * chunks;
    r.bytes = t->info.bytes * chunks;
    r.extras = shape_json(t, pairs);
    json_object_update_new(r.extras,
                           json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "chunks",
                                     (json_int_t)t->stream_chunks, "chunk_pairs",
                                     (json_int_t)t->info.chunk_pairs, "chunks_ahead",
                                     (json_int_t)t->info.chunks_ahead, "ms_per_chunk",
                                     streamed_ms(t), "us_per_patch", patch_us(t), "over_encode",
                                     streamed_ms(t) / t->runs[ENCODE].times.median_ms,
                                     "arena_bytes", (json_int_t)t->info.arena_bytes));
    if (!t->b.o->no_limit)
        json_object_update_new(r.extras,
                               json_pack("{s:f, s:f}", "over_limit",
                                         streamed_ms(t) / bounds_of(t).limit_ms, "over_floor",
                                         streamed_ms(t) / bounds_of(t).floor_ms));
    return bench_report(&t->b, &r, err);
}

static void
print_summary(const struct tower_bench *t)
{
    struct bounds b = bounds_of(t);
    if (!t->b.o->no_limit)
        printf("\n  over limit   %.3f; over floor %.3f\n"
               "  parts        GEMMs %.2f ms, attention %.2f ms, between %.2f ms",
               b.encode_ms / b.limit_ms, b.encode_ms / b.floor_ms, b.gemm_ms, b.attention_ms,
               b.between_ms);
    printf("\n  stream       %lld chunks of %lld frame pair%s: %.2f ms each, %.3f us a patch, %.3f "
           "times encode\n",
           (long long)t->stream_chunks, (long long)t->info.chunk_pairs,
           t->info.chunk_pairs == 1 ? "" : "s", streamed_ms(t), patch_us(t),
           streamed_ms(t) / b.encode_ms);
    printf("  memory       weights %.1f MB, arena %.1f MB\n", (double)t->info.weight_bytes * 1e-6,
           (double)t->info.arena_bytes * 1e-6);
    printf("  plan         %.2f ms for a new shape, %.3f ms for a seen one\n  one by one  ",
           t->plan_new_ms, t->plan_seen_ms);
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        if (t->kind_ms[kind] > 0)
            printf(" %s %.2f ms", qv_op_name((enum qv_op_kind)kind), t->kind_ms[kind]);
    putchar('\n');
}

static qv_status
report(struct tower_bench *t, qv_error *err)
{
    char name[100], work[160];
    bench_base_name(t->b.o->model, name, sizeof name);
    snprintf(work, sizeof work, "%s %lld patches", name,
             (long long)patches(t, t->info.chunk_pairs));
    struct bench_record r = { .work = work,
                              .way = "encode",
                              .dtype = t->m.dtype,
                              .times = t->runs[ENCODE].times,
                              .flops = t->info.flops,
                              .bytes = t->info.bytes,
                              .extras = encode_json(t) };
    qv_status status = bench_report(&t->b, &r, err);
    if (status)
        return status;
    r.way = "whole call";
    r.times = t->runs[WHOLE_CALL].times;
    r.extras = shape_json(t, t->info.chunk_pairs);
    status = bench_report(&t->b, &r, err);
    if (!status && !t->b.o->no_limit)
        status = report_bounds(t, &r, err);
    if (!status)
        status = report_stream(t, name, r, err);
    if (!status && bench_talks(&t->b))
        print_summary(t);
    return status;
}

int
bench_tower(const struct tool_options *o)
{
    if (!o->model) {
        tool_complain("bench tower: --model DIR is required");
        return TOOL_USAGE;
    }
    struct tower_bench *t = calloc(1, sizeof *t);
    qv_error err = { 0 };
    if (!t)
        return tool_fail(qv_fail(&err, QV_ENOMEM, "no memory"), &err);
    qv_status status = open_all(t, o, &err);
    if (!status)
        status =
            bench_begin(&t->b, t->m.dtype,
                        "encode: a chunk's work on the device; whole call and streamed: from "
                        "host memory to host memory\nlimit: the same GEMMs, without epilogues, "
                        "and the same attention, each layer with its own weights",
                        &err);
    if (!status)
        status = run_all(t, &err);
    if (!status)
        status = report(t, &err);
    close_all(t);
    free(t);
    return status ? tool_fail(status, &err) : TOOL_DONE;
}
