/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench conv3d times every legal lowering of convolutions. bench patch-embed times the
 * towers' patch embedding as a GEMM and as the device library's own Conv3d. Objects are made and
 * run once through the public API; their work on data that lies on the device is timed.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "conv3d/object.h"
#include "dtype.h"
#include "error.h"
#include "shapes.h"
#include "towers/steps.h"

/* A convolution being timed, with data for it. */
struct subject {
    struct bench *b;
    qv_conv3d_desc desc; /* with its dtype */
    qv_conv3d_info info;
    qv_conv3d_way ways[QV_LOWERING_COUNT];
    char text[1000]; /* desc as text */
    void *x, *y;
    float *weight, *bias;
};

static void
close_subject(struct subject *s)
{
    free(s->x);
    free(s->y);
    free(s->weight);
    free(s->bias);
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

/* Creates a convolution. With lowering NULL one is chosen, which is measured if the context
 * tunes. */
static qv_status
create(const struct subject *s, const char *lowering, qv_conv3d **out, qv_error *err)
{
    const qv_conv3d_desc *d = &s->info.desc;
    qv_conv3d_weights weights = { .weight = s->weight, .bias = d->bias ? s->bias : NULL };
    qv_conv3d_options options = { .lowering = lowering };
    void *residual = NULL;
    if (d->residual_rows) {
        size_t bytes = (size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype);
        residual = malloc(bytes);
        if (!residual)
            return qv_fail(err, QV_ENOMEM, "no memory for a residual of %zu bytes", bytes);
        bench_fill(residual, d->dtype, bytes);
        weights.residual = residual;
    }
    qv_status status = qv_conv3d_create(s->b->ctx, &s->desc, &weights, &options, out, err);
    free(residual);
    return status;
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
    bool bytes = d->layout == QV_LAYOUT_FRAMES_U8;
    size_t weight =
        (size_t)(d->o * (d->c / d->groups) * d->kernel[0] * d->kernel[1] * d->kernel[2]);
    s->x = malloc(s->info.x_bytes);
    s->y = malloc(s->info.y_bytes);
    s->weight = malloc(weight * sizeof *s->weight);
    s->bias = malloc((size_t)d->o * sizeof *s->bias);
    if (!s->x || !s->y || !s->weight || !s->bias)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes in and %zu bytes out",
                       s->info.x_bytes, s->info.y_bytes);
    bench_fill(s->x, bytes ? QV_U8 : d->dtype, s->info.x_bytes);
    bench_fill(s->weight, QV_F32, weight * sizeof *s->weight);
    bench_fill(s->bias, QV_F32, (size_t)d->o * sizeof *s->bias);
    if (!b->o->tune)
        return QV_OK;
    qv_conv3d *conv =
        NULL; /* it measures what the tune file lacks, which is the choice from then on */
    status = create(s, NULL, &conv, err);
    qv_conv3d_free(&conv);
    return status ? status : ask(s, err);
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
    qv_status status = create(s, qv_lowering_name(lowering), &w->conv, err);
    if (!status)
        status = qv_conv3d_run(w->conv, s->x, s->y, err);
    if (!status)
        w->list.n = qv_conv3d_calls(w->conv, &w->list.calls);
    return status;
}

/* Returns a record of one way. Its extras have what is known of every one. */
static struct bench_record
record_of(const struct subject *s, const char *work, qv_lowering lowering)
{
    const qv_conv3d_way *way = &s->ways[lowering];
    return (struct bench_record){ .work = work,
                                  .way = qv_lowering_name(lowering),
                                  .dtype = s->info.desc.dtype,
                                  .flops = way->flops,
                                  .bytes = way->bytes,
                                  .extras = json_pack("{s:b, s:s}", "chosen", way->chosen, "desc",
                                                      s->text) };
}

/* ---- conv3d ---------------------------------------------------------------------------------- */

static qv_status
run_way(struct subject *s, const char *work, qv_lowering lowering, qv_error *err)
{
    struct way_run w;
    qv_status status = open_way(s, lowering, &w, err);
    if (!status)
        status = bench_time(s->b, &w.run, 1, err);
    if (!status) {
        struct bench_record r = record_of(s, work, lowering);
        r.times = w.run.times;
        r.show = "chosen scratch_bytes";
        json_object_set_new(r.extras, "scratch_bytes",
                            json_integer((json_int_t)s->ways[lowering].scratch_bytes));
        status = bench_report(s->b, &r, err);
    }
    close_way(&w);
    return status;
}

static qv_status
run_ways(struct bench *b, const char *work, const qv_conv3d_desc *desc, qv_error *err)
{
    struct subject s;
    int only = b->o->lowering ? qv_lowering_find(b->o->lowering) : -1;
    qv_status status = open_subject(&s, b, desc, err);
    for (int i = 0; i < QV_LOWERING_COUNT && !status; i++)
        if (s.ways[i].legal && (only < 0 || only == i))
            status = run_way(&s, work, (qv_lowering)i, err);
    for (int i = 0; i < QV_LOWERING_COUNT && !status && bench_talks(b); i++)
        if (!s.ways[i].legal && (only < 0 || only == i)) {
            struct bench_record r = record_of(&s, work, (qv_lowering)i);
            json_object_set_new(r.extras, "reason", json_string(s.ways[i].reason));
            r.show = "reason";
            r.flops = r.bytes = 0;
            bench_print(b, &r);
            json_decref(r.extras);
        }
    close_subject(&s);
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
    return status ? status : run_ways(b, line, &desc, err);
}

qv_status
bench_conv3d(struct bench *b, qv_error *err)
{
    const char *lowering = b->o->lowering, *shapes = b->o->shapes;
    if (lowering && qv_lowering_find(lowering) < 0)
        return qv_fail(err, QV_EINVAL, "bench conv3d: --lowering is \"%s\", no such lowering",
                       lowering);
    const qv_status status = bench_open(b, err);
    return status ? status
                  : bench_each_line(b, shapes ? shapes : "built-in shapes",
                                    shapes ? NULL : built_in_shapes, run_line, b, err);
}

/* ---- patch-embed ----------------------------------------------------------------------------- */

struct tower {
    const char *name;
    struct qv_config config;
};

#define TOWER(name, of, size, side)                                                                \
    {                                                                                              \
        name,                                                                                      \
        {                                                                                          \
            .family = &qv_families[of], .hidden = (size), .in_channels = 3, .temporal = 2,         \
            .patch = (side), .merge = 2                                                            \
        }                                                                                          \
    }

/* The patch embeddings of all published towers. */
static const struct tower towers[] = {
    TOWER("S", QV_FAMILY_QWEN3_5, 768, 16),           /* Qwen3.5 0.8B */
    TOWER("M", QV_FAMILY_QWEN3_VL, 1024, 16),         /* Qwen3-VL 2B, 4B; Qwen3.5 2B, 4B */
    TOWER("L", QV_FAMILY_QWEN3_VL, 1152, 16),         /* Qwen3-VL 8B and up; Qwen3.5 9B and up */
    TOWER("Qwen2.5", QV_FAMILY_QWEN2_5_VL, 1280, 14), /* Qwen2-VL, Qwen2.5-VL, all sizes */
};

static const int64_t row_counts[] = { 760, 3040, 6080, 24320, 97280 };
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts };
#define MOST_RUN_MS 2000 /* limit for one run, unless --rows asks for more */

/* Describes frames with so many patches: pairs of 20 x 38, or one pair of two rows of patches.
 * Returns false if neither is possible. */
static bool
as_frames(const struct qv_config *t, int64_t rows, qv_conv3d_desc *d)
{
    bool usual = rows % 760 == 0;
    int64_t grid_h = usual ? 20 : t->merge, grid_w = usual ? 38 : rows / t->merge;
    if (!usual && rows % (t->merge * t->merge))
        return false;
    d->n = 1;
    d->d = usual ? rows / 760 * t->temporal : t->temporal;
    d->h = grid_h * t->patch;
    d->w = grid_w * t->patch;
    d->layout = QV_LAYOUT_FRAMES_U8;
    d->merge = t->merge;
    d->alpha = 1 / 255.0;
    for (int i = 0; i < 3; i++) {
        d->pixel_scale[i] = 2;
        d->pixel_shift[i] = -255;
    }
    return true;
}

static qv_conv3d_desc
as_rows(const struct qv_config *t, int64_t rows, qv_dtype dtype)
{
    const struct qv_tower_shape shape = { .capacity = { .patches = rows },
                                          .input = QV_INPUT_PATCHES,
                                          .dtype = dtype };
    qv_conv3d_desc d = qv_steps_patch_embed(t, &shape);
    d.residual_rows = 0; /* the positions are added apart */
    return d;
}

/* What is timed of a patch embedding of so many rows. */
enum { GEMM_ALONE, FROM_ROWS, FROM_BYTES, DIRECT, N_EMBEDS };

struct embed {
    struct bench *b;
    char work[160];
    int64_t rows;
    struct subject subjects[2]; /* patch rows; frames */
    struct way_run ways[N_EMBEDS];
    struct bench_ops gemm;
    struct qv_memory *weight;
};

static void
close_embed(struct embed *e)
{
    for (int i = 0; i < N_EMBEDS; i++)
        close_way(&e->ways[i]);
    for (int i = 0; i < 2; i++)
        close_subject(&e->subjects[i]);
    bench_ops_close(&e->gemm);
    if (e->weight)
        e->b->ctx->backend->free(e->b->ctx->dev, e->weight);
}

static qv_status
open_embed(struct embed *e, const struct qv_config *t, qv_dtype dtype, qv_error *err)
{
    const struct qv_op_gemm gemm = {
        .m = e->rows, .n = t->hidden, .k = qv_config_row_dim(t), .alpha = 1
    };
    struct subject *rows = &e->subjects[0], *frames = &e->subjects[1];
    qv_conv3d_desc d = as_rows(t, e->rows, dtype);
    qv_status status = bench_gemm_open(e->b->ctx, &gemm, dtype, &e->gemm, &e->weight, err);
    if (!status)
        status = open_subject(rows, e->b, &d, err);
    if (!status)
        status = open_way(rows, QV_LOWERING_PATCHIFY, &e->ways[FROM_ROWS], err);
    if (!status && rows->ways[QV_LOWERING_DIRECT].legal)
        status = open_way(rows, QV_LOWERING_DIRECT, &e->ways[DIRECT], err);
    if (status || !as_frames(t, e->rows, &d))
        return status;
    status = open_subject(frames, e->b, &d, err);
    return status ? status : open_way(frames, QV_LOWERING_PATCHIFY, &e->ways[FROM_BYTES], err);
}

static qv_status
report_embed(const struct embed *e, const struct qv_config *t, int which,
             const struct bench_run *runs, qv_error *err)
{
    static const char *const names[] = { "GEMM alone", "patchify", "patchify from bytes",
                                         "direct" };
    const double ms = runs[which].times.median_ms, gemm_ms = runs[GEMM_ALONE].times.median_ms,
                 rows_ms = runs[FROM_ROWS].times.median_ms;
    struct bench_record r = record_of(&e->subjects[which == FROM_BYTES], e->work,
                                      which == DIRECT ? QV_LOWERING_DIRECT : QV_LOWERING_PATCHIFY);
    r.way = names[which];
    r.times = runs[which].times;
    r.show = "over_gemm over_patchify over_floor";
    json_object_set_new(r.extras, "rows", json_integer(e->rows));
    if (which == GEMM_ALONE) {
        json_object_set_new(r.extras, "chosen", json_false());
        r.flops = e->gemm.flops;
        r.bytes = e->gemm.bytes;
    } else {
        json_object_set_new(r.extras, "over_gemm", json_real(ms / gemm_ms));
    }
    if (which > FROM_ROWS)
        json_object_set_new(r.extras, "over_patchify", json_real(ms / rows_ms));
    if (which == FROM_BYTES) { /* bytes are read once, rows are written once, and the GEMM runs */
        const double moved = (double)(e->rows * qv_config_row_dim(t)) *
                             (1 + (double)qv_dtype_bytes(r.dtype)) / e->b->copy.per_s * 1e3;
        bench_put_figure(r.extras, "over_floor", bench_over(ms, gemm_ms + moved, e->b->copy.known));
    }
    return bench_report(e->b, &r, err);
}

/* *longest_ms becomes the slowest way's time. */
static qv_status
run_rows(struct bench *b, const struct tower *t, int64_t rows, qv_dtype dtype, double *longest_ms,
         qv_error *err)
{
    struct embed e = { .b = b, .rows = rows };
    struct bench_run runs[N_EMBEDS] = { { 0 } };
    snprintf(e.work, sizeof e.work, "%s %lld rows", t->name, (long long)rows);
    qv_status status = open_embed(&e, &t->config, dtype, err);
    runs[GEMM_ALONE] = (struct bench_run){ .work = bench_list_run, .user = &e.gemm.list };
    for (int i = FROM_ROWS; i < N_EMBEDS; i++)
        runs[i] = e.ways[i].run;
    if (!status)
        status = bench_time(b, runs, N_EMBEDS, err);
    for (int i = 0; i < N_EMBEDS && !status; i++) {
        *longest_ms = runs[i].times.median_ms > *longest_ms ? runs[i].times.median_ms : *longest_ms;
        status = runs[i].work ? report_embed(&e, &t->config, i, runs, err) : QV_OK;
    }
    close_embed(&e);
    return status;
}

/* Returns the most rows, and at *n how many row counts there are. */
static int64_t
most_rows(const struct bench *b, int *n)
{
    const int64_t most = b->o->rows ? b->o->rows : row_counts[N_ROW_COUNTS - 1];
    for (*n = 1; *n < N_ROW_COUNTS && row_counts[*n] <= most;)
        ++*n;
    return most;
}

static qv_status
run_tower(struct bench *b, const struct tower *t, qv_dtype dtype, qv_error *err)
{
    int n;
    const int64_t most = most_rows(b, &n);
    double longest_ms = 0;
    qv_status status = QV_OK;
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
        status = run_rows(b, t, rows, dtype, &longest_ms, err);
    }
    return status;
}

qv_status
bench_patch_embed(struct bench *b, qv_error *err)
{
    struct tower own;
    const struct tower *list = towers;
    size_t n = sizeof towers / sizeof *towers;
    int n_rows;
    char name[100];
    qv_status status = bench_open(b, err);
    if (!status && b->o->model) {
        own.name = bench_base_name(b->o->model, name, sizeof name);
        status = qv_config_read(b->o->model, &own.config, err);
        list = &own;
        n = 1;
    }
    if (!status)
        status = bench_begin(b, bench_dtype(b), err);
    most_rows(b, &n_rows);
    bench_expect(b, (int64_t)n * n_rows);
    for (size_t i = 0; i < n && !status; i++)
        status = run_tower(b, &list[i], bench_dtype(b), err);
    return status;
}
