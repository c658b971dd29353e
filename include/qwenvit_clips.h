/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_clips: clips and images go in, resized RGB frames come out, as transformers' Qwen-VL
 * processors make them; a job encodes many of them, and a fill does so into a cache. The program
 * qwenvit-decoder decodes, and alone needs the FFmpeg libraries.
 *
 * Conventions and thread rules are those of qwenvit.h: different threads may use different clips. A
 * pointer may be NULL only where its description says so: otherwise a function returns QV_EINVAL,
 * or, if it returns no status, the answer for nothing: "", 0, false, zeros, or no change.
 */
#ifndef QWENVIT_CLIPS_H
#define QWENVIT_CLIPS_H

#include "qwenvit_cache.h"

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
     * 768 frames, an even number; 128 to 768 tokens per frame, fewer in long clips; 4 to 16384 per
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
    /* For decoding, at most 1024; 0: every core, for codecs that make the same frames of damaged
     * data with any number of threads (H.264, VP9, AV1 and others), and one for HEVC, MPEG-1, 2 and
     * 4, VP8 and PNG. HEVC takes more if asked; clips without damage then give the same frames. */
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
    double max_seconds; /* a clip that lasts longer, once it is cut, fails; 0: it may */
    bool first_frame;   /* is read as an image, and nothing else: of an animation, or of any clip */
    /* Linux. QV_DECODE_GPU: the frames of a clip (H.264 of 8 bits, HEVC of 8 or 10, 4:2:0,
     * progressive) come from the decoders of the CUDA device of this number, in a process of
     * `decoder` (or of this clip alone) that has it open; the clip's own process still reads the
     * file, converts and resizes. What the device does not take, and a clip in which anything
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

/* Sets the option of that name to a value, as Python's encode takes it: the field's name, but
 * "start" and "end" for start_s and end_s, and a text for `like` and `decode`. With `row` the name
 * is a field of a row of a list, as `qwenvit encode` and `qwenvit cache` read it from JSON: only
 * "fps", "start", "end", "first_frame", "max_frames", "max_pixels", "offset", and "bytes", which is
 * `length`; and a number must be one that asks for something. Returns NULL if that is done; what
 * the value must be ("an integer from 1 up, at most 1024"), until this thread calls again, if it is
 * wrong; "" if the option is unknown. Bounds from above, and which options go together, are checked
 * when a clip is opened. */
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

/* What became of a clip or an image: what its file is, which frames were chosen, and how decoding
 * went. It comes with everything that is made of the clip (docs/jobs.md says where each member is
 * found). For frames and patches, which no file was decoded for, is_image, n_frames and grid_thw
 * are set, and what else the caller has said; the rest is 0. */
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
    /* seconds of a frame pair, temporal_patch_size / sampled_fps, as transformers'
     * Qwen2_5_VLProcessor has it; 0 for images */
    double second_per_grid_ts;
    int width, height; /* the size of frames, after smart_resize */
    int64_t grid_thw[3];
    /* The identity of the file: its size, and its modification time in nanoseconds since 1970.
     * Both are those of the open file, taken before its first byte is read; for bytes in memory
     * they are 0. */
    int64_t file_bytes, file_mtime_ns;
    /* The members from here to decoded_by may change while frames are read. needed_frames: how many
     * frames of the file the sampled ones need. If the file's packets tell which these are, all
     * others are left out, and decodes_all is "". Else every frame up to the last sampled one is
     * decoded, and decodes_all says why, in words that follow "since" ("a packet has no time"). It
     * may be set while frames are read: if something unforeseen is met, such as damage, the clip is
     * decoded again from its beginning. decoded_frames: how many frames a decoder was given so far,
     * including those that were decoded to count frames, or again from the beginning.
     * damaged_frames: how many of these it concealed or lost so far; each was replaced by the frame
     * before it. */
    int64_t needed_frames, decoded_frames, damaged_frames;
    /* seconds so far of decoding, converting and resizing, without those in which finished frames
     * waited for the caller */
    double decode_s;
    char decodes_all[64];
    /* decoded_by is QV_DECODE_CPU, or QV_DECODE_GPU, which may become QV_DECODE_CPU while frames
     * are read; QV_DECODE_AUTO: nothing was decoded. not_gpu says why a GPU that was asked for is
     * not used, or with QV_DECODE_AUTO cannot be, in words that follow "since". No frame is given
     * before all pictures of its group, from a keyframe to the next, are known to be whole. */
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
 * wait until the program runs. A program that ends (killed by a system without memory, say), or
 * that does not answer for 60 s and is then ended, is started again for the next clip, in the
 * environment that this call found; no other thread may add variables to it (setenv, putenv) during
 * the call. A clip under way is decoded from its beginning again, once, and goes on with the frame
 * that was due. Returns QV_EBACKEND if the program does not exist, and QV_ENOMEM.
 */
QV_API qv_status qv_decoder_start(const char *program, qv_decoder **out, qv_error *err);
/* Sets `text` to what qwenvit-decoder says that it is made of: a line with its version, and
 * indented lines with FFmpeg's version and whether NVIDIA's decoders (NVDEC) are in the build.
 * `program` is as qv_decoder_start has it. Returns QV_EBACKEND if the program does not exist or
 * does not run, as where FFmpeg's libraries are missing. */
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
/* Returns the most bytes of a CUDA device that decoding takes there (QV_DECODE_GPU), however many
 * clips it decodes: the process's context, and the pictures of all streams. Streams beyond that are
 * the CPU's. */
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
 *    crashed, ended, hung, took no requests, sent something impossible, or needed more than
 *    decode_memory). Whatever that process does after it may have read the file is one of these.
 *  - for a fault of the caller QV_EINVAL (options that exclude each other or are out of range;
 *    start_s and end_s with no frame between them, or for an image).
 *  - for a fault on this side QV_ENOMEM (no memory here, or too many open files) or QV_EBACKEND
 *    (the file system or its server is gone; qwenvit-decoder is missing, has ended twice while it
 *    decoded this clip, makes no more processes, or these cannot lock themselves in; with
 *    QV_DECODE_GPU, the GPU, its driver or its decoders are missing, or the process that has it
 *    cannot be locked in).
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

/* ==== jobs
 * ======================================================================================= */

/*
 * A job encodes many clips and images. They go through decoders, chunks and devices to a sink.
 *
 * Sources are added with a key while the job runs. Decoders read them side by side. Their frame
 * pairs are packed, across sources, into full chunks, so a clip may lie in several. The sink gets
 * each source's tokens, in any order of the sources. A fault of one source, or a lack of memory for
 * it, costs only that source; a device that is lost costs those that it was computing. The job ends
 * when no device is left.
 *
 * The capacity in which a source's tokens are computed follows from the size of its frames and the
 * job's options alone. A chunk that is not full takes a smaller capacity only if that gives the
 * same bits. So tokens have the same bits in any order of the sources and with any
 * number of decoders.
 *
 * However much is added, memory on the host is at most the sum of
 *     options.memory                  frames that wait, or what is read at once where that is more
 *     3 chunks of tokens per model      with DeepStack's outputs (qv_job_memory tells how much)
 *     64 MiB, or 2 frames, a decoder  shared with its process; each such process takes its own
 *                                     clip.decode_memory at most
 *     timestamps and names of the sources that wait or are under way.
 *
 * Threads. Any threads may call qv_job_add, qv_job_drop, qv_job_give_back, qv_job_cancel and
 * qv_job_get_progress at once; one thread calls qv_job_end and qv_job_close. Until it is closed
 * the models' contexts may be used by other jobs, feeders and calls of qv_encode alone.
 */
typedef struct qv_job qv_job;

/* ---- results --------------------------------------------------------------------------------- */

/* What a job knows of a source, in every call of the sink. All memory belongs to the job and is
 * valid during the call. */
typedef struct qv_job_result {
    const char *key;
    void *user;        /* the source's `user` */
    qv_status status;  /* in the end call: why the source has failed, or QV_OK */
    const char *error; /* the error's text, or "" */
    bool cancelled;    /* it did not fail: it was dropped, or the job ended before it was done */
    /* so far. source_frames is 0 for frames and patches, and if no clip could be opened. not_gpu
     * also says why the job had no GPU decode it */
    qv_outcome outcome;
    int64_t n_tokens; /* in the whole source */
    qv_dtype dtype;   /* dtype of the tokens */
    const double
        *timestamps_s; /* [outcome.n_frames]; in the end call of a clip that has not failed,
                                 * else NULL */
    /* Seconds so far: since the source was taken up; waiting for its decoder;
     * the device's time for the chunks that it was in; waiting for the sink. */
    double seconds, wait_decode_s, wait_device_s, wait_sink_s;
    int64_t ahead_bytes; /* in the end call, with options.ahead: give these bytes back when the
                          * result is no longer held (qv_job_give_back) */
    uint64_t reserved[8];
} qv_job_result;

/* Rows [first, first + tokens.n) of a source's tokens. They are the job's and only to be read. */
typedef struct qv_job_rows {
    int64_t first;
    qv_tokens tokens;      /* of result->dtype; deepstack as many as the model has */
    const uint8_t *frames; /* [n_frames, height, width, 3], with options.keep_frames */
    int64_t n_frames;
} qv_job_rows;

/*
 * Where the results of a job go. A function may be NULL: there is nothing to do then, so a sink of
 * zeros discards all tokens.
 *
 *     begin   once for a source, in front of its first rows; *entry, which is NULL before, is
 *             given to its further calls
 *     rows    its rows in their order, in one call or several for each chunk that it lies in,
 *             because a clip is read an eighth of a chunk at a time
 *     end     exactly once for every source that was added, however the job ends, as its last
 *             call. A source that failed or was cancelled may have no other call; its entry is
 *             NULL then.
 *
 * If begin or rows return another status than QV_OK, with a text, the source fails: its next call
 * is its end, which has that status and text. If end returns one, the source counts as failed, and
 * nothing of it is held: its ahead_bytes must not be given back. A status of end that concerns more
 * than the source (QV_ENOMEM, QV_ENODEVICE, QV_EBACKEND, QV_ESTATE) ends the job as well: a sink
 * that wants no more after such a failure of a source returns that source's status.
 *
 * The calls of one source come one at a time, those of different sources at once if options.sinks
 * is above 1. The job's sink threads make them; at the end perhaps also the thread that ends the
 * job. A call may take its time: the job waits. It may call qv_job_add only if
 * options.refuse_when_full is set.
 */
typedef struct qv_job_sink {
    qv_status (*begin)(void *user, const qv_job_result *result, void **entry, qv_error *err);
    qv_status (*rows)(void *user, void *entry, const qv_job_result *result, const qv_job_rows *rows,
                      qv_error *err);
    qv_status (*end)(void *user, void *entry, const qv_job_result *result, qv_error *err);
    void *user; /* given to each, and to options.go_on, lost and span */
} qv_job_sink;

/* ---- jobs ------------------------------------------------------------------------------------ */

typedef struct qv_job_options {
    qv_dtype output; /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    qv_job_sink sink;
    int decoders;  /* clips that are decoded at once; 0: as many as there are cores, or 12 by each
                      * model's GPU and as many besides as there are cores beyond 24 a GPU */
    int sinks;     /* threads that call the sink; 0: 1 */
    int64_t queue; /* sources that may wait to be taken up; beyond that adding waits; 0: 512 */
    bool refuse_when_full; /* instead of waiting, adding fails with QV_EFULL */
    /* Bytes of the sources in memory that were added and of the results that were not given back
     * (qv_job_give_back), at most: beyond that adding waits. Beyond that many bytes of results
     * alone no further source is taken up, so that they grow by the sources under way at most.
     * Sources are taken up in the order in which they were added, and one that was taken up always
     * comes to its end: who takes results in that order waits for none that waits for it. 0:
     * results are not counted */
    int64_t ahead;
    /* Asked every 20 ms by the thread that waits in qv_job_add or qv_job_end; false cancels the
     * job. NULL: the job goes on */
    bool (*go_on)(void *user, qv_job *job);
    /* Called when a failure of a device or of the sink has ended the job, which then must be ended
     * or closed. It may call no function of the job but qv_job_cancel and qv_job_give_back. */
    void (*lost)(void *user, qv_status status, const char *words);
    int64_t memory;     /* bytes of frames that may wait between decoders and devices; 0: 512 MiB */
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's own size */
    /* sources are not packed: each is encoded in the capacity that suits it by itself, as
     * qv_encode does with one item */
    bool alone;
    bool warm_up;     /* as in qv_feeder_options: for a job that must answer soon */
    bool keep_frames; /* frames are kept until their tokens are with the sink */
    /* for sources of paths and bytes. threads 0: every core if few sources wait, else 1. If
     * decoder is NULL, the job starts one. With QV_DECODE_GPU the
     * job ends with QV_EBACKEND if the GPU decodes nothing; of `decoders` at once, all are the
     * GPU's; with 0 the CPU decodes those that are more than 12 a model. Of several models each
     * one's GPU decodes (qv_model_info.device), and `gpu` says nothing. With QV_DECODE_AUTO each
     * CUDA model's GPU decodes so as well, where it can be locked in:
     * once a clip has come that it takes, and as many further sources wait as it decodes at once,
     * and while no frames wait for the device. What is missing or lost there leaves clips to the
     * CPU (qv_outcome.not_gpu). As a GPU does not notice all damage, give QV_DECODE_CPU if
     * tokens are to stay and be the same each time. */
    qv_clip_options clip;
    /* Told what each stage did, from its own thread: "decode" of a decoder, "push" and "pull" of
     * a device, "sink" of a sink thread. lane is the thread's number, times are seconds of
     * CLOCK_MONOTONIC, and key is the source's, or NULL if there are several. */
    void (*span)(void *user, const char *stage, int lane, const char *key, double begin_s,
                 double end_s);
    uint64_t reserved[8];
} qv_job_options;

typedef enum qv_source_kind {
    QV_SOURCE_PATH = 0,     /* the file of a clip or image */
    QV_SOURCE_BYTES,        /* the bytes of such a file */
    QV_SOURCE_FRAMES,       /* RGB, resized already: item has input QV_INPUT_FRAMES */
    QV_SOURCE_PATCHES,      /* transformers' pixel_values: item has input QV_INPUT_PATCHES */
    QV_SOURCE_PATCHES_BF16, /* pixel_values in bf16: item has input QV_INPUT_PATCHES_BF16 */
    QV_SOURCE_MAX = 0x7fff
} qv_source_kind;

typedef struct qv_job_source {
    const char *key; /* copied, as all texts are; NULL: the path is the key */
    qv_source_kind kind;
    const char *path;  /* the file's; for bytes, a name for error texts, or NULL: the key */
    const void *bytes; /* [n_bytes], at most 4 TiB; the caller's, and valid until its end call */
    size_t n_bytes;
    qv_item item; /* for FRAMES and PATCHES; item.data is the caller's, and valid until that call */
    /* for PATH and BYTES: copied, and used in place of the job's options, except for the
     * decoder, which is always the job's. NULL: the job's options */
    const qv_clip_options *clip;
    void *user; /* given back with the results */
    /* not QV_OK: the source failed before it came here, with this text; its turn is only to be told
     * so. The other fields, except key and user, are not used. */
    qv_status status;
    const char *error;
    uint64_t ticket; /* a number by which qv_job_drop finds it; sources may share one; 0: none */
    uint64_t reserved[7];
} qv_job_source;

/* Counts and seconds since the job was opened. A stage's seconds are summed over its threads:
 * divided by elapsed_s and the number of threads they tell how busy it is. */
typedef struct qv_job_progress {
    int64_t added, done, failed; /* sources; `done` includes `failed`, and that those dropped */
    int64_t tokens;              /* tokens that came from devices */
    int64_t source_frames;       /* frames in the files of all clips that are done */
    int64_t decoded_frames;      /* frames of these clips that were decoded */
    /* chunks; the patches in them; the patches that these chunks could hold */
    int64_t chunks, rows, capacity_rows;
    int64_t packed; /* sources that were packed; all are, except with `alone` */
    /* the chunks that they were packed into, and the patches in these */
    int64_t packed_chunks, packed_rows;
    int64_t pack_rows; /* the capacity of most of these chunks; 0 before there is one */
    /* rows and capacity_rows of those chunks that took everything that waited, as a job's last
     * chunks do */
    int64_t rest_rows, rest_capacity_rows;
    double elapsed_s;
    double decode_s, room_s;            /* of decoders: reading; waiting for space behind them */
    double device_s, starved_s, full_s; /* of devices: at work; without work; waiting for a sink */
    double sink_s;                      /* seconds of all three stages include what is under way */
    int decoders, devices, sinks;
    size_t frame_bytes, most_frame_bytes; /* bytes of frames that wait: now, and at most */
    /* the stage that limits: "decoding", "device", "sink"; or "input" if sources come too slowly */
    const char *limit;
    bool ended;           /* the job ended early; qv_job_end says why */
    int64_t gpu_clips;    /* clips that are done and whose frames came from a GPU's decoders */
    int64_t gpu_decoders; /* of `decoders`, those that have a GPU decode */
    uint64_t reserved[4];
} qv_job_progress;

/*
 * Opens a job on models of one tower, each on a device of its own. It checks all options and makes
 * the plan that most frame pairs are packed in. Returns QV_EINVAL, QV_ENOMEM, and what
 * qv_plan_create and qv_decoder_start return.
 */
QV_API qv_status qv_job_open(qv_model *const *models, size_t n_models,
                             const qv_job_options *options, qv_job **out, qv_error *err);

/*
 * Adds a source. It waits while the queue is full, or too much is ahead. Returns QV_EINVAL for a
 * source that is not valid (its grid, or no key); QV_ESTATE after qv_job_end; QV_EFULL if it would
 * wait with refuse_when_full; or the failure that has ended the job. What is wrong with a file is
 * told to the sink.
 */
QV_API qv_status qv_job_add(qv_job *job, const qv_job_source *source, qv_error *err);

/* Drops the sources with this ticket, unless the sink has had all of their rows: nothing more of
 * them is read or put into a chunk, and their end call, which comes soon, says `cancelled` with
 * QV_ESTATE. Memory of theirs must stay valid until that call. Returns how many were dropped. Any
 * thread may call it. */
QV_API size_t qv_job_drop(qv_job *job, uint64_t ticket);

/* Says that bytes of results (qv_job_result.ahead_bytes) are no longer held. Any thread may call
 * it. */
QV_API void qv_job_give_back(qv_job *job, int64_t bytes);

/* Says that no more sources come, and waits until all are done. Returns QV_OK, whichever of them
 * failed, or the failure that has ended the job early. In that case sources that were not done
 * are told as cancelled before it returns. */
QV_API qv_status qv_job_end(qv_job *job, qv_error *err);

/* Cancels all that is not done, and returns at once. qv_job_add then fails, and qv_job_end,
 * which must still be called (or qv_job_close), waits only for what is under way. Any thread may
 * call it. */
QV_API void qv_job_cancel(qv_job *job);

QV_API void qv_job_get_progress(qv_job *job, qv_job_progress *out);

/* Cancels what is not done and frees the job. It takes as long as a sink or a decoder needs for
 * what it is doing. */
QV_API void qv_job_close(qv_job **job);

/* Computes the most bytes on the host that a job with these options takes, without the memory of
 * its decoders' processes, and without that of one item larger than options.memory, and without
 * what is ahead (options.ahead). The models may be described only. */
QV_API qv_status qv_job_memory(qv_model *const *models, size_t n_models,
                               const qv_job_options *options, int64_t *bytes, qv_error *err);

/* ==== filling caches
 * ============================================================================= */

/*
 * A fill adds to a folder of vision tokens (qwenvit_cache.h) by a job. Clips
 * of a list that the folder lacks are computed and written; clips that it has are left alone. So a
 * run that ended early, for whatever reason, is continued by running it again.
 *
 *     qv_cache_fill_open   reads the folder
 *     qv_cache_fill_add    says whether a clip is wanted, and remembers it if it is
 *     qv_cache_fill_run    computes and seals the clips that were added so far; more may follow
 *     qv_cache_fill_end    does the same as the last run
 *
 * A clip that fails becomes a record of the folder, and is not tried again unless retry_failed is
 * set. A failure of the device, of memory or of the disk ends the run; then, or if the run is
 * stopped, the clips that were finished before are sealed. Programs that only read caches need no
 * more than libqwenvit_cache.
 *
 * Threads. A fill is used by one thread at a time; `told` is called by threads of the job.
 */
typedef struct qv_cache_fill qv_cache_fill;

typedef struct qv_cache_fill_options {
    qv_dtype tokens;         /* dtype of tokens in the cache: QV_BF16 (default), QV_F16 or QV_F32 */
    bool no_deepstack;       /* DeepStack's outputs are not stored */
    bool packed;             /* DeepStack's outputs are stored beside the tokens:
                              * qv_cache_layout.packed */
    bool retry_failed;       /* clips that failed before are computed again */
    qv_cache_trust trust;    /* what of a clip's file is not compared with its record */
    int64_t shard, n_shards; /* as in qv_cache_writer_options, with the next two fields */
    int64_t part_bytes;
    double part_seconds;
    int decoders; /* decoders, chunk_rows and clip are as in qv_job_options */
    int64_t chunk_rows;
    /* options of all clips; a clip's own options override them. QV_DECODE_AUTO is the CPU here, as
     * a GPU does not notice all damage, and a cache stays. */
    qv_clip_options clip;
    /* Called with a text for each clip that fails; several threads may call it at once. With key
     * NULL and QV_OK the text is a warning of qv_cache_writer_options.told. NULL: no calls. */
    void (*told)(void *user, const char *key, qv_status status, const char *words);
    /* Called several times per second, by the thread that computes: false ends the run. `job` can
     * be asked for its progress. NULL: the run goes on. */
    bool (*go_on)(void *user, qv_job *job);
    void *user; /* passed to both functions */
    uint64_t reserved[8];
} qv_cache_fill_options;

/* Counts since the fill was opened. */
typedef struct qv_cache_fill_counts {
    int64_t done, tokens,
        failed; /* clips that are in the cache by now, their tokens, and clips that failed */
    int64_t there, failed_before; /* clips that were not wanted: the cache has their tokens, or
                                   * their failure */
    int64_t gone;    /* clips of `there` whose files no longer exist: their tokens count */
    double seconds;  /* time of all runs, from the first clip until all was sealed */
    int64_t frames;  /* sampled frames of the clips of `done` */
    int64_t damaged; /* clips of `done` with damaged frames */
    uint64_t reserved[2];
} qv_cache_fill_counts;

/* Reads the folder; one that is not a cache yet counts as empty, and stays as it is. Returns the
 * errors of qv_cache_open; QV_EINVAL for NULL or options that are not valid. */
QV_API qv_status qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options,
                                    qv_cache_fill **out, qv_error *err);
/* Returns the cache as it was when the fill was opened, until qv_cache_fill_end; NULL: it was
 * empty. It belongs to the fill. */
QV_API const qv_cache *qv_cache_fill_there(const qv_cache_fill *fill);
/* Adds a clip, and looks at its file. It is wanted if the cache lacks it, has it of another path,
 * size, time, piece or options (as far as these are compared), or if it failed before and is to be
 * computed again. A clip whose file is gone is not wanted if the cache has it. `own` has the
 * options of this clip alone (NULL: none), which qv_clip_options_set takes of a row; others are
 * ignored. `key`, `path` and `own` are the caller's and must live until qv_cache_fill_run or
 * qv_cache_fill_end has returned; *wanted may be NULL. Returns QV_ENOMEM. */
QV_API qv_status qv_cache_fill_add(qv_cache_fill *fill, const char *key, const char *path,
                                   const qv_clip_options *own, bool *wanted, qv_error *err);

/* A clip or an image in memory. */
typedef struct qv_cache_fill_memory {
    qv_source_kind kind; /* QV_SOURCE_BYTES: the bytes of a file; QV_SOURCE_FRAMES: uint8 frames, as
                       * item says */
    const void *data;    /* [n_bytes] */
    size_t n_bytes;      /* of frames, as many as their shape takes */
    /* Only frames have the fields that follow. Two clips are the same if all of these and the bytes
     * are equal. */
    qv_item item; /* shape of the frames, with n_frames of 1 or more; item.data is ignored */
    const double *timestamps_s; /* times of the frames, [item.n_frames]; NULL: none are known */
    double sampled_fps;         /* rate of the frames; 0: it is not known */
    uint64_t reserved[4];
} qv_cache_fill_memory;

/* Adds a clip in memory, with the rules of qv_cache_fill_add. The path in its record is "xxh3:" and
 * a hash of its bytes and, for frames, of their shape, timestamps and rate; its time is 0. All
 * memory that is pointed to is the caller's and must live until qv_cache_fill_run or
 * qv_cache_fill_end has returned. Returns QV_EINVAL for another kind, for no bytes and for no
 * frames; QV_ENOMEM. Frames of a shape that the model does not accept, or with another number of
 * bytes than their shape takes, fail in the run, and cost only themselves. */
QV_API qv_status qv_cache_fill_add_memory(qv_cache_fill *fill, const char *key,
                                          const qv_cache_fill_memory *memory,
                                          const qv_clip_options *own, bool *wanted, qv_error *err);

/* Forgets the clips that were added since the last run, so that what they point to may be freed. */
QV_API void qv_cache_fill_forget(qv_cache_fill *fill);

/* Makes the folder, or checks that it is of this model and kind. Runs do so by themselves; calling
 * it first finds a mismatch early. It only reads the model's description, so the model may be at
 * work. Returns QV_EFORMAT if the folder is of another model or kind, naming what differs; the
 * errors of qv_cache_writer_open. */
QV_API qv_status qv_cache_fill_begin(qv_cache_fill *fill, const qv_model *model, qv_error *err);
/* Computes the clips that were added and are wanted, and seals them. models are of one tower, each
 * on a device of its own. More clips may be added afterwards; they are compared with the cache as
 * it was when the fill was opened. Returns QV_OK even if clips failed or the run was stopped; else
 * what ended the run: the errors of qv_cache_fill_begin, qv_job_open and qv_job_add, and the first
 * failure of the device or the disk. */
QV_API qv_status qv_cache_fill_run(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
/* Does what qv_cache_fill_run does, as the fill's last run: the index of the cache is freed before
 * anything is computed. Only qv_cache_fill_get_counts and qv_cache_fill_close may follow. */
QV_API qv_status qv_cache_fill_end(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
/* Any thread and any callback of the fill may ask, also during a run. */
QV_API void qv_cache_fill_get_counts(const qv_cache_fill *fill, qv_cache_fill_counts *out);
QV_API void qv_cache_fill_close(qv_cache_fill **fill);

#ifdef __cplusplus
}
#endif
#endif
