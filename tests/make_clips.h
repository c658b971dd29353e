/* SPDX-License-Identifier: MIT */
/*
 * Clips to test with: ordinary, odd and hostile, made with FFmpeg's own encoders and by surgery on
 * what they gave. Frame i shows i % 64 as six bars, black or white, or four grey corners. What
 * cannot be made ends the process: a test without its clip has nothing to say.
 */
#ifndef QV_TESTS_MAKE_CLIPS_H
#define QV_TESTS_MAKE_CLIPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLIP_BARS = 6, CLIP_WIDTH = 96, CLIP_HEIGHT = 64, CLIP_FPS = 10 };

/* Grey levels of the corners: upper left, upper right, lower left, lower right. */
extern const uint8_t clip_corners[4];

typedef struct clip_bytes {
    uint8_t *data; /* the receiver's, to free() */
    size_t n;
} clip_bytes;

/* For cmocka: into an empty folder, and out of it, in which nothing must be left. */
int clips_enter_folder(void **state);
int clips_leave_folder(void **state);

/* Names of every clip that there is; NULL at the end. make_clips.c says what is odd about each. */
const char *clip_name(size_t i);

/* False where this FFmpeg lacks the encoder, which only those of H.264 and the like may be. */
bool clip_is_possible(const char *name);

/* Passes through a file of that name in the working folder. */
clip_bytes clip_make(const char *name);

/* Makes it and writes it to the working folder under its name. */
void clip_write(const char *name);
void clip_write_bytes(const char *name, clip_bytes bytes);

#endif
