/* SPDX-License-Identifier: MIT */
/*
 * qwenvit bench conv3d times every legal lowering of convolutions side by side. bench patch-embed
 * times the towers' patch embedding as a GEMM and as the device library's own Conv3d. Objects are
 * made and run once through the public API; their work on the device is timed.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "conv3d/ready.h"
#include "dtype.h"
#include "error.h"
#include "shapes.h"

#define ABOUT "on data that lies on the device"

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

/* Measures what the tune file does not hold; the result is the choice from then on. */
static qv_status
tune(struct subject *s, qv_error *err)
{
    qv_conv3d *conv = NULL;
    qv_status status = create(s, NULL, &conv, err);
    qv_conv3d_free(&conv);
    return status ? status : ask(s, err);
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
    return b->o->tune ? tune(s, err) : QV_OK;
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

static qv_status
time_way(const struct subject *s, qv_lowering lowering, struct bench_times *out, qv_error *err)
{
    struct way_run w;
    qv_status status = open_way(s, lowering, &w, err);
    if (!status)
        status = bench_time(s->b, &w.run, 1, err);
    *out = w.run.times;
    close_way(&w);
    return status;
}

/* Returns a record of one way, without its extras and note. */
static struct bench_record
record_of(const struct subject *s, const char *work, qv_lowering lowering)
{
    const qv_conv3d_way *way = &s->ways[lowering];
    return (struct bench_record){ .work = work,
                                  .way = qv_lowering_name(lowering),
                                  .desc = s->text,
                                  .chosen = way->chosen,
                                  .dtype = s->info.desc.dtype,
                                  .flops = way->flops,
                                  .bytes = way->bytes };
}

/* ---- conv3d ---------------------------------------------------------------------------------- */

static qv_status
run_way(struct subject *s, const char *work, qv_lowering lowering, qv_error *err)
{
    struct bench_record r = record_of(s, work, lowering);
    qv_status status = time_way(s, lowering, &r.times, err);
    if (status)
        return status;
    char note[60];
    double scratch = (double)s->ways[lowering].scratch_bytes;
    snprintf(note, sizeof note, "%9.2f MB scratch%s", scratch * 1e-6, r.chosen ? ", chosen" : "");
    r.note = note;
    r.extras = json_pack("{s:I}", "scratch_bytes", (json_int_t)s->ways[lowering].scratch_bytes);
    return bench_report(s->b, &r, err);
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
            bench_show_group(b, work, s.info.desc.dtype);
            tool_print("  not %s: %s\n", qv_lowering_name((qv_lowering)i), s.ways[i].reason);
        }
    close_subject(&s);
    return status;
}

/* Runs a line "name: description"; if it has no dtype, in the dtypes that the options ask for. */
static qv_status
run_line(void *user, char *line, qv_error *err)
{
    struct bench *b = user;
    qv_conv3d_desc desc;
    qv_dtype dtypes[2];
    char *colon = strchr(line, ':');
    if (!colon)
        return qv_fail(err, QV_EINVAL, "\"%.60s\" is not of the form name: description", line);
    *colon = 0;
    int n = 1;
    qv_status status = qv_conv3d_parse(colon + 1, &desc, err);
    if (!status && desc.dtype)
        dtypes[0] = desc.dtype;
    else if (!status)
        status = bench_dtypes(b, dtypes, &n, err);
    for (int i = 0; i < n && !status; i++) {
        desc.dtype = dtypes[i];
        if (!(b->peak[desc.dtype].per_s > 0))
            status = bench_begin(b, desc.dtype, ABOUT, err);
        if (!status)
            status = run_ways(b, line, &desc, err);
    }
    bench_part_done(b);
    return status;
}

static qv_status
check_lowering(const char *name, qv_error *err)
{
    if (!name || qv_lowering_find(name) >= 0)
        return QV_OK;
    char names[200] = "";
    for (int i = 0; i < QV_LOWERING_COUNT; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 qv_lowering_name((qv_lowering)i));
    return qv_fail(err, QV_EINVAL, "bench conv3d: --lowering is \"%s\", must be one of %s", name,
                   names);
}

qv_status
bench_conv3d(const struct tool_options *o, qv_error *err)
{
    struct bench b = { 0 };
    qv_status status = check_lowering(o->lowering, err);
    if (!status)
        status = bench_open(&b, o, "conv3d", err);
    if (!status)
        status = bench_each_line(&b, o->shapes ? o->shapes : "built-in shapes",
                                 o->shapes ? NULL : built_in_shapes, run_line, &b, err);
    bench_close(&b);
    return status;
}

/* ---- patch-embed ----------------------------------------------------------------------------- */

struct tower {
    const char *name;
    int64_t hidden, channels, temporal, patch, merge;
};

/* The patch embeddings of all published towers. */
static const struct tower towers[] = {
    { "S", 768, 3, 2, 16, 2 },        /* Qwen3.5 0.8B */
    { "M", 1024, 3, 2, 16, 2 },       /* Qwen3-VL 2B, 4B; Qwen3.5 2B, 4B */
    { "L", 1152, 3, 2, 16, 2 },       /* Qwen3-VL 8B and up; Qwen3.5 9B and up */
    { "Qwen2.5", 1280, 3, 2, 14, 2 }, /* Qwen2-VL, Qwen2.5-VL, all sizes */
};

static const int64_t row_counts[] = { 760, 3040, 6080, 24320, 97280 };
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts };
#define MOST_RUN_MS 2000 /* limit for one run, unless --rows asks for more */

/* Describes frames with so many patches: pairs of 20 x 38, or one pair of two rows of patches.
 * Returns false if neither is possible. */
static bool
as_frames(const struct tower *t, int64_t rows, qv_conv3d_desc *d)
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
as_rows(const struct tower *t, int64_t rows, qv_dtype dtype)
{
    return (qv_conv3d_desc){ .n = rows,
                             .d = t->temporal,
                             .h = t->patch,
                             .w = t->patch,
                             .c = t->channels,
                             .o = t->hidden,
                             .kernel = { t->temporal, t->patch, t->patch },
                             .stride = { t->temporal, t->patch, t->patch },
                             .layout = QV_LAYOUT_PATCH_ROWS,
                             .bias = true,
                             .dtype = dtype };
}

/* The works that are timed for a patch embedding of so many rows, besides the library's own
 * Conv3d. */
enum { GEMM_ALONE, FROM_ROWS, FROM_BYTES, N_EMBEDS };

struct embed {
    struct bench *b;
    char work[160];
    int64_t rows;
    struct subject subjects[N_EMBEDS]; /* GEMM_ALONE has none */
    struct way_run ways[N_EMBEDS];
    struct bench_ops gemm;
    struct qv_memory *weight;
    bool has_bytes;
    struct bench_times times[N_EMBEDS];
    double floor_ms; /* floor of FROM_BYTES */
};

static void
close_embed(struct embed *e)
{
    for (int i = FROM_ROWS; i < N_EMBEDS; i++) {
        close_way(&e->ways[i]);
        close_subject(&e->subjects[i]);
    }
    bench_ops_close(&e->gemm);
    if (e->weight)
        e->b->ctx->backend->free(e->b->ctx->dev, e->weight);
}

/* Opens the GEMM that patchify comes down to, without its epilogue. */
static qv_status
open_gemm(struct embed *e, const struct tower *t, qv_dtype dtype, qv_error *err)
{
    const int64_t k = t->channels * t->temporal * t->patch * t->patch;
    const struct qv_op_gemm gemm = { .m = e->rows, .n = t->hidden, .k = k, .alpha = 1 };
    const qv_status status = bench_gemm_open(e->b->ctx, &gemm, dtype, &e->gemm, &e->weight, err);
    /* bytes are read once, and rows are written once */
    e->floor_ms = (double)(e->rows * k) * (1 + (double)qv_dtype_bytes(dtype)) / e->b->copy.per_s *
                  1e3; /* time_embed adds the GEMM's time */
    return status;
}

static qv_status
open_embed(struct embed *e, const struct tower *t, qv_dtype dtype, qv_error *err)
{
    qv_conv3d_desc d = as_rows(t, e->rows, dtype);
    snprintf(e->work, sizeof e->work, "%s %lld rows", t->name, (long long)e->rows);
    qv_status status = open_gemm(e, t, dtype, err);
    if (!status)
        status = open_subject(&e->subjects[FROM_ROWS], e->b, &d, err);
    if (!status)
        status = open_way(&e->subjects[FROM_ROWS], QV_LOWERING_PATCHIFY, &e->ways[FROM_ROWS], err);
    e->has_bytes = as_frames(t, e->rows, &d);
    if (!status && e->has_bytes)
        status = open_subject(&e->subjects[FROM_BYTES], e->b, &d, err);
    if (!status && e->has_bytes)
        status =
            open_way(&e->subjects[FROM_BYTES], QV_LOWERING_PATCHIFY, &e->ways[FROM_BYTES], err);
    return status;
}

/* Times the works alternately, because they are compared with one another. */
static qv_status
time_embed(struct embed *e, qv_error *err)
{
    struct bench_run runs[N_EMBEDS] = { { .work = bench_list_run, .user = &e->gemm.list },
                                        e->ways[FROM_ROWS].run,
                                        e->ways[FROM_BYTES].run };
    qv_status status = bench_time(e->b, runs, e->has_bytes ? N_EMBEDS : N_EMBEDS - 1, err);
    for (int i = 0; i < N_EMBEDS; i++)
        e->times[i] = runs[i].times;
    e->floor_ms += runs[GEMM_ALONE].times.median_ms;
    return status;
}

static qv_status
report_gemm(const struct embed *e, qv_error *err)
{
    struct bench_record r = record_of(&e->subjects[FROM_ROWS], e->work, QV_LOWERING_PATCHIFY);
    r.way = "GEMM alone";
    r.chosen = false;
    r.times = e->times[GEMM_ALONE];
    r.flops = e->gemm.flops;
    r.bytes = e->gemm.bytes;
    r.extras = json_pack("{s:I}", "rows", (json_int_t)e->rows);
    return bench_report(e->b, &r, err);
}

static qv_status
report_patchify(const struct embed *e, int which, qv_error *err)
{
    struct bench_record r = record_of(&e->subjects[which], e->work, QV_LOWERING_PATCHIFY);
    char note[120];
    double ms = e->times[which].median_ms, gemm_ms = e->times[GEMM_ALONE].median_ms;
    r.way = which == FROM_BYTES ? "patchify from bytes" : "patchify";
    r.times = e->times[which];
    r.extras = json_pack("{s:I, s:f}", "rows", (json_int_t)e->rows, "over_gemm", ms / gemm_ms);
    snprintf(note, sizeof note, "%.2f times GEMM alone", ms / gemm_ms);
    if (which == FROM_BYTES) {
        double over_patchify = ms / e->times[FROM_ROWS].median_ms;
        const struct bench_figure over = bench_over(ms, e->floor_ms, e->b->copy.known);
        char text[100];
        json_object_set_new(r.extras, "over_patchify", json_real(over_patchify));
        bench_put_figure(r.extras, "over_floor", over);
        snprintf(note, sizeof note, "times its floor: %s",
                 bench_figure_text(over, 2, "", text, sizeof text));
    }
    r.note = note;
    return bench_report(e->b, &r, err);
}

/* Times the library's own Conv3d. It comes after the others, since it may take a hundred times as
 * long. */
static qv_status
run_direct(const struct embed *e, double *ms, qv_error *err)
{
    const struct subject *s = &e->subjects[FROM_ROWS];
    struct bench_record r = record_of(s, e->work, QV_LOWERING_DIRECT);
    char note[60];
    if (!s->ways[QV_LOWERING_DIRECT].legal) {
        if (bench_talks(e->b))
            tool_print("  not direct: %s\n", s->ways[QV_LOWERING_DIRECT].reason);
        return QV_OK;
    }
    qv_status status = time_way(s, QV_LOWERING_DIRECT, &r.times, err);
    if (status)
        return status;
    *ms = r.times.median_ms;
    double over = *ms / e->times[FROM_ROWS].median_ms;
    snprintf(note, sizeof note, "%.2f times patchify", over);
    r.note = note;
    r.extras = json_pack("{s:I, s:f}", "rows", (json_int_t)e->rows, "over_patchify", over);
    return bench_report(e->b, &r, err);
}

/* *longest_ms becomes the slowest way's time. */
static qv_status
run_rows(struct bench *b, const struct tower *t, int64_t rows, qv_dtype dtype, double *longest_ms,
         qv_error *err)
{
    struct embed e = { .b = b, .rows = rows };
    double direct_ms = 0;
    qv_status status = open_embed(&e, t, dtype, err);
    if (!status)
        status = time_embed(&e, err);
    if (!status)
        status = report_gemm(&e, err);
    if (!status)
        status = report_patchify(&e, FROM_ROWS, err);
    if (!status && e.has_bytes)
        status = report_patchify(&e, FROM_BYTES, err);
    if (!status)
        status = run_direct(&e, &direct_ms, err);
    double ms = e.times[FROM_ROWS].median_ms;
    *longest_ms = direct_ms > ms ? direct_ms : ms;
    close_embed(&e);
    return status;
}

static qv_status
run_tower(struct bench *b, const struct tower *t, qv_dtype dtype, qv_error *err)
{
    int64_t most = b->o->rows ? b->o->rows : row_counts[N_ROW_COUNTS - 1];
    double longest_ms = 0;
    if (most < row_counts[0])
        return run_rows(b, t, most, dtype, &longest_ms, err);
    qv_status status = QV_OK;
    for (int i = 0; i < N_ROW_COUNTS && row_counts[i] <= most && !status; i++) {
        double factor = i ? (double)row_counts[i] / (double)row_counts[i - 1] : 1;
        if (!b->o->rows && longest_ms * factor > MOST_RUN_MS) {
            if (bench_talks(b))
                tool_print(
                    "  stopped before %lld rows: one run would take about %.0f s (--rows %lld "
                    "to run it)\n",
                    (long long)row_counts[i], longest_ms * factor * 1e-3, (long long)row_counts[i]);
            break;
        }
        status = run_rows(b, t, row_counts[i], dtype, &longest_ms, err);
    }
    return status;
}

static qv_status
run_towers(struct bench *b, const struct tower *list, size_t n, qv_error *err)
{
    qv_dtype dtypes[2];
    int n_dtypes;
    qv_status status = bench_dtypes(b, dtypes, &n_dtypes, err);
    for (int i = 0; i < n_dtypes && !status; i++) {
        status = bench_begin(b, dtypes[i],
                             ABOUT "; floor of patchify from bytes: GEMM alone, and reading bytes "
                                   "and writing rows at the copy rate",
                             err);
        for (size_t j = 0; j < n && !status; j++)
            status = run_tower(b, &list[j], dtypes[i], err);
    }
    return status;
}

qv_status
bench_patch_embed(const struct tool_options *o, qv_error *err)
{
    struct bench b;
    struct qv_config c = { .hidden = 0 };
    char name[100];
    qv_status status = bench_open(&b, o, "patch-embed", err);
    if (!status && o->model)
        status = qv_config_read(o->model, &c, err);
    if (!status && o->model) {
        bench_base_name(o->model, name, sizeof name);
        const struct tower own = { name, c.hidden, c.in_channels, c.temporal, c.patch, c.merge };
        status = run_towers(&b, &own, 1, err);
    } else if (!status) {
        status = run_towers(&b, towers, sizeof towers / sizeof *towers, err);
    }
    bench_close(&b);
    return status;
}
