/* SPDX-License-Identifier: MIT */
/* Adds keys to a cache. Any number of threads may share a writer, but only one may use an entry. */
#pragma once

#include "qwenvit_cache.h"
#include "qwenvit_clips.h"

typedef struct qv_cache_writer qv_cache_writer; /* a run that adds keys to a folder */
typedef struct qv_cache_entry qv_cache_entry;   /* a key that is being written */

#define QV_CACHE_OPTIONS_BYTES 256
/* Returns the source that `qwenvit cache` records for a clip. It looks at the file; a missing file
 * has size and time 0. `own` has this clip's own options, or is NULL: start_s and end_s become the
 * stretch, and the nonzero ones of fps, max_frames, max_pixels, offset, length and first_frame
 * become the options; other fields are ignored. The result points to the caller's `path` and
 * `text`; `text` may be NULL if `own` is. For a record, use qv_outcome's file_bytes and
 * file_mtime_ns, because the file may have been replaced since it was read. */
qv_cache_source qv_cache_source_of(const char *path, const qv_clip_options *own,
                                   char text[QV_CACHE_OPTIONS_BYTES]);

/* Makes the text for qv_cache_writer_options.made_by, as in `qwenvit cache`: the model, its weights
 * and dtype, how frame pairs are packed (qv_model_packing of the job's chunk_rows), and how clips
 * without their own options are sampled and resized. *out is a JSON object; the caller free()s it.
 * Returns QV_EINVAL or QV_ENOMEM. */
qv_status qv_cache_made_by(const qv_model_info *model, int64_t pack_rows, const char *rule,
                           const qv_clip_options *clip, char **out, qv_error *err);

typedef struct qv_cache_writer_options {
    qv_cache_layout layout;
    /* a JSON object with everything else that tokens depend on (model, weights, preprocessing,
     * dtype, capacity). It is stored in qwenvit-cache.json; a run with a different made_by is
     * rejected. NULL: {} */
    const char *made_by;
    int64_t shard, n_shards; /* part of the parts' names; n_shards 0: 1 */
    int64_t part_bytes;      /* a part is sealed once it has this many bytes; 0: 1 GiB */
    double part_seconds;     /* a part is sealed once it is this old; 0: 300 */
    int64_t after;           /* qv_cache_info.sealed of the folder as read: new records get later
                              * times; QV_EINVAL if negative or more than 100 years from now */
    /* Called with a warning while the writer is being opened if the file system has no locks, so
     * that qv_cache_prune would not notice the writer. NULL: not called. */
    void (*told)(void *user, const char *words);
    void *user; /* passed to told */
    /* the version of the FFmpeg that decodes (qv_decoder_ffmpeg), at most 63 bytes, which the parts
     * record; a run with a different version is accepted. NULL or "": unknown */
    const char *ffmpeg;
} qv_cache_writer_options;

/* Opens a folder for adding keys, and creates it if it does not exist. Removes unfinished files of
 * dead processes of this host. The folder cannot be pruned while a writer is open. Returns
 * QV_EFORMAT if the folder was made differently, naming the difference and both models; QV_EIO if
 * it cannot be written to; QV_ESTATE while another process prunes it. */
qv_status qv_cache_writer_open(const char *dir, const qv_cache_writer_options *options,
                               qv_cache_writer **out, qv_error *err);

/* Begins a key of at most `rows` rows, and reserves room for them in a part (0: the clip has failed
 * already). Waits while two parts are still being sealed. After a disk failure, every call returns
 * it; keys finished before it are sealed if possible. */
qv_status qv_cache_begin(qv_cache_writer *writer, const char *key, const qv_cache_source *source,
                         int64_t rows, qv_cache_entry **out, qv_error *err);
/* Writes the next tokens->n rows, in the layout's dtype, and the first n_deepstack of their
 * DeepStack outputs, before it returns. Returns QV_EINVAL for more rows than the key has room for
 * and for NULL rows; nothing is written then, and the entry remains usable. */
qv_status qv_cache_put(qv_cache_entry *entry, const qv_tokens *tokens, qv_error *err);

/* The outcome of a key. */
typedef struct qv_cache_result {
    qv_status status;           /* the clip's: QV_OK, or why it has no tokens */
    const char *error;          /* the message, for a failed clip */
    const qv_outcome *outcome;  /* on success; sampled_fps is 0 for an image */
    const double *timestamps_s; /* [outcome->n_frames]; NULL: unknown */
} qv_cache_result;

/* Finishes a key with the rows put so far; it is readable once its part is sealed. Frees the entry,
 * even on failure. */
qv_status qv_cache_finish(qv_cache_entry **entry, const qv_cache_result *result, qv_error *err);
/* Abandons a key, without a record, and frees the entry. */
void qv_cache_drop(qv_cache_entry **entry);

/* Seals the finished keys, and waits for it. A part stays open while it has unfinished entries. */
qv_status qv_cache_seal(qv_cache_writer *writer, qv_error *err);
/* Seals the finished keys, and frees the writer, even on failure. All entries must be finished or
 * dropped first. Returns a disk failure that no call has returned yet. */
qv_status qv_cache_writer_close(qv_cache_writer **writer, qv_error *err);
