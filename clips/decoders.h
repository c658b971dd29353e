/* SPDX-License-Identifier: MIT */
/* Declares what jobs, the command and the Python binding ask of a decoder beyond its public
 * header. */
#pragma once

#include "qwenvit_clips.h"

/* Sets `text` to what qwenvit-decoder reports of itself: a line with its version, and indented
 * lines with FFmpeg's version and whether NVIDIA's decoders (NVDEC) are in the build. `program` is
 * as in qv_decoder_start. Returns QV_EBACKEND if the program does not exist or does not run, for
 * example because FFmpeg's libraries are missing. */
qv_status qv_decoder_version(const char *program, char text[256], qv_error *err);
#define QV_FFMPEG_BYTES 64
/* Sets `version` to the version of FFmpeg that the decoder's program runs with, such as "7.1.5",
 * which may decide the bytes of frames. NULL: of the program that qv_decoder_start(NULL) finds.
 * Starts the program once more. Returns QV_EBACKEND as qv_decoder_version does. */
qv_status qv_decoder_ffmpeg(const qv_decoder *decoder, char version[QV_FFMPEG_BYTES],
                            qv_error *err);
/* Finds out whether CUDA device `gpu` can decode clips (QV_DECODE_GPU). It starts a process that
 * opens the device, which takes some 0.5 s; with `wait` it waits for that. Returns QV_OK if the
 * device can; QV_ESTATE if that is not known yet, or no process can be started now; QV_EBACKEND,
 * with the reason, if it cannot. After a failure a later call or clip tries again: after 1 s, then
 * 2 s, up to 512 s. */
qv_status qv_decoder_gpu(qv_decoder *decoder, int gpu, bool wait, qv_error *err);
/* Returns whether a process has CUDA device `gpu` open already, for qv_decoder_gpu, a clip or a
 * job. If `why` is not NULL, it is set to why the device decodes nothing, as a text that follows
 * "since", or "". */
bool qv_decoder_has_gpu(qv_decoder *decoder, int gpu, char why[64]);
/* Returns the most memory, in bytes, that decoding uses on a CUDA device (QV_DECODE_GPU), however
 * many clips it decodes: the process's context, and the pictures of all streams. The CPU decodes
 * streams beyond that. */
int64_t qv_decoder_gpu_bytes(void);
