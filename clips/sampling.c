/* SPDX-License-Identifier: MIT */
/* Chooses frames and sizes by the rules of transformers' processors, as pure functions. */
#include <math.h>

#include "clips.h"
#include "numbers.h"

#define MAX_ASPECT 200.0
#define QWEN3_FRAME_TOKENS 768 /* max_video_tokens in cap_pixels_per_frame of the two classes */
#define QWEN2_CLIP_TOKENS 128000
#define MOST_GLM_FPS 1000.0 /* every sampled time is visited, even if most fall on the same frame */

qv_preprocess
qv_preprocess_default(bool is_image)
{
    qv_preprocess p = {
        .min_pixels = is_image ? QV_QWEN3_LEAST_IMAGE : QV_QWEN3_LEAST_CLIP,
        .max_pixels = is_image ? QV_QWEN3_MOST_IMAGE : QV_QWEN3_MOST_CLIP,
        .mean = { 0.5, 0.5, 0.5 },
        .std = { 0.5, 0.5, 0.5 },
        .fps = 2.0,
        .min_frames = 4,
        .max_frames = 768,
        .patch_size = 16,
        .temporal_patch_size = 2,
        .merge_size = 2,
    };
    return p;
}

/* Rounds like Python's round(). rint() would depend on the caller's rounding mode. */
int64_t
qvm_round_half_even(double x)
{
    const double below = floor(x), rest = x - below;
    const int64_t n = (int64_t)below;
    if (rest < 0.5)
        return n;
    if (rest > 0.5)
        return n + 1;
    return n % 2 ? n + 1 : n;
}

static qv_status
check_resize(int64_t num_frames, int64_t height, int64_t width, const qv_preprocess *p,
             qv_error *err)
{
    if (height < 1 || width < 1 || height > QVM_MAX_SAMPLED || width > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "the size is %lldx%lld; each side must be from 1 to %d",
                       (long long)width, (long long)height, QVM_MAX_SAMPLED);
    if (num_frames < 0 || num_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "num_frames is %lld; it must be from 0 (an image) to %d",
                       (long long)num_frames, QVM_MAX_SAMPLED);
    if (p->patch_size < 1 || p->merge_size < 1 || p->temporal_patch_size < 1 ||
        p->patch_size > 4096 || p->merge_size > 64 || p->temporal_patch_size > 64)
        return qv_fail(
            err, QV_EINVAL,
            "patch_size is %d, temporal_patch_size %d and merge_size %d; each must be at "
            "least 1, and at most 4096, 64 and 64",
            p->patch_size, p->temporal_patch_size, p->merge_size);
    if (p->processor != QV_PROCESSOR_QWEN3_VL && p->processor != QV_PROCESSOR_QWEN2_VL &&
        p->processor != QV_PROCESSOR_GLM4V)
        return qv_fail(err, QV_EINVAL, "smart_resize: processor is %d, not a qv_processor",
                       (int)p->processor);
    if (p->min_pixels < 1 || p->max_pixels < 1 || p->max_pixels > QVM_MAX_ASKED)
        return qv_fail(err, QV_EINVAL,
                       "min_pixels is %lld and max_pixels %lld; each must be from 1 to %lld",
                       (long long)p->min_pixels, (long long)p->max_pixels,
                       (long long)QVM_MAX_ASKED);
    if (p->max_pixels < p->min_pixels)
        return qv_fail(err, QV_EINVAL,
                       "max_pixels (%lld) is less than min_pixels (%lld) for %s; lower min_pixels "
                       "or raise max_pixels",
                       (long long)p->max_pixels, (long long)p->min_pixels,
                       num_frames ? "clips" : "images");
    return QV_OK;
}

qv_status
qv_smart_resize(int64_t num_frames, int64_t height, int64_t width, const qv_preprocess *p,
                int64_t *out_height, int64_t *out_width, qv_error *err)
{
    QV_NEED(err, p, out_height, out_width);
    qv_status status = check_resize(num_frames, height, width, p, err);
    if (status)
        return status;
    const int64_t factor = (int64_t)p->patch_size * p->merge_size;
    const int64_t temporal = p->temporal_patch_size;
    int64_t frames = num_frames, frames_bar = 1;
    if (p->processor == QV_PROCESSOR_GLM4V ||
        (frames > 0 && p->processor == QV_PROCESSOR_QWEN3_VL)) {
        /* transformers rejects clips shorter than a temporal patch. Here they are sized as one
         * temporal patch, to which they are padded; so are GLM's images. */
        frames = qv_at_least(frames, temporal);
        frames_bar = qvm_round_half_even((double)frames / (double)temporal) * temporal;
        if (height < factor || width < factor) {
            const double tall = (double)factor / (double)height;
            const double wide = (double)factor / (double)width;
            const double scale = tall > wide ? tall : wide;
            height = (int64_t)((double)height * scale);
            width = (int64_t)((double)width * scale);
        }
    } else {
        frames = 1;
    }

    const int64_t longer = height > width ? height : width;
    const int64_t shorter = height > width ? width : height;
    if (shorter < 1 || (double)longer / (double)shorter > MAX_ASPECT)
        return qv_fail(err, QV_EINVAL,
                       "%lldx%lld is too long and thin; the aspect ratio may be at most 200",
                       (long long)width, (long long)height);

    const double h = (double)height, w = (double)width, f = (double)factor;
    int64_t h_bar = qvm_round_half_even(h / f) * factor;
    int64_t w_bar = qvm_round_half_even(w / f) * factor;
    const double pixels = (double)frames_bar * (double)h_bar * (double)w_bar;
    const double volume = (double)(frames * height) * w; /* exact below 2^53, as in Python */
    if (pixels > (double)p->max_pixels) {
        const double beta = sqrt(volume / (double)p->max_pixels);
        h_bar = qv_at_least((int64_t)floor(h / beta / f) * factor, factor);
        w_bar = qv_at_least((int64_t)floor(w / beta / f) * factor, factor);
    } else if (pixels < (double)p->min_pixels) {
        const double beta = sqrt((double)p->min_pixels / volume);
        h_bar = (int64_t)ceil(h * beta / f) * factor;
        w_bar = (int64_t)ceil(w * beta / f) * factor;
    }
    if (h_bar < factor || w_bar < factor)
        return qv_fail(err, QV_EINVAL, "%lldx%lld becomes %lldx%lld; min_pixels %lld is too small",
                       (long long)width, (long long)height, (long long)w_bar, (long long)h_bar,
                       (long long)p->min_pixels);
    if (h_bar > QVM_MAX_SIDE || w_bar > QVM_MAX_SIDE || h_bar * w_bar > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EINVAL,
                       "would be resized to %lldx%lld; at most %d pixels are supported; lower "
                       "min_pixels or max_pixels",
                       (long long)w_bar, (long long)h_bar, QVM_MAX_PIXELS);
    *out_height = h_bar;
    *out_width = w_bar;
    return QV_OK;
}

/* numpy.linspace(0, total - 1, n).round(), in numpy's order of operations. */
static void
fill_indices(int64_t first, int64_t total, int64_t n, int64_t *indices)
{
    const double span = (double)(total - 1);
    const double step = n > 1 ? span / (double)(n - 1) : 0.0;
    for (int64_t i = 0; i < n; i++)
        indices[i] = first + qvm_round_half_even((double)i * step);
    if (n > 1)
        indices[n - 1] = first + total - 1;
}

int64_t
qv_sample_frames(int64_t total_frames, double source_fps, double fps, int64_t num_frames,
                 int64_t min_frames, int64_t max_frames, int64_t *indices)
{
    if (total_frames < 1)
        return 0;
    int64_t n = num_frames;
    if (n <= 0) {
        if (!(source_fps > 0.0) || isinf(source_fps))
            source_fps = QVM_DEFAULT_FPS;
        double wanted = (double)total_frames;
        if (fps > 0.0)
            wanted = (double)total_frames / source_fps * fps;
        n = wanted < (double)INT32_MAX ? (int64_t)wanted : INT32_MAX;
        n = qv_at_least(n, min_frames);
        n = n > max_frames ? max_frames : n;
        n = n > total_frames ? total_frames : n;
        n = qv_at_least(n, 1);
    }
    if (indices)
        fill_indices(0, total_frames, n, indices);
    return n;
}

/* ---- clips of Qwen3-VL ----------------------------------------------------------------------- */

static qv_status
count_qwen3(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t *n,
            qv_error *err)
{
    (void)err;
    *n = qv_sample_frames(o->cut_frames, o->source_fps, p->fps, t->num_frames, p->min_frames,
                          p->max_frames, NULL);
    return QV_OK;
}

static void
fill_qwen3(const qv_outcome *o, const qv_preprocess *p, int64_t n, int64_t *indices)
{
    (void)p;
    fill_indices(o->first_frame, o->cut_frames, n, indices);
}

/* resize(cap_pixels_per_frame=True) of Qwen3-VL. */
static int64_t
cap_qwen3(const qv_preprocess *p, int64_t n_frames)
{
    const int64_t factor = (int64_t)p->patch_size * p->merge_size;
    int64_t pixels = QWEN3_FRAME_TOKENS * factor * factor;
    if (pixels > p->max_pixels / n_frames)
        pixels = p->max_pixels / n_frames;
    return qv_at_least(pixels, (int64_t)((double)p->min_pixels * 1.05)) * n_frames;
}

/* ---- clips of Qwen2-VL and Qwen2.5-VL -------------------------------------------------------- */

/* Counts like sample_frames, in reals until the end. sample_frames fails on a clip shorter than a
 * pair; here all of such a clip is used. */
static qv_status
count_qwen2(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t *n,
            qv_error *err)
{
    const int64_t total = o->cut_frames, pair = p->temporal_patch_size;
    const int64_t whole = total / pair * pair;
    *n = total;
    if (total < pair)
        return QV_OK;
    if (t->num_frames) {
        *n = qvm_round_half_even((double)t->num_frames / (double)pair) * pair;
        return *n >= pair && *n <= total
                   ? QV_OK
                   : qv_fail(err, QV_EINVAL,
                             "num_frames is %lld, rounded to %lld because this model needs frame "
                             "pairs; it must be from %lld to %lld (the clip has %lld frames)",
                             (long long)t->num_frames, (long long)*n, (long long)pair,
                             (long long)whole, (long long)total);
    }
    const int64_t most = (p->max_frames < total ? p->max_frames : total) / pair * pair;
    double wanted = (double)total / o->source_fps * p->fps;
    wanted = fmin(fmax(wanted, (double)p->min_frames), (double)most);
    *n = (int64_t)(wanted / (double)pair) * pair;
    return *n >= pair ? QV_OK
                      : qv_fail(err, QV_EINVAL,
                                "fps %g, min_frames %lld and max_frames %lld select less than one "
                                "pair of the clip's %lld frames; at least %lld are needed",
                                p->fps, (long long)p->min_frames, (long long)p->max_frames,
                                (long long)total, (long long)pair);
}

/* torch.arange(0, total, total / n).int() in float32: vectors of 8 begin with a rounded value, and
 * the rest is computed one by one. An extra value, past the last frame, is left out. */
static void
fill_qwen2(const qv_outcome *o, const qv_preprocess *p, int64_t n, int64_t *indices)
{
    enum { LANES = 8 };
    const double step = n ? (double)o->cut_frames / (double)n : 0;
    (void)p;
    for (int64_t i = 0; i < n; i++) {
        const int64_t lane = i % LANES;
        const double base = (double)(float)((double)(i - lane) * step);
        const bool whole = i - lane + LANES <= n;
        indices[i] = o->first_frame +
                     (int64_t)(float)(whole ? base + (double)lane * step : (double)i * step);
    }
}

/* resize(cap_pixels_per_frame=True) of Qwen2-VL, where each frame gets an even share of the
 * clip's budget. */
static int64_t
cap_qwen2(const qv_preprocess *p, int64_t n_frames)
{
    const int64_t factor = (int64_t)p->patch_size * p->merge_size;
    const int64_t budget = (int64_t)((double)(QWEN2_CLIP_TOKENS * factor * factor) * 0.9);
    const int64_t share = budget * p->temporal_patch_size / n_frames;
    return qv_at_least(p->max_pixels < share ? p->max_pixels : share,
                       (int64_t)((double)p->min_pixels * 1.05));
}

/* ---- clips of GLM-4.1V and GLM-4.5V ---------------------------------------------------------- */

/* Samples like sample_frames, one frame every 1/fps seconds. A clip longer than max_duration gets
 * as many frames as a clip of that length, spread over the whole clip. Each frame is sampled once,
 * and an odd last frame is repeated. Returns the number of frames, and writes them if indices is
 * not NULL. */
static int64_t
walk_glm4v(const qv_outcome *o, const qv_preprocess *p, int64_t *indices)
{
    const int64_t total = o->cut_frames, last = total - 1;
    const double rate = o->source_fps;
    const double duration = total == o->source_frames ? o->duration_s : (double)total / rate;
    const bool is_long = duration > p->max_duration;
    const double wanted = floor((is_long ? p->max_duration : duration) * p->fps);
    const bool all = is_long && wanted >= (double)total;
    const int64_t samples = all ? total : qv_at_least((int64_t)wanted, 1);
    const double step = samples > 1 ? duration / (double)(samples - 1) : 0;
    int64_t n = 0, before = -1;
    for (int64_t i = 0; i < samples && before < last; i++) {
        const double second = i && i == samples - 1 ? duration : (double)i * step;
        const double at = ceil(is_long ? second * rate : (double)i * rate / p->fps);
        const int64_t index = all ? i : at < (double)last ? (int64_t)at : last;
        if (index == before)
            continue;
        before = index;
        if (indices)
            indices[n] = o->first_frame + index;
        n++;
    }
    if (n % 2 && indices)
        indices[n] = o->first_frame + before;
    return n + n % 2;
}

static qv_status
count_glm4v(const qv_outcome *o, const qv_preprocess *p, const struct qvm_task *t, int64_t *n,
            qv_error *err)
{
    const struct {
        const char *name;
        int64_t value;
    } others[] = { { "num_frames", t->num_frames },
                   { "min_frames", t->asked_min_frames },
                   { "max_frames", t->asked_max_frames },
                   { "cap_pixels", t->cap_pixels } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].value)
            return qv_fail(
                err, QV_EINVAL,
                "%s is %lld, but this model's processor has no such option; leave it out",
                others[i].name, (long long)others[i].value);
    if (p->fps > MOST_GLM_FPS)
        return qv_fail(err, QV_EINVAL, "fps is %g; this model's processor allows at most %g",
                       p->fps, MOST_GLM_FPS);
    *n = walk_glm4v(o, p, NULL);
    return QV_OK;
}

static void
fill_glm4v(const qv_outcome *o, const qv_preprocess *p, int64_t n, int64_t *indices)
{
    (void)n;
    walk_glm4v(o, p, indices);
}

/* ---- all ------------------------------------------------------------------------------------ */

/* Returns the first frame at `s` seconds or later, by dividing as timestamps do: s times the rate
 * would give more than 7 for 7 / 29.97. */
static int64_t
first_from(const qv_outcome *o, double s)
{
    const double near = ceil(s * o->source_fps);
    int64_t i = near < (double)o->source_frames ? (int64_t)near : o->source_frames;
    while (i > 0 && (double)(i - 1) / o->source_fps >= s)
        i--;
    while (i < o->source_frames && (double)i / o->source_fps < s)
        i++;
    return i;
}

/* Cuts to the frames with start_s <= number / source_fps < end_s. */
static void
cut_between(const qv_outcome *o, const struct qvm_task *t, int64_t *first, int64_t *n)
{
    *first = first_from(o, t->start_s);
    *n = first_from(o, t->end_s) - *first;
}

static qv_status
size_transformers(const qv_outcome *o, const qv_preprocess *preprocess, const struct qvm_task *t,
                  int64_t *height, int64_t *width, qv_error *err)
{
    qv_preprocess p = *preprocess;
    if (t->cap_pixels && !o->is_image)
        p.max_pixels = p.processor == QV_PROCESSOR_QWEN2_VL ? cap_qwen2(&p, o->n_frames)
                                                            : cap_qwen3(&p, o->n_frames);
    qv_error inner;
    const qv_status status = qv_smart_resize(o->is_image ? 0 : o->n_frames, o->source_height,
                                             o->source_width, &p, height, width, &inner);
    if (!status)
        return QV_OK;
    /* if the options are valid, the fault is in the file's shape */
    const bool right = p.min_pixels > 0 && p.max_pixels >= p.min_pixels;
    return qv_fail(err, right ? QV_EFORMAT : status, "%s", inner.text);
}

const qvm_rules qvm_qwen3_vl = { cut_between, count_qwen3, fill_qwen3, size_transformers };
const qvm_rules qvm_qwen2_vl = { cut_between, count_qwen2, fill_qwen2, size_transformers };
const qvm_rules qvm_glm4v = { cut_between, count_glm4v, fill_glm4v, size_transformers };
