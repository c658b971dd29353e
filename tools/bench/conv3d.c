/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench conv3d times every legal lowering of convolutions. bench patch-embed times a
 * tower's patch embedding as it runs, as a GEMM and as the device library's own Conv3d. Objects are
 * made and run once through the public API; their work on data that lies on the device is timed.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "conv3d/object.h"
#include "dtype.h"
#include "error.h"
#include "shapes.h"
#include "towers/steps.h"

/* A convolution's input and output. */
enum { X, Y, WEIGHT, BIAS, RESIDUAL, N_DATA };

struct subject {
    struct bench *b;
    qv_conv3d_desc desc; /* with its dtype */
    qv_conv3d_info info;
    qv_conv3d_way ways[QV_LOWERING_COUNT];
    char text[1000]; /* desc as text */
    void *data[N_DATA];
};

static void
close_subject(struct subject *s)
{
    for (int i = 0; i < N_DATA; i++)
        free(s->data[i]);
}

static qv_status
ask(struct subject *s, qv_error *err)
{
    qv_conv3d *conv = NULL;
    qv_status status = qv_conv3d_create(s->b->ctx, &s->desc, NULL, NULL, &conv, err);
    if (!status)
        status = qv_conv3d_get_ways(conv, s->ways, err);
    if (!status)
        qv_conv3d_get_info(conv, &s->info);
    qv_conv3d_free(&conv);
    return status;
}

static qv_status
create(const struct subject *s, qv_lowering lowering, qv_conv3d **out, qv_error *err)
{
    const qv_conv3d_desc *d = &s->info.desc;
    const qv_conv3d_weights weights = { .weight = s->data[WEIGHT],
                                        .bias = d->bias ? s->data[BIAS] : NULL,
                                        .residual = d->residual_rows ? s->data[RESIDUAL] : NULL };
    const qv_conv3d_options options = { .lowering = qv_lowering_name(lowering) };
    return qv_conv3d_create(s->b->ctx, &s->desc, &weights, &options, out, err);
}

static qv_status
open_subject(struct subject *s, struct bench *b, const qv_conv3d_desc *desc, qv_error *err)
{
    *s = (struct subject){ .b = b, .desc = *desc };
    qv_conv3d_print(desc, s->text, sizeof s->text);
    qv_status status = ask(s, err);
    if (status)
        return status;
    const qv_conv3d_desc *d = &s->info.desc;
    const int64_t taps = d->kernel[0] * d->kernel[1] * d->kernel[2];
    const struct {
        qv_dtype dtype;
        size_t bytes;
    } data[N_DATA] = {
        [X] = { d->layout == QV_LAYOUT_FRAMES_U8 ? QV_U8 : d->dtype, s->info.x_bytes },
        [Y] = { d->dtype, s->info.y_bytes },
        [WEIGHT] = { QV_F32, (size_t)(d->o * (d->c / d->groups) * taps) * 4 },
        [BIAS] = { QV_F32, (size_t)d->o * 4 },
        [RESIDUAL] = { d->dtype, (size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype) },
    };
    for (int i = 0; i < N_DATA; i++) {
        s->data[i] = malloc(data[i].bytes + 1);
        if (!s->data[i])
            return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes in and %zu bytes out",
                           s->info.x_bytes, s->info.y_bytes);
        bench_fill(s->data[i], data[i].dtype, data[i].bytes);
    }
    return QV_OK;
}

/* One way to run the convolution, on data that lies on the device. */
struct way_run {
    qv_conv3d *conv;
    struct bench_list list;
    struct bench_run run;
};

static void
close_way(struct way_run *w)
{
    bench_list_close(&w->list);
    qv_conv3d_free(&w->conv);
}

/* Runs once, which also uploads x. The result points into itself, so it must not be moved. */
static qv_status
open_way(const struct subject *s, qv_lowering lowering, struct way_run *w, qv_error *err)
{
    *w = (struct way_run){ .list.ctx = s->b->ctx };
    w->run = (struct bench_run){ .work = bench_list_run, .user = &w->list };
    qv_status status = create(s, lowering, &w->conv, err);
    if (!status)
        status = qv_conv3d_run(w->conv, s->data[X], s->data[Y], err);
    if (!status && w->conv) { /* the analyzer does not see that there is one */
        w->list.calls = w->conv->program.calls;
        w->list.n = w->conv->program.n;
    }
    return status;
}

static struct bench_record
record_of(const struct subject *s, const char *work, qv_lowering lowering)
{
    const qv_conv3d_way *way = &s->ways[lowering];
    return (struct bench_record){ .work = work,
                                  .way = qv_lowering_name(lowering),
                                  .dtype = s->info.desc.dtype,
                                  .flops = way->flops,
                                  .bytes = way->bytes,
                                  .extras = tool_json("chosen:b desc:s", way->chosen, s->text) };
}

/* ---- conv3d ---------------------------------------------------------------------------------- */

/* Times a lowering, or prints why it is illegal. */
static qv_status
run_way(struct subject *s, const char *work, qv_lowering lowering, qv_error *err)
{
    const qv_conv3d_way *way = &s->ways[lowering];
    struct way_run w = { .conv = NULL };
    struct bench_record r = record_of(s, work, lowering);
    qv_status status = QV_OK;
    if (way->legal) {
        r.show = "chosen scratch_bytes";
        json_object_set_new(r.extras, "scratch_bytes",
                            json_integer((json_int_t)way->scratch_bytes));
        status = open_way(s, lowering, &w, err);
        if (!status)
            status = bench_time(s->b, &w.run, 1, err);
        r.times = w.run.times;
        close_way(&w);
        if (!status)
            return bench_report(s->b, &r, err);
    } else if (bench_talks(s->b)) {
        r.show = "reason";
        json_object_set_new(r.extras, "reason", json_string(way->reason));
        r.flops = r.bytes = 0;
        bench_print(s->b, &r);
    }
    json_decref(r.extras);
    return status;
}

/* Runs a line "name: description", which may have a dtype. */
static qv_status
run_line(void *user, char *line, qv_error *err)
{
    struct bench *b = user;
    qv_conv3d_desc desc;
    char *colon = strchr(line, ':');
    if (!colon)
        return qv_fail(err, QV_EINVAL, "\"%.60s\" is not of the form name: description", line);
    *colon = 0;
    qv_status status = qv_conv3d_parse(colon + 1, &desc, err);
    if (status)
        return status;
    desc.dtype = desc.dtype ? desc.dtype : bench_dtype(b);
    if (!(b->peak[desc.dtype].per_s > 0))
        status = bench_begin(b, desc.dtype, err);
    if (status)
        return status;
    struct subject s;
    const int only = b->o->lowering ? qv_lowering_find(b->o->lowering) : -1;
    status = open_subject(&s, b, &desc, err);
    for (int i = 0; i < 2 * QV_LOWERING_COUNT && !status; i++) { /* legal ones first */
        const int lowering = i % QV_LOWERING_COUNT;
        if (s.ways[lowering].legal == (i < QV_LOWERING_COUNT) && (only < 0 || only == lowering))
            status = run_way(&s, line, (qv_lowering)lowering, err);
    }
    close_subject(&s);
    return status;
}

qv_status
bench_conv3d(struct bench *b, qv_error *err)
{
    const char *lowering = b->o->lowering, *shapes = b->o->shapes;
    if (lowering && qv_lowering_find(lowering) < 0) {
        char known[128] = "";
        for (int i = 0; i < QV_LOWERING_COUNT; i++)
            qv_list_name(known, sizeof known, qv_lowering_name((qv_lowering)i));
        return qv_fail(err, QV_EINVAL, "bench conv3d: unknown --lowering \"%s\"; there are %s",
                       lowering, known);
    }
    const qv_status status = bench_open(b, err);
    return status ? status
                  : bench_each_line(b, shapes ? shapes : "built-in shapes",
                                    shapes ? NULL : built_in_shapes, run_line, b, err);
}

/* ---- patch-embed ----------------------------------------------------------------------------- */

static const int64_t row_counts[] = { 760, 3040, 6080, 24320, 97280 };
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts };
#define MOST_RUN_MS 2000 /* limit for one run, unless --rows sets more */

static qv_conv3d_desc
as_rows(const struct qv_config *t, int64_t rows, qv_dtype dtype)
{
    const struct qv_tower_shape shape = { .capacity = { .patches = rows },
                                          .input = QV_INPUT_PATCHES,
                                          .dtype = dtype };
    qv_conv3d_desc d = qv_steps_patch_embed(t, &shape);
    d.residual_rows = 0; /* the positions are added separately */
    return d;
}

/* The ways to run a patch embedding. The GEMM alone is not an object. The tower's own way is the
 * beginning of a plan: positions, and rows of the model's dtype from bytes. */
enum { GEMM_ALONE, FROM_ROWS, FROM_BYTES, DIRECT, N_EMBEDS };
static const struct {
    const char *name;
    qv_lowering lowering;
} embeds[N_EMBEDS] = { { "GEMM alone", QV_LOWERING_PATCHIFY },
                       { "patchify", QV_LOWERING_PATCHIFY },
                       { "patchify from bytes", QV_LOWERING_PATCHIFY },
                       { "direct", QV_LOWERING_DIRECT } };

struct embed {
    struct bench *b;
    qv_model *model;
    int64_t rows;
    struct subject subject; /* patch rows */
    struct way_run ways[N_EMBEDS];
    struct bench_ops gemm;
    qv_plan *plan;
    void *frames;
    double own_flops, own_bytes,
        other_bytes; /* of the tower's own way; of all of it except the GEMM */
};

static void
close_embed(struct embed *e)
{
    for (int i = 0; i < N_EMBEDS; i++)
        close_way(&e->ways[i]);
    close_subject(&e->subject);
    bench_ops_close(&e->gemm);
    qv_plan_free(&e->plan);
    free(e->frames);
}

/* Opens the tower's own way: the calls of a plan up to the last of its patch embedding. Its frames
 * are pairs of 20 x 38 patches, or one pair of two rows of patches. */
static qv_status
open_own(struct embed *e, qv_error *err)
{
    const struct qv_config *c = &e->model->config;
    const bool usual = e->rows % 760 == 0;
    qv_item item = { .grid_thw = { 1, c->merge, e->rows / c->merge } };
    if (usual)
        item = (qv_item){ .grid_thw = { e->rows / 760, 20, 38 } };
    const int64_t pair = item.grid_thw[1] * item.grid_thw[2];
    const size_t bytes = (size_t)(e->rows * qv_config_row_dim(c));
    const qv_plan_options options = { .capacity = { .patches = e->rows, .segment_rows = pair } };
    struct way_run *w = &e->ways[FROM_BYTES];
    qv_status status = qv_plan_create(e->model, &options, &e->plan, err);
    if (status)
        return status;
    const struct qv_program *p = &e->plan->program;
    item.data = e->frames = malloc(bytes);
    if (!e->frames)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of frames", bytes);
    bench_fill(e->frames, QV_U8, bytes);
    status = qv_plan_push(e->plan, &item, 1, err); /* its tables and frames stay on the device */
    *w = (struct way_run){ .list = { .ctx = e->b->ctx, .calls = p->calls },
                           .run = { .work = bench_list_run, .user = &w->list } };
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->steps[i].layer, "patch_embed") || !strcmp(p->steps[i].layer, "embeddings"))
            w->list.n = i + 1;
    for (size_t i = 0; i < w->list.n; i++) {
        const struct qv_op *op = &p->steps[i].op;
        e->own_flops += qv_op_flops(op);
        e->own_bytes += qv_op_bytes(op);
        e->other_bytes += op->kind == QV_OP_gemm ? 0 : qv_op_bytes(op);
    }
    return status;
}

static qv_status
open_embed(struct embed *e, qv_error *err)
{
    const struct qv_config *c = &e->model->config;
    const struct qv_op_gemm gemm = {
        .m = e->rows, .n = c->hidden, .k = qv_config_row_dim(c), .alpha = 1
    };
    const qv_conv3d_desc d = as_rows(c, e->rows, e->model->dtype);
    qv_status status = bench_gemm_open(e->b->ctx, &gemm, e->model->dtype, &e->gemm, err);
    if (!status)
        status = open_subject(&e->subject, e->b, &d, err);
    if (!status)
        status = open_way(&e->subject, QV_LOWERING_PATCHIFY, &e->ways[FROM_ROWS], err);
    if (!status && e->subject.ways[QV_LOWERING_DIRECT].legal)
        status = open_way(&e->subject, QV_LOWERING_DIRECT, &e->ways[DIRECT], err);
    return status ? status : open_own(e, err);
}

static qv_status
report_embed(const struct embed *e, const char *tower, int which, const struct bench_run *runs,
             qv_error *err)
{
    char work[160];
    const double ms = runs[which].times.median_ms, gemm_ms = runs[GEMM_ALONE].times.median_ms;
    snprintf(work, sizeof work, "%s %lld rows", tower, (long long)e->rows);
    struct bench_record r = record_of(&e->subject, work, embeds[which].lowering);
    r.way = embeds[which].name;
    r.times = runs[which].times;
    r.show = "over_gemm over_patchify over_floor";
    json_object_set_new(r.extras, "rows", json_integer(e->rows));
    if (which == GEMM_ALONE) {
        json_object_set_new(r.extras, "chosen", json_false());
        r.flops = e->gemm.program.flops;
        r.bytes = e->gemm.program.bytes;
    } else
        json_object_set_new(r.extras, "over_gemm", json_real(ms / gemm_ms));
    if (which > FROM_ROWS)
        json_object_set_new(r.extras, "over_patchify",
                            json_real(ms / runs[FROM_ROWS].times.median_ms));
    if (which == FROM_BYTES) { /* the GEMM runs, and the bytes of everything else are moved */
        const double moved = e->other_bytes / e->b->copy.per_s * 1e3;
        r.flops = e->own_flops;
        r.bytes = e->own_bytes;
        bench_put_figure(r.extras, "over_floor", bench_over(ms, gemm_ms + moved, e->b->copy.known));
    }
    return bench_report(e->b, &r, err);
}

/* Sets *longest_ms to the slowest way's time. */
static qv_status
run_rows(struct bench *b, qv_model *model, int64_t rows, double *longest_ms, qv_error *err)
{
    char name[100];
    struct embed e = { .b = b, .model = model, .rows = rows };
    struct bench_run runs[N_EMBEDS] = { { .work = bench_list_run, .user = &e.gemm.list } };
    qv_status status = open_embed(&e, err);
    for (int i = FROM_ROWS; i < N_EMBEDS; i++)
        runs[i] = e.ways[i].run;
    if (!status)
        status = bench_time(b, runs, N_EMBEDS, err);
    bench_base_name(b->o->model, name, sizeof name);
    for (int i = 0; i < N_EMBEDS && !status; i++) {
        *longest_ms = runs[i].times.median_ms > *longest_ms ? runs[i].times.median_ms : *longest_ms;
        status = runs[i].times.repeats ? report_embed(&e, name, i, runs, err) : QV_OK;
    }
    close_embed(&e);
    return status;
}

qv_status
bench_patch_embed(struct bench *b, qv_error *err)
{
    const int64_t most = b->o->rows ? b->o->rows : row_counts[N_ROW_COUNTS - 1];
    int n = 1;
    double longest_ms = 0;
    qv_model *model = NULL;
    qv_model_info info;
    qv_status status = bench_open_model(b, &model, &info, err);
    const int64_t area = status ? 1 : info.merge_size * info.merge_size;
    if (!status && most % area)
        status = qv_fail(err, QV_EINVAL, "--rows is %lld; it must be a multiple of %lld",
                         (long long)most, (long long)area);
    if (!status)
        status = bench_begin(b, info.dtype, err);
    if (!status) /* it ends after its patch embedding, so its plans begin as any others */
        model->config.depth = model->config.n_deepstack = 0;
    while (n < N_ROW_COUNTS && row_counts[n] <= most)
        n++;
    bench_expect(b, n);
    for (int i = 0; i < n && !status; i++) {
        const int64_t rows = row_counts[i] < most ? row_counts[i] : most;
        const double ms = i ? longest_ms * (double)row_counts[i] / (double)row_counts[i - 1] : 0;
        if (!b->o->rows && ms > MOST_RUN_MS) {
            tool_say("bench %s: stopped before %lld rows, whose runs would take %.0f s (--rows)",
                     b->name, (long long)rows, ms * 1e-3);
            break;
        }
        if (!bench_next(b))
            break;
        status = run_rows(b, model, rows, &longest_ms, err);
    }
    qv_model_free(&model);
    return status;
}
