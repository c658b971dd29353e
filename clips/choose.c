/* SPDX-License-Identifier: MIT */
/* Chooses which frames of a clip are read, and their size. */
#include <math.h>
#include <stdlib.h>

#include "clips.h"
#include "numbers.h"

/* Finds which of the file's frames are in the clip's stretch. */
static qv_status
choose_cut(const qvm_rules *rules, const struct qvm_task *t, qv_outcome *o, qv_error *err)
{
    char asked[80];
    int n = snprintf(asked, sizeof asked, "start %.15g", t->start_s);
    if (isfinite(t->end_s))
        snprintf(asked + n, sizeof asked - (size_t)n, ", end %.15g", t->end_s);
    o->first_frame = 0;
    o->cut_frames = o->source_frames;
    if (!t->cuts)
        return QV_OK;
    if (o->is_image)
        return qv_fail(err, QV_EINVAL, "%s: an image has no duration", asked);
    rules->cut(o, t, &o->first_frame, &o->cut_frames);
    if (o->cut_frames >= 1)
        return QV_OK;
    return qv_fail(err, QV_EINVAL,
                   "%s: no frame lies in this stretch; the clip has %lld frames at %.15g per "
                   "second, the last one at %.15g s",
                   asked, (long long)o->source_frames, o->source_fps,
                   (double)(o->source_frames - 1) / o->source_fps);
}

static qv_status
choose_frames(const qvm_rules *rules, const qv_preprocess *p, const struct qvm_task *t,
              qv_outcome *o, int64_t **indices, qv_error *err)
{
    const int64_t pixels = (int64_t)o->source_width * o->source_height;
    if (pixels > t->max_source_pixels)
        return qv_fail(err, QV_EFORMAT, "its frames have %lld pixels; at most %lld are allowed",
                       (long long)pixels, (long long)t->max_source_pixels);
    o->n_frames = 1;
    o->sampled_fps = o->second_per_grid_ts = 0.0;
    qv_status status = choose_cut(rules, t, o, err);
    if (status)
        return status;
    const double seconds = o->is_image ? 0 : (double)o->cut_frames / o->source_fps;
    if (seconds > t->max_seconds)
        return qv_fail(err, QV_EINVAL,
                       "the clip or stretch lasts %.1f s; at most %g s are allowed; choose a "
                       "shorter stretch with start and end",
                       seconds, t->max_seconds);
    if (!o->is_image)
        status = rules->count(o, p, t, &o->n_frames, err);
    if (status)
        return status;
    if (o->n_frames < 1 || o->n_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL,
                       "%lld frames would be sampled; the number must be from 1 to %d",
                       (long long)o->n_frames, QVM_MAX_SAMPLED);
    *indices = calloc((size_t)o->n_frames, sizeof **indices);
    if (!*indices)
        return qv_fail(err, QV_ENOMEM, "no memory for %lld frame numbers", (long long)o->n_frames);
    if (o->is_image)
        return QV_OK;
    rules->fill(o, p, o->n_frames, *indices);
    o->sampled_fps = (double)o->n_frames / (double)o->cut_frames * o->source_fps;
    o->second_per_grid_ts = p->temporal_patch_size / o->sampled_fps;
    return QV_OK;
}

static qv_status
choose_size(const qvm_rules *rules, const qv_preprocess *p, const struct qvm_task *t, qv_outcome *o,
            qv_error *err)
{
    int64_t height = 0, width = 0;
    const qv_status status = rules->size(o, p, t, &height, &width, err);
    if (status)
        return status;
    if (height > QVM_MAX_SIDE || width > QVM_MAX_SIDE || height * width > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EINVAL,
                       "would be resized to %lldx%lld; at most %d pixels are supported; lower "
                       "max_pixels",
                       (long long)width, (long long)height, QVM_MAX_PIXELS);
    o->height = (int)height;
    o->width = (int)width;
    o->grid_thw[0] = qv_ceil_div(o->n_frames, p->temporal_patch_size);
    o->grid_thw[1] = height / p->patch_size;
    o->grid_thw[2] = width / p->patch_size;
    return QV_OK;
}

/* The rules of the chosen package; NULL if it has none for this model. */
static const qvm_rules *
rules_of(qv_processor processor, qv_like like)
{
    const bool utils = like == QV_LIKE_QWEN_VL_UTILS;
    switch (processor) {
    case QV_PROCESSOR_QWEN3_VL: return utils ? &qvm_qwen_vl_utils : &qvm_qwen3_vl;
    case QV_PROCESSOR_QWEN2_VL: return utils ? &qvm_qwen_vl_utils : &qvm_qwen2_vl;
    case QV_PROCESSOR_GLM4V: return utils ? NULL : &qvm_glm4v;
    case QV_PROCESSOR_MAX: break;
    }
    /* smart_resize rejects an unknown processor */
    return utils ? &qvm_qwen_vl_utils : &qvm_qwen3_vl;
}

qv_status
qvm_choose(const struct qvm_task *t, qv_outcome *o, int64_t **indices, qv_error *err)
{
    const qv_preprocess *p = o->is_image ? &t->image : &t->video;
    const qvm_rules *rules = rules_of(p->processor, t->asked.like);
    if (!rules)
        return qv_fail(
            err, QV_EINVAL,
            "qwen-vl-utils prepares clips and images for Qwen's models, not for this one");
    if (p->patch_size < 1 || p->merge_size < 1 || p->temporal_patch_size < 1)
        return qv_fail(
            err, QV_EINVAL,
            "patch_size is %d, temporal_patch_size %d and merge_size %d; each must be at "
            "least 1",
            p->patch_size, p->temporal_patch_size, p->merge_size);
    o->like = t->asked.like;
    qv_status status = choose_frames(rules, p, t, o, indices, err);
    return status ? status : choose_size(rules, p, t, o, err);
}
