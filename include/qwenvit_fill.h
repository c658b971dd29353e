/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_fill: a folder of vision tokens (qwenvit_cache.h) is filled by a job (qwenvit_job.h). What the
 * folder lacks of a list of clips is computed and written; what it has is left alone, so running it again
 * after any end goes on.
 *
 *     qv_cache_fill_open   reads what is there
 *     qv_cache_fill_add    says of a clip whether it is wanted, and remembers those that are
 *     qv_cache_fill_end    computes them and seals what was done; qv_cache_fill_run does so for what was
 *                          added so far, and more may follow
 *
 * A clip that fails becomes a record of the folder, and is not tried again unless retry_failed. A failure of
 * the device, of memory or of the disk ends the run: then, as where the run is stopped, what was done before
 * is sealed. Programs that only read caches need no more than libqwenvit_cache.
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
    qv_dtype tokens;         /* in the cache: QV_BF16 (default), QV_F16 or QV_F32 */
    bool no_deepstack;       /* DeepStack's outputs are not kept */
    bool packed;             /* they lie beside the tokens: qv_cache_layout.packed */
    bool retry_failed;       /* what failed before is done again */
    qv_cache_trust trust;    /* what of a clip's file is not compared with what is there */
    int64_t shard, n_shards; /* these four as in qv_cache_writer_options */
    int64_t part_bytes;
    double part_seconds;
    int decoders; /* these three as in qv_job_options */
    int64_t chunk_rows;
    qv_clip_options clip; /* of all clips; a clip's own options come before them */
    /* Told of each clip that fails, in words; several threads may call it at once. NULL: nobody is. */
    void (*told)(void *user, const char *key, qv_status status, const char *words);
    /* Asked several times a second, by the thread that computes: false ends the run. `job` is
     * there to ask for its progress. NULL: the run goes on. */
    bool (*go_on)(void *user, qv_job *job);
    void *user; /* of both */
    uint64_t reserved[8];
} qv_cache_fill_options;

/* Since the fill was opened. */
typedef struct qv_cache_fill_counts {
    int64_t done, tokens,
        failed; /* clips that are in the cache by now, their tokens, clips that failed */
    int64_t there, failed_before; /* clips that were not wanted */
    int64_t gone;   /* of those that are there, whose files are not: their tokens count */
    double seconds; /* of all runs, from the first clip until all was sealed */
    uint64_t reserved[4];
} qv_cache_fill_counts;

/* Reads what is there; a folder that is no cache yet is an empty one, and stays as it is. What
 * qv_cache_open returns; QV_EINVAL for NULL or options that are none. */
QV_API qv_status qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options,
                                    qv_cache_fill **out, qv_error *err);
/* What is there, until qv_cache_fill_end; NULL: nothing. It belongs to the fill. */
QV_API const qv_cache *qv_cache_fill_there(const qv_cache_fill *fill);
/* A clip, whose file is looked at. Wanted is what is not there, is there of another path, size, time, piece or
 * options (as far as these are compared), or has failed before and is to be done again. What is there of a
 * clip whose file is gone is not wanted. `key`, `path` and `own` (NULL: nothing of its own) are
 * the caller's until qv_cache_fill_run or qv_cache_fill_end has returned; *wanted may be NULL. QV_ENOMEM. */
QV_API qv_status qv_cache_fill_add(qv_cache_fill *fill, const char *key, const char *path,
                                   const qv_row_own *own, bool *wanted, qv_error *err);

/* A clip or an image that is no file. */
typedef struct qv_cache_fill_memory {
    qv_source_kind
        kind;         /* QV_SOURCE_BYTES: those of a file; QV_SOURCE_FRAMES: uint8, as item says */
    const void *data; /* [n_bytes]; the same bytes, with the same seconds, are the same clip */
    size_t n_bytes;
    qv_item item;               /* of frames; item.data is not looked at */
    const double *timestamps_s; /* of frames, [item.n_frames]; NULL: none are known */
    double sampled_fps;         /* of frames; 0: it is not known */
    uint64_t reserved[4];
} qv_cache_fill_memory;

/* As qv_cache_fill_add. The path of its record is "xxh3:" and a hash of its bytes and seconds, its time is 0. All that
 * is pointed to is the caller's until qv_cache_fill_run or qv_cache_fill_end has returned. QV_EINVAL for another
 * kind, and for no bytes; QV_ENOMEM. */
QV_API qv_status qv_cache_fill_add_memory(qv_cache_fill *fill, const char *key,
                                          const qv_cache_fill_memory *memory, const qv_row_own *own,
                                          bool *wanted, qv_error *err);

/* Forgets what was added since the last run, and with it what it points to. */
QV_API void qv_cache_fill_forget(qv_cache_fill *fill);

/* Makes the folder, or sees that it is of this model and kind; a fill that computes does so where nobody has.
 * The model is asked what it is, and may be at work. QV_EFORMAT where it is of another model or kind, naming
 * what differs; what qv_cache_writer_open returns. */
QV_API qv_status qv_cache_fill_begin(qv_cache_fill *fill, const qv_model *model, qv_error *err);
/* Computes what was added and is wanted, on models of one tower, each on a device of its own, and seals it. More
 * may be added afterwards, and is held to what was there when the fill was opened. QV_OK, whatever failed of
 * the clips, and where the run was stopped; else what ended the run: what qv_cache_fill_begin, qv_job_open and
 * qv_job_add return, and the first failure of the device or the disk. */
QV_API qv_status qv_cache_fill_run(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
/* The same, as the last call but qv_cache_fill_get_counts and qv_cache_fill_close: what is there is forgotten
 * before anything is computed. */
QV_API qv_status qv_cache_fill_end(qv_cache_fill *fill, qv_model *const *models, size_t n_models,
                                   qv_error *err);
QV_API void qv_cache_fill_get_counts(const qv_cache_fill *fill, qv_cache_fill_counts *out);
QV_API void qv_cache_fill_close(qv_cache_fill **fill);

#ifdef __cplusplus
}
#endif
#endif
