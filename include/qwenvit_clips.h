/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_clips: clips and images go in, resized RGB frames come out, as transformers' Qwen-VL
 * processors make them. The program qwenvit-decoder does the decoding; only it needs the FFmpeg
 * libraries.
 *
 *     a clip      qv_clip_open, qv_clip_get_info, qv_clip_read, qv_clip_close
 *     a decoder   qv_decoder_start, qv_decoder_stop: one program that decodes many clips
 *     a job       qv_job_open, qv_job_add, qv_job_end, qv_job_close: the tokens of many clips
 *     a fill      qv_cache_fill_open, .._add, .._end, .._close: a job that writes a cache
 *
 * docs/c.md shows a program with a job. The conventions and thread rules of qwenvit.h apply:
 * different threads may use different clips. But in this header, a pointer to an options struct may
 * be NULL only if its description allows it.
 */
#ifndef QWENVIT_CLIPS_H
#define QWENVIT_CLIPS_H

#include "qwenvit_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_clip qv_clip;
typedef struct qv_decoder qv_decoder;

/* ---- a clip ---------------------------------------------------------------------------------- */

/* The package whose rules choose frames, sizes and pixels. */
typedef enum qv_like {
    QV_LIKE_TRANSFORMERS = 0, /* the model's processor in transformers */
    /* The Python package qwen-vl-utils, whose images and clips the processors use unchanged. The
     * defaults are the package's, not the checkpoint's. A clip is sampled at 2 frames per second,
     * to an even number from 4 to 768. A frame becomes 128 to 768 tokens, fewer in long clips, and
     * an image 4 to 16384. */
    QV_LIKE_QWEN_VL_UTILS,
    QV_LIKE_MAX = 0x7fff
} qv_like;
QV_API const char *qv_like_name(qv_like like); /* "qwen-vl-utils"; never NULL */

/* Where clips are decoded: on the CPU or on an NVIDIA GPU. The frames are byte-identical, except
 * where a GPU does not notice damage. AUTO selects the CPU for a clip, and both in jobs and cache
 * fills (qv_job_options.clip). */
typedef enum qv_decode {
    QV_DECODE_AUTO = 0,
    QV_DECODE_CPU,
    QV_DECODE_GPU,
    QV_DECODE_MAX = 0x7fff
} qv_decode;
QV_API const char *qv_decode_name(qv_decode decode); /* "gpu"; never NULL */

#define QV_USUAL_CODECS "H.264, HEVC, VP8, VP9, AV1, MPEG-1, -2 and -4, Motion JPEG, ProRes"

/* How to read a clip or an image. 0, false or NULL selects a member's default. A name in brackets
 * is the field's name in qwen-vl-utils, if it differs. */
typedef struct qv_clip_options {
    double fps; /* frames sampled per second; 0: the model's rate (qv_preprocess) */
    /* [nframes] Samples exactly this many frames. Cannot be used together with fps. */
    int64_t num_frames;
    int64_t min_frames, max_frames; /* 0: the model's */
    /* The fewest and most pixels after resizing, of a clip as its processor counts them
     * (qv_processor), of an image H*W. If `like` is QV_LIKE_QWEN_VL_UTILS, pixels are counted per
     * frame. 0: the model's. */
    int64_t min_pixels, max_pixels;
    /* Only for QV_LIKE_QWEN_VL_UTILS: the most pixels of all frame pairs together. 0: the pixels of
     * 115200 tokens, which is 90% of the package's MODEL_SEQ_LEN, 128000. */
    int64_t total_pixels;
    qv_like like;
    bool cap_pixels; /* only for QV_LIKE_TRANSFORMERS: its cap_pixels_per_frame */
    /* Decoding threads, at most 1024. 0 means one for HEVC, MPEG-1, 2 and 4, VP8 and PNG. It means
     * one per core for H.264, VP9, AV1 and the other codecs whose frames do not depend on the
     * number of threads, even if data is damaged. (HEVC's do not depend on it in undamaged
     * clips.) */
    int threads;
    /* A separate process decodes the clip. On Linux it cannot open files, network connections or
     * other processes. decode_memory is the most memory that it may use, in bytes (0: 4 GiB). It is
     * killed after decode_seconds (0: 60) without a sign of life. */
    int64_t decode_memory;
    double decode_seconds;
    qv_decoder *decoder; /* starts the process; NULL: a decoder is started for this clip alone */
    /* Only on Linux: the contents of the file, n_bytes long, which are copied. The path is then
     * only a name for messages. NULL: the file at the path is read. */
    const void *bytes;
    size_t n_bytes;
    /* The clip's place in the file, for example in a tar shard: the first byte, and the number of
     * bytes (0: to the end of the file). */
    int64_t offset, length;
    /* [video_start, video_end] A stretch of the clip, in seconds. Frames are sampled from start_s
     * up to, but not including, end_s. 0: the clip's beginning or end. If `like` is
     * QV_LIKE_QWEN_VL_UTILS, the last frame is the one at or before end_s. See
     * docs/preprocessing.md. */
    double start_s, end_s;
    double max_seconds; /* a clip or stretch that is longer fails; 0: no limit */
    bool first_frame;   /* reads only the first frame of a clip or animation, as an image */
    /* A file fails if its video codec is neither in QV_USUAL_CODECS nor an image codec. */
    bool usual_codecs;
    /* QV_DECODE_GPU, only on Linux: CUDA device `gpu` decodes the clip, if it is progressive 4:2:0
     * in H.264 with 8 bits or HEVC with 8 or 10. A separate process, which has the device open,
     * decodes, and also converts and resizes the frames if it can. It belongs to `decoder` or, if
     * that is NULL, to this clip. The clip's own process still reads the file.
     * The CPU decodes clips that the device cannot decode. If anything unexpected occurs, the CPU
     * starts over from the clip's beginning. qv_outcome.not_gpu is the reason. */
    qv_decode decode;
    int gpu;
    /* Called with `user`, in the thread that opens or reads the clip, at least every 50 ms while
     * that thread waits for the clip's process. If it returns false, the wait ends with QV_ESTATE
     * and the process is killed. NULL: not called. A job replaces it with its own. */
    bool (*go_on)(void *user);
    void *user;
    int64_t max_source_pixels; /* an image or clip with larger frames fails; 0: no limit */
} qv_clip_options;

/* What is unusual about an image's pixels. */
typedef enum qv_remark {
    QV_REMARK_NONE = 0,
    QV_REMARK_GRAY16, /* 16-bit gray: values above 255 are white, as in Pillow */
    /* A JPEG that FFmpeg decoded: its bytes differ from those of Pillow, which uses
     * libjpeg-turbo. */
    QV_REMARK_JPEG,
    /* An AVIF: its colours may differ by some levels from those of Pillow, which uses libavif. */
    QV_REMARK_AVIF,
    QV_REMARK_MORE_JPEGS, /* only the first of several JPEGs of the same size was read */
    QV_REMARK_MAX = 0x7fff
} qv_remark;
/* Returns a sentence that begins with "its"; "" for none; never NULL. */
QV_API const char *qv_remark_text(qv_remark remark);

/* The outcome for a clip or an image: the properties of its file, the frames chosen, and how
 * decoding went. Results, files and records contain it; a table in docs/c.md shows where each
 * member is. For a source of frames or patches, only is_image, n_frames, grid_thw and the values
 * that the caller passed are set, and the rest is 0. */
typedef struct qv_outcome {
    bool is_image; /* a still image: the rules for images apply */
    qv_like like;  /* as in the options */
    char codec[32], format[64];
    int source_width, source_height; /* as shown, after the display rotation */
    int rotation;                    /* degrees clockwise that were applied: 0, 90, 180, 270 */
    double source_fps;     /* measured from the times of all packets; compare header_fps */
    double duration_s;     /* from the beginning of the first packet to the end of the last */
    int64_t source_frames; /* frames in the file; 0: no file was opened */
    int64_t first_frame;   /* the first frame from start_s on; 0 for a whole clip */
    /* The frames between start_s and end_s; source_frames for a whole clip. */
    int64_t cut_frames;
    /* The sampled frames, before they are paired. A single odd frame is paired with itself. */
    int64_t n_frames;
    int width, height;  /* the size of frames, after smart_resize */
    double sampled_fps; /* n_frames / cut_frames * source_fps; 0 for images */
    /* Seconds per frame pair, temporal_patch_size / sampled_fps, as in transformers'
     * Qwen2_5_VLProcessor. 0 for images. */
    double second_per_grid_ts;
    int64_t grid_thw[3];
    qv_remark remark;
    double header_fps; /* the average rate in the container's header; 0: none */
    /* The size and the modification time are taken from the open file before its first byte is
     * read. They are 0 for bytes in memory. */
    int64_t file_bytes;
    int64_t file_mtime_ns; /* in nanoseconds since 1970 */
    /* The members from here on may change while frames are read. */
    int64_t needed_frames;  /* frames of the file that must be decoded to get the sampled ones */
    int64_t decoded_frames; /* so far, including those decoded again, or only to be counted */
    /* Decoded frames that the decoder concealed or lost so far. Each is replaced by the previous
     * frame. */
    int64_t damaged_frames;
    /* Seconds spent so far on decoding, converting and resizing. The time in which finished frames
     * waited for the caller is not included. */
    double decode_s;
    /* "" if the file's packets show which frames are needed. Otherwise every frame up to the last
     * sampled one is decoded, and this is the reason, worded to follow "since" ("a packet has no
     * time"). It may be set while frames are read: after anything unexpected, such as damage, the
     * clip is decoded again from its beginning. */
    char decodes_all[64];
    /* If the CPU decodes: why the requested GPU is not used or, with QV_DECODE_AUTO, why no GPU can
     * be used. If a GPU decodes: why the CPU nevertheless converts and resizes the frames, or "" if
     * the GPU does that too. Worded to follow "since". */
    char not_gpu[64];
    /* QV_DECODE_CPU; or QV_DECODE_GPU, which may become QV_DECODE_CPU while frames are read; or
     * QV_DECODE_AUTO if nothing was decoded. A frame that a GPU decoded is returned only once all
     * pictures of its group, from one keyframe to the next, are known to be intact. */
    qv_decode decoded_by;
} qv_outcome;

/*
 * Opens a clip or an image (PNG, JPEG, WebP, ...) and selects the frames to read and their size.
 * `image` and `video` are a model's preprocessing (qv_model_info); NULL: qv_preprocess_default.
 * `options` may be NULL. Decoding and resizing start in the background. Returns
 *  - QV_EIO, QV_EUNSUPPORTED or QV_EFORMAT for a fault of the clip. The clip cannot be decoded, has
 *    no video, is encrypted, has an aspect ratio above 200 or has more than 4194304 frames. Once
 *    the clip's process may have read the file, it is also a fault of the clip if that process
 *    crashes, exits, hangs, accepts no requests, sends an impossible message or needs more than
 *    decode_memory.
 *  - QV_EINVAL for a fault of the caller: options that cannot be combined or are out of range;
 *    start_s and end_s with no frame between them, or for an image.
 *  - QV_ENOMEM if this process is out of memory or has too many open files.
 *  - QV_ESTATE if options.go_on returned false.
 *  - QV_EBACKEND if the file system or its server is gone; or if qwenvit-decoder is missing, exited
 *    twice while it decoded this clip, cannot start more processes, or cannot lock them down. With
 *    QV_DECODE_GPU also if the GPU, its driver or its decoders are missing, or if the process that
 *    has it open cannot be locked down.
 */
QV_API qv_status qv_clip_open(const char *path, const qv_preprocess *image,
                              const qv_preprocess *video, const qv_clip_options *options,
                              qv_clip **out, qv_error *err);
/* Fills *out with what is known about the clip so far. */
QV_API void qv_clip_get_info(const qv_clip *clip, qv_outcome *out);

/*
 * Reads the next frames: dst[n_max, height, width, 3] RGB bytes, and timestamps_s[n_max] (may be
 * NULL) in seconds of the source: frame index / source fps, as in transformers. *n is set to the
 * number of frames read. If *n < n_max, either the clip has ended, and the next call sets *n to 0,
 * or decoding has failed, and the next call returns the error. Returns the errors of qv_clip_open:
 * QV_EFORMAT if the clip's process crashes or, with the last frame, if the file was written to
 * since it was opened. Frames already read stay valid.
 */
QV_API qv_status qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n,
                              double *timestamps_s, qv_error *err);
QV_API void qv_clip_close(qv_clip **clip);

/* ---- a decoder: one program for many clips --------------------------------------------------- */

/*
 * Starts the program qwenvit-decoder, which starts one process per clip that is opened with it. The
 * program loads FFmpeg once, which takes 50 ms, so that the clips need not do it one by one. The
 * call returns before the program runs: a program that calls it early does not wait even for the
 * first clip. Any thread may use the decoder.
 *
 * `program` is the program's path, or the path of a script that execs it. NULL: where it was built
 * or installed.
 *
 * The program ends with this process, or within a second or two if this process is killed. On Linux
 * the processes that it started end with it.
 *
 * The program may end early, for example if it is killed because memory ran out, and it is killed
 * if it does not answer for 60 s. It is then started again for the next clip, in the environment
 * of this call. A clip in progress is decoded again from its beginning, once, and continues with
 * the next frame.
 *
 * No other thread may add variables to the environment (setenv, putenv) during the call. Returns
 * QV_EBACKEND if the program does not exist, and QV_ENOMEM.
 */
QV_API qv_status qv_decoder_start(const char *program, qv_decoder **out, qv_error *err);
/* Ends the program, whose clips must be closed first. This takes at most 60 s, and usually no time.
 * In a forked process it only frees that process's share of the decoder. */
QV_API void qv_decoder_stop(qv_decoder **decoder);

/* ---- options by name ------------------------------------------------------------------------- */

typedef enum qv_value_type {
    QV_VALUE_OTHER = 0, /* none of the following */
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

/*
 * Sets an option by name, as Python's encode does. Names are those of the members, except "start"
 * and "end" for start_s and end_s. Values of `like` and `decode` are texts.
 *
 * If `row` is true, the name is a field of a list's row, as `qwenvit encode` and `qwenvit cache`
 * read it from JSON. Rows have only "fps", "start", "end", "first_frame", "max_frames",
 * "max_pixels", "offset", and "bytes" for `length`. Their counts and rates must be above 0.
 *
 * Returns NULL on success, "" for an unknown option, and otherwise what the value must be ("an
 * integer of at least 1 and at most 1024"), in a text that is valid until this thread's next call.
 * Upper bounds and combinations of options are checked when a clip is opened.
 */
QV_API const char *qv_clip_options_set(qv_clip_options *options, const char *name, bool row,
                                       const qv_value *value);

/* ---- the rules, as pure functions ------------------------------------------------------------ */

/* Returns the values of Qwen3-VL's published preprocessor files, for use without a checkpoint. */
QV_API qv_preprocess qv_preprocess_default(bool is_image);

/* Computes the size after transformers' smart_resize. For a clip, num_frames is the number of
 * sampled frames, and pixels are counted as p->processor does. For an image it is 0, and pixels are
 * H*W, or 2*H*W for GLM's processor. Returns QV_EINVAL for an aspect ratio above 200, for sizes
 * below 1, for min_pixels or max_pixels above 2^40, and for a result that no frame may have: a side
 * above 65536, or more than 16384 * 16384 pixels. */
QV_API qv_status qv_smart_resize(int64_t num_frames, int64_t height, int64_t width,
                                 const qv_preprocess *p, int64_t *out_height, int64_t *out_width,
                                 qv_error *err);

/*
 * Resizes RGB bytes as torchvision resizes uint8 tensors: bicubic (a = -0.5), antialiased, and
 * rounded to bytes between the passes. Rows of src[src_h, src_w, 3] begin every src_stride bytes;
 * dst[dst_h, dst_w, 3] is contiguous. Returns QV_EINVAL for a side outside 1 to 65536 or a
 * stride below 3 * src_w, and QV_ENOMEM.
 */
QV_API qv_status qv_resize_bicubic(const uint8_t *src, int64_t src_h, int64_t src_w,
                                   int64_t src_stride, uint8_t *dst, int64_t dst_h, int64_t dst_w,
                                   qv_error *err);

/* ==== a job: the tokens of many clips ========================================================= */

/*
 * A job encodes many clips and images. They pass through decoders, chunks and devices to a sink.
 *
 * Sources are added with a key while the job runs. Decoders read them in parallel. Their frame
 * pairs are packed into full chunks across sources, so a clip may span several chunks. The sink
 * receives the sources in any order. If a source is faulty, or memory for it runs out, only that
 * source fails. If a device is lost, the sources that it was computing fail. The job ends when no
 * device is left.
 *
 * The bits of the tokens depend neither on the order of the sources nor on the number of decoders.
 * The capacity in which a source's tokens are computed depends only on the size of its frames and
 * on the job's options, and a chunk that is not full uses a smaller capacity only if that does not
 * change the bits of the tokens.
 *
 * However many sources are added, host memory is at most the sum of
 *     waiting frames                      options.memory, or one read if that is larger
 *     3 chunks of tokens per model        with DeepStack's outputs and hidden rows
 *     64 MiB, or 2 frames, per decoder    shared with its process, which may use clip.decode_memory
 *     timestamps and names                of waiting and active sources
 * qv_job_memory computes it.
 *
 * Threads. Any threads may call qv_job_add, qv_job_drop, qv_job_give_back, qv_job_cancel,
 * qv_job_get_progress and the functions of clients at once. Only one thread may call qv_job_end and
 * qv_job_close. Until the job is closed, only jobs and calls of qv_encode may use the models'
 * contexts.
 */
typedef struct qv_job qv_job;
typedef struct qv_job_client qv_job_client;

/* ---- its sink: where results go -------------------------------------------------------------- */

/* What a job knows about a source, in every call of the sink. All memory belongs to the job and is
 * valid during the call. */
typedef struct qv_job_result {
    const char *key;
    void *user;        /* the source's `user` */
    qv_status status;  /* in the end call: why the source failed, or QV_OK */
    const char *error; /* the error's text, or "" */
    bool cancelled;    /* it was dropped, or the job ended before it was done; it did not fail */
    /* What is known so far. source_frames is 0 for frames and patches, and if the clip could not be
     * opened. not_gpu may also be the reason why the job let no GPU decode the source. */
    qv_outcome outcome;
    int64_t n_tokens; /* in the whole source */
    qv_dtype dtype;   /* dtype of the tokens */
    /* [outcome.n_frames], only in the end call of a source that has not failed. NULL: unknown. */
    const double *timestamps_s;
    /* Seconds so far: since work on the source began; waiting for its decoder; the device's time
     * for the chunks that it was in; waiting for the sink. */
    double seconds, wait_decode_s, wait_device_s, wait_sink_s;
    /* Only in the end call, and with options.ahead: pass it to qv_job_give_back once the result is
     * released. */
    int64_t ahead_bytes;
} qv_job_result;

/* Rows [first, first + tokens.n) of a source's tokens. With options.hidden there are also
 * merge_size^2 times as many of its hidden rows, from first * merge_size^2 on. The rows belong to
 * the job and must not be changed. */
typedef struct qv_job_rows {
    int64_t first;
    qv_tokens tokens;      /* of result->dtype; with all of the model's DeepStack outputs */
    const uint8_t *frames; /* [n_frames, height, width, 3], with options.keep_frames */
    int64_t n_frames;
} qv_job_rows;

/*
 * Where the results of a job go. A NULL function is not called, so a sink of zeros discards all
 * tokens.
 *
 *     begin   once per source, before its first rows; *entry, initially NULL, is passed to the
 *             source's later calls
 *     rows    the source's rows in order, in one or more calls per chunk, because a clip is read an
 *             eighth of a chunk at a time
 *     end     exactly once for every source that was added, however the job ends, as its last
 *             call. It may be the only call of a source that failed or was cancelled; entry is then
 *             NULL.
 *
 * If begin or rows returns a failure, the source fails: its next call is its end, with that status
 * and text. If end returns a failure, the source counts as failed, and its ahead_bytes are released
 * at once: do not pass them to qv_job_give_back. If end returns QV_ENOMEM, QV_ENODEVICE,
 * QV_EBACKEND or QV_ESTATE, which concern more than the source, the job ends too. A sink that wants
 * the job to end after such a failure of a source returns the source's status from end.
 *
 * The calls come from the job's sink threads and, at the end, possibly from the thread that ends
 * the job. Calls for one source come one at a time. Calls for different sources are concurrent if
 * options.sinks is above 1. A slow call delays the job. A call may use qv_job_add only if
 * options.refuse_when_full is set.
 */
typedef struct qv_job_sink {
    qv_status (*begin)(void *user, const qv_job_result *result, void **entry, qv_error *err);
    qv_status (*rows)(void *user, void *entry, const qv_job_result *result, const qv_job_rows *rows,
                      qv_error *err);
    qv_status (*end)(void *user, void *entry, const qv_job_result *result, qv_error *err);
    void *user; /* passed to all three, and to options.go_on and lost */
} qv_job_sink;

/* ---- opening it, adding sources, ending it --------------------------------------------------- */

typedef struct qv_job_options {
    qv_dtype output; /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    qv_job_sink sink;
    /* How many clips are decoded at once. 0: one per core or, if GPUs decode, 12 per model's
     * GPU and one more for each core in excess of 24 times the number of GPUs. */
    int decoders;
    int sinks;             /* threads that call the sink; 0: 1 */
    int64_t queue;         /* how many sources may wait before qv_job_add waits; 0: 512 */
    bool refuse_when_full; /* qv_job_add returns QV_EFULL instead of waiting */
    /* The most bytes of sources in memory, and of results for which qv_job_give_back was not called
     * yet. Beyond that qv_job_add waits. If the results alone exceed it, no further source is
     * started, so they can grow only by the sources already started. 0: results are not counted.
     * Sources are started in the order in which they were added, and a started source always ends:
     * a program that releases results in that order never deadlocks. */
    int64_t ahead;
    /* Called every 20 ms by the thread that waits in qv_job_add or qv_job_end. If it returns false,
     * the job is cancelled. NULL: not called. */
    bool (*go_on)(void *user, qv_job *job);
    /* Called when a failure of a device or of the sink has ended the job, which must then be ended
     * or closed. Of the job's functions it may call only qv_job_cancel and qv_job_give_back. NULL:
     * not called. */
    void (*lost)(void *user, qv_status status, const char *words);
    int64_t memory;     /* bytes of frames that may wait between decoders and devices; 0: 512 MiB */
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's default size */
    /* Sources are not packed: each gets chunks sized for it, like a single item of qv_encode. */
    bool alone;
    /* Plans of small chunks are also created on opening, so that no source waits for one. */
    bool warm_up;
    bool keep_frames; /* frames are kept until the sink gets their tokens: qv_job_rows.frames */
    bool hidden;      /* as in qv_plan_options: rows have qv_tokens.hidden */
    /*
     * How sources of paths and bytes are read, unless they have their own options. Three members
     * mean more than for a clip:
     *
     * threads   0 means one per core while few sources wait, and otherwise 1.
     * decoder   If it is NULL, the job starts a decoder.
     * decode    QV_DECODE_CPU: only the CPU decodes. Only then are the tokens of damaged clips
     *           always the same, because a GPU does not notice all damage.
     *
     *           QV_DECODE_GPU: `gpu` decodes or, with several models, the GPU of each model
     *           (qv_model_info.device). They decode up to `decoders` clips at once (0: 12 per
     *           model); the CPU decodes the rest. If no GPU can decode, the job ends with
     *           QV_EBACKEND.
     *
     *           QV_DECODE_AUTO: the GPUs of CUDA models decode too, if their processes can be
     *           locked down. They begin once a clip that they can decode has been added and at
     *           least as many sources wait as they decode at once. If anything is missing or lost,
     *           the CPU decodes (qv_outcome.not_gpu).
     */
    qv_clip_options clip;
} qv_job_options;

/*
 * Opens a job on models of the same tower, each on its own device. It checks all options and
 * creates the plan that most frame pairs are packed into. Returns QV_EINVAL, QV_ENOMEM, and the
 * errors of qv_plan_create and qv_decoder_start.
 */
QV_API qv_status qv_job_open(qv_model *const *models, size_t n_models,
                             const qv_job_options *options, qv_job **out, qv_error *err);

typedef enum qv_source_kind {
    QV_SOURCE_PATH = 0,     /* the file of a clip or image */
    QV_SOURCE_BYTES,        /* the bytes of such a file */
    QV_SOURCE_FRAMES,       /* RGB frames, already resized: the item is QV_INPUT_FRAMES */
    QV_SOURCE_PATCHES,      /* transformers' pixel_values: the item is QV_INPUT_PATCHES */
    QV_SOURCE_PATCHES_BF16, /* pixel_values in bf16: the item is QV_INPUT_PATCHES_BF16 */
    QV_SOURCE_MAX = 0x7fff
} qv_source_kind;

typedef struct qv_job_source {
    const char *key; /* copied, like all texts; NULL: the path is the key */
    qv_source_kind kind;
    const char *path;  /* the file's; for bytes, a name for messages, or NULL: the key */
    const void *bytes; /* [n_bytes], at most 4 TiB; must stay valid until the source's end call */
    size_t n_bytes;
    qv_item item; /* for FRAMES and PATCHES; its data must stay valid until the end call */
    /* For FRAMES and PATCHES: the times of all frames, which must stay valid until the end call
     * (NULL: unknown), and the number of frames per second (0: unknown). */
    const double *timestamps_s;
    double sampled_fps;
    /* For PATH and BYTES: used instead of the job's options, and copied. If it has no decoder, the
     * job's is used. NULL: the job's options. */
    const qv_clip_options *clip;
    void *user; /* returned with the results */
    /* If it is not QV_OK, the source has already failed, with the text `error`. It gets its end
     * call in its turn. Of the other members only key and user are used. */
    qv_status status;
    const char *error;
    uint64_t ticket;       /* a number for qv_job_drop, which sources may share; 0: none */
    qv_job_client *client; /* the source counts towards its bounds; NULL: the job's bounds */
} qv_job_source;

/*
 * Adds a source. It waits while the queue is full or too many bytes are ahead. Returns QV_EINVAL
 * for an invalid source, such as one without a key or with a wrong grid; QV_ESTATE after
 * qv_job_end; QV_EFULL, with refuse_when_full, if it would wait; or the failure that ended the job.
 * Faults of a file are reported to the sink.
 */
QV_API qv_status qv_job_add(qv_job *job, const qv_job_source *source, qv_error *err);

/* Waits until all sources are done; no more may be added. Returns QV_OK even if sources failed. If
 * a failure ended the job early, returns that failure, after the sources that were not done got
 * their end calls as cancelled. */
QV_API qv_status qv_job_end(qv_job *job, qv_error *err);

/* Cancels the sources that are not done, and returns at once. qv_job_add then fails, and
 * qv_job_end, which must still be called (or qv_job_close), waits only for work in progress. Any
 * thread may call it. */
QV_API void qv_job_cancel(qv_job *job);

/* Cancels the sources that are not done, waits for the sink and the decoders to return from calls
 * in progress, and frees the job. */
QV_API void qv_job_close(qv_job **job);

/* ---- its counts, and its memory -------------------------------------------------------------- */

/* Counts and seconds since the job was opened. A stage's seconds are summed over its threads:
 * divided by elapsed_s and the number of threads, they show how busy the stage is, from 0 to 1. */
typedef struct qv_job_progress {
    int64_t added;          /* sources */
    int64_t done;           /* sources that have ended */
    int64_t failed;         /* of these, those that ended with a status other than QV_OK */
    int64_t tokens;         /* tokens that came from devices */
    int64_t source_frames;  /* frames in the files of all clips that are done */
    int64_t decoded_frames; /* frames of these clips that were decoded */
    /* The chunks, the patches in them, and the patches that they could hold. */
    int64_t chunks, rows, capacity_rows;
    int64_t packed; /* sources that were packed: all of them, except with `alone` */
    /* The chunks that these sources were packed into, and the patches in those chunks. */
    int64_t packed_chunks, packed_rows;
    int64_t pack_rows; /* the capacity of most of these chunks, in patches; 0 before there is one */
    /* Only of the chunks that were computed partly empty because no more pairs were waiting, such
     * as a job's last chunks: the patches in them, and the patches that they could hold. */
    int64_t rest_rows, rest_capacity_rows;
    double elapsed_s;
    /* All three stages' seconds include work in progress. Decoders: reading; waiting for space for
     * frames. Devices: at work; without work; waiting for a sink. Sinks: at work. */
    double decode_s, room_s;
    double device_s, starved_s, full_s;
    double sink_s;
    int decoders, devices, sinks;
    size_t frame_bytes, most_frame_bytes; /* bytes of waiting frames: now, and at most */
    /* The stage that limits the job: "decoding", "device" or "sink"; or "input" if sources are
     * added too slowly. */
    const char *limit;
    bool ended;           /* the job ended early; qv_job_end returns why */
    int64_t gpu_clips;    /* done clips whose frames came from a GPU's decoders */
    int64_t gpu_decoders; /* how many of `decoders` use a GPU */
    char no_gpu[200];     /* why a GPU that should decode does not; "" if none is missing */
} qv_job_progress;

/* Fills *out with the job's counts so far. Any thread may call it until qv_job_end has returned. */
QV_API void qv_job_get_progress(qv_job *job, qv_job_progress *out);

/* Computes the most host memory, in bytes, that a job with these options uses. It does not include
 * decoder processes, an item larger than options.memory, and results that are ahead
 * (options.ahead). Models loaded with qv_model_options.describe are enough. */
QV_API qv_status qv_job_memory(qv_model *const *models, size_t n_models,
                               const qv_job_options *options, int64_t *bytes, qv_error *err);

/* ---- dropping sources; bounds of results; clients -------------------------------------------- */

/* Drops the client's sources with this ticket; if `client` is NULL, those without a client. A
 * source is not dropped if the sink already has all of its rows. A dropped source is read no
 * further, and none of its remaining frames is put into a chunk. Its end call, which comes soon, is
 * `cancelled` with QV_ESTATE, and its memory must stay valid until then. Returns how many sources
 * were dropped. Any thread may call it. */
QV_API size_t qv_job_drop(qv_job *job, const qv_job_client *client, uint64_t ticket);

/* Reports that results of this many bytes (qv_job_result.ahead_bytes) were released. `client` is
 * the client of their sources; NULL: none. Any thread may call it. */
QV_API void qv_job_give_back(qv_job *job, qv_job_client *client, int64_t bytes);

/*
 * Opens a client: one of several users of a job, whose sources have separate bounds. The bounds
 * queue, refuse_when_full and ahead are as in qv_job_options. A client that has reached its bounds,
 * or that releases no results, does not delay the others. Chunks are shared. Returns QV_EINVAL and
 * QV_ENOMEM.
 */
QV_API qv_status qv_job_client_open(qv_job *job, int64_t queue, bool refuse_when_full,
                                    int64_t ahead, qv_job_client **out, qv_error *err);
/* Drops all of the client's sources, as qv_job_drop does, and makes qv_job_add fail for it,
 * including calls in progress. */
QV_API void qv_job_client_cancel(qv_job_client *client);
/* Cancels the client and frees it. No call may be using it, and its job must still be open. */
QV_API void qv_job_client_close(qv_job_client **client);

/* ==== a fill: a job that writes a cache ======================================================= */

/*
 * A fill adds vision tokens to a folder (qwenvit_cache.h) with a job. It computes and writes the
 * clips of a list that the folder lacks. Running it again therefore continues a run that ended
 * early, for whatever reason.
 *
 *     qv_cache_fill_open   reads the folder
 *     qv_cache_fill_add    returns whether a clip is wanted, and if so remembers it
 *     qv_cache_fill_run    computes and seals the clips added so far; more may follow
 *     qv_cache_fill_end    like qv_cache_fill_run, for the last time
 *
 * A failed clip gets a record in the folder, and is not tried again unless retry_failed is set. A
 * failure of the device, of memory or of the disk ends the run; the clips finished by then are
 * sealed, as when the run is stopped. Programs that only read caches need only libqwenvit_cache.
 *
 * Threads. Only one thread at a time may use a fill. Threads of the job call `told`.
 */
typedef struct qv_cache_fill qv_cache_fill;

typedef struct qv_cache_fill_options {
    qv_dtype tokens;      /* dtype of tokens in the cache: QV_BF16 (default) or QV_F32 */
    bool no_deepstack;    /* do not store DeepStack's outputs */
    bool retry_failed;    /* try clips again that failed before */
    qv_cache_trust trust; /* which facts about a clip's file are not compared with its record */
    /* Names of parts contain both numbers. The caller adds only the shard's keys
     * (qv_cache_key_hash). n_shards 0: 1. */
    int64_t shard, n_shards;
    int64_t part_bytes;  /* a part is sealed once it has this many bytes; 0: 1 GiB */
    double part_seconds; /* a part is sealed once it is this old; 0: 300 */
    int decoders;        /* decoders, chunk_rows and clip are as in qv_job_options */
    int64_t chunk_rows;
    /* The options of all clips, which a clip's own options override. With QV_DECODE_AUTO GPUs
     * decode too, as in a job; they do not notice all damage that the CPU notices. */
    qv_clip_options clip;
    /* Called with a message for each clip that fails; several threads may call it at once. Also
     * called with a warning, with key NULL and QV_OK: this file system has no locks, so
     * qv_cache_prune would not notice the fill. NULL: not called. */
    void (*told)(void *user, const char *key, qv_status status, const char *words);
    /* Called several times per second by the thread that runs the fill. If it returns false, the
     * run ends. It may call qv_job_get_progress on `job`. NULL: not called. */
    bool (*go_on)(void *user, qv_job *job);
    void *user; /* passed to both functions */
} qv_cache_fill_options;

/* Counts since the fill was opened. */
typedef struct qv_cache_fill_counts {
    /* The clips now in the cache, their tokens, and the clips that failed. */
    int64_t done, tokens, failed;
    /* The clips that were not wanted, because the cache has their tokens or their failure. */
    int64_t there, failed_before;
    int64_t gone;    /* clips of `there` whose files no longer exist; their tokens still count */
    double seconds;  /* of all runs, from the first clip until everything was sealed */
    int64_t frames;  /* sampled frames of the clips in `done` */
    int64_t damaged; /* clips in `done` with damaged frames */
} qv_cache_fill_counts;

/* Opens a fill and reads the folder, without changing it. A folder that is not yet a cache counts
 * as empty. Returns the errors of qv_cache_open, and QV_EINVAL for NULL or invalid options. */
QV_API qv_status qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options,
                                    qv_cache_fill **out, qv_error *err);
/*
 * Adds a clip, and checks its file. The clip is wanted if
 *  - the cache lacks it;
 *  - the cache has it with a different path, size, time, stretch or options (options.trust may
 *    exclude some of these from the comparison); or
 *  - it failed before, and retry_failed is set.
 * A clip whose file is gone is not wanted if the cache has it.
 *
 * `own` holds this clip's own options (NULL: none). Only options that qv_clip_options_set accepts
 * for a row are used. `key`, `path` and `own` belong to the caller and must stay valid until
 * qv_cache_fill_run or qv_cache_fill_end has returned. *wanted becomes whether the clip is wanted;
 * `wanted` may be NULL. Returns QV_ENOMEM.
 */
QV_API qv_status qv_cache_fill_add(qv_cache_fill *fill, const char *key, const char *path,
                                   const qv_clip_options *own, bool *wanted, qv_error *err);

/*
 * Computes the added clips that are wanted, and seals them. The models must be of the same tower,
 * each on its own device. More clips may be added afterwards; they are compared with the cache as
 * it was when the fill was opened. Returns QV_OK even if clips failed or the run was stopped.
 * Otherwise it returns the failure that ended the run:
 *  - QV_EFORMAT if the folder was made with a different model or different options, which the
 *    message names;
 *  - QV_EIO if the folder cannot be written to;
 *  - QV_ESTATE while another process prunes it;
 *  - the errors of qv_job_open and qv_job_add, or the first failure of the device or the disk.
 */
QV_API qv_status qv_cache_fill_run(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
/* Does the fill's last run, like qv_cache_fill_run, but frees the index of the cache before it
 * computes. Only qv_cache_fill_get_counts and qv_cache_fill_close may follow. */
QV_API qv_status qv_cache_fill_end(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
/* Returns the counts so far. Any thread and any callback of the fill may call it, even during a
 * run. */
QV_API void qv_cache_fill_get_counts(const qv_cache_fill *fill, qv_cache_fill_counts *out);
QV_API void qv_cache_fill_close(qv_cache_fill **fill);

#ifdef __cplusplus
}
#endif
#endif
