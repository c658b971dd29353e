/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_fill: fills a folder of vision tokens (qwenvit_cache.h) by a job (qwenvit_job.h). Clips
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
#ifndef QWENVIT_FILL_H
#define QWENVIT_FILL_H

#include "qwenvit_cache.h"
#include "qwenvit_job.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    /* Called several times a second, by the thread that computes: false ends the run. `job` can be
     * asked for its progress. NULL: the run goes on. */
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
    int64_t gone;   /* clips of `there` whose files no longer exist: their tokens count */
    double seconds; /* time of all runs, from the first clip until all was sealed */
    int64_t frames; /* sampled frames of the clips of `done` */
    uint64_t reserved[3];
} qv_cache_fill_counts;

/* Reads the folder; one that is no cache yet counts as empty, and stays as it is. Returns the
 * errors of qv_cache_open; QV_EINVAL for NULL or options that are not valid. */
QV_API qv_status qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options,
                                    qv_cache_fill **out, qv_error *err);
/* Returns the cache as it was when the fill was opened, until qv_cache_fill_end; NULL: it was
 * empty. It belongs to the fill. */
QV_API const qv_cache *qv_cache_fill_there(const qv_cache_fill *fill);
/* Adds a clip, and looks at its file. It is wanted if the cache lacks it, has it of another path,
 * size, time, piece or options (as far as these are compared), or if it failed before and is to be
 * computed again. A clip whose file is gone is not wanted if the cache has it. `own` has the options
 * of this clip alone (NULL: none), which qv_clip_options_set takes of a row; others are ignored.
 * `key`, `path` and `own` are the caller's and must live until qv_cache_fill_run or
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
