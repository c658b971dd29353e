/* SPDX-License-Identifier: MIT */
/* media_dump CLIP OUT [key=value ...]: frames as raw RGB to OUT, what was decided as JSON to
 * stdout. For media_parity.py. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qwenvit_media.h"

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

static void
set_option(qv_clip_options *o, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals)
        return;
    const double value = atof(equals + 1);
    if (!strncmp(text, "fps=", 4))
        o->fps = value;
    else if (!strncmp(text, "num_frames=", 11))
        o->num_frames = (int64_t)value;
    else if (!strncmp(text, "min_pixels=", 11))
        o->min_pixels = (int64_t)value;
    else if (!strncmp(text, "max_pixels=", 11))
        o->max_pixels = (int64_t)value;
    else if (!strncmp(text, "threads=", 8))
        o->threads = (int)value;
    else if (!strncmp(text, "cap=", 4))
        o->cap_pixels = value != 0;
}

int
main(int argc, char **argv)
{
    qv_clip_options options = { .trusted = true };
    qv_clip *clip = NULL;
    qv_clip_info i;
    qv_error err = { QV_OK, "" };
    if (argc < 3)
        return 2;
    for (int a = 3; a < argc; a++)
        set_option(&options, argv[a]);
    if (qv_clip_open(argv[1], NULL, NULL, &options, &clip, &err))
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
    printf("], \"status\": %d, \"read\": %" PRId64 ", \"picture\": %s, \"codec\": \"%s\", "
           "\"format\": \"%s\", \"source_width\": %d, \"source_height\": %d, \"rotation\": %d, "
           "\"source_fps\": %.17g, \"duration_s\": %.17g, \"source_frames\": %" PRId64 ", "
           "\"n_frames\": %" PRId64 ", \"width\": %d, \"height\": %d, "
           "\"grid_thw\": [%" PRId64 ", %" PRId64 ", %" PRId64 "], \"damaged\": %" PRId64 "}\n",
           status, total, i.picture ? "true" : "false", i.codec, i.format, i.source_width,
           i.source_height, i.rotation, i.source_fps, i.duration_s, i.source_frames, i.n_frames,
           i.width, i.height, i.grid_thw[0], i.grid_thw[1], i.grid_thw[2], qv_clip_damaged(clip));
    free(frame);
    fclose(file);
    qv_clip_close(&clip);
    return status ? 1 : 0;
}
