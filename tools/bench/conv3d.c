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

/* What a convolution reads and writes. */
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
    if (!status)
        w->list.n = qv_conv3d_calls(w->conv, &w->list.calls);
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

/* Times a lowering, or prints why it is not legal. */
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

/* Describes frames with so many patches: pairs of 20 x 38, or one pair of two rows of patches.
 * Returns false if neither is possible. */
static bool
as_frames(const struct qv_config *t, int64_t rows, qv_conv3d_desc *d)
{
    const bool usual = rows % 760 == 0;
    if (!usual && rows % (t->merge * t->merge))
        return false;
    d->n = 1;
    d->d = usual ? rows / 760 * t->temporal : t->temporal;
    d->h = (usual ? 20 : t->merge) * t->patch;
    d->w = (usual ? 38 : rows / t->merge) * t->patch;
    d->layout = QV_LAYOUT_FRAMES_U8;
    d->merge = t->merge;
    d->alpha = 1 / 255.0;
    for (int i = 0; i < 3; i++) {
        d->pixel_scale[i] = 2;
        d->pixel_shift[i] = -255;
    }
    return true;
}

/* The ways to run a patch embedding; the GEMM alone is not an object. */
enum { GEMM_ALONE, FROM_ROWS, FROM_BYTES, DIRECT, N_EMBEDS };
static const struct {
    const char *name;
    bool frames; /* its input: frames, or patch rows */
    qv_lowering lowering;
} embeds[N_EMBEDS] = { { "GEMM alone", false, QV_LOWERING_PATCHIFY },
                       { "patchify", false, QV_LOWERING_PATCHIFY },
                       { "patchify from bytes", true, QV_LOWERING_PATCHIFY },
                       { "direct", false, QV_LOWERING_DIRECT } };

struct embed {
    struct bench *b;
    const struct qv_config *config;
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
open_embed(struct embed *e, qv_error *err)
{
    const qv_dtype dtype = bench_dtype(e->b);
    const struct qv_op_gemm gemm = {
        .m = e->rows, .n = e->config->hidden, .k = qv_config_row_dim(e->config), .alpha = 1
    };
    qv_conv3d_desc d = as_rows(e->config, e->rows, dtype);
    qv_status status = bench_gemm_open(e->b->ctx, &gemm, dtype, &e->gemm, &e->weight, err);
    if (!status)
        status = open_subject(&e->subjects[0], e->b, &d, err);
    if (!status && as_frames(e->config, e->rows, &d))
        status = open_subject(&e->subjects[1], e->b, &d, err);
    for (int i = FROM_ROWS; i < N_EMBEDS && !status; i++) {
        const struct subject *s = &e->subjects[embeds[i].frames];
        if (s->ways[embeds[i].lowering].legal)
            status = open_way(s, embeds[i].lowering, &e->ways[i], err);
    }
    return status;
}

static qv_status
report_embed(const struct embed *e, const char *tower, int which, const struct bench_run *runs,
             qv_error *err)
{
    char work[160];
    const double ms = runs[which].times.median_ms, gemm_ms = runs[GEMM_ALONE].times.median_ms;
    snprintf(work, sizeof work, "%s %lld rows", tower, (long long)e->rows);
    struct bench_record r =
        record_of(&e->subjects[embeds[which].frames], work, embeds[which].lowering);
    r.way = embeds[which].name;
    r.times = runs[which].times;
    r.show = "over_gemm over_patchify over_floor";
    json_object_set_new(r.extras, "rows", json_integer(e->rows));
    if (which == GEMM_ALONE) {
        json_object_set_new(r.extras, "chosen", json_false());
        r.flops = e->gemm.flops;
        r.bytes = e->gemm.bytes;
    } else
        json_object_set_new(r.extras, "over_gemm", json_real(ms / gemm_ms));
    if (which > FROM_ROWS)
        json_object_set_new(r.extras, "over_patchify",
                            json_real(ms / runs[FROM_ROWS].times.median_ms));
    if (which == FROM_BYTES) { /* bytes are read once, rows are written once, and the GEMM runs */
        const double moved = (double)(e->rows * qv_config_row_dim(e->config)) *
                             (1 + (double)qv_dtype_bytes(r.dtype)) / e->b->copy.per_s * 1e3;
        bench_put_figure(r.extras, "over_floor", bench_over(ms, gemm_ms + moved, e->b->copy.known));
    }
    return bench_report(e->b, &r, err);
}

/* *longest_ms becomes the slowest way's time. */
static qv_status
run_rows(struct bench *b, const struct tower *t, int64_t rows, double *longest_ms, qv_error *err)
{
    struct embed e = { .b = b, .config = &t->config, .rows = rows };
    struct bench_run runs[N_EMBEDS] = { { .work = bench_list_run, .user = &e.gemm.list } };
    qv_status status = open_embed(&e, err);
    for (int i = FROM_ROWS; i < N_EMBEDS; i++)
        runs[i] = e.ways[i].run;
    if (!status)
        status = bench_time(b, runs, N_EMBEDS, err);
    for (int i = 0; i < N_EMBEDS && !status; i++) {
        *longest_ms = runs[i].times.median_ms > *longest_ms ? runs[i].times.median_ms : *longest_ms;
        status = runs[i].work ? report_embed(&e, t->name, i, runs, err) : QV_OK;
    }
    close_embed(&e);
    return status;
}

/* Runs a tower with the first n row counts, none above `most`. */
static qv_status
run_tower(struct bench *b, const struct tower *t, int n, int64_t most, qv_error *err)
{
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
        status = run_rows(b, t, rows, &longest_ms, err);
    }
    return status;
}

qv_status
bench_patch_embed(struct bench *b, qv_error *err)
{
    const int64_t most = b->o->rows ? b->o->rows : row_counts[N_ROW_COUNTS - 1];
    const struct tower *list = towers;
    struct tower own;
    size_t n = sizeof towers / sizeof *towers;
    int n_rows = 1;
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
    while (n_rows < N_ROW_COUNTS && row_counts[n_rows] <= most)
        n_rows++;
    bench_expect(b, (int64_t)n * n_rows);
    for (size_t i = 0; i < n && !status; i++)
        status = run_tower(b, &list[i], n_rows, most, err);
    return status;
}
