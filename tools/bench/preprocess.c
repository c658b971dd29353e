/* SPDX-License-Identifier: MIT */
/* qwenvit bench preprocess: times decoding a clip, and resizing a frame. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "error.h"

struct preprocess_bench {
    struct bench *b;
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
    qv_clip_options options = { .threads = d->p->b->info.threads, .decoder = d->p->decoder };
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
    char name[100], work[200];
    const double clip_per_s = 1e3 / times.median_ms;
    snprintf(work, sizeof work, "%s %lldx%lld", bench_base_name(p->clip, name, sizeof name),
             (long long)p->w, (long long)p->h);
    const struct bench_record r = {
        .work = work,
        .way = "decode",
        .dtype = QV_U8,
        .times = times,
        .bytes = (double)info->width * info->height * 3 * (double)info->n_frames,
        .show = "sampled_frames_per_s sampled_frames source_frames",
        .extras =
            tool_json("source_frames:I sampled_frames:I sampled_frames_per_s:f",
                      info->source_frames, info->n_frames, (double)info->n_frames * clip_per_s)
    };
    return bench_report(p->b, &r, err);
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
    status =
        d.frame ? bench_time(p->b, &run, 1, err) : qv_fail(err, QV_ENOMEM, "no memory for a frame");
    free(d.frame);
    if (!status)
        status = report_decode(p, &info, run.times, err);
    return status;
}

/* ---- resize ---------------------------------------------------------------------------- */

static qv_status
resize(void *user, double *ms, qv_error *err)
{
    struct preprocess_bench *p = user;
    (void)ms;
    return qv_resize_bicubic(p->src, p->h, p->w, p->w * 3, p->dst, p->out_h, p->out_w, err);
}

static qv_status
time_resize(struct preprocess_bench *p, qv_error *err)
{
    size_t src = (size_t)(p->h * p->w * 3), dst = (size_t)(p->out_h * p->out_w * 3);
    p->src = malloc(src + 1);
    p->dst = malloc(dst + 1);
    if (!p->src || !p->dst)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame of %lldx%lld", (long long)p->w,
                       (long long)p->h);
    bench_fill(p->src, QV_U8, src);
    struct bench_run run = { .work = resize, .user = p };
    const qv_status status = bench_time(p->b, &run, 1, err);
    if (status)
        return status;
    char work[100];
    snprintf(work, sizeof work, "frame %lldx%lld to %lldx%lld", (long long)p->w, (long long)p->h,
             (long long)p->out_w, (long long)p->out_h);
    const struct bench_record r = { .work = work,
                                    .way = "resize",
                                    .dtype = QV_U8,
                                    .times = run.times,
                                    .bytes = (double)(src + dst) };
    return bench_report(p->b, &r, err);
}

static qv_status
run_all(struct preprocess_bench *p, qv_error *err)
{
    qv_status status = bench_open(p->b, err);
    if (!status)
        status = bench_begin(p->b, p->b->info.dtype, err);
    if (!status && p->clip)
        status = time_decode(p, err);
    else if (!status)
        status = qv_smart_resize(16, p->h, p->w, &p->video, &p->out_h, &p->out_w, err);
    return status ? status : time_resize(p, err);
}

qv_status
bench_preprocess(struct bench *b, qv_error *err)
{
    struct preprocess_bench p = { .b = b,
                                  .clip = b->o->n_arguments ? b->o->arguments[0] : NULL,
                                  .image = qv_preprocess_default(true),
                                  .video = qv_preprocess_default(false),
                                  .h = b->o->size[0],
                                  .w = b->o->size[1] };
    const qv_status status = run_all(&p, err);
    free(p.src);
    free(p.dst);
    qv_decoder_stop(&p.decoder);
    return status;
}
