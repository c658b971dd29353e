/* SPDX-License-Identifier: MIT */
/*
 * qwenvit profile: shows where a chunk's time goes, by operation and by layer. Each operation is
 * run on its own, timed by the device's clock and waited for; the chunk is also timed as encoding
 * runs it. Pixels are random.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "model/items.h"

enum { MOST_CHUNKS = 100, MOST_SECONDS = 20 };

struct row {
    const char *op;
    char layer[40], kernel[QV_KERNEL_BYTES];
    double flops, bytes, ms;
    double samples[MOST_CHUNKS];
};

struct profile {
    struct bench *b;
    qv_model *model;
    qv_model_info m;
    qv_plan *plan;
    const struct qv_program *program; /* the plan's */
    struct row *rows;
    qv_item item; /* the chunk */
    void *frames;
    int64_t n_chunks;
    qv_tokens tokens;
    double encode_ms[MOST_CHUNKS];
};

static void
close_all(struct profile *p)
{
    qv_plan_free(&p->plan);
    qv_model_free(&p->model);
    free(p->rows);
    free(p->frames);
    free(p->tokens.tokens);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Opens the plan that suits the clip, or a dense plan for --grid, and its first chunk. */
static qv_status
open_plan(struct profile *p, qv_error *err)
{
    const struct tool_options *o = p->b->o;
    const int64_t *g = o->grid;
    qv_plan_options options = { .capacity = { .patches = g[0] * g[1] * g[2],
                                              .segment_rows = g[1] * g[2] } };
    qv_outcome clip = { .n_frames = 0 };
    qv_plan_info info;
    qv_clip *opened = NULL;
    qv_status status = QV_OK;
    if (o->n_arguments) {
        status = qv_clip_open(o->arguments[0], &p->m.image, &p->m.video, &o->clip, &opened, err);
        if (status)
            return status;
        qv_clip_get_info(opened, &clip);
        qv_clip_close(&opened);
        g = clip.grid_thw;
        options = (qv_plan_options){ .grid_thw = { g[0], g[1], g[2] } };
    }
    status = qv_plan_create(p->model, &options, &p->plan, err);
    if (status)
        return status;
    qv_plan_get_info(p->plan, &info);
    const qv_capacity pair = qv_capacity_of(&p->model->config, (const int64_t[3]){ 1, g[1], g[2] });
    const qv_item whole = { .grid_thw = { g[0], g[1], g[2] },
                            .n_frames = clip.n_frames,
                            .is_image = clip.is_image };
    p->item = qv_item_piece(p->model, QV_INPUT_FRAMES, &whole, 0,
                            qv_capacity_fits(&info.capacity, &pair));
    p->tokens.capacity = info.tokens;
    return QV_OK;
}

static qv_status
open_data(struct profile *p, qv_error *err)
{
    const int64_t *g = p->item.grid_thw;
    const size_t bytes = (size_t)(g[0] * g[1] * g[2] * p->m.row_dim);
    p->program = &p->plan->program;
    p->rows = calloc(p->program->n, sizeof *p->rows);
    p->frames = malloc(bytes);
    p->tokens.tokens = malloc((size_t)(p->tokens.capacity * p->m.out_hidden) * sizeof(float));
    if (!p->rows || !p->frames || !p->tokens.tokens)
        return qv_fail(err, QV_ENOMEM, "no memory for a chunk and its times");
    p->item.data = p->frames;
    bench_fill(p->frames, QV_U8, bytes);
    return QV_OK;
}

/* Names the kernel of each operation, and its layer. In the list only a layer's last operation has
 * the layer's name; the preceding operations belong to it too, and so does the conversion after a
 * merger. */
static void
name_layers(struct profile *p)
{
    size_t first = 0;
    for (size_t i = 0; i < p->program->n; i++) {
        const struct qv_step *step = &p->program->steps[i];
        p->rows[i].op = qv_op_name(step->op.kind);
        p->rows[i].flops = qv_plan_flops(p->plan, step, &p->item, 1);
        p->rows[i].bytes = qv_op_bytes(&step->op);
        qv_program_kernel(p->program, i, p->rows[i].kernel);
        bool merged = step->operands[0] == SLOT_MERGED || step->operands[0] == SLOT_SIDE_MERGED;
        if (merged && first == i && i) {
            memcpy(p->rows[i].layer, p->rows[i - 1].layer, sizeof p->rows[i].layer);
            first = i + 1;
        }
        for (; *step->layer && first <= i; first++)
            memcpy(p->rows[first].layer, step->layer, sizeof p->rows[first].layer);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* Enqueues the steps before step i as a recording. It keeps the device busy while step i is
 * launched, which may take longer than the step itself, and leaves the caches as they are in a real
 * chunk. */
static qv_status
lead_up(qv_context *ctx, const struct qv_call *calls, size_t i, struct qv_recording **lead,
        qv_error *err)
{
    enum { STEPS = 8 };
    size_t n = i < STEPS ? i : STEPS;
    qv_status status =
        ctx->backend->record(ctx->dev, n ? calls + i - n : calls, n ? n : 1, lead, err);
    return status ? status : ctx->backend->replay(ctx->dev, *lead, err);
}

static qv_status
step_through(struct profile *p, qv_error *err)
{
    qv_context *ctx = p->b->ctx;
    const struct qv_call *calls = qv_program_calls(p->program, 0);
    qv_status status = ctx->backend->sync(ctx->dev, err);
    for (size_t i = 0; i < p->program->n && !status; i++) {
        struct qv_recording *lead = NULL;
        if (ctx->backend->record)
            status = lead_up(ctx, calls, i, &lead, err);
        if (!status)
            status = bench_run_call(ctx, &calls[i], &p->rows[i].samples[p->n_chunks], err);
        if (lead)
            ctx->backend->forget(ctx->dev, lead);
    }
    return status;
}

static qv_status
run_chunk(struct profile *p, double *encode_ms, qv_error *err)
{
    const double began_s = qv_seconds();
    qv_status status = qv_plan_push(p->plan, &p->item, 1, err);
    if (!status)
        status = qv_plan_pull(p->plan, &p->tokens, err);
    *encode_ms = (qv_seconds() - began_s) * 1e3;
    return status ? status : step_through(p, err);
}

static qv_status
run_all(struct profile *p, qv_error *err)
{
    int64_t most = p->b->o->repeats < MOST_CHUNKS ? p->b->o->repeats : MOST_CHUNKS;
    double warm_up, began = qv_seconds();
    qv_status status = run_chunk(p, &warm_up, err);
    while (!status && p->n_chunks < most && (!p->n_chunks || qv_seconds() - began < MOST_SECONDS)) {
        status = run_chunk(p, &p->encode_ms[p->n_chunks], err);
        p->n_chunks++;
    }
    for (size_t i = 0; i < p->program->n && !status; i++)
        p->rows[i].ms = qv_quantile(p->rows[i].samples, (size_t)p->n_chunks, 0.5);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

struct sum {
    int64_t calls, layers;
    double ms, flops, bytes;
};

/* The property by which operations are summed: a kind and its kernel, or the common part of layers'
 * names ("blocks" in "blocks.0"). */
typedef bool alike(const struct row *a, const struct row *b);

static bool
same_kernel(const struct row *a, const struct row *b)
{
    return !strcmp(a->op, b->op) && !strcmp(a->kernel, b->kernel);
}

static bool
same_stem(const struct row *a, const struct row *b)
{
    const size_t n = strcspn(a->layer, ".");
    return n == strcspn(b->layer, ".") && !strncmp(a->layer, b->layer, n);
}

static bool
any(const struct row *a, const struct row *b)
{
    return a && b;
}

/* Returns the sum of the operations like operation i; an empty sum unless i is the first of them.
 * */
static struct sum
sum_of(const struct profile *p, size_t i, alike *is_alike)
{
    struct sum s = { 0 };
    for (size_t j = 0; j < p->program->n; j++) {
        const struct row *r = &p->rows[j];
        if (!is_alike(&p->rows[i], r))
            continue;
        if (j < i)
            return s;
        s.calls++;
        s.layers += j == i || strcmp(r->layer, r[-1].layer) != 0;
        s.ms += r->ms;
        s.flops += r->flops;
        s.bytes += r->bytes;
    }
    return s;
}

static void
print_sum(const struct profile *p, const char *heading, const char *name, struct sum s,
          const char *kernel)
{
    const struct bench_record r = { .work = name,
                                    .group = heading,
                                    .dtype = p->m.dtype,
                                    .times = { .median_ms = s.ms },
                                    .flops = s.flops,
                                    .bytes = s.bytes,
                                    .show = "calls share_percent kernel",
                                    .extras =
                                        tool_json("calls:I share_percent:f kernel:s", s.calls,
                                                  100 * s.ms / sum_of(p, 0, any).ms, kernel) };
    bench_print(p->b, &r);
    json_decref(r.extras);
}

static void
print_all(struct profile *p)
{
    char name[80];
    const struct sum encoded = { .calls = 1,
                                 .ms = qv_quantile(p->encode_ms, (size_t)p->n_chunks, 0.5) };
    for (size_t i = 0; i < p->program->n; i++) {
        const struct sum s = sum_of(p, i, same_kernel);
        if (s.calls)
            print_sum(p, "by operation", p->rows[i].op, s, p->rows[i].kernel);
    }
    print_sum(p, "by operation", "all", sum_of(p, 0, any), "");
    snprintf(name, sizeof name, "as encoded, %lld frame%s", (long long)p->item.n_frames,
             p->item.n_frames == 1 ? "" : "s");
    print_sum(p, "by operation", name, encoded, "");
    for (size_t i = 0; i < p->program->n; i++) {
        const struct sum s = sum_of(p, i, same_stem);
        const double n = (double)s.layers;
        if (!s.calls)
            continue;
        const int stem = (int)strcspn(p->rows[i].layer, ".");
        snprintf(name, sizeof name, "%.*s (%lld)", stem, p->rows[i].layer, (long long)s.layers);
        name[s.layers > 1 ? strlen(name) : (size_t)stem] = 0;
        print_sum(p, "by layer", name, s, "");
        if (s.layers > 1)
            print_sum(p, "by layer", "  each",
                      (struct sum){ s.calls / s.layers, 1, s.ms / n, s.flops / n, s.bytes / n },
                      "");
    }
}

static qv_status
emit_steps(struct profile *p, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t i = 0; i < p->program->n && !status; i++) {
        char text[400];
        const struct row *row = &p->rows[i];
        struct bench_record r = {
            .work = qv_op_print(&p->program->steps[i].op, text, sizeof text),
            .way = row->layer,
            .dtype = p->m.dtype,
            .times = { row->ms, row->samples[(p->n_chunks - 1) * 9 / 10], p->n_chunks },
            .flops = row->flops,
            .bytes = row->bytes,
            .extras = tool_json("op:s step:I kernel:s", row->op, i, row->kernel)
        };
        status = bench_emit(p->b, &r, err);
    }
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

qv_status
bench_profile(struct bench *b, qv_error *err)
{
    struct profile p = { .b = b };
    qv_status status = bench_open_model(b, &p.model, &p.m, err);
    if (!status)
        status = open_plan(&p, err);
    if (!status)
        status = open_data(&p, err);
    if (!status) {
        name_layers(&p);
        status = bench_begin(b, p.m.dtype, err);
    }
    if (!status)
        status = run_all(&p, err);
    if (!status && bench_talks(b))
        print_all(&p);
    if (!status)
        status = emit_steps(&p, err);
    close_all(&p);
    return status;
}
