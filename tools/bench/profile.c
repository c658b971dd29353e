/* SPDX-License-Identifier: MIT */
/*
 * qwenvit profile: shows where a chunk's time goes, by operation and by layer. Each operation is
 * run on its own, timed by the device's clock and waited for; beside that the chunk is timed as
 * encoding runs it.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"
#include "files/json.h"
#include "files/atomic_file.h"
#include "model/items.h"

enum { MOST_CHUNKS = 100, MOST_SECONDS = 20 };

/* One operation of the chunk. */
struct row {
    char layer[40], kernel[QV_KERNEL_BYTES];
    double flops, bytes, ms;
    double samples[MOST_CHUNKS];
};

struct profile {
    struct bench b;
    qv_model *model;
    qv_model_info m;
    qv_clip *clip; /* NULL: seeded random frames */
    qv_outcome clip_info;
    qv_plan *plan;
    qv_plan_info info;
    const struct qv_step *steps;
    size_t n; /* number of steps */
    struct row *rows;
    double *ms;          /* times of the last chunk, by step */
    qv_item whole, item; /* the clip; a chunk of it, with the frames that were read last */
    int64_t pairs, next; /* frame pairs of a chunk; the first pair that was not read yet */
    uint8_t *frames;
    size_t frame_bytes;
    int64_t n_chunks;
    qv_tokens tokens;
    double encode_ms[MOST_CHUNKS];
};

static void
close_all(struct profile *p)
{
    qv_plan_free(&p->plan);
    qv_clip_close(&p->clip);
    qv_model_free(&p->model);
    bench_close(&p->b);
    free(p->rows);
    free(p->ms);
    free(p->frames);
    free(p->tokens.tokens);
}

/* ---- opening --------------------------------------------------------------------------------- */

static qv_status
open_plan(struct profile *p, qv_error *err)
{
    const struct tool_options *o = p->b.o;
    const int64_t *g = o->grid;
    qv_plan_options options = { .capacity = { .patches = g[0] * g[1] * g[2],
                                              .segment_rows = g[1] * g[2] } };
    qv_status status = QV_OK;
    if (o->n_arguments) {
        status = qv_clip_open(o->arguments[0], &p->m.image, &p->m.video, &o->clip, &p->clip, err);
        if (status)
            return status;
        qv_clip_get_info(p->clip, &p->clip_info);
        g = p->clip_info.grid_thw;
        options = (qv_plan_options){ .grid_thw = { g[0], g[1], g[2] } };
    }
    if (!status)
        status = qv_plan_create(p->model, &options, &p->plan, err);
    if (status)
        return status;
    qv_plan_get_info(p->plan, &p->info);
    const qv_capacity pair = qv_capacity_of(&p->model->config, (const int64_t[3]){ 1, g[1], g[2] });
    p->pairs = qv_capacity_fits(&p->info.capacity, &pair);
    p->whole = (qv_item){ .grid_thw = { g[0], g[1], g[2] },
                          .n_frames = p->clip_info.n_frames,
                          .is_image = p->clip_info.is_image };
    p->item = qv_item_piece(p->model, QV_INPUT_FRAMES, &p->whole, 0, p->pairs);
    p->frame_bytes = (size_t)(g[1] * g[2] * p->m.patch_size * p->m.patch_size * p->m.in_channels);
    return QV_OK;
}

static qv_status
open_data(struct profile *p, qv_error *err)
{
    size_t bytes = (size_t)p->item.n_frames * p->frame_bytes;
    p->rows = calloc(p->n, sizeof *p->rows);
    p->ms = calloc(p->n, sizeof *p->ms);
    p->frames = malloc(bytes);
    p->tokens.capacity = p->info.tokens;
    p->tokens.tokens = malloc((size_t)(p->tokens.capacity * p->m.out_hidden) * sizeof(float));
    if (!p->rows || !p->ms || !p->frames || !p->tokens.tokens)
        return qv_fail(err, QV_ENOMEM, "no memory for a chunk and its times");
    p->item.data = p->frames;
    bench_fill(p->frames, QV_U8, bytes);
    return QV_OK;
}

/* Names the kernel of each operation, and its layer. In the list only a layer's last operation has
 * the layer's name; the operations before it belong to it too, and so does the conversion behind a
 * merger. */
static void
name_layers(struct profile *p)
{
    size_t first = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct qv_step *step = &p->steps[i];
        p->rows[i].flops = qv_plan_flops(p->plan, step, &p->item, 1);
        p->rows[i].bytes = qv_op_bytes(&step->op);
        qv_plan_kernel(p->plan, i, p->rows[i].kernel);
        bool merged = step->operands[0] == SLOT_MERGED || step->operands[0] == SLOT_SIDE_MERGED;
        if (merged && first == i && i) {
            memcpy(p->rows[i].layer, p->rows[i - 1].layer, sizeof p->rows[i].layer);
            first = i + 1;
        }
        for (; *step->layer && first <= i; first++)
            memcpy(p->rows[first].layer, step->layer, sizeof p->rows[first].layer);
    }
}

static qv_status
open_all(struct profile *p, const struct tool_options *o, qv_error *err)
{
    qv_status status = bench_open_model(&p->b, o, "profile", &p->model, &p->m, err);
    if (!status)
        status = open_plan(p, err);
    if (status)
        return status;
    const struct qv_call *calls;
    p->n = qv_plan_steps(p->plan, &p->steps, &calls);
    status = open_data(p, err);
    if (!status)
        name_layers(p);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Reads the clip's next chunk; after the clip's end the last chunk stays. */
static qv_status
next_frames(struct profile *p, qv_error *err)
{
    if (!p->clip || p->next >= p->whole.grid_thw[0])
        return QV_OK;
    p->item = qv_item_piece(p->model, QV_INPUT_FRAMES, &p->whole, p->next, p->pairs);
    p->item.data = p->frames;
    p->next += p->pairs;
    for (int64_t n = 0, got = 0; n < p->item.n_frames; n += got) {
        qv_status status = qv_clip_read(p->clip, p->frames + (size_t)n * p->frame_bytes,
                                        p->item.n_frames - n, &got, NULL, err);
        if (status)
            return status;
        if (!got)
            return qv_fail(err, QV_EFORMAT, "%s: ended before its last sampled frame",
                           p->b.o->arguments[0]);
    }
    return QV_OK;
}

static qv_status
run_chunk(struct profile *p, double *encode_ms, qv_error *err)
{
    qv_status status = next_frames(p, err);
    double began = qv_seconds();
    if (!status)
        status = qv_plan_push(p->plan, &p->item, 1, err);
    if (!status)
        status = qv_plan_pull(p->plan, &p->tokens, err);
    *encode_ms = (qv_seconds() - began) * 1e3;
    return status ? status : bench_step_through(p->b.ctx, p->plan, p->ms, err);
}

static qv_status
run_all(struct profile *p, qv_error *err)
{
    int64_t most = p->b.o->repeats < MOST_CHUNKS ? p->b.o->repeats : MOST_CHUNKS;
    double warm_up, began = qv_seconds();
    qv_status status = run_chunk(p, &warm_up, err);
    while (!status && p->n_chunks < most && (!p->n_chunks || qv_seconds() - began < MOST_SECONDS)) {
        status = run_chunk(p, &p->encode_ms[p->n_chunks], err);
        for (size_t i = 0; i < p->n; i++)
            p->rows[i].samples[p->n_chunks] = p->ms[i];
        p->n_chunks++;
    }
    for (size_t i = 0; i < p->n && !status; i++)
        p->rows[i].ms = qv_quantile(p->rows[i].samples, (size_t)p->n_chunks, 0.5);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* The sum of several operations. */
struct sum {
    int64_t calls, layers;
    double ms, flops, bytes;
};

static void
add(struct sum *s, const struct row *r)
{
    s->calls++;
    s->ms += r->ms;
    s->flops += r->flops;
    s->bytes += r->bytes;
}

static struct sum
total(const struct profile *p)
{
    struct sum all = { 0 };
    for (size_t i = 0; i < p->n; i++)
        add(&all, &p->rows[i]);
    return all;
}

static void
print_head(const char *what, const char *on)
{
    tool_print("\n%-28s %6s %10s %7s %9s %9s %9s %9s %8s%s\n", what, "calls", "ms", "share",
               "GFLOP", "MB", "TFLOP/s", "GB/s", "of roofline", on);
}

static void
print_sum(const struct profile *p, const char *name, struct sum s, const char *on)
{
    double seconds = s.ms > 0 ? s.ms * 1e-3 : 1e30;
    const struct bench_figure share =
        bench_roof_share(&p->b, p->m.dtype, s.flops, s.bytes, false, s.ms);
    tool_print("  %-26s %6lld %10.3f %6.1f%% %9.2f %9.2f %9.3f %9.2f", name, (long long)s.calls,
               s.ms, 100 * s.ms / total(p).ms, s.flops * 1e-9, s.bytes * 1e-6,
               s.flops / seconds * 1e-12, s.bytes / seconds * 1e-9);
    bench_print_share(share, on);
}

static bool
same_kernel(const struct profile *p, size_t a, size_t b)
{
    return p->steps[a].op.kind == p->steps[b].op.kind &&
           !strcmp(p->rows[a].kernel, p->rows[b].kernel);
}

/* Returns the length of the part of a layer's name that it shares with others: "blocks" in
 * "blocks.0". */
static size_t
stem(const char *layer)
{
    return strcspn(layer, ".");
}

static bool
same_stem(const struct profile *p, size_t a, size_t b)
{
    const char *x = p->rows[a].layer, *y = p->rows[b].layer;
    return stem(x) == stem(y) && !strncmp(x, y, stem(x));
}

/* Returns the sum of the operations that are the same as operation i, or none unless i is the first
 * of them. */
static struct sum
sum_same(const struct profile *p, size_t i,
         bool (*same)(const struct profile *p, size_t a, size_t b))
{
    struct sum s = { 0 };
    for (size_t j = 0; j < p->n; j++) {
        if (!same(p, i, j))
            continue;
        if (j < i)
            return s;
        s.layers += j == i || strcmp(p->rows[j].layer, p->rows[j - 1].layer);
        add(&s, &p->rows[j]);
    }
    return s;
}

static void
print_kinds(const struct profile *p)
{
    static const struct sum none;
    print_head("by operation", "  on");
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        for (size_t i = 0; i < p->n; i++) {
            const struct sum s =
                (int)p->steps[i].op.kind == kind ? sum_same(p, i, same_kernel) : none;
            if (s.calls)
                print_sum(p, qv_op_name((enum qv_op_kind)kind), s, p->rows[i].kernel);
        }
    print_sum(p, "all", total(p), "");
}

/* Prints sums of the layers that share a stem; if there are several, also the mean of one. */
static void
print_layers(const struct profile *p)
{
    print_head("by layer", "");
    for (size_t i = 0; i < p->n; i++) {
        const char *layer = p->rows[i].layer;
        const struct sum s = sum_same(p, i, same_stem);
        const double n = (double)s.layers;
        if (!s.calls)
            continue;
        char name[60];
        int used = snprintf(name, sizeof name, "%.*s", (int)stem(layer), layer);
        if (n > 1)
            snprintf(name + used, sizeof name - (size_t)used, " (%lld)", (long long)s.layers);
        print_sum(p, name, s, "");
        if (n > 1)
            print_sum(p, "  each",
                      (struct sum){ s.calls / s.layers, 1, s.ms / n, s.flops / n, s.bytes / n },
                      "");
    }
}

static qv_status
emit_steps(struct profile *p, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t i = 0; i < p->n && !status; i++) {
        char text[400];
        const struct row *row = &p->rows[i];
        const struct qv_op *op = &p->steps[i].op;
        const char *kind = qv_op_name(op->kind);
        struct bench_record r = { .work = qv_op_print(op, text, sizeof text),
                                  .way = row->layer,
                                  .dtype = p->m.dtype,
                                  .times = { row->ms, row->samples[(p->n_chunks - 1) * 9 / 10],
                                             p->n_chunks },
                                  .flops = row->flops,
                                  .bytes = row->bytes,
                                  .extras = json_pack("{s:s, s:I, s:s}", "op", kind, "step",
                                                      (json_int_t)i, "kernel", row->kernel) };
        status = bench_emit(&p->b, &r, err);
    }
    return status;
}

/* ---- the trace ------------------------------------------------------------------------------- */

enum { LAYERS = 1, OPERATIONS = 2 }; /* tracks, as thread ids of one process */

static json_t *
name_event(const char *what, int track, const char *name)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M", "pid", 1, "tid",
                     track, "args", "name", name);
}

/* Makes an event for a span of the last chunk, in which each operation begins where the previous
 * one ended. The format wants times in microseconds. */
static json_t *
span_event(const struct profile *p, const char *name, const char *category, int track, size_t first,
           size_t last)
{
    struct sum s = { 0 };
    double begin_ms = 0, ms = 0;
    for (size_t i = 0; i < first; i++)
        begin_ms += p->ms[i];
    for (size_t i = first; i <= last; i++) {
        add(&s, &p->rows[i]);
        ms += p->ms[i];
    }
    json_t *event =
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:{s:f, s:f, s:f}}", "name", name, "cat",
                  category, "ph", "X", "ts", begin_ms * 1e3, "dur", ms * 1e3, "pid", 1, "tid",
                  track, "args", "flops", s.flops, "bytes", s.bytes, "median_ms", s.ms);
    bench_put_figure(json_object_get(event, "args"), "roof_share",
                     bench_roof_share(&p->b, p->m.dtype, s.flops, s.bytes, false, ms));
    return event;
}

static json_t *
trace_json(const struct profile *p)
{
    json_t *events = json_array();
    char name[160], base[100];
    snprintf(name, sizeof name, "qwenvit %s, %s, %s",
             bench_base_name(p->b.o->model, base, sizeof base), qv_dtype_name(p->m.dtype),
             p->b.info.backend);
    json_array_append_new(events, name_event("process_name", LAYERS, name));
    json_array_append_new(events, name_event("thread_name", LAYERS, "layers"));
    json_array_append_new(events, name_event("thread_name", OPERATIONS, "operations"));
    for (size_t i = 0, first = 0; i < p->n; i++) {
        char text[400];
        const struct qv_op *op = &p->steps[i].op;
        json_t *event = span_event(p, qv_op_name(op->kind), "operation", OPERATIONS, i, i);
        json_object_set_new(json_object_get(event, "args"), "operation",
                            json_string(qv_op_print(op, text, sizeof text)));
        json_object_set_new(json_object_get(event, "args"), "kernel",
                            json_string(p->rows[i].kernel));
        json_array_append_new(events, event);
        if (i + 1 < p->n && !strcmp(p->rows[i].layer, p->rows[i + 1].layer))
            continue;
        json_array_append_new(events, span_event(p, p->rows[i].layer, "layer", LAYERS, first, i));
        first = i + 1;
    }
    return json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
}

static qv_status
write_trace(const struct profile *p, const char *path, qv_error *err)
{
    json_t *trace = trace_json(p);
    char *text = qv_json_text(trace, JSON_COMPACT | JSON_REAL_PRECISION(9));
    const qv_status status = text ? qv_atomic_file_put(path, text, strlen(text), err)
                                  : qv_fail(err, QV_ENOMEM, "%s: no memory for a trace", path);
    free(text);
    json_decref(trace);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static qv_status
report(struct profile *p, qv_error *err)
{
    if (bench_talks(&p->b)) {
        tool_print(
            "a chunk of %lld frame%s: %.2f ms encoded, %.2f ms operation by operation (median "
            "of %lld)\n",
            (long long)p->item.n_frames, p->item.n_frames == 1 ? "" : "s",
            qv_quantile(p->encode_ms, (size_t)p->n_chunks, 0.5), total(p).ms,
            (long long)p->n_chunks);
        print_kinds(p);
        print_layers(p);
    }
    qv_status status = emit_steps(p, err);
    if (!status && p->b.o->trace)
        status = write_trace(p, p->b.o->trace, err);
    return status;
}

int
tool_profile(const struct tool_options *o)
{
    const char *wrong = !o->model            ? "--model DIR is required"
                        : o->n_arguments > 1 ? "one clip at most"
                                             : NULL;
    if (wrong) {
        tool_complain("profile: %s (qwenvit profile --help)", wrong);
        return TOOL_USAGE;
    }
    struct profile p = { 0 };
    qv_error err = { 0 };
    qv_status status = open_all(&p, o, &err);
    if (!status)
        status = bench_begin(&p.b, p.m.dtype, "", &err);
    if (!status)
        status = run_all(&p, &err);
    if (!status)
        status = report(&p, &err);
    close_all(&p);
    return status ? tool_fail(status, &err) : TOOL_DONE;
}
