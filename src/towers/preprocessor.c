/* SPDX-License-Identifier: MIT */
/* Reads how clips and images are prepared from a checkpoint's files. */
#include "read_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "path.h"

#define MAX_FRAMES ((int64_t)1 << 20)

struct processor {
    const char *name; /* of transformers' class */
    bool clips;
    /* all its published checkpoints have a separate file, video_preprocessor_config.json */
    bool has_own_file;
    /* min_pixels and max_pixels are keys as well, and override `size` */
    bool old_pixels;
    /* the processor uses fps and max_duration, and no frame counts (num_frames, min_frames,
     * max_frames) */
    bool by_duration;
    /* the processor's file may have do_sample_frames false; here clips are always sampled */
    bool may_not_sample;
    qv_preprocess preset; /* defaults of transformers' class; patch sizes come from the tower */
};

/* Where the processors of images and clips are described: in a part of processor_config.json,
 * otherwise in the first of these files that exists. */
static const struct {
    const char *part, *prefix, *files[3];
} places[2] = {
    { "image_processor", "image_processor.", { "preprocessor_config.json" } },
    { "video_processor",
      "video_processor.",
      { "video_preprocessor_config.json", "preprocessor_config.json" } },
};

#define OPENAI_CLIP_NORM .mean = QV_CLIP_MEAN, .std = QV_CLIP_STD

static const struct processor images = {
    .name = "Qwen2VLImageProcessor",
    .old_pixels = true,
    .preset = { .min_pixels = 56 * 56, .max_pixels = 28 * 28 * 1280, OPENAI_CLIP_NORM },
};

static const struct processor glm_images = {
    .name = "Glm4vImageProcessor",
    .preset = { .min_pixels = 112 * 112,
                .max_pixels = 28 * 28 * 15000,
                OPENAI_CLIP_NORM,
                .processor = QV_PROCESSOR_GLM4V },
};

/* Qwen2VLVideoProcessor has no default fps. The 2 here is what its users pass, and the default
 * of qwen-vl-utils. */
static const struct processor clips[] = {
    [QV_PROCESSOR_QWEN3_VL] = { .name = "Qwen3VLVideoProcessor",
                                .clips = true,
                                .has_own_file = true,
                                .preset = { .min_pixels = 128 * 32 * 32,
                                            .max_pixels = 768 * 32 * 32,
                                            .mean = { 0.5, 0.5, 0.5 },
                                            .std = { 0.5, 0.5, 0.5 },
                                            .fps = 2.0,
                                            .min_frames = 4,
                                            .max_frames = 768,
                                            .processor = QV_PROCESSOR_QWEN3_VL } },
    [QV_PROCESSOR_QWEN2_VL] = { .name = "Qwen2VLVideoProcessor",
                                .clips = true,
                                .old_pixels = true,
                                .may_not_sample = true,
                                .preset = { .min_pixels = 128 * 28 * 28,
                                            .max_pixels = 768 * 28 * 28,
                                            OPENAI_CLIP_NORM,
                                            .fps = 2.0,
                                            .min_frames = 4,
                                            .max_frames = 768,
                                            .processor = QV_PROCESSOR_QWEN2_VL } },
    [QV_PROCESSOR_GLM4V] = { .name = "Glm4vVideoProcessor",
                             .clips = true,
                             .by_duration = true,
                             .preset = { .min_pixels = 112 * 112,
                                         .max_pixels = 28 * 28 * 2 * 30000,
                                         OPENAI_CLIP_NORM,
                                         .fps = 2.0,
                                         .max_duration = 300.0,
                                         .processor = QV_PROCESSOR_GLM4V } },
};

/* Rejects files that omit or change a processing step, because that is not supported. */
static qv_status
check_steps(const struct qv_json_object *o, const struct processor *which, qv_error *err)
{
    static const struct {
        const char *key;
        bool right, clips_only, sampling;
    } steps[] = {
        { "do_resize", true, false, false },      { "do_rescale", true, false, false },
        { "do_normalize", true, false, false },   { "do_convert_rgb", true, false, false },
        { "do_sample_frames", true, true, true }, { "cap_pixels_per_frame", false, true, false },
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const json_t *found = qv_json_get(o, steps[i].key);
        if (!found || (steps[i].clips_only && !which->clips))
            continue;
        if (!json_is_boolean(found))
            return qv_json_wrong(o, steps[i].key, found, "it must be true or false", err);
        const bool either = steps[i].sampling && which->may_not_sample;
        if (!either && json_is_true(found) != steps[i].right)
            return qv_json_unsupported(o, steps[i].key, found,
                                       steps[i].right ? "only true is supported"
                                                      : "only false is supported",
                                       err);
    }

    const json_t *factor = qv_json_get(o, "rescale_factor");
    if (factor && !(fabs(json_number_value(factor) - 1.0 / 255.0) <= 1e-9))
        return qv_json_unsupported(o, "rescale_factor", factor,
                                   "only 1/255 = 0.00392156862745098 is supported", err);
    const json_t *resample = qv_json_get(o, "resample");
    if (resample && (!json_is_integer(resample) || json_integer_value(resample) != 3))
        return qv_json_unsupported(o, "resample", resample, "only 3 (bicubic) is supported", err);
    /* other processors ignore num_frames */
    const bool counts = which->clips && !which->by_duration;
    const json_t *num_frames = counts ? qv_json_get(o, "num_frames") : NULL;
    if (num_frames)
        return qv_json_unsupported(o, "num_frames", num_frames, "only fps is supported", err);
    return QV_OK;
}

static qv_preprocess
preset_of(const struct processor *which, const struct qv_config *c)
{
    qv_preprocess p = which->preset;
    p.patch_size = (int)c->patch;
    p.temporal_patch_size = (int)c->temporal;
    p.merge_size = (int)c->merge;
    return p;
}

static qv_status
check_patch(const struct qv_json_object *o, const char *key, const char *tower_key, int64_t tower,
            qv_error *err)
{
    int64_t found = tower;
    const qv_status s = qv_json_int(o, key, 1, 256, &found, err);
    if (s)
        return s;
    if (found != tower)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s%s is %lld, but config.json's %s is %lld; they must "
                       "be the same",
                       o->file, o->prefix, key, (long long)found, tower_key, (long long)tower);
    return QV_OK;
}

static qv_status
read_pixels(const struct qv_json_object *o, bool old_pixels, qv_preprocess *p, qv_error *err)
{
    static const char *const keys[2] = { "shortest_edge", "longest_edge" };
    static const char *const old_keys[2] = { "min_pixels", "max_pixels" };
    int64_t *const values[2] = { &p->min_pixels, &p->max_pixels };
    struct qv_json_object size;
    qv_status s = qv_json_child(o, "size", "size.", &size, err);
    for (int i = 0; i < 2 && !s; i++) {
        const bool old = old_pixels && qv_json_get(o, old_keys[i]);
        if (old)
            s = qv_json_int(o, old_keys[i], 1, QV_MAX_PIXELS, values[i], err);
        else if (size.json && !qv_json_get(&size, keys[i]))
            s = qv_json_wrong(&size, keys[i], NULL, "size must have shortest_edge and longest_edge",
                              err);
        else
            s = qv_json_int(&size, keys[i], 1, QV_MAX_PIXELS, values[i], err);
    }
    if (!s && p->min_pixels > p->max_pixels)
        s = qv_fail(err, QV_EFORMAT,
                    "%s: %ssize.shortest_edge (least pixels, %lld) is above size.longest_edge "
                    "(most pixels, %lld)",
                    o->file, o->prefix, (long long)p->min_pixels, (long long)p->max_pixels);
    return s;
}

static qv_status
read_frames(const struct qv_json_object *o, bool by_duration, qv_preprocess *p, qv_error *err)
{
    qv_status s = qv_json_real(o, "fps", 1e-6, 1000.0, &p->fps, err);
    if (!s && by_duration)
        return qv_json_real(o, "max_duration", 1.0, 1e5, &p->max_duration, err);
    if (!s)
        s = qv_json_int(o, "min_frames", 1, MAX_FRAMES, &p->min_frames, err);
    if (!s)
        s = qv_json_int(o, "max_frames", 1, MAX_FRAMES, &p->max_frames, err);
    if (!s && p->min_frames > p->max_frames)
        s = qv_fail(err, QV_EFORMAT, "%s: %smin_frames is %lld, above max_frames (%lld)", o->file,
                    o->prefix, (long long)p->min_frames, (long long)p->max_frames);
    return s;
}

static qv_status
read_numbers(const struct qv_json_object *o, const struct qv_config *c,
             const struct processor *which, qv_preprocess *p, qv_error *err)
{
    qv_status s = check_steps(o, which, err);
    if (!s)
        s = check_patch(o, "patch_size", "patch_size", c->patch, err);
    if (!s)
        s = check_patch(o, "temporal_patch_size", "temporal_patch_size", c->temporal, err);
    if (!s)
        s = check_patch(o, "merge_size", "spatial_merge_size", c->merge, err);
    if (!s)
        s = read_pixels(o, which->old_pixels, p, err);
    if (!s)
        s = qv_json_reals(o, "image_mean", -1e3, 1e3, p->mean, err);
    if (!s)
        s = qv_json_reals(o, "image_std", 1e-6, 1e3, p->std, err);
    if (!s && which->clips)
        s = read_frames(o, which->by_duration, p, err);
    return s;
}

/* Opens a file of the folder; *root is NULL if it does not exist. The caller does free(*path) and
 * json_decref(*root). */
static qv_status
read_optional(const char *dir, const char *name, char **path, json_t **root, qv_error *err)
{
    *root = NULL;
    *path = qv_path_join(dir, name);
    if (!*path)
        return qv_no_memory(dir, err);
    return qv_path_exists(*path) ? qv_json_read(*path, QV_JSON_MAX_CONFIG, root, err) : QV_OK;
}

/* Where a processor's values were found. */
enum found {
    IN_ITS_FILE, /* or in its part of processor_config.json */
    IN_IMAGES,   /* clips' values, in preprocessor_config.json */
    NOWHERE,
};

/* Reads a processor like transformers' get_video_processor_dict and its counterpart for images:
 * from its part of processor_config.json, otherwise from the first file that exists. If there is
 * none, the defaults apply, whereas transformers fails. */
static qv_status
read_processor(const char *dir, const struct processor *which, const struct qv_config *c,
               qv_preprocess *out, enum found *found, qv_error *err)
{
    json_t *root = NULL;
    char *path = NULL;
    struct qv_json_object o = { 0 };
    qv_status s = read_optional(dir, "processor_config.json", &path, &root, err);
    if (!s) {
        const struct qv_json_object top = { root, path, "", true };
        s = qv_json_child(&top, places[which->clips].part, places[which->clips].prefix, &o, err);
    }
    *found = o.json ? IN_ITS_FILE : NOWHERE;
    for (const char *const *file = places[which->clips].files; !s && !o.json && *file; file++) {
        json_decref(root);
        free(path);
        s = read_optional(dir, *file, &path, &root, err);
        o = (struct qv_json_object){ root, path, "", true };
        *found = !o.json ? NOWHERE : file == places[which->clips].files ? IN_ITS_FILE : IN_IMAGES;
    }
    *out = preset_of(which, c);
    if (!s)
        s = read_numbers(&o, c, which, out, err);
    json_decref(root);
    free(path);
    return s;
}

static const struct processor *
of_images(const struct qv_config *c)
{
    return c->family->processor == QV_PROCESSOR_GLM4V ? &glm_images : &images;
}

static void
set_own_clip_sizes(struct qv_config *c)
{
    const int64_t side = c->patch * c->merge;
    if (c->family->own_clip_sizes) {
        c->video.min_pixels = 128 * side * side;
        c->video.max_pixels = 768 * side * side;
    }
}

/* ---- what is missing ------------------------------------------------------------------------- */

static void
append(struct qv_config *c, const char *format, ...)
{
    const size_t at = strlen(c->warning);
    va_list ap;
    va_start(ap, format);
    vsnprintf(c->warning + at, sizeof c->warning - at, format, ap);
    va_end(ap);
}

static void
append_defaults(struct qv_config *c, const struct processor *which, const qv_preprocess *p)
{
    append(c,
           " %s use the defaults of transformers' %s: %lld to %lld pixels%s, mean %g %g %g, std "
           "%g %g %g",
           which->clips ? "Clips" : "Images", which->name, (long long)p->min_pixels,
           (long long)p->max_pixels, p->processor == QV_PROCESSOR_QWEN2_VL ? " per frame" : "",
           p->mean[0], p->mean[1], p->mean[2], p->std[0], p->std[1], p->std[2]);
    if (which->clips)
        append(c, ", %g frames per second", p->fps);
    append(c, ".");
}

/* Warns about missing files, and names the values assumed instead. */
static void
warn_of_missing(const char *dir, enum found for_images, const struct processor *video,
                enum found for_clips, struct qv_config *c)
{
    const bool image = for_images == NOWHERE,
               from_images = for_clips == IN_IMAGES && video->has_own_file;
    const bool clip = for_clips == NOWHERE || from_images;
    const bool own_file = clip && (video->has_own_file || !image);
    if (!image && !clip)
        return;
    append(c, "%.160s: missing: %s%s%s.", dir, image ? "preprocessor_config.json" : "",
           image && own_file ? ", " : "", own_file ? "video_preprocessor_config.json" : "");
    if (image)
        append_defaults(c, of_images(c), &c->image);
    if (from_images)
        append(c, " Clips use the values of preprocessor_config.json, as in transformers.");
    else if (clip)
        append_defaults(c, video, &c->video);
    append(c, " Tokens may differ from those of the published checkpoint: copy its files into the "
              "folder");
}

qv_status
qv_preprocess_read(const char *dir, struct qv_config *c, qv_error *err)
{
    const struct processor *video = &clips[c->family->processor];
    enum found for_images = NOWHERE, for_clips = NOWHERE;
    qv_status s = read_processor(dir, of_images(c), c, &c->image, &for_images, err);
    if (!s)
        s = read_processor(dir, video, c, &c->video, &for_clips, err);
    set_own_clip_sizes(c);
    if (!s)
        warn_of_missing(dir, for_images, video, for_clips, c);
    return s;
}

void
qv_preprocess_set(struct qv_config *c)
{
    c->image = preset_of(of_images(c), c);
    c->video = preset_of(&clips[c->family->processor], c);
    set_own_clip_sizes(c);
}
