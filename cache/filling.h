/* SPDX-License-Identifier: MIT */
/* Decisions that are the same for every run that adds to a cache, wherever its tokens come from: a
 * job of ours (fill.c), or a caller that has computed them (the binding). */
#ifndef QV_CACHE_FILLING_H
#define QV_CACHE_FILLING_H

#include "qwenvit_cache.h"

struct qv_filling {
    qv_cache *there; /* the cache as it was when this was opened; NULL: the folder is no cache
                      * yet */
    qv_cache_writer *writer;
    qv_cache_layout layout;
    bool retry_failed;
    qv_cache_trust trust;
    int64_t n_gone; /* keys that are there, and whose files are gone */
};

enum qv_filling_state { QV_FILLING_WANTED, QV_FILLING_THERE, QV_FILLING_FAILED_BEFORE };

/* Reads the folder's cache. Returns the errors of qv_cache_open. */
qv_status qv_filling_open(struct qv_filling *f, const char *dir, bool retry_failed, qv_error *err);
/* Opens the writer, whose records come after all existing ones; options->after is ignored. Returns
 * the errors of qv_cache_writer_open. */
qv_status qv_filling_begin(struct qv_filling *f, const char *dir,
                           const qv_cache_writer_options *options, qv_error *err);
/* Returns what to do with a key: one that failed before is wanted if retry_failed, and one that is
 * there is not wanted, even if its file is gone. */
enum qv_filling_state qv_filling_compare(struct qv_filling *f, const char *key,
                                         const qv_cache_source *source);

/* The dtype in which tokens are computed and put: bf16 for a cache of bf16, f32 for the others. */
qv_dtype qv_filling_dtype(const qv_cache_layout *layout);
/* Writes rows of that dtype, for an f16 cache with each value rounded once. Returns QV_EUNSUPPORTED
 * for a value that f16 cannot hold, which is the clip's failure; all other failures are the
 * cache's. */
qv_status qv_filling_put(const struct qv_filling *f, qv_cache_entry *entry, const qv_tokens *rows,
                         qv_error *err);

/* Seals what was finished, and closes everything. Returns the first failure of the disk, if no call
 * has returned it before. */
qv_status qv_filling_close(struct qv_filling *f, qv_error *err);

#endif
