/* SPDX-License-Identifier: MIT */
/* Frames and sizes by the rules of qwen-vl-utils 0.0.14 (fetch_image, fetch_video), in the order of
 * its arithmetic. The size of a merged patch comes from the model, everything else from the options
 * or constants here. */
#include <math.h>

#include "clips.h"

#define MAX_RATIO 200
#define FRAME_FACTOR 2
#define FPS 2.0
#define FPS_MIN_FRAMES 4
#define FPS_MAX_FRAMES 768
#define IMAGE_MIN_TOKENS 4
#define IMAGE_MAX_TOKENS 16384
#define VIDEO_MIN_TOKENS 128
#define VIDEO_MAX_TOKENS 768
#define MODEL_SEQ_LEN 128000

/* ---- frames: calculate_video_frame_range, smart_nframes -------------------------------------- */

static double
within(double s, double most)
{
    return fmax(0.0, fmin(s, most));
}

/* The package fails on a stretch of one frame, so here such a stretch counts as having none. */
static void
cut(const qv_outcome *o, const struct qvm_task *t, int64_t *first, int64_t *n)
{
    const double fps = o->source_fps, duration = (double)o->source_frames / fps;
    const int64_t last = o->source_frames - 1;
    int64_t end = (int64_t)floor(within(t->end_s, duration) * fps);
    end = end < last ? end : last;
    *first = (int64_t)ceil(within(t->start_s, duration) * fps);
    *n = *first < end ? end - *first + 1 : 0;
}

static double
wanted_frames(const qv_outcome *o, const qv_preprocess *p)
{
    const int64_t total = o->cut_frames;
    const int64_t most = p->max_frames / FRAME_FACTOR * FRAME_FACTOR;
    const int64_t least = (p->min_frames + FRAME_FACTOR - 1) / FRAME_FACTOR * FRAME_FACTOR;
    const double n = (double)total / o->source_fps * p->fps;
    return fmin(fmin(fmax(n, (double)least), (double)most), (double)total);
}

static qv_status
count(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t *n,
      qv_error *err)
{
    const int64_t total = o->cut_frames;
    if (total < FRAME_FACTOR)
        return qv_fail(err, QV_EFORMAT, "frames in the clip: %lld; qwen-vl-utils needs %d or more",
                       (long long)total, FRAME_FACTOR);
    if (t->num_frames)
        *n = qvm_round_half_even((double)t->num_frames / FRAME_FACTOR) * FRAME_FACTOR;
    else
        *n = (int64_t)(wanted_frames(o, p) / FRAME_FACTOR) * FRAME_FACTOR;
    if (*n >= FRAME_FACTOR && *n <= total)
        return QV_OK;
    return qv_fail(err, QV_EINVAL,
                   "%s is %lld: qwen-vl-utils would sample %lld frames; it can sample %d to %lld",
                   t->num_frames ? "num_frames" : "max_frames",
                   (long long)(t->num_frames ? t->num_frames : p->max_frames), (long long)*n,
                   FRAME_FACTOR, (long long)total);
}

/* torch.linspace(first, first + total - 1, n).round() in float32, from both ends, rounded once. */
static void
fill(const qv_outcome *o, const qv_preprocess *p, int64_t n, int64_t *indices)
{
    (void)p;
    const float begin = (float)o->first_frame;
    const float end = (float)(o->first_frame + o->cut_frames - 1);
    const float step = n > 1 ? (end - begin) / (float)(n - 1) : 0.0f;
    for (int64_t i = 0; i < n; i++)
        indices[i] =
            qvm_round_half_even((double)(i < n / 2 ? fmaf(step, (float)i, begin)
                                                   : fmaf(-step, (float)(n - 1 - i), end)));
}

/* ---- sizes ----------------------------------------------------------------------------------- */

struct limits {
    double least, most; /* in pixels */
};

/* fetch_video's limits: each frame's share of the clip's budget, at most 768 tokens and at least
 * 1.05 times the minimum. max_pixels can only lower it. */
static struct limits
clip_limits(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t factor)
{
    const int64_t unit = factor * factor, least = p->min_pixels;
    const double budget =
        t->total_pixels ? (double)t->total_pixels : (double)(MODEL_SEQ_LEN * unit) * 0.9;
    const double share = budget / (double)o->n_frames * FRAME_FACTOR;
    const double most = fmax(fmin((double)(VIDEO_MAX_TOKENS * unit), share),
                             (double)(int64_t)((double)least * 1.05));
    return (struct limits){ (double)least, fmin((double)p->max_pixels, most) };
}

static int64_t
rounded(int64_t side, int64_t factor)
{
    const int64_t n = qvm_round_half_even((double)side / (double)factor);
    return (n < 1 ? 1 : n) * factor;
}

/* smart_resize of the package. */
static qv_status
size(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t *out_height,
     int64_t *out_width, qv_error *err)
{
    const int64_t factor = (int64_t)p->patch_size * p->merge_size;
    const struct limits limits =
        o->is_image ? (struct limits){ (double)p->min_pixels, (double)p->max_pixels }
                    : clip_limits(o, p, t, factor);
    const int64_t height = o->source_height, width = o->source_width;
    const int64_t longer = height > width ? height : width;
    const int64_t shorter = height > width ? width : height;
    if (limits.most < limits.least)
        return qv_fail(
            err, QV_EINVAL,
            "at most %.15g pixels are allowed, but %.15g are needed; see max_pixels and min_pixels",
            limits.most, limits.least);
    if (shorter < 1 || (double)longer / (double)shorter > MAX_RATIO)
        return qv_fail(err, QV_EFORMAT,
                       "%lldx%lld is too long and thin; the aspect ratio may be at most %d",
                       (long long)width, (long long)height, MAX_RATIO);

    const double h = (double)height, w = (double)width, f = (double)factor;
    int64_t h_bar = rounded(height, factor), w_bar = rounded(width, factor);
    if ((double)(h_bar * w_bar) > limits.most) {
        const double beta = sqrt(h * w / limits.most);
        h_bar = (int64_t)floor(h / beta / f) * factor;
        w_bar = (int64_t)floor(w / beta / f) * factor;
    } else if ((double)(h_bar * w_bar) < limits.least) {
        const double beta = sqrt(limits.least / (h * w));
        h_bar = (int64_t)ceil(h * beta / f) * factor;
        w_bar = (int64_t)ceil(w * beta / f) * factor;
    }
    if (h_bar < 1 || w_bar < 1)
        return qv_fail(err, QV_EINVAL, "%lldx%lld becomes %lldx%lld; max_pixels %.15g is too small",
                       (long long)width, (long long)height, (long long)w_bar, (long long)h_bar,
                       limits.most);
    *out_height = h_bar;
    *out_width = w_bar;
    return QV_OK;
}

const qvm_rules qvm_qwen_vl_utils = { cut, count, fill, size };

void
qvm_take_utils_numbers(qv_preprocess *p, bool is_image)
{
    const int64_t factor = (int64_t)p->patch_size * p->merge_size, unit = factor * factor;
    p->fps = FPS;
    p->min_frames = FPS_MIN_FRAMES;
    p->max_frames = FPS_MAX_FRAMES;
    p->min_pixels = (is_image ? IMAGE_MIN_TOKENS : VIDEO_MIN_TOKENS) * unit;
    p->max_pixels = is_image ? IMAGE_MAX_TOKENS * unit : INT64_MAX; /* clip_limits bounds it */
}
