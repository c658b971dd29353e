/* SPDX-License-Identifier: MIT */
/* Declares the functions of jobs and fills that the command and the Python binding need beyond the
 * public header. */
#pragma once

#include "qwenvit_clips.h"

/* Reduces *p to the counts and seconds since *before, an earlier progress of the same job; `limit`
 * then applies to that period. */
void qv_job_progress_since(qv_job_progress *p, const qv_job_progress *before);

/* Returns whether GPUs are worth opening without a request (who_decodes.c): the clip must be one
 * they can decode, and enough further sources must wait for all of their readers (0: one GPU's),
 * since fewer would be done before a GPU is ready. codec NULL: no clip has been opened yet, and
 * more sources are required. */
bool qv_job_wants_gpus(int readers, const char *codec, size_t waiting);

/* Adds a clip in memory, by the rules of qv_cache_fill_add: the bytes of a file, or frames, which
 * are the bytes too (item.data is ignored), and at least one (item.n_frames). Two clips are the
 * same if their bytes are and, for frames, their item, timestamps and rate. The path in its record
 * is "xxh3:" followed by a hash of these; its time is 0. All memory belongs to the caller and must
 * stay valid until qv_cache_fill_run or qv_cache_fill_end has returned. Returns QV_EINVAL for any
 * other kind and if there are no bytes or no frames; QV_ENOMEM. If the model does not accept the
 * frames' shape, or the number of bytes does not match it, only that clip fails in the run. */
qv_status qv_cache_fill_add_memory(qv_cache_fill *fill, const char *key,
                                   const qv_job_source *source, const qv_clip_options *own,
                                   bool *wanted, qv_error *err);

/* Forgets the clips that were added since the last run, so that their memory may be freed. */
void qv_cache_fill_forget(qv_cache_fill *fill);

/* Returns the cache as it was when the fill was opened, or NULL if it was empty. It belongs to the
 * fill and is valid until qv_cache_fill_end. */
const qv_cache *qv_cache_fill_there(const qv_cache_fill *fill);
/* Creates the folder, or checks that it was made with this model and these options. Runs do this
 * too; calling it first finds a mismatch early. It only reads the model's description, so the model
 * may be in use. Returns QV_EFORMAT, naming the difference, if the folder was made with another
 * model or other options; the errors of qv_cache_writer_open. */
qv_status qv_cache_fill_begin(qv_cache_fill *fill, const qv_model *model, qv_error *err);
