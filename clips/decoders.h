/* SPDX-License-Identifier: MIT */
/* Declares the functions of a decoder that jobs, the command and the Python binding need beyond its
 * public header. */
#pragma once

#include "qwenvit_clips.h"

/* Sets `text` to qwenvit-decoder's version report: a line with its version, then indented lines
 * with FFmpeg's version and whether NVIDIA's decoders (NVDEC) are in the build. `program` is as in
 * qv_decoder_start. Returns QV_EBACKEND if the program does not exist or does not run, for example
 * because FFmpeg's libraries are missing. */
qv_status qv_decoder_version(const char *program, char text[256], qv_error *err);
#define QV_FFMPEG_BYTES 64
/* Sets `version` to the version of FFmpeg that the decoder program uses, such as "7.1.5"; the bytes
 * of frames may depend on it. decoder NULL: the program that qv_decoder_start(NULL) finds. Runs the
 * program once more. Returns QV_EBACKEND as qv_decoder_version does. */
qv_status qv_decoder_ffmpeg(const qv_decoder *decoder, char version[QV_FFMPEG_BYTES],
                            qv_error *err);
/* Finds out whether CUDA device `gpu` can decode clips (QV_DECODE_GPU). It starts a process that
 * opens the device, which takes about 0.5 s; with `wait` it waits until the device is open. Returns
 * QV_OK if the device can decode; QV_ESTATE if that is not known yet, or no process can be started
 * now; QV_EBACKEND, with the reason, if it cannot. After a failure, later calls and clips retry, at
 * first after 1 s, then 2 s, up to 512 s. */
qv_status qv_decoder_gpu(qv_decoder *decoder, int gpu, bool wait, qv_error *err);
/* Returns whether a process has CUDA device `gpu` open already, for qv_decoder_gpu, a clip or a
 * job. If `why` is not NULL, it is set to the reason why the device cannot decode, worded to follow
 * "since", or "". */
bool qv_decoder_has_gpu(qv_decoder *decoder, int gpu, char why[64]);
/* Returns the most memory, in bytes, that decoding uses on a CUDA device (QV_DECODE_GPU), however
 * many clips it decodes: the process's context, and the pictures of all streams. The CPU decodes
 * streams beyond that. */
int64_t qv_decoder_gpu_bytes(void);
