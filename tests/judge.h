/* SPDX-License-Identifier: MIT */
/*
 * Decodes a file by FFmpeg alone: its demuxer, and its decoder with one thread, from the first
 * packet to the last. It uses none of our code, so our reader can be compared with it.
 */
#pragma once

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called for each frame, in the order in which FFmpeg gives them; number counts from 0. */
typedef void judge_sink(void *user, int64_t number, const AVFrame *frame);

/* Returns the number of frames of the file's best video stream; -1 if FFmpeg cannot open it, or has
 * no decoder for it. *sound becomes false if FFmpeg reported an error on the way, so that frames
 * may be damaged. */
int64_t judge_decode(const char *path, judge_sink *sink, void *user, bool *sound);

/* Hashes a frame's contents: its planes' visible samples, its palette, size, format and colours. */
uint64_t judge_hash(const AVFrame *frame);
/* Converts a frame to RGB as torchcodec and plain ffmpeg do: swscale with its default flags, the
 * frame's matrix, and the frame's range, or the format's own where the frame names none. Returns
 * NULL if swscale cannot, else RGB24, which the caller frees. */
AVFrame *judge_rgb(const AVFrame *frame);
/* Hashes rows of the given number of bytes, `stride` bytes apart. */
uint64_t judge_hash_rows(const uint8_t *at, int64_t stride, size_t bytes, int rows);
