/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_media: clips and images go in, resized RGB frames come out, as transformers' Qwen-VL
 * processors make them. It has no tower. The program qwenvit-decoder decodes, and alone needs the
 * FFmpeg libraries.
 *
 * Conventions and thread rules are those of qwenvit.h: different threads may use different clips. A
 * pointer may be NULL only where its description says so: otherwise a function returns QV_EINVAL, or,
 * if it returns no status, the answer for nothing: 0, false or zeros.
 */
#ifndef QWENVIT_MEDIA_H
#define QWENVIT_MEDIA_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_clip qv_clip;
typedef struct qv_decoder qv_decoder;

/* The package whose rules choose frames, sizes and pixels. */
typedef enum qv_like {
    QV_LIKE_TRANSFORMERS = 0, /* the model's processor in transformers */
    /* The Python package qwen-vl-utils, whose images and clips the processors take as they are.
     * Numbers that are left out are the package's own, whatever the checkpoint says: 2 fps, 4 to
     * 768 frames, an even number; 128 to 768 tokens a frame, fewer in long clips; 4 to 16384 an
     * image. */
    QV_LIKE_QWEN_VL_UTILS,
    QV_LIKE_MAX = 0x7fff
} qv_like;
QV_API const char *qv_like_name(qv_like like); /* "qwen-vl-utils"; never NULL */

/* Chooses between the CPU's video decoders and those of an NVIDIA GPU, whose frames are the same to
 * the byte, except for damage that a GPU does not notice. AUTO means the CPU's; in jobs, whose
 * tokens pass, both (qv_job_options.clip). */
typedef enum qv_decode {
    QV_DECODE_AUTO = 0,
    QV_DECODE_CPU,
    QV_DECODE_GPU,
    QV_DECODE_MAX = 0x7fff
} qv_decode;
QV_API const char *qv_decode_name(qv_decode decode); /* "gpu"; never NULL */

/* What is asked of a clip; of what is 0, nothing is asked. The brackets have the fields' names in
 * qwen-vl-utils, if these differ. */
typedef struct qv_clip_options {
    double fps;         /* frames sampled per second; 0: the preprocess's */
    int64_t num_frames; /* [nframes] exactly so many frames instead; excludes fps */
    int64_t min_frames, max_frames;
    /* as the processor counts pixels; for images H*W, and of each frame if `like` is
     * QV_LIKE_QWEN_VL_UTILS */
    int64_t min_pixels, max_pixels;
    /* only for QV_LIKE_QWEN_VL_UTILS: the most pixels of all frame pairs together; 0: 115200
     * tokens, which is its MODEL_SEQ_LEN of 128000 times 0.9 */
    int64_t total_pixels;
    qv_like like;
    bool cap_pixels; /* only for QV_LIKE_TRANSFORMERS: its cap_pixels_per_frame */
    /* For decoding, at most 1024; 0: every core, for codecs that make the same frames of damaged data with any
     * number of threads (H.264, VP9, AV1 and others), and one for HEVC, MPEG-1, 2 and 4, VP8 and
     * PNG. HEVC takes more if asked; clips without damage then give the same frames. */
    int threads;
    /* A clip is decoded in a process of its own, which on Linux can open no file, no network
     * connection and no other process. It may use decode_memory bytes (0: 4 GiB), and is ended
     * when it shows no sign of life for decode_seconds (0: 60). */
    int64_t decode_memory;
    double decode_seconds;
    qv_decoder *decoder; /* makes the process; NULL: a decoder is started for this clip alone */
    /* Linux: the file is these bytes, which are copied; the path is then a name for error texts.
     * NULL: the file is at the path. */
    const void *bytes;
    size_t n_bytes;
    /* The clip is inside the file, as in a tar shard: `length` bytes (0: to the end) from byte
     * `offset` on. */
    int64_t offset, length;
    /* [video_start, video_end] Seconds of the clip, as timestamps count them: the frames from
     * start_s on and before end_s are the clip to sample from. 0: from its beginning, to its end.
     * If `like` is QV_LIKE_QWEN_VL_UTILS, the clip's last frame is the one at end_s or before. See
     * docs/preprocessing.md. */
    double start_s, end_s;
    bool first_frame; /* is read as an image, and nothing else: of an animation, or of any clip */
    /* Linux. QV_DECODE_GPU: the frames of a clip (H.264 of 8 bits, HEVC of 8 or 10, 4:2:0, progressive) come from the decoders of the
     * CUDA device of this number, in a process of `decoder` (or of this clip alone) that has it open; the clip's own
     * process still reads the file, converts and resizes. What the device does not take, and a clip in which anything
     * unforeseen is met, is decoded by the CPU from its beginning: qv_outcome.not_gpu. */
    qv_decode decode;
    int gpu;
    uint64_t reserved[6];
} qv_clip_options;

typedef enum qv_value_type {
    QV_VALUE_OTHER = 0, /* a value of none of these kinds */
    QV_VALUE_TEXT,
    QV_VALUE_INTEGER,
    QV_VALUE_REAL,
    QV_VALUE_FLAG, /* `integer` is 1 or 0 */
    QV_VALUE_TYPE_MAX = 0x7fff
} qv_value_type;

typedef struct qv_value {
    qv_value_type type;
    const char *text;
    int64_t integer;
    double real;
} qv_value;

/* Sets the option of that name to a value, as Python's encode takes it: the field's name, but "start"
 * and "end" for start_s and end_s, and a text for `like` and `decode`. With `row` the name is a field of a
 * row of a list, as `qwenvit encode` and `qwenvit cache` read it from JSON: only "fps", "start", "end",
 * "first_frame", "max_frames", "max_pixels", "offset", and "bytes", which is `length`; and a number
 * must be one that asks for something. Returns NULL if that is done; what the value must be ("an
 * integer from 1 up") if it is wrong; "" if there is no such option. Bounds from above, and which
 * options go together, are checked when a clip is opened. */
QV_API const char *qv_clip_options_set(qv_clip_options *options, const char *name, bool row,
                                       const qv_value *value);

/* Says what may surprise about an image's pixels. */
typedef enum qv_remark {
    QV_REMARK_NONE = 0,
    QV_REMARK_GRAY16, /* 16-bit gray: all above 255 is white, as in Pillow */
    /* a JPEG decoded by FFmpeg, whose bytes differ from Pillow's, which are libjpeg-turbo's */
    QV_REMARK_JPEG,
    /* an AVIF: colours may be some levels away from Pillow's, which are libavif's */
    QV_REMARK_AVIF,
    QV_REMARK_MAX = 0x7fff
} qv_remark;
/* Returns a sentence that begins with "its"; "" for none; never NULL. */
QV_API const char *qv_remark_text(qv_remark remark);

/* What became of a clip or an image: what its file is, which frames were chosen, and how decoding went. It comes with
 * everything that is made of the clip (docs/outcome.md says where each member is found). For frames and patches, which
 * no file was decoded for, is_image, n_frames and grid_thw are set, and what else the caller has said; the rest is 0. */
typedef struct qv_outcome {
    bool is_image; /* a still image, to which the rules of images apply */
    qv_like like;  /* as in the options */
    char codec[32], format[64];
    int source_width, source_height; /* as shown, after the display rotation */
    int rotation;                    /* clockwise degrees that were applied: 0, 90, 180, 270 */
    double source_fps, duration_s;
    int64_t source_frames; /* in the file; 0: no file was opened */
    int64_t first_frame;   /* the first frame that start_s and end_s leave */
    /* how many these leave; for a whole clip first_frame is 0, and this is source_frames */
    int64_t cut_frames;
    /* sampled frames, before pairing (a single odd frame is paired with itself) */
    int64_t n_frames;
    double sampled_fps; /* n_frames / cut_frames * source_fps; 0 for images */
    /* seconds of a frame pair, temporal_patch_size / sampled_fps, as transformers' Qwen2_5_VLProcessor has it; 0 for
     * images */
    double second_per_grid_ts;
    int width, height; /* the size of frames, after smart_resize */
    int64_t grid_thw[3];
    /* The identity of the file: its size, and its modification time in nanoseconds since 1970.
     * Both are those of the open file, taken before its first byte is read; for bytes in memory
     * they are 0. */
    int64_t file_bytes, file_mtime_ns;
    /* The members from here to decoded_by may change while frames are read.
     * needed_frames: how many frames of the file the sampled ones need. If the file's packets tell which these are, all
     * others are left out, and decodes_all is "". Else every frame up to the last sampled one is decoded, and
     * decodes_all says why, in words that follow "since" ("a packet has no time"). It may be set while frames are
     * read: if something unforeseen is met, such as damage, the clip is decoded again from its beginning.
     * decoded_frames: how many frames a decoder was given so far, including those that were decoded to count frames,
     * or again from the beginning.
     * damaged_frames: how many of these it concealed or lost so far; each was replaced by the frame before it. */
    int64_t needed_frames, decoded_frames, damaged_frames;
    /* seconds so far of decoding, converting and resizing, without those in which finished frames waited for the
     * caller */
    double decode_s;
    char decodes_all[64];
    /* decoded_by is QV_DECODE_CPU, or QV_DECODE_GPU, which may become QV_DECODE_CPU while frames
     * are read; QV_DECODE_AUTO: nothing was decoded. not_gpu says why a GPU that was asked for is not used, or with
     * QV_DECODE_AUTO cannot be, in words that follow "since". No frame is given before all pictures of its group,
     * from a keyframe to the next, are known to be whole. */
    char not_gpu[64];
    qv_decode decoded_by;
    qv_remark remark;
    uint64_t reserved[4];
} qv_outcome;

/* Returns the numbers of the published Qwen3-VL preprocessor files, for use without a
 * checkpoint. */
QV_API qv_preprocess qv_preprocess_default(bool is_image);

/*
 * Starts the program qwenvit-decoder, which makes a process for each clip that is opened with it.
 * This is worth it for many clips, or ahead of the first, as loading FFmpeg takes some 50 ms.
 * `program` is its path, or that of a script that becomes it by exec; NULL: where it was built or
 * installed. Any thread may use the decoder. The program ends with this process (within a second or
 * two if that is killed), and on Linux the processes that it made end with it. The call does not
 * wait until the program runs. A program that ends (killed by a system without memory, say), or that
 * does not answer for 60 s and is then ended, is started again for the next clip, in the environment
 * that this call found; no other thread may add variables to it (setenv, putenv) during the call. A
 * clip under way is decoded from its beginning again, once, and goes on with the frame that was due.
 * Returns
 * QV_EBACKEND if there is no such program, and QV_ENOMEM.
 */
QV_API qv_status qv_decoder_start(const char *program, qv_decoder **out, qv_error *err);
/* Sets `text` to what qwenvit-decoder says that it is made of: a line with its version, and indented lines
 * with FFmpeg's version and whether NVIDIA's decoders (NVDEC) are in the build. `program` is as
 * qv_decoder_start has it. Returns QV_EBACKEND if there is no such program, or if it does not run, as
 * where FFmpeg's libraries are missing. */
QV_API qv_status qv_decoder_version(const char *program, char text[256], qv_error *err);
/* Finds out whether the CUDA device of this number can decode clips (QV_DECODE_GPU). It starts a
 * process that opens the device, which takes some 0.5 s, and with `wait` waits for that. Returns
 * QV_OK if it can; QV_ESTATE while that is not known yet, also because no process can be started at
 * the moment; QV_EBACKEND, and why, if it cannot. After a failure a later call or clip tries again:
 * 1 s later, then 2 s, up to 512 s. */
QV_API qv_status qv_decoder_gpu(qv_decoder *decoder, int gpu, bool wait, qv_error *err);
/* Returns whether a process has the CUDA device of this number open already, as
 * qv_decoder_gpu, a clip or a job had it opened. `why` becomes the reason why the device decodes
 * nothing, as qv_decoder_gpu found it, in words that follow "since"; "": there is none; NULL: not
 * wanted. */
QV_API bool qv_decoder_has_gpu(qv_decoder *decoder, int gpu, char why[64]);
/* Returns the most bytes of a CUDA device that decoding takes there (QV_DECODE_GPU), however many clips
 * it decodes: the process's context, and the pictures of all streams. Streams beyond that are the CPU's. */
QV_API int64_t qv_decoder_gpu_bytes(void);
/* Ends the program. Its clips must be closed before. It takes 60 s at most, usually no time. In a
 * process that was forked off, it only frees and closes what that process has of the decoder. */
QV_API void qv_decoder_stop(qv_decoder **decoder);

/*
 * Opens a clip or an image (PNG, JPEG, WebP, ...) and decides which frames are read and at which
 * size. `image` and `video` are a model's preprocessing numbers. Decoding and resizing start in the
 * background. Returns
 *  - for a fault of the clip QV_EIO, QV_EUNSUPPORTED or QV_EFORMAT (it cannot be decoded, has no
 *    video, is encrypted, has an aspect ratio above 200 or more than 4194304 frames; or its process
 *    crashed, ended, hung, took no requests, said what cannot be, or needed more than
 *    decode_memory). Whatever that process does after it may have read the file is one of these.
 *  - for a fault of the caller QV_EINVAL (options that exclude each other or are out of range;
 *    start_s and end_s with no frame between them, or for an image).
 *  - for a fault on this side QV_ENOMEM (no memory here, or too many open files) or QV_EBACKEND (the
 *    file system or its server is gone; qwenvit-decoder is missing, has ended twice while it decoded
 *    this clip, makes no more processes, or these cannot lock themselves in; with QV_DECODE_GPU, there
 *    is no such GPU, its driver or its decoders are missing, or the process that has it cannot be
 *    locked in).
 */
QV_API qv_status qv_clip_open(const char *path, const qv_preprocess *image,
                              const qv_preprocess *video, const qv_clip_options *options,
                              qv_clip **out, qv_error *err);
QV_API void qv_clip_close(qv_clip **clip);
/* Sets *out to what is known of the clip so far. */
QV_API void qv_clip_get_info(const qv_clip *clip, qv_outcome *out);

/*
 * Reads the next frames: dst[n_max, height, width, 3] RGB bytes, and timestamps_s[n_max] in seconds
 * of the source (frame index / source fps, as transformers counts), or NULL. *n is 0 at the end. If
 * decoding fails, it fails as qv_clip_open does: QV_EFORMAT if its process crashes or, with the
 * last frame, if the file was written to since it was opened. Frames given before stay valid.
 */
QV_API qv_status qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n,
                              double *timestamps_s, qv_error *err);

/* ---- the rules, as pure functions ------------------------------------------------------------ */

/* Computes the size after transformers' smart_resize: for clips (num_frames: those sampled;
 * p->processor says how pixels are counted), or for images (num_frames 0: H*W; for GLM's
 * processor 2*H*W). Returns QV_EINVAL for an aspect ratio above 200, sizes below 1, min_pixels or
 * max_pixels above 2^40, and a result that no frame may have: a side above 65536, or more than
 * 16384 * 16384 pixels. */
QV_API qv_status qv_smart_resize(int64_t num_frames, int64_t height, int64_t width,
                                 const qv_preprocess *p, int64_t *out_height, int64_t *out_width,
                                 qv_error *err);

/* Computes the indices that transformers' Qwen3-VL video processor samples: evenly spaced,
 * rounded half to even. Returns how many; `indices` may be NULL. */
QV_API int64_t qv_sample_frames(int64_t total_frames, double source_fps, double fps,
                                int64_t num_frames, int64_t min_frames, int64_t max_frames,
                                int64_t *indices);

/*
 * Resizes RGB bytes as torchvision resizes uint8 tensors, bicubic (a = -0.5) and antialiased:
 * src[src_h, src_w, 3] (rows src_stride bytes apart) to dst[dst_h, dst_w, 3], rounded to bytes
 * between the passes. Returns QV_ENOMEM. Both images are given with their sizes, as in image
 * libraries, hence eight parameters.
 */
QV_API qv_status qv_resize_bicubic(const uint8_t *src, int64_t src_h, int64_t src_w,
                                   int64_t src_stride, uint8_t *dst, int64_t dst_h, int64_t dst_w,
                                   qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
