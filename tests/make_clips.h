/* SPDX-License-Identifier: MIT */
/*
 * Makes clips to test with: ordinary, odd and hostile ones. They are made with FFmpeg's own
 * encoders and by changing the resulting bytes. Frame i shows i % 64 as six bars, each black or
 * white, or four grey corners. If a clip cannot be made the process ends, because a test without
 * its clip would prove nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLIP_BARS = 6, CLIP_WIDTH = 96, CLIP_HEIGHT = 64, CLIP_FPS = 10 };

/* The grey levels of the corners: upper left, upper right, lower left, lower right. */
extern const uint8_t clip_corners[4];

typedef struct clip_bytes {
    uint8_t *data; /* The receiver must free() it. */
    size_t n;
} clip_bytes;

/* Fixtures of tests: enters an empty folder; removes it with what is in it. */
int clips_enter_folder(void);
int clips_leave_folder(void);

/* The names of all clips, with NULL at the end. make_clips.c says what is odd about each. */
const char *clip_name(size_t i);

/* False if this FFmpeg lacks the encoder. Only encoders of H.264 and similar codecs may be
 * missing. */
bool clip_is_possible(const char *name);

/* Makes a clip by way of a file of that name in the working folder. */
clip_bytes clip_make(const char *name);

/* Makes the clip and writes it to the working folder under its name. */
void clip_write(const char *name);
void clip_write_bytes(const char *name, clip_bytes bytes);
/* Writes n ordinary frames; the ending of the path gives the container. */
void clip_write_frames(const char *path, int n);
/* Writes one key frame and n - 1 frames that repeat it: each takes few bytes, and as long to decode
 * as its size asks for. */
void clip_write_slow(const char *path, int width, int height, int n);
