/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_media: clips and pictures in, resized RGB frames out, as transformers' Qwen3-VL
 * processors make them. No tower in here. Needs the FFmpeg libraries.
 *
 * Conventions and thread rules as in qwenvit.h: different clips may be used by different threads.
 */
#ifndef QWENVIT_MEDIA_H
#define QWENVIT_MEDIA_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_clip qv_clip;
typedef struct qv_decoder qv_decoder;

typedef struct qv_clip_options {
    double fps;         /* frames sampled per second; 0: the preprocess's */
    int64_t num_frames; /* exactly so many instead; excludes fps */
    int64_t min_frames, max_frames;
    int64_t min_pixels, max_pixels; /* of T*H*W for clips, H*W for pictures */
    bool cap_pixels;                /* per-frame cap of qwen-vl-utils: 768 tokens a frame */
    /* For decoding; 0: as many as there are cores, where they make the same frames of damaged data
     * whatever their number: so H.264, VP9, AV1 and others, but one for HEVC, MPEG-1, 2 and 4, VP8
     * and PNG. HEVC takes more if asked; of a clip without damage they make the same. */
    int threads;
    /* A clip is decoded in a process of its own, which on Linux can open no file, no network
     * connection and no other process, and may use so much memory (bytes; 0: 4 GiB). One that shows
     * no sign of life for so long (0: 60) is ended. trusted: in a thread of this process instead,
     * without these limits. */
    bool trusted;
    int64_t decode_memory;
    double decode_seconds;
    qv_decoder *decoder; /* that makes the process; NULL: one is started for this clip alone */
    uint64_t reserved[8];
} qv_clip_options;

typedef struct qv_clip_info {
    bool picture; /* one still image: the image rules apply */
    char codec[32], format[64];
    int source_width, source_height; /* as shown, after display rotation */
    int rotation;                    /* clockwise degrees that were applied: 0, 90, 180, 270 */
    double source_fps, duration_s;
    int64_t source_frames; /* in the file */
    int64_t n_frames;      /* sampled; before pairing (one odd frame pairs with itself) */
    int width, height;     /* after smart_resize */
    int64_t grid_thw[3];
} qv_clip_info;

/* Defaults of the published Qwen3-VL preprocessor files, for use without a checkpoint. */
QV_API qv_preprocess qv_preprocess_default(bool picture);

/*
 * Starts the program qwenvit-decoder, which makes a process for each clip that is opened with it:
 * worth it for many clips, or ahead of the first, as loading FFmpeg takes some 50 ms. `program` is
 * its path; NULL: where it was built or installed. Any thread may use it. It ends with this process.
 * Does not wait until the program runs. QV_EBACKEND where there is none, QV_ENOMEM.
 */
QV_API qv_status qv_decoder_start(const char *program, qv_decoder **out, qv_error *err);
/* After its clips are closed. */
QV_API void qv_decoder_stop(qv_decoder **decoder);

/*
 * Opens a clip or a picture (PNG, JPEG, WebP, ...) and decides which frames are read and at which
 * size. `image` and `video` are a model's preprocessing numbers. Decoding and resizing start in
 * the background. QV_EIO, QV_EFORMAT (not decodable, no video in it, encrypted, aspect ratio above
 * 200, more than 4194304 frames, decoding crashed, hung or needed more than decode_memory),
 * QV_EINVAL (options that exclude each other or are out of range), QV_EBACKEND (qwenvit-decoder is
 * missing or cannot lock itself in).
 */
QV_API qv_status qv_clip_open(const char *path, const qv_preprocess *image,
                              const qv_preprocess *video, const qv_clip_options *options,
                              qv_clip **out, qv_error *err);
QV_API void qv_clip_close(qv_clip **clip);
QV_API void qv_clip_get_info(const qv_clip *clip, qv_clip_info *out);

/*
 * The next frames: dst[n_max, height, width, 3] RGB bytes, timestamps_s[n_max] in seconds of the
 * source (frame index / source fps, as transformers counts) or NULL. *n is 0 at the end.
 * QV_EFORMAT where decoding fails or its process crashes; frames already given stay valid.
 */
QV_API qv_status qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n,
                              double *timestamps_s, qv_error *err);

/* Frames that the decoder concealed or lost so far; each was replaced by the frame before it. */
QV_API int64_t qv_clip_damaged(const qv_clip *clip);

/* Seconds that went so far into decoding, converting and resizing, without those in which finished
 * frames waited for the caller. */
QV_API double qv_clip_busy_seconds(qv_clip *clip);

/* ---- the rules, as pure functions ------------------------------------------------------------ */

/* Size after transformers' smart_resize, for clips (min/max count T*H*W; num_frames = sampled) and
 * for pictures (num_frames = 0: H*W). QV_EINVAL for an aspect ratio above 200 or sizes below 1. */
QV_API qv_status qv_smart_resize(int64_t num_frames, int64_t height, int64_t width,
                                 const qv_preprocess *p, int64_t *out_height, int64_t *out_width,
                                 qv_error *err);

/* Indices that transformers' Qwen3-VL video processor samples: evenly spaced, rounded half to
 * even. `indices` may be NULL to ask for the count only; returns it. */
QV_API int64_t qv_sample_frames(int64_t total_frames, double source_fps, double fps,
                                int64_t num_frames, int64_t min_frames, int64_t max_frames,
                                int64_t *indices);

/*
 * Bicubic (a = -0.5) antialiased resize of RGB bytes, as torchvision resizes uint8 tensors:
 * src[src_h, src_w, 3] (rows src_stride bytes apart) -> dst[dst_h, dst_w, 3], rounded to bytes
 * between the passes. QV_ENOMEM.
 */
QV_API qv_status qv_resize_bicubic(const uint8_t *src, int64_t src_h, int64_t src_w,
                                   int64_t src_stride, uint8_t *dst, int64_t dst_h, int64_t dst_w,
                                   qv_error *err);

/* Writes RGB bytes[height, width, 3] as a PNG file. QV_EIO. */
QV_API qv_status qv_write_png(const char *path, const uint8_t *rgb, int height, int width,
                              qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
