/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench: tower times a chunk against its limit, the GEMMs and the attention of the same
 * chunk alone (each layer with its own weights, nothing between them), run in turn; preprocess
 * times resizing a frame and turning a pair of frames into patch rows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "plan.h"
#include "tool.h"

enum { MOST_REPEATS = 1000 };

struct timing {
    double samples_ms[MOST_REPEATS];
    int64_t n;
};

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
quantile_ms(struct timing *t, double q)
{
    qsort(t->samples_ms, (size_t)t->n, sizeof *t->samples_ms, by_value);
    return t->samples_ms[(int64_t)(q * (double)(t->n - 1) + 0.5)];
}

static void
add(struct timing *t, double began_s)
{
    t->samples_ms[t->n++] = (tool_seconds() - began_s) * 1e3;
}

static int64_t
repeats(const struct tool_options *o)
{
    return o->repeats < MOST_REPEATS ? o->repeats : MOST_REPEATS;
}

/* ---- tower ----------------------------------------------------------------------------------- */

/* The bare operations of one kind in a chunk's list, on an arena of their own. */
struct bare {
    qv_context *ctx;
    size_t *kernels, n;
    struct qv_call *calls;
    struct qv_memory *arena;
    double flops;
};

static void
close_bare(struct bare *b)
{
    for (size_t i = 0; i < b->n; i++)
        qv_kernel_put(b->ctx, b->kernels[i]);
    if (b->arena)
        b->ctx->backend->free(b->ctx->dev, b->arena);
    free(b->kernels);
    free(b->calls);
}

/* A gemm without its epilogue; attention as it is. */
static struct qv_op
strip(struct qv_op op)
{
    if (op.kind == QV_OP_gemm) {
        op.u.gemm.alpha = 1;
        op.u.gemm.bias = 0;
        op.u.gemm.act = QV_ACT_NONE;
        op.u.gemm.addend_rows = 0;
    }
    return op;
}

static qv_status
open_bare(struct bare *b, qv_model *model, const struct qv_steps *steps, enum qv_op_kind kind,
          qv_error *err)
{
    b->ctx = model->ctx;
    b->kernels = calloc(steps->n, sizeof *b->kernels);
    b->calls = calloc(steps->n, sizeof *b->calls);
    if (!b->kernels || !b->calls)
        return qv_fail(err, QV_ENOMEM, "no memory for a list of operations");
    size_t x = 0, y = 0, scratch = 0;
    for (size_t i = 0; i < steps->n; i++) {
        struct qv_op op = strip(steps->steps[i].op);
        if (op.kind != kind)
            continue;
        qv_status status = qv_kernel_get(b->ctx, &op, &b->kernels[b->n], err);
        if (status)
            return status;
        struct qv_call *call = &b->calls[b->n];
        int last = qv_op_n_operands(kind) - 1;
        size_t bytes[3] = { qv_op_operand(&op, 0).bytes, qv_op_operand(&op, last).bytes,
                            b->ctx->kernels.entries[b->kernels[b->n]].scratch_bytes };
        b->n++;
        if (kind == QV_OP_gemm)
            call->operands[1] = model->weights.buffers[steps->steps[i].operands[1] - SLOT_COUNT];
        x = bytes[0] > x ? bytes[0] : x;
        y = bytes[1] > y ? bytes[1] : y;
        scratch = bytes[2] > scratch ? bytes[2] : scratch;
        b->flops += qv_op_flops(&op);
    }
    x = qv_aligned(x);
    y = qv_aligned(y);
    qv_status status = b->ctx->backend->alloc(b->ctx->dev, x + y + scratch + 256, &b->arena, err);
    for (size_t i = 0; i < b->n && !status; i++) {
        b->calls[i].kernel = b->ctx->kernels.entries[b->kernels[i]].kernel;
        b->calls[i].operands[0] = (struct qv_buffer){ b->arena, 0 };
        b->calls[i].operands[qv_op_n_operands(kind) - 1] = (struct qv_buffer){ b->arena, x };
        b->calls[i].scratch = (struct qv_buffer){ b->arena, x + y };
    }
    return status;
}

static qv_status
time_bare(struct bare *b, struct timing *t, qv_error *err)
{
    double began = tool_seconds();
    qv_status status = b->ctx->backend->run(b->ctx->dev, b->calls, b->n, err);
    if (!status)
        status = b->ctx->backend->sync(b->ctx->dev, err);
    add(t, began);
    return status;
}

struct tower_bench {
    qv_context *ctx;
    qv_model *model;
    qv_plan *plan;
    qv_plan_info info;
    struct qv_steps steps;
    struct bare gemms, attention;
    uint8_t *frames;
    qv_tokens tokens;
    struct timing tower, gemm, attend;
    double plan_new_ms, plan_seen_ms;
};

static void
close_tower_bench(struct tower_bench *b)
{
    if (b->gemms.ctx)
        close_bare(&b->gemms);
    if (b->attention.ctx)
        close_bare(&b->attention);
    free(b->steps.steps);
    free(b->frames);
    free(b->tokens.tokens);
    qv_plan_free(&b->plan);
    qv_model_free(&b->model);
    qv_context_close(&b->ctx);
}

static qv_status
open_limit(struct tower_bench *b, const struct tool_options *o, qv_error *err)
{
    struct qv_tower_shape shape = { .pairs = o->grid[0],
                                    .grid_h = o->grid[1],
                                    .grid_w = o->grid[2],
                                    .dtype = b->model->dtype,
                                    .output = QV_F32 };
    struct qv_conv3d_desc d = qv_tower_patch_embed(&b->model->config, &shape);
    struct qv_conv3d_decision decision;
    qv_status status =
        qv_conv3d_decide(&d, &b->ctx->caps, qv_conv3d_thresholds_of(b->ctx->backend->name), -1,
                         &decision, err);
    if (!status)
        status = qv_tower_build(&b->model->config, &shape, &decision, &b->steps, err);
    if (!status)
        status = open_bare(&b->gemms, b->model, &b->steps, QV_OP_gemm, err);
    if (!status)
        status = open_bare(&b->attention, b->model, &b->steps, QV_OP_attention, err);
    return status;
}

static qv_status
open_tower_bench(struct tower_bench *b, const struct tool_options *o, qv_error *err)
{
    qv_model_options options = { .dtype = o->dtype };
    qv_plan_options shape = { .grid_h = o->grid[1],
                              .grid_w = o->grid[2],
                              .chunk_pairs = o->grid[0] };
    qv_model_info m;
    qv_status status = tool_open_context(o, &b->ctx, err);
    if (!status)
        status = qv_model_load(b->ctx, o->model, &options, &b->model, err);
    for (int i = 0; i < 2 && !status; i++) {
        qv_plan_free(&b->plan);
        double began = tool_seconds();
        status = qv_plan_create(b->model, &shape, &b->plan, err);
        *(i ? &b->plan_seen_ms : &b->plan_new_ms) = (tool_seconds() - began) * 1e3;
    }
    if (status)
        return status;
    qv_model_get_info(b->model, &m);
    qv_plan_get_info(b->plan, &b->info);
    size_t bytes =
        (size_t)(b->info.chunk_frames * o->grid[1] * o->grid[2] * m.patch_size * m.patch_size * 3);
    b->frames = malloc(bytes);
    b->tokens.capacity = b->info.chunk_pairs * b->info.tokens_per_pair;
    b->tokens.tokens = malloc((size_t)(b->tokens.capacity * m.out_hidden) * sizeof(float));
    if (!b->frames || !b->tokens.tokens)
        return qv_fail(err, QV_ENOMEM, "no memory for a chunk of frames");
    for (size_t i = 0; i < bytes; i++)
        b->frames[i] = (uint8_t)(i * 2654435761u >> 13);
    return o->no_limit ? QV_OK : open_limit(b, o, err);
}

static qv_status
run_tower_bench(struct tower_bench *b, const struct tool_options *o, qv_error *err)
{
    qv_status status = QV_OK;
    for (int64_t i = -1; i < repeats(o) && !status; i++) { /* the first one warms up */
        if (i == 0)
            b->tower.n = b->gemm.n = b->attend.n = 0;
        double began = tool_seconds();
        status = qv_plan_push(b->plan, b->frames, b->info.chunk_frames, err);
        if (!status)
            status = qv_plan_pull(b->plan, &b->tokens, err);
        add(&b->tower, began);
        if (!status && !o->no_limit)
            status = time_bare(&b->gemms, &b->gemm, err);
        if (!status && !o->no_limit)
            status = time_bare(&b->attention, &b->attend, err);
    }
    return status;
}

static void
report_tower(struct tower_bench *b, const struct tool_options *o)
{
    qv_context_info c;
    qv_context_get_info(b->ctx, &c);
    int64_t patches = o->grid[0] * o->grid[1] * o->grid[2];
    double median = quantile_ms(&b->tower, 0.5), p90 = quantile_ms(&b->tower, 0.9);
    double gemm = o->no_limit ? 0 : quantile_ms(&b->gemm, 0.5);
    double attend = o->no_limit ? 0 : quantile_ms(&b->attend, 0.5), limit = gemm + attend;
    const char *dtype = qv_dtype_name(b->model->dtype);
    if (o->json) {
        json_t *j = json_pack(
            "{s:s, s:s, s:s, s:s, s:s, s:i, s:[I,I,I], s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
            "bench", "tower", "version", qv_version(), "backend", c.backend, "device", c.device,
            "dtype", dtype, "threads", c.threads, "grid_thw", (json_int_t)o->grid[0],
            (json_int_t)o->grid[1], (json_int_t)o->grid[2], "patches", (json_int_t)patches,
            "median_ms", median, "p90_ms", p90, "tflops_per_s", b->info.flops / median * 1e-9,
            "plan_new_ms", b->plan_new_ms, "plan_seen_ms", b->plan_seen_ms, "gemm_ms", gemm,
            "attention_ms", attend);
        if (!o->no_limit)
            json_object_update_new(j, json_pack("{s:f, s:f}", "limit_ms", limit, "over_limit",
                                                median / limit));
        tool_print_json(j);
        return;
    }
    printf("tower, %s, %lld patches, %s (%s, %d threads)\n", dtype, (long long)patches, c.backend,
           c.device, c.threads);
    printf("  encode     %9.2f ms median, %.2f ms p90, %.3f TFLOP/s\n", median, p90,
           b->info.flops / median * 1e-9);
    if (!o->no_limit)
        printf("  limit      %9.2f ms = GEMMs %.2f + attention %.2f\n  over limit %9.3f\n", limit,
               gemm, attend, median / limit);
    printf("  plan       %9.2f ms for a new shape, %.3f ms for a seen one\n", b->plan_new_ms,
           b->plan_seen_ms);
}

static int
bench_tower(const struct tool_options *o)
{
    if (!o->model) {
        tool_complain("bench tower: --model DIR is required");
        return TOOL_USAGE;
    }
    struct tower_bench *b = calloc(1, sizeof *b);
    qv_error err = { 0 };
    if (!b)
        return tool_fail(qv_fail(&err, QV_ENOMEM, "no memory"), &err);
    qv_status status = open_tower_bench(b, o, &err);
    if (!status)
        status = run_tower_bench(b, o, &err);
    if (!status)
        report_tower(b, o);
    close_tower_bench(b);
    free(b);
    return status ? tool_fail(status, &err) : TOOL_DONE;
}

/* ---- preprocess ------------------------------------------------------------------------------ */

static qv_status
time_rows(qv_context *ctx, int64_t height, int64_t width, int64_t n, struct timing *t,
          qv_error *err)
{
    struct qv_op op = { .kind = QV_OP_rows };
    op.u.rows = (struct qv_op_rows){ .pairs = 1,
                                     .grid_h = height / 16,
                                     .grid_w = width / 16,
                                     .patch = 16,
                                     .temporal = 2,
                                     .merge = 2,
                                     .channels = 3,
                                     .scale0 = 2,
                                     .scale1 = 2,
                                     .scale2 = 2,
                                     .shift0 = -255,
                                     .shift1 = -255,
                                     .shift2 = -255,
                                     .dtype = ctx->caps.dtype };
    size_t index, in = qv_op_operand(&op, 0).bytes, out = qv_op_operand(&op, 1).bytes;
    struct qv_memory *memory = NULL;
    qv_status status = qv_kernel_get(ctx, &op, &index, err);
    if (status)
        return status;
    in = qv_aligned(in);
    out = qv_aligned(out);
    status = ctx->backend->alloc(ctx->dev, in + out + ctx->kernels.entries[index].scratch_bytes + 1,
                                 &memory, err);
    struct qv_call call = { .kernel = ctx->kernels.entries[index].kernel,
                            .operands = { { memory, 0 }, { memory, in } },
                            .scratch = { memory, in + out } };
    for (int64_t i = 0; i < n && !status; i++) {
        double began = tool_seconds();
        status = ctx->backend->run(ctx->dev, &call, 1, err);
        add(t, began);
    }
    ctx->backend->free(ctx->dev, memory);
    qv_kernel_put(ctx, index);
    return status;
}

static int
bench_preprocess(const struct tool_options *o)
{
    static struct timing resize, rows;
    qv_error err = { 0 };
    qv_context *ctx = NULL;
    qv_preprocess video = qv_preprocess_default(false);
    int64_t h = o->size[0], w = o->size[1], out_h = 0, out_w = 0;
    uint8_t *src = NULL, *dst = NULL;
    qv_status status = qv_smart_resize(16, h, w, &video, &out_h, &out_w, &err);
    if (!status)
        status = tool_open_context(o, &ctx, &err);
    if (!status) {
        src = malloc((size_t)(h * w * 3));
        dst = malloc((size_t)(out_h * out_w * 3));
        if (!src || !dst)
            status = qv_fail(&err, QV_ENOMEM, "no memory for a frame of %lldx%lld", (long long)w,
                             (long long)h);
    }
    for (int64_t i = 0; i < h * w * 3 && !status; i++)
        src[i] = (uint8_t)(i * 2654435761u >> 11);
    for (int64_t i = 0; i < repeats(o) && !status; i++) {
        double began = tool_seconds();
        status = qv_resize_bicubic(src, h, w, w * 3, dst, out_h, out_w, &err);
        add(&resize, began);
    }
    if (!status)
        status = time_rows(ctx, out_h, out_w, repeats(o), &rows, &err);
    free(src);
    free(dst);
    qv_context_close(&ctx);
    if (status)
        return tool_fail(status, &err);
    double resize_ms = quantile_ms(&resize, 0.5), rows_ms = quantile_ms(&rows, 0.5) / 2;
    if (o->json)
        tool_print_json(json_pack("{s:s, s:s, s:[I,I], s:[I,I], s:f, s:f}", "bench", "preprocess",
                                  "version", qv_version(), "source", (json_int_t)h, (json_int_t)w,
                                  "resized", (json_int_t)out_h, (json_int_t)out_w,
                                  "resize_ms_per_frame", resize_ms, "rows_ms_per_frame", rows_ms));
    else
        printf("preprocess, %lldx%lld -> %lldx%lld: resize %.3f ms, rows %.3f ms a frame\n",
               (long long)w, (long long)h, (long long)out_w, (long long)out_h, resize_ms, rows_ms);
    return TOOL_DONE;
}

int
tool_bench(const struct tool_options *o)
{
    static const struct {
        const char *name;
        int (*run)(const struct tool_options *o);
    } benches[] = { { "tower", bench_tower }, { "preprocess", bench_preprocess } };
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (o->n_arguments == 1 && !strcmp(o->arguments[0], benches[i].name))
            return benches[i].run(o);
    tool_complain("bench: say what to time, tower or preprocess (qwenvit bench --help)");
    return TOOL_USAGE;
}
