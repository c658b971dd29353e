/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_media: clips and images in, resized RGB frames out, as transformers' Qwen-VL processors
 * make them. No tower in here. Needs the FFmpeg libraries.
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

/* Whose frames, sizes and pixels. */
typedef enum qv_like {
    QV_LIKE_TRANSFORMERS = 0, /* the model's processors */
    /* The Python package qwen-vl-utils, whose images and clips the processors take as they are.
     * Numbers left out are its own, whatever the checkpoint says: 2 fps, 4 to 768 frames, an even
     * number, 128 to 768 tokens a frame, fewer in long clips, 4 to 16384 an image. */
    QV_LIKE_QWEN_VL_UTILS,
    QV_LIKE_MAX = 0x7fff
} qv_like;
QV_API const char *qv_like_name(qv_like like);             /* "qwen-vl-utils"; never NULL */
QV_API bool qv_like_parse(const char *name, qv_like *out); /* false: there is none of that name */

/* Whose video decoders: the CPU's, or those of an NVIDIA GPU, whose frames are the same to the byte. */
typedef enum qv_decode {
    QV_DECODE_AUTO = 0, /* the CPU's: damage that a GPU does not notice would give other frames */
    QV_DECODE_CPU,
    QV_DECODE_GPU,
    QV_DECODE_MAX = 0x7fff
} qv_decode;
QV_API const char *qv_decode_name(qv_decode decode); /* "gpu"; never NULL */
QV_API bool qv_decode_parse(const char *name,
                            qv_decode *out); /* false: there is none of that name */

/* In brackets: what the fields are called in qwen-vl-utils where that differs. */
typedef struct qv_clip_options {
    double fps;         /* frames sampled per second; 0: the preprocess's */
    int64_t num_frames; /* [nframes] exactly so many instead; excludes fps */
    int64_t min_frames, max_frames;
    int64_t min_pixels, max_pixels; /* as the processor counts them; H*W for images, and of each
                                       frame where `like` is QV_LIKE_QWEN_VL_UTILS */
    int64_t total_pixels; /* QV_LIKE_QWEN_VL_UTILS alone: of all frame pairs together; 0: 115200
                             tokens, which is its MODEL_SEQ_LEN of 128000 times 0.9 */
    qv_like like;
    bool cap_pixels; /* QV_LIKE_TRANSFORMERS alone: its cap_pixels_per_frame */
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
    /* Linux: the file is these bytes, which are copied, and not at the path, which is then a name for
     * error texts. NULL: at the path. */
    const void *bytes;
    size_t n_bytes;
    /* The clip lies inside of the file, as in a tar shard: from byte `offset` on, so many (0: to its end). */
    int64_t offset, length;
    /* [video_start, video_end] Seconds of the clip, as timestamps count them: the frames from start_s on
     * and before end_s are the clip to sample from. 0: from its beginning, to its end. Where `like` is
     * QV_LIKE_QWEN_VL_UTILS, its last frame is the one at end_s or before. See docs/preprocessing.md. */
    double start_s, end_s;
    bool first_frame; /* is read as an image, and nothing else: of an animation, or of any clip */
    /* Linux. QV_DECODE_GPU: the frames of a clip (H.264 of 8 bits, 4:2:0, progressive) come from the decoders of the
     * CUDA device of this number, in a process of `decoder` (or of this clip alone) that has it open; the clip's own
     * process still reads the file, converts and resizes. What the device does not take, and a clip in which anything
     * unforeseen is met, is decoded by the CPU from its beginning: qv_clip_info.not_gpu. */
    qv_decode decode;
    int gpu;
    uint64_t reserved[6];
} qv_clip_options;

/* What is not to be expected of an image's pixels. */
typedef enum qv_remark {
    QV_REMARK_NONE = 0,
    QV_REMARK_GRAY16, /* 16-bit gray: what is above 255 is white, as in Pillow */
    QV_REMARK_JPEG, /* a JPEG that FFmpeg decoded: its bytes are not Pillow's, which are libjpeg-turbo's */
    QV_REMARK_AVIF, /* an AVIF: colours up to some levels away from Pillow's, which are libavif's */
    QV_REMARK_MAX = 0x7fff
} qv_remark;
/* A sentence that begins with "its"; "" for none; never NULL. */
QV_API const char *qv_remark_text(qv_remark remark);

typedef struct qv_clip_info {
    bool is_image; /* one still image: the image rules apply */
    qv_like like;  /* as the options said */
    char codec[32], format[64];
    int source_width, source_height; /* as shown, after display rotation */
    int rotation;                    /* clockwise degrees that were applied: 0, 90, 180, 270 */
    double source_fps, duration_s;
    int64_t source_frames; /* in the file */
    int64_t first_frame;   /* of those that start_s and end_s leave, */
    int64_t cut_frames;    /* of so many; 0 and source_frames of a whole clip */
    int64_t n_frames;      /* sampled; before pairing (one odd frame pairs with itself) */
    double sampled_fps;    /* n_frames / cut_frames * source_fps; 0 for images. A frame pair is
                              temporal_patch_size / sampled_fps seconds: second_per_grid_ts of
                              transformers' Qwen2_5_VLProcessor */
    /* So many frames of the file are decoded for those that are sampled: frames to which neither these nor what they
     * refer to refer are left out, where the file's packets tell which those are. `decodes_all` is why they do
     * not, in words that follow "since" ("a packet has no time"): every frame up to the last sampled one is then decoded. It is ""
     * where only what is needed is, and may come while frames are read: a clip in which something unforeseen
     * is met, as damage, is decoded again from its beginning. */
    int64_t decoded_frames;
    char decodes_all[64];
    int width, height; /* after smart_resize */
    int64_t grid_thw[3];
    /* The identity of the file: its size, and its modification time in nanoseconds since 1970. Both are
     * those of the open file, taken before its first byte is read; of bytes in memory they are 0. */
    int64_t file_bytes, file_mtime_ns;
    qv_remark remark;
    /* QV_DECODE_CPU or QV_DECODE_GPU, which may become QV_DECODE_CPU while frames are read; and where a GPU was asked for and
     * is not used, why, in words that follow "since". */
    qv_decode decoded_by;
    char not_gpu[64];
    uint64_t reserved[4];
} qv_clip_info;

/* The version of the FFmpeg libraries that this process has: "5.1.6". Static text. */
QV_API const char *qv_ffmpeg_version(void);

/* Defaults of the published Qwen3-VL preprocessor files, for use without a checkpoint. */
QV_API qv_preprocess qv_preprocess_default(bool is_image);

/*
 * Starts the program qwenvit-decoder, which makes a process for each clip that is opened with it:
 * worth it for many clips, or ahead of the first, as loading FFmpeg takes some 50 ms. `program` is
 * its path; NULL: where it was built or installed. Any thread may use it. It ends with this process,
 * within a second or two where that is killed, and on Linux the processes that it made end with it.
 * Does not wait until the program runs. One that does not answer for 60 s is ended, on Linux with its
 * clips' processes: what uses it then fails with QV_EBACKEND, at once. QV_EBACKEND where there is none, QV_ENOMEM.
 */
QV_API qv_status qv_decoder_start(const char *program, qv_decoder **out, qv_error *err);
/* Whether clips can be decoded by the CUDA device of this number (QV_DECODE_GPU): starts a process that opens it, which takes
 * some 0.5 s, and with `wait` waits for that. It is locked in, but for clips that are trusted. QV_ESTATE: not yet;
 * QV_EBACKEND: it cannot, and why. */
QV_API qv_status qv_decoder_gpu(qv_decoder *decoder, int gpu, bool trusted, bool wait,
                                qv_error *err);
/* After its clips are closed. Takes 60 s at most, usually no time. */
QV_API void qv_decoder_stop(qv_decoder **decoder);

/*
 * Opens a clip or an image (PNG, JPEG, WebP, ...) and decides which frames are read and at which
 * size. `image` and `video` are a model's preprocessing numbers. Decoding and resizing start in
 * the background.
 * The clip's faults: QV_EIO, QV_EUNSUPPORTED, QV_EFORMAT (not decodable, no video in it, encrypted,
 * aspect ratio above 200, more than 4194304 frames; its process crashed, left, hung, took no requests,
 * said what cannot be, or needed more than decode_memory). Whatever that process does once it may have
 * read the file is one of these three. The caller's: QV_EINVAL (options that exclude each other or are
 * out of range, start_s and end_s with no frame between them, or of an image). Of what is on this side:
 * QV_ENOMEM (no memory here), QV_EBACKEND (qwenvit-decoder is missing, has ended, makes no more
 * processes, or these cannot lock themselves in; QV_DECODE_GPU: there is no such GPU, its driver or its decoders are
 * missing, or the process that has it cannot be locked in, which `trusted` does without). `trusted`: QV_ENOMEM where decoding has no memory.
 */
QV_API qv_status qv_clip_open(const char *path, const qv_preprocess *image,
                              const qv_preprocess *video, const qv_clip_options *options,
                              qv_clip **out, qv_error *err);
QV_API void qv_clip_close(qv_clip **clip);
QV_API void qv_clip_get_info(const qv_clip *clip, qv_clip_info *out);

/*
 * The next frames: dst[n_max, height, width, 3] RGB bytes, timestamps_s[n_max] in seconds of the
 * source (frame index / source fps, as transformers counts) or NULL. *n is 0 at the end.
 * Fails as qv_clip_open does where decoding fails; QV_EFORMAT where its process crashes or, with the
 * last frame, where the file was written to since it was opened. Frames already given stay valid.
 */
QV_API qv_status qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n,
                              double *timestamps_s, qv_error *err);

/* Frames that were given to a decoder so far, those among them that were decoded to count the frames, or again from the
 * beginning. */
QV_API int64_t qv_clip_decoded(const qv_clip *clip);

/* Frames that the decoder concealed or lost so far, of those that it was given; each was replaced by the frame
 * before it. */
QV_API int64_t qv_clip_damaged(const qv_clip *clip);

/* Seconds that went so far into decoding, converting and resizing, without those in which finished
 * frames waited for the caller. */
QV_API double qv_clip_busy_seconds(qv_clip *clip);

/* ---- the rules, as pure functions ------------------------------------------------------------ */

/* Size after transformers' smart_resize, for clips (num_frames = sampled; p->processor says how
 * pixels are counted) and for images (num_frames = 0: H*W; for GLM's processor 2*H*W). QV_EINVAL
 * for an aspect ratio above 200 or sizes below 1. */
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
 * between the passes. QV_ENOMEM. Both images are named with their sizes, as image libraries do, so
 * the function has eight parameters.
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
