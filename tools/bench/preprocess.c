/* SPDX-License-Identifier: MIT */
/* qwenvit bench preprocess: times decoding a clip, resizing a frame, and turning a frame pair into
 * patch rows. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "engine/block_order.h"
#include "error.h"

struct preprocess_bench {
    struct bench b;
    const char *clip; /* NULL: random frames of --size */
    qv_decoder *decoder;
    qv_preprocess image, video;
    int64_t h, w, out_h, out_w;
    uint8_t *src, *dst;
};

/* ---- decode ---------------------------------------------------------------------------------- */

struct decode {
    const struct preprocess_bench *p;
    uint8_t *frame;
};

static qv_status
open_clip(const struct decode *d, qv_clip **out, qv_error *err)
{
    qv_clip_options options = { .threads = d->p->b.info.threads, .decoder = d->p->decoder };
    return qv_clip_open(d->p->clip, &d->p->image, &d->p->video, &options, out, err);
}

/* Decodes the clip from end to end, as encoding reads it, and discards the frames. */
static qv_status
decode(void *user, double *ms, qv_error *err)
{
    struct decode *d = user;
    (void)ms;
    qv_clip *clip = NULL;
    qv_status status = open_clip(d, &clip, err);
    for (int64_t n = 1; n && !status;)
        status = qv_clip_read(clip, d->frame, 1, &n, NULL, err);
    qv_clip_close(&clip);
    return status;
}

static qv_status
report_decode(struct preprocess_bench *p, const qv_outcome *info, struct bench_times times,
              qv_error *err)
{
    char name[100], work[200], note[100];
    const double clip_per_s = 1e3 / times.median_ms,
                 sampled_per_s = (double)info->n_frames * clip_per_s;
    snprintf(work, sizeof work, "%s %lldx%lld", bench_base_name(p->clip, name, sizeof name),
             (long long)p->w, (long long)p->h);
    snprintf(note, sizeof note, "%.1f sampled frames/s; %lld of %lld sampled", sampled_per_s,
             (long long)info->n_frames, (long long)info->source_frames);
    struct bench_record r = {
        .work = work,
        .way = "decode",
        .label = "decode and resize",
        .dtype = QV_U8,
        .times = times,
        .bytes = (double)info->width * info->height * 3 * (double)info->n_frames,
        .note = note,
        .extras =
            json_pack("{s:I, s:I, s:f, s:f}", "source_frames", (json_int_t)info->source_frames,
                      "sampled_frames", (json_int_t)info->n_frames, "sampled_frames_per_s",
                      sampled_per_s, "frames_per_s", (double)info->source_frames * clip_per_s)
    };
    return bench_report(&p->b, &r, err);
}

static qv_status
time_decode(struct preprocess_bench *p, qv_error *err)
{
    struct decode d = { .p = p };
    struct bench_run run = { .work = decode, .user = &d };
    qv_clip *clip = NULL;
    qv_outcome info;
    qv_status status = qv_decoder_start(tool_decoder_program(), &p->decoder, err);
    if (!status)
        status = open_clip(&d, &clip, err);
    if (status)
        return status;
    qv_clip_get_info(clip, &info);
    qv_clip_close(&clip);
    p->h = info.source_height;
    p->w = info.source_width;
    p->out_h = info.height;
    p->out_w = info.width;
    d.frame = malloc((size_t)info.width * (size_t)info.height * 3);
    status = d.frame ? bench_time(&p->b, &run, 1, err)
                     : qv_fail(err, QV_ENOMEM, "no memory for a frame");
    free(d.frame);
    if (!status)
        status = report_decode(p, &info, run.times, err);
    return status;
}

/* ---- resize, rows ---------------------------------------------------------------------------- */

static qv_status
resize(void *user, double *ms, qv_error *err)
{
    struct preprocess_bench *p = user;
    (void)ms;
    return qv_resize_bicubic(p->src, p->h, p->w, p->w * 3, p->dst, p->out_h, p->out_w, err);
}

/* Reports one frame of this bench's size. */
static qv_status
report_frame(struct preprocess_bench *p, const char *way, qv_dtype dtype, struct bench_times times,
             double flops, double bytes, qv_error *err)
{
    char work[100], field[40];
    snprintf(work, sizeof work, "frame %lldx%lld to %lldx%lld", (long long)p->w, (long long)p->h,
             (long long)p->out_w, (long long)p->out_h);
    snprintf(field, sizeof field, "%s_ms_per_frame", way);
    struct bench_record r = { .work = work,
                              .way = way,
                              .dtype = dtype,
                              .times = times,
                              .flops = flops,
                              .bytes = bytes,
                              .extras =
                                  json_pack("{s:[I,I], s:[I,I], s:f}", "source", (json_int_t)p->h,
                                            (json_int_t)p->w, "resized", (json_int_t)p->out_h,
                                            (json_int_t)p->out_w, field, times.median_ms) };
    return bench_report(&p->b, &r, err);
}

static qv_status
time_resize(struct preprocess_bench *p, qv_error *err)
{
    size_t src = (size_t)(p->h * p->w * 3), dst = (size_t)(p->out_h * p->out_w * 3);
    p->src = malloc(src);
    p->dst = malloc(dst);
    if (!p->src || !p->dst)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame of %lldx%lld", (long long)p->w,
                       (long long)p->h);
    bench_fill(p->src, QV_U8, src);
    struct bench_run run = { .work = resize, .user = p };
    qv_status status = bench_time(&p->b, &run, 1, err);
    return status ? status
                  : report_frame(p, "resize", QV_U8, run.times, 0, (double)(src + dst), err);
}

enum { PAIR = 2 };

/* Uploads the tables for a clip of one frame pair. */
static qv_status
upload_tables(const struct preprocess_bench *p, const struct qv_op_patchify *op,
              const struct bench_ops *ops, qv_error *err)
{
    int64_t grid_h = p->out_h / op->patch, grid_w = p->out_w / op->patch;
    struct qv_item_place place = { 0, (int32_t)op->patches, (int32_t)op->rows, (int32_t)grid_w };
    struct qv_item_norm norm = { { 2, 2, 2 }, { -255, -255, -255 } };
    struct qv_coords *coords = malloc((size_t)op->rows * sizeof *coords);
    if (!coords)
        return qv_fail(err, QV_ENOMEM, "no memory for the coordinates of %lld rows",
                       (long long)op->rows);
    qv_block_coords(grid_h, grid_w, p->video.merge_size, 0, 0, coords);
    const struct {
        const void *data;
        size_t bytes;
    } tables[] = { { &place, sizeof place },
                   { &norm, sizeof norm },
                   { coords, (size_t)op->rows * sizeof *coords } };
    qv_status status = QV_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = p->b.ctx->backend->upload(p->b.ctx->dev, ops->calls[0].operands[1 + i],
                                           tables[i].data, tables[i].bytes, err);
    free(coords);
    return status;
}

static qv_status
time_rows(struct preprocess_bench *p, qv_error *err)
{
    const int64_t patch = p->video.patch_size, rows = (p->out_h / patch) * (p->out_w / patch);
    struct qv_op op = { .kind = QV_OP_patchify };
    op.u.patchify = (struct qv_op_patchify){ .rows = rows,
                                             .patch = patch,
                                             .temporal = PAIR,
                                             .channels = 3,
                                             .items = 1,
                                             .patches = PAIR * rows };
    qv_op_set_dtype(&op, p->b.info.dtype);
    struct bench_ops ops;
    qv_status status = bench_ops_open(p->b.ctx, &op, 1, &ops, err);
    if (status)
        return status;
    struct bench_run run = { .work = bench_list_run, .user = &ops.list };
    status = upload_tables(p, &op.u.patchify, &ops, err);
    if (!status)
        status = bench_time(&p->b, &run, 1, err);
    run.times.median_ms /= PAIR;
    run.times.p90_ms /= PAIR;
    if (!status)
        status = report_frame(p, "rows", p->b.info.dtype, run.times, ops.flops / PAIR,
                              ops.bytes / PAIR, err);
    bench_ops_close(&ops);
    return status;
}

static qv_status
run_all(struct preprocess_bench *p, qv_error *err)
{
    qv_status status = bench_begin(&p->b, p->b.info.dtype,
                                   "decode: the clip from end to end; the rest: a frame", err);
    if (!status && p->clip)
        status = time_decode(p, err);
    else if (!status)
        status = qv_smart_resize(16, p->h, p->w, &p->video, &p->out_h, &p->out_w, err);
    if (!status)
        status = time_resize(p, err);
    return status ? status : time_rows(p, err);
}

qv_status
bench_preprocess(const struct tool_options *o, qv_error *err)
{
    struct preprocess_bench p = { .clip = o->n_arguments > 1 ? o->arguments[1] : o->verify_clip,
                                  .image = qv_preprocess_default(true),
                                  .video = qv_preprocess_default(false),
                                  .h = o->size[0],
                                  .w = o->size[1] };
    qv_status status = bench_open(&p.b, o, "preprocess", err);
    if (!status)
        status = run_all(&p, err);
    free(p.src);
    free(p.dst);
    qv_decoder_stop(&p.decoder);
    bench_close(&p.b);
    return status;
}
