/* SPDX-License-Identifier: MIT */
/* media_dump CLIP OUT [key=value ...]: writes frames as raw RGB to OUT, and what was decided as
 * JSON to stdout. qwen2=1 uses the numbers of Qwen2.5-VL's files, glm=1 those of GLM's classes. For
 * media_parity.py. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qwenvit_clips.h"

static int
fail(const qv_error *err)
{
    printf("{\"status\": %d, \"error\": \"", (int)err->status);
    for (const char *c = err->text; *c; c++)
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else
            putchar(*c);
    printf("\"}\n");
    return 1;
}

static const struct {
    const char *key;
    size_t at;
    enum { REAL, COUNT, NUMBER, FLAG } kind;
} keys[] = {
#define AT(field) offsetof(qv_clip_options, field)
    { "fps", AT(fps), REAL },
    { "num_frames", AT(num_frames), COUNT },
    { "min_frames", AT(min_frames), COUNT },
    { "max_frames", AT(max_frames), COUNT },
    { "min_pixels", AT(min_pixels), COUNT },
    { "max_pixels", AT(max_pixels), COUNT },
    { "threads", AT(threads), NUMBER },
    { "cap", AT(cap_pixels), FLAG },
    { "total_pixels", AT(total_pixels), COUNT },
    { "start", AT(start_s), REAL },
    { "end", AT(end_s), REAL },
    { "like", AT(like), NUMBER }, /* an enum is an int here */
    { "first_frame", AT(first_frame), FLAG },
    { "decode", AT(decode), NUMBER },
    { "gpu", AT(gpu), NUMBER },
#undef AT
};

/* The numbers of Qwen2.5-VL's preprocessor_config.json. Its clips follow them too. */
static void
take_qwen2(qv_preprocess *image, qv_preprocess *video)
{
    image->min_pixels = video->min_pixels = 3136;
    image->max_pixels = video->max_pixels = 12845056;
    image->patch_size = video->patch_size = 14;
    video->processor = QV_PROCESSOR_QWEN2_VL;
}

static void
take_glm(qv_preprocess *image, qv_preprocess *video)
{
    image->min_pixels = video->min_pixels = 112 * 112;
    image->max_pixels = 28 * 28 * 15000;
    video->max_pixels = 28 * 28 * 2 * 30000;
    image->patch_size = video->patch_size = 14;
    image->processor = video->processor = QV_PROCESSOR_GLM4V;
    video->max_duration = 300;
}

static bool
set_option(const char *text, qv_clip_options *o, qv_preprocess *image, qv_preprocess *video)
{
    const char *equals = strchr(text, '=');
    const size_t length = equals ? (size_t)(equals - text) : 0;
    const double value = equals ? atof(equals + 1) : 0;
    if (equals && length == 5 && !strncmp(text, "qwen2", length)) {
        take_qwen2(image, video);
        return true;
    }
    if (equals && length == 3 && !strncmp(text, "glm", length)) {
        take_glm(image, video);
        return true;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        void *field = (char *)o + keys[i].at;
        if (strlen(keys[i].key) != length || strncmp(text, keys[i].key, length))
            continue;
        switch (keys[i].kind) {
        case REAL: *(double *)field = value; break;
        case COUNT: *(int64_t *)field = (int64_t)value; break;
        case NUMBER: *(int *)field = (int)value; break;
        case FLAG: *(bool *)field = value != 0; break;
        }
        return true;
    }
    fprintf(stderr, "media_dump: unknown option %s\n", text);
    return false;
}

int
main(int argc, char **argv)
{
    qv_clip_options options = { 0 };
    qv_clip *clip = NULL;
    qv_outcome i;
    qv_error err = { QV_OK, "" };
    qv_preprocess image = qv_preprocess_default(true), video = qv_preprocess_default(false);
    if (argc < 3)
        return 2;
    for (int a = 3; a < argc; a++)
        if (!set_option(argv[a], &options, &image, &video))
            return 2;
    if (qv_clip_open(argv[1], &image, &video, &options, &clip, &err))
        return fail(&err);
    qv_clip_get_info(clip, &i);
    FILE *file = fopen(argv[2], "wb");
    uint8_t *frame = malloc(3 * (size_t)i.width * (size_t)i.height);
    if (!file || !frame)
        return 2;

    int64_t n = 1, total = 0;
    int status = 0;
    printf("{\"timestamps\": [");
    while (!status && n) {
        double when = 0.0;
        status = qv_clip_read(clip, frame, 1, &n, &when, &err);
        if (status || !n)
            break;
        printf("%s%.17g", total++ ? ", " : "", when);
        fwrite(frame, 1, 3 * (size_t)i.width * (size_t)i.height, file);
    }
    qv_clip_get_info(clip, &i);
    printf("], \"status\": %d, \"read\": %" PRId64 ", \"picture\": %s, \"codec\": \"%s\", "
           "\"format\": \"%s\", \"source_width\": %d, \"source_height\": %d, \"rotation\": %d, "
           "\"source_fps\": %.17g, \"duration_s\": %.17g, \"sampled_fps\": %.17g, "
           "\"source_frames\": %" PRId64 ", "
           "\"n_frames\": %" PRId64 ", \"width\": %d, \"height\": %d, "
           "\"grid_thw\": [%" PRId64 ", %" PRId64 ", %" PRId64 "], \"damaged\": %" PRId64 "}\n",
           status, total, i.is_image ? "true" : "false", i.codec, i.format, i.source_width,
           i.source_height, i.rotation, i.source_fps, i.duration_s, i.sampled_fps, i.source_frames,
           i.n_frames, i.width, i.height, i.grid_thw[0], i.grid_thw[1], i.grid_thw[2],
           i.damaged_frames);
    free(frame);
    fclose(file);
    qv_clip_close(&clip);
    return status ? 1 : 0;
}
