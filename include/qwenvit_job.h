/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_job: many clips and images through decoders, chunks and devices, to a sink. Above
 * qwenvit.h and qwenvit_media.h, whose conventions hold here.
 *
 * Sources are added with a key, while the job runs; decoders read them side by side; their frame pairs are
 * packed, across sources, into full chunks, so that a clip may lie in several; the sink is given each
 * source's tokens, in any order of the sources. What is wrong with one source costs that source; a device
 * that is lost, or no memory, ends the job.
 *
 * Which capacity a source's tokens are computed in follows from the size of its frames and the job's options
 * alone; a chunk that is not full takes a smaller one only where that gives the same bits (qv_pack_part). So
 * tokens are the same bits in any order of the sources, with any number of decoders.
 *
 * Memory on the host, whatever is added, is at most
 *     options.memory                  frames that wait, or those of one item that is larger
 *   + 3 chunks of tokens a model      with DeepStack's outputs (qv_job_memory tells how much)
 *   + 64 MiB, or 2 frames, a decoder  shared with its process, and each such process's own
 *                                     clip.decode_memory at most
 *   + timestamps and names of the sources that wait or are under way.
 *
 * Threads. qv_job_add, qv_job_cancel and qv_job_get_progress may be called by any threads at once,
 * qv_job_end and qv_job_close by one. From open to close the job alone uses its models' contexts.
 */
#ifndef QWENVIT_JOB_H
#define QWENVIT_JOB_H

#include "qwenvit_media.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_job qv_job;

/* ---- rows of a list -------------------------------------------------------------------------- */

/* What a row asks of its clip alone. What it leaves out is 0. */
typedef struct qv_row_own {
    double fps, start_s, end_s;
    int64_t max_frames, max_pixels;
    int64_t offset, bytes; /* where in the file the clip lies */
    bool first_frame;
} qv_row_own;

/* A row of a list of clips, as `qwenvit encode` and `qwenvit cache` read it from JSON and the wheel from a
 * dict. Begins as zeros. Texts are the caller's. */
typedef struct qv_row {
    const char *path, *key; /* key: NULL, if the row has none */
    qv_row_own own;
    bool asks; /* for something of its own */
} qv_row;

typedef enum qv_row_type {
    QV_ROW_OTHER = 0, /* what is none of these */
    QV_ROW_TEXT,
    QV_ROW_INTEGER,
    QV_ROW_REAL,
    QV_ROW_FLAG, /* `integer` is 1 or 0 */
    QV_ROW_TYPE_MAX = 0x7fff
} qv_row_type;

typedef struct qv_row_value {
    qv_row_type type;
    const char *text;
    int64_t integer;
    double real;
} qv_row_value;

/* Sets the field of that name: "path", "key", "fps", "max_frames", "max_pixels", "start", "end", "offset",
 * "bytes" or "first_frame". NULL where that is done; else what the value must be, in words ("an integer from 1 up"), or ""
 * where there is no such field. */
QV_API const char *qv_row_set(qv_row *row, const char *name, const qv_row_value *value);
/* What the fields say together: QV_EINVAL for a row without a path, and for an end that is not above its
 * start. */
QV_API qv_status qv_row_check(const qv_row *row, qv_error *err);
/* The options of all clips, with those of the row in their place. */
QV_API qv_clip_options qv_row_options(const qv_row_own *own, const qv_clip_options *all);

/* ---- results --------------------------------------------------------------------------------- */

/*
 * What the sink is told: tokens [first_row, first_row + n) of a source, in order, in as many calls as there
 * are chunks that it lies in. Every source that was added has exactly one with `last`. All memory is the
 * job's, and good during the call.
 */
typedef struct qv_job_result {
    const char *key;
    void *user; /* the source's */
    bool last;
    qv_status status;         /* of a last call: why the source has failed, else QV_OK */
    const char *error;        /* the same in words; "" */
    bool cancelled;           /* it did not fail: the job ended before it was done */
    const char *decoder;      /* "process" or "thread"; "" where nothing is decoded */
    const qv_clip_info *clip; /* NULL for frames and patches, and where opening has failed */
    bool is_image;
    int64_t grid_thw[3];                     /* zeros where it is not known */
    int64_t n_tokens;                        /* of the whole source */
    int64_t first_row, n;                    /* of this call; n is 0 after a failure */
    qv_dtype dtype;                          /* of tokens */
    const void *tokens;                      /* [n, out_hidden] */
    const void *deepstack[QV_MAX_DEEPSTACK]; /* each [n, out_hidden]; as many as the model has */
    const double *timestamps_s; /* [clip->n_frames]; of a clip's last call, else NULL */
    int64_t damaged_frames;     /* so far, */
    int64_t decoded_frames;     /* qv_clip_decoded, so far */
    qv_decode
        decoded_by; /* QV_DECODE_CPU or QV_DECODE_GPU; and why not by a GPU that was asked for, */
    char not_gpu[sizeof((qv_clip_info *)0)->not_gpu]; /* so far, in words that follow "since" */
    const uint8_t *frames; /* [n_frames, height, width, 3], with options.keep_frames */
    int64_t n_frames;
    /* Seconds, so far: since it was taken up; decoding, in its decoder; waiting for that; of the
     * chunks that it was in, on the device; waiting for the sink. */
    double seconds, decode_s, wait_decode_s, wait_device_s, wait_sink_s;
    uint64_t reserved[8];
} qv_job_result;

/*
 * Called by the job's sink threads, for one source at a time; for different sources at once where
 * options.sinks is above 1; at the end perhaps by the thread that ends the job. A status other than
 * QV_OK, with its words, fails the source: unless this was its last call there is one more. May take
 * its time: the job then waits. May call qv_job_add only where options.refuse_when_full.
 */
typedef qv_status (*qv_job_sink)(void *user, const qv_job_result *result, qv_error *err);

/* ---- jobs ------------------------------------------------------------------------------------ */

typedef struct qv_job_options {
    qv_job_sink sink;
    void *user;      /* the sink's */
    qv_dtype output; /* of tokens: QV_F32 (default) or QV_BF16 */
    int decoders;    /* side by side; 0: as many as there are cores, 12 and more for a GPU's */
    int sinks;       /* threads that call the sink; 0: 1 */
    int64_t queue;   /* sources that wait to be taken up, before adding one waits; 0: 512 */
    bool refuse_when_full; /* adding then fails with QV_ESTATE instead */
    int64_t memory;        /* bytes of frames between decoders and devices; 0: 512 MiB */
    double max_wait_s;  /* that a frame pair waits for its chunk to fill, while more are being read;
                             0: 2. Where none is, it does not wait. */
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's own size */
    bool alone;         /* no packing: each source in the capacity that suits it by itself, as
                             qv_encode does with one item */
    bool keep_frames;   /* until their tokens are with the sink */
    /* Of paths and bytes. threads 0: every core where few sources wait, else 1. decoder NULL, and not trusted: the job
     * starts one. decode QV_DECODE_GPU: where the GPU decodes nothing, the job ends with QV_EBACKEND. */
    qv_clip_options clip;
    /* Sees what each stage did, from its thread: "decode" of a decoder, "push" and "pull" of a device,
     * "sink" of a sink's thread; lane: its number. Seconds as CLOCK_MONOTONIC counts; key: of the
     * source, NULL where there are several. */
    void (*span)(void *user, const char *stage, int lane, const char *key, double begin_s,
                 double end_s);
    uint64_t reserved[8];
} qv_job_options;

typedef enum qv_source_kind {
    QV_SOURCE_PATH = 0,     /* a clip's or image's file */
    QV_SOURCE_BYTES,        /* the same in memory */
    QV_SOURCE_FRAMES,       /* RGB, resized: item with input QV_INPUT_FRAMES */
    QV_SOURCE_PATCHES,      /* transformers' pixel_values: item with input QV_INPUT_PATCHES */
    QV_SOURCE_PATCHES_BF16, /* the same in bf16: item with input QV_INPUT_PATCHES_BF16 */
    QV_SOURCE_MAX = 0x7fff
} qv_source_kind;

typedef struct qv_job_source {
    const char *key; /* copied, as all texts are; NULL: the path */
    qv_source_kind kind;
    const char *path;  /* of the file; of bytes, a name for error texts, or NULL: the key */
    const void *bytes; /* [n_bytes], the caller's until the last call of the sink for it */
    size_t n_bytes;
    qv_item item; /* FRAMES, PATCHES, PATCHES_BF16: item.data is the caller's, until that call */
    const qv_clip_options *clip; /* PATH, BYTES: instead of the job's, whose decoder it has in any
                                    case; copied. NULL: the job's */
    void *user;                  /* comes back with the result */
    uint64_t reserved[8];
} qv_job_source;

/* Since the job was opened. Seconds of a stage are summed over its threads: divided by elapsed_s and
 * their number, how busy it is. */
typedef struct qv_job_progress {
    int64_t added, done, failed;         /* sources; done: with those that failed */
    int64_t tokens;                      /* that came from devices */
    int64_t source_frames;               /* frames of all clips that are done, */
    int64_t decoded_frames;              /* and so many were decoded (qv_clip_decoded) */
    int64_t chunks, rows, capacity_rows; /* chunks; patches in them, and for which there was room */
    int64_t packed; /* sources that were packed, which all are but with `alone`, */
    int64_t packed_chunks, packed_rows; /* into so many chunks, of so many patches together */
    int64_t pack_rows;                  /* capacity of most of them; 0 before there is one */
    int64_t rest_rows,
        rest_capacity_rows; /* of `rows` and `capacity_rows`, those of chunks that took all
                                              that waited for them, as a job's last ones do */
    double elapsed_s;
    double decode_s, room_s;            /* of decoders: reading, waiting for room behind them */
    double device_s, starved_s, full_s; /* of devices: at work, without work, waiting for a sink */
    double sink_s;                      /* all three stages with what is under way */
    int decoders, devices, sinks;
    size_t frame_bytes, most_frame_bytes; /* that wait, and at their most */
    const char *limit; /* the stage that limits: "decoding", "device", "sink", or "input" where
                          sources come too slowly */
    bool ended;        /* early: qv_job_end says why */
    uint64_t reserved[6];
} qv_job_progress;

/*
 * A job on models of one tower, each on a device of its own. All options are checked here, and the plan
 * that most frame pairs are packed in is made. QV_EINVAL, QV_ENOMEM, and what qv_plan_create and
 * qv_decoder_start return.
 */
QV_API qv_status qv_job_open(qv_model *const *models, size_t n_models,
                             const qv_job_options *options, qv_job **out, qv_error *err);

/*
 * Waits while the queue is full. QV_EINVAL for what is no source (a grid that cannot be, no key);
 * QV_ESTATE after qv_job_end, or full with refuse_when_full; what has ended the job, if something has.
 * What is wrong with a file comes to the sink.
 */
QV_API qv_status qv_job_add(qv_job *job, const qv_job_source *source, qv_error *err);

/* No more sources come; waits until all are done. QV_OK, whatever failed of them, or what has ended the
 * job early: sources that were not done are then told as cancelled before this returns. */
QV_API qv_status qv_job_end(qv_job *job, qv_error *err);

/* Returns at once. What is not done is cancelled: qv_job_add fails, and qv_job_end, which must still be
 * called (or qv_job_close), has no more to wait for than what is under way. By any thread. */
QV_API void qv_job_cancel(qv_job *job);

QV_API void qv_job_get_progress(qv_job *job, qv_job_progress *out);

/* Cancels what is not done, which takes as long as a sink or a decoder does for what it is about. */
QV_API void qv_job_close(qv_job **job);

/* What a job with these options takes on the host at most, in bytes, without what its decoders'
 * processes have for themselves and what one item larger than options.memory has. options.sink may be NULL; the models may be described. */
QV_API qv_status qv_job_memory(qv_model *const *models, size_t n_models,
                               const qv_job_options *options, int64_t *bytes, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
