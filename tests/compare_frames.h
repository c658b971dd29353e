/* SPDX-License-Identifier: MIT */
/* Compares frames that the reader gives of a file with those that FFmpeg alone decodes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COMPARE_MOST_FRAMES = 4096 };

typedef enum compare_depth {
    COMPARE_FEW,  /* all frames, every third one, and one alone, of which planes are compared */
    COMPARE_SOME, /* stretches and rates, and five frames alone */
    COMPARE_MANY /* several rates, stretches, and one frame in seven alone (each of at most 40); one
                   thread and several */
} compare_depth;

typedef struct compared {
    int64_t n;     /* frames of the file, as FFmpeg decodes them; -1: it decodes none */
    bool is_image; /* of which nothing is compared */
    bool sound;    /* FFmpeg met no error */
    bool refused;  /* our reader refuses the file; `why` has its words */
    bool left_out; /* packets were left out, and nothing unforeseen was met */
    char why[128]; /* why all was decoded, or why a file is refused; or "" */
    char
        wrong[256]; /* the first frame that is another than FFmpeg's, or another number; "": none */
} compared;

/* Reads the file's frames in several selections. */
compared compare_frames(const char *name, compare_depth depth);
