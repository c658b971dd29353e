/* SPDX-License-Identifier: MIT */
/* Declares what the command and the Python binding need of jobs and fills beyond the public
 * header. */
#pragma once

#include "qwenvit_clips.h"

/* Turns *p into the counts and seconds since *before, an earlier progress of the same job; `limit`
 * is then that time's. */
void qv_job_progress_since(qv_job_progress *p, const qv_job_progress *before);

/* Returns whether GPUs are worth opening unasked (who_decodes.c): for a clip that they can decode,
 * and if further sources wait for all of their readers (0: one GPU's), since less would be done
 * before they are ready. codec NULL: no clip was opened yet, and there must be more. */
bool qv_job_wants_gpus(int readers, const char *codec, size_t waiting);

/* A clip or an image in memory. */
typedef struct qv_cache_fill_memory {
    qv_source_kind kind; /* QV_SOURCE_BYTES: the bytes of a file; QV_SOURCE_FRAMES: uint8 frames, as
                       * item says */
    const void *data;    /* [n_bytes] */
    size_t n_bytes;      /* for frames, as many as their shape needs */
    /* The following fields are only for frames. Two clips are the same if all of these and the
     * bytes are equal. */
    qv_item item; /* shape of the frames, with n_frames of 1 or more; item.data is ignored */
    const double *timestamps_s; /* times of the frames, [item.n_frames]; NULL: unknown */
    double sampled_fps;         /* rate of the frames; 0: unknown */
} qv_cache_fill_memory;

/* Adds a clip in memory, by the rules of qv_cache_fill_add. The path in its record is "xxh3:" and a
 * hash of its bytes and, for frames, of their shape, timestamps and rate; its time is 0. All memory
 * is the caller's and must live until qv_cache_fill_run or qv_cache_fill_end has returned. Returns
 * QV_EINVAL for another kind, for no bytes and for no frames; QV_ENOMEM. Frames whose shape the
 * model does not accept, or whose number of bytes does not match it, fail alone in the run. */
qv_status qv_cache_fill_add_memory(qv_cache_fill *fill, const char *key,
                                   const qv_cache_fill_memory *memory, const qv_clip_options *own,
                                   bool *wanted, qv_error *err);

/* Forgets the clips that were added since the last run, so that their memory may be freed. */
void qv_cache_fill_forget(qv_cache_fill *fill);

/* Returns the cache as it was when the fill was opened, or NULL if it was empty. It belongs to the
 * fill and is valid until qv_cache_fill_end. */
const qv_cache *qv_cache_fill_there(const qv_cache_fill *fill);
/* Creates the folder, or checks that it was made with this model and these options. Runs do this
 * too; calling it first finds a mismatch early. It only reads the model's description, so the model
 * may be at work. Returns QV_EFORMAT if the folder was made otherwise, naming what differs; the
 * errors of qv_cache_writer_open. */
qv_status qv_cache_fill_begin(qv_cache_fill *fill, const qv_model *model, qv_error *err);
