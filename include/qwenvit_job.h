/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_job: encodes many clips and images. They go through decoders, chunks and devices to a
 * sink. It stands above qwenvit.h and qwenvit_media.h, whose conventions hold here.
 *
 * Sources are added with a key while the job runs. Decoders read them side by side. Their frame
 * pairs are packed, across sources, into full chunks, so a clip may lie in several. The sink gets
 * each source's tokens, in any order of the sources. A fault of one source costs only that source;
 * a device that is lost, or a lack of memory, ends the job.
 *
 * The capacity in which a source's tokens are computed follows from the size of its frames and the
 * job's options alone. A chunk that is not full takes a smaller capacity only if that gives the
 * same bits. So tokens have the same bits in any order of the sources and with any
 * number of decoders.
 *
 * However much is added, memory on the host is at most the sum of
 *     options.memory                  frames that wait, or what is read at once where that is more
 *     3 chunks of tokens a model      with DeepStack's outputs (qv_job_memory tells how much)
 *     64 MiB, or 2 frames, a decoder  shared with its process; each such process takes its own
 *                                     clip.decode_memory at most
 *     timestamps and names of the sources that wait or are under way.
 *
 * A pointer may be NULL only where its description says so: otherwise a function returns QV_EINVAL, or,
 * if it returns no status, the answer for nothing: "", zeros, or no change.
 *
 * Threads. Any threads may call qv_job_add, qv_job_give_back, qv_job_cancel and
 * qv_job_get_progress at once; one thread calls qv_job_end and qv_job_close. From open to close only
 * the job may use its models' contexts.
 */
#ifndef QWENVIT_JOB_H
#define QWENVIT_JOB_H

#include "qwenvit_media.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qv_job qv_job;

/* ---- results --------------------------------------------------------------------------------- */

/* What a job knows of a source, in every call of the sink. All memory belongs to the job and is
 * valid during the call. */
typedef struct qv_job_result {
    const char *key;
    void *user;        /* the source's `user` */
    qv_status status;  /* in the end call: why the source has failed, or QV_OK */
    const char *error; /* the error's text, or "" */
    bool cancelled;    /* the source did not fail, but the job ended before it was done */
    /* so far. source_frames is 0 for frames and patches, and if no clip could be opened. not_gpu also says why the
     * job had no GPU decode it */
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
 * If begin or rows return another status than QV_OK, with a text, the source fails: its next call is
 * its end, which has that status and text. If end returns one, the source counts as failed. A status
 * that concerns more than the source (no memory, a lost device) ends the job as well.
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
    void *user; /* given to each, and to options.go_on and options.span */
} qv_job_sink;

/* ---- jobs ------------------------------------------------------------------------------------ */

typedef struct qv_job_options {
    qv_dtype output; /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    qv_job_sink sink;
    int decoders;  /* clips that are decoded at once; 0: as many as there are cores, or 12 by each
                      * model's GPU and as many besides as there are cores beyond 24 a GPU */
    int sinks;     /* threads that call the sink; 0: 1 */
    int64_t queue; /* sources that may wait to be taken up; beyond that adding waits; 0: 512 */
    bool refuse_when_full; /* instead of waiting, adding fails with QV_ESTATE */
    /* Bytes of the sources in memory that were added and of the results that were not given back
     * (qv_job_give_back), at most: beyond that adding waits. Beyond that many bytes of results alone
     * no further source is taken up, so that they grow by the sources under way at most. Sources
     * are taken up in the order in which they were added, and one that was taken up always comes
     * to its end: who takes results in that order waits for none that waits for it. 0: results
     * are not counted */
    int64_t ahead;
    /* Asked every 20 ms by the thread that waits in qv_job_add or qv_job_end; false cancels the job.
     * NULL: the job goes on */
    bool (*go_on)(void *user, qv_job *job);
    int64_t memory; /* bytes of frames that may wait between decoders and devices; 0: 512 MiB */
    /* how long a frame pair waits for its chunk to fill while more sources are being read; 0: 2.
     * It does not wait if none is. */
    double max_wait_s;
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's own size */
    /* sources are not packed: each is encoded in the capacity that suits it by itself, as
     * qv_encode does with one item */
    bool alone;
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
    const void *bytes; /* [n_bytes]; the caller's, and valid until its end call */
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
    uint64_t reserved[8];
} qv_job_source;

/* Counts and seconds since the job was opened. A stage's seconds are summed over its threads:
 * divided by elapsed_s and the number of threads they tell how busy it is. */
typedef struct qv_job_progress {
    int64_t added, done, failed; /* sources; `done` includes those that failed */
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
 * Adds a source. It waits while the queue is full, or too much is ahead. Returns QV_EINVAL for a source that is not valid
 * (its grid, or no key); QV_ESTATE after qv_job_end, or if it would wait with refuse_when_full;
 * or the failure that has ended the job. What is wrong with a file is told to the sink.
 */
QV_API qv_status qv_job_add(qv_job *job, const qv_job_source *source, qv_error *err);

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
 * its decoders' processes, and without that of one item larger than options.memory, and without what is ahead (options.ahead).
 * The models may be described only. */
QV_API qv_status qv_job_memory(qv_model *const *models, size_t n_models,
                               const qv_job_options *options, int64_t *bytes, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
