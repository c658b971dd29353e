/* SPDX-License-Identifier: MIT */
/* Makes a clip's task from the caller's options. */
#include "task.h"

#include <math.h>

#include "clips.h"

#define DEFAULT_MEMORY ((int64_t)4 << 30)
#define DEFAULT_PATIENCE_S 60.0

/* Returns the model's numbers for clips or images, some of them replaced by the options. */
static qv_preprocess
numbers_of(const qv_preprocess *model, const qv_clip_options *o, bool is_image)
{
    qv_preprocess p = model ? *model : qv_preprocess_default(is_image);
    if (o->like == QV_LIKE_QWEN_VL_UTILS)
        qvm_take_utils_numbers(&p, is_image);
    p.fps = o->fps > 0.0 ? o->fps : p.fps;
    p.min_frames = o->min_frames ? o->min_frames : p.min_frames;
    p.max_frames = o->max_frames ? o->max_frames : p.max_frames;
    p.min_pixels = o->min_pixels ? o->min_pixels : p.min_pixels;
    p.max_pixels = o->max_pixels ? o->max_pixels : p.max_pixels;
    return p;
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
    const qv_status status = qvm_check_options(path, false, o, err);
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
                              .cuts = o->start_s > 0 || o->end_s > 0,
                              .start_s = o->start_s,
                              .end_s = o->end_s > 0 ? o->end_s : INFINITY,
                              .max_seconds = o->max_seconds > 0 ? o->max_seconds : INFINITY,
                              .max_source_pixels =
                                  o->max_source_pixels ? o->max_source_pixels : INT64_MAX,
                              .image = numbers_of(image, o, true),
                              .video = numbers_of(video, o, false),
                              .num_frames = o->num_frames,
                              .asked_min_frames = o->min_frames,
                              .asked_max_frames = o->max_frames,
                              .total_pixels = o->total_pixels,
                              .cap_pixels = o->cap_pixels,
                              .decoder = o->decoder,
                              .memory = o->decode_memory ? o->decode_memory : DEFAULT_MEMORY,
                              .patience_s =
                                  o->decode_seconds > 0 ? o->decode_seconds : DEFAULT_PATIENCE_S,
                              .go_on = o->go_on,
                              .user = o->user };
    qvm_task_decode(out, o->decode, o->gpu);
    return QV_OK;
}
