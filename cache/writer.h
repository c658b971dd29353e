/* SPDX-License-Identifier: MIT */
/* Declares how keys are added to a cache. Any number of threads may use a writer at once, and one
 * thread an entry. */
#pragma once

#include "qwenvit_cache.h"
#include "qwenvit_clips.h"

typedef struct qv_cache_writer qv_cache_writer; /* a run that adds to a folder */
typedef struct qv_cache_entry qv_cache_entry;   /* a key that is being written */

#define QV_CACHE_OPTIONS_BYTES 256
/* Returns the source that `qwenvit cache` records for a clip. It looks at the file; one that does
 * not exist has size and time 0. `own` has this clip's own options, or is NULL: start_s and end_s
 * become the stretch, and fps, max_frames, max_pixels, offset, length and first_frame, where not 0,
 * the options; other fields are ignored. The result points to the caller's `path` and `text`;
 * `text` may be NULL if `own` is. For a record, use file_bytes and file_mtime_ns of qv_outcome
 * instead, because the file may have been replaced since it was read. */
qv_cache_source qv_cache_source_of(const char *path, const qv_clip_options *own,
                                   char text[QV_CACHE_OPTIONS_BYTES]);

/* Makes the text for qv_cache_writer_options.made_by, as in `qwenvit cache`: the model, its weights
 * and dtype, how frame pairs are packed (qv_model_packing of the job's chunk_rows), and how clips
 * without their own options are sampled and resized. *out is a JSON object, which the caller
 * free()s. Returns QV_EINVAL and QV_ENOMEM. */
qv_status qv_cache_made_by(const qv_model_info *model, int64_t pack_rows, const char *rule,
                           const qv_clip_options *clip, char **out, qv_error *err);

typedef struct qv_cache_writer_options {
    qv_cache_layout layout;
    /* a JSON object with everything else that tokens depend on (model, weights, preprocessing,
     * dtype, capacity). It is stored in qwenvit-cache.json; a run with another made_by is refused.
     * NULL: {} */
    const char *made_by;
    int64_t shard, n_shards; /* go into the names of the parts; n_shards 0: 1 */
    int64_t part_bytes;      /* a part is sealed once it has this many bytes; 0: 1 GiB */
    double part_seconds;     /* a part is sealed once it is this old; 0: 300 */
    int64_t after;           /* qv_cache_info.sealed of the folder as it was read: new records get
                              * later times; QV_EINVAL below 0, and more than 100 years from now */
    /* Called with a warning while the writer is opened: this file system has no locks, so
     * qv_cache_prune would not notice the writer. NULL: no calls. */
    void (*told)(void *user, const char *words);
    void *user; /* passed to told */
    /* the version of FFmpeg that decodes (qv_decoder_ffmpeg), of at most 63 bytes, which the parts
     * record; a run with another one goes on. NULL or "": unknown */
    const char *ffmpeg;
} qv_cache_writer_options;

/* Opens a folder for adding keys, and creates it if it does not exist. Removes unfinished files of
 * dead processes of this host. The folder cannot be pruned while a writer is open. Returns
 * QV_EFORMAT if the folder was made otherwise, naming what differs and both models; QV_EIO if it
 * cannot be written to; QV_ESTATE while another process prunes it. */
qv_status qv_cache_writer_open(const char *dir, const qv_cache_writer_options *options,
                               qv_cache_writer **out, qv_error *err);

/* Begins a key of at most `rows` rows, and reserves room for them in a part (0: the clip has failed
 * already). Waits while two parts are still being sealed. After the disk has failed, every call
 * returns that failure; keys finished before it are sealed if possible. */
qv_status qv_cache_begin(qv_cache_writer *writer, const char *key, const qv_cache_source *source,
                         int64_t rows, qv_cache_entry **out, qv_error *err);
/* Writes the next tokens->n rows, in the layout's dtype, and the first n_deepstack of their
 * DeepStack outputs, before it returns. Returns QV_EINVAL for more rows than the key has room for
 * and for NULL rows; then nothing was written, and the entry can still be used. */
qv_status qv_cache_put(qv_cache_entry *entry, const qv_tokens *tokens, qv_error *err);

/* The outcome of a key. */
typedef struct qv_cache_result {
    qv_status status;           /* of the clip: QV_OK, or why it has no tokens */
    const char *error;          /* the message, for a failed clip */
    const qv_outcome *outcome;  /* of a clip that is ok; sampled_fps is 0 for an image */
    const double *timestamps_s; /* [outcome->n_frames]; NULL: unknown */
} qv_cache_result;

/* Finishes a key with the rows that were put; it can be read once its part is sealed. Frees the
 * entry, on failure too. */
qv_status qv_cache_finish(qv_cache_entry **entry, const qv_cache_result *result, qv_error *err);
/* Abandons a key, without a record, and frees the entry. */
void qv_cache_drop(qv_cache_entry **entry);

/* Seals the finished keys, and waits for that. A part stays open while entries in it are not
 * finished. */
qv_status qv_cache_seal(qv_cache_writer *writer, qv_error *err);
/* Seals the finished keys, and frees the writer, on failure too. All entries must be finished or
 * dropped before. Returns a failure of the disk that no call has returned yet. */
qv_status qv_cache_writer_close(qv_cache_writer **writer, qv_error *err);
