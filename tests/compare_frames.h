/* SPDX-License-Identifier: MIT */
/* Compares the frames that our reader returns for a file with the frames that FFmpeg decodes by
 * itself. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COMPARE_MOST_FRAMES = 4096 };

typedef enum compare_depth {
    COMPARE_FEW,  /* all frames, every third frame, and a single frame; compares planes */
    COMPARE_SOME, /* stretches and rates, and five frames alone */
    COMPARE_MANY /* several rates, stretches, and one frame in seven alone (each of at most 40); one
                   thread and several */
} compare_depth;

typedef struct compared {
    int64_t n;       /* frames of the file, as FFmpeg decodes them; -1: it decodes none */
    bool is_image;   /* nothing is compared */
    bool sound;      /* FFmpeg met no error */
    bool refused;    /* our reader refuses the file; `why` is its error */
    bool left_out;   /* packets were left out, and nothing unforeseen was met */
    char why[128];   /* why everything was decoded, or why the file was refused; or "" */
    char wrong[256]; /* the first frame or frame count that differs from FFmpeg's; "": none */
} compared;

/* Reads the file's frames in several selections. */
compared compare_frames(const char *name, compare_depth depth);
