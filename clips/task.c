/* SPDX-License-Identifier: MIT */
/* Makes of a caller's options what is to be done with a clip. */
#include "task.h"

#include "clips.h"

#define DEFAULT_MEMORY ((int64_t)4 << 30)
#define DEFAULT_PATIENCE_S 60.0

/* Returns the rules of the package that is followed; NULL: it has none for this model. */
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
    /* smart_resize refuses a processor that it does not know */
    return utils ? &qvm_qwen_vl_utils : &qvm_qwen3_vl;
}

static struct qvm_wanted
wanted_of(const qv_preprocess *preset, const qv_clip_options *o, bool is_image)
{
    struct qvm_wanted w = { .rules = rules_of(preset->processor, o->like),
                            .p = *preset,
                            .num_frames = o->num_frames,
                            .cap_pixels = o->cap_pixels };
    if (w.rules && w.rules->prepare)
        w.rules->prepare(&w, o, is_image);
    w.p.fps = o->fps > 0.0 ? o->fps : w.p.fps;
    w.p.min_frames = o->min_frames ? o->min_frames : w.p.min_frames;
    w.p.max_frames = o->max_frames ? o->max_frames : w.p.max_frames;
    w.p.min_pixels = o->min_pixels ? o->min_pixels : w.p.min_pixels;
    w.p.max_pixels = o->max_pixels ? o->max_pixels : w.p.max_pixels;
    return w;
}

void
qvm_task_decode(struct qvm_task *task, qv_decode by, int gpu)
{
    task->gpu = by == QV_DECODE_GPU ? gpu : -1;
    task->asked.says_no_gpu = by == QV_DECODE_AUTO;
}

qv_status
qvm_task_make(const char *path, const qv_preprocess *image, const qv_preprocess *video,
              const qv_clip_options *options, struct qvm_task *out, qv_error *err)
{
    static const qv_clip_options defaults;
    const qv_clip_options *o = options ? options : &defaults;
    const qv_preprocess of_images = image ? *image : qv_preprocess_default(true),
                        of_clips = video ? *video : qv_preprocess_default(false);
    const qv_status status = qvm_check_options(path, o, err);
    if (status)
        return status;
    *out = (struct qvm_task){ .path = path,
                              .bytes = o->bytes,
                              .n_bytes = o->n_bytes,
                              .asked = { .like = o->like,
                                         .first_frame = o->first_frame,
                                         .usual_codecs = o->usual_codecs,
                                         .threads = o->threads,
                                         .offset = o->offset,
                                         .length = o->length },
                              .start_s = o->start_s,
                              .end_s = o->end_s > 0 ? o->end_s : INFINITY,
                              .max_seconds = o->max_seconds > 0 ? o->max_seconds : INFINITY,
                              .max_source_pixels =
                                  o->max_source_pixels ? o->max_source_pixels : INT64_MAX,
                              .clip = wanted_of(&of_clips, o, false),
                              .image = wanted_of(&of_images, o, true),
                              .decoder = o->decoder,
                              .memory = o->decode_memory ? o->decode_memory : DEFAULT_MEMORY,
                              .patience_s =
                                  o->decode_seconds > 0 ? o->decode_seconds : DEFAULT_PATIENCE_S,
                              .go_on = o->go_on,
                              .user = o->user };
    qvm_task_decode(out, o->decode, o->gpu);
    return QV_OK;
}
