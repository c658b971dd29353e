/* SPDX-License-Identifier: MIT */
/* What every run that adds to a cache decides in the same way, wherever its tokens come from: a job of ours
 * (fill.c), or a caller that has computed them (the binding). */
#ifndef QV_CACHE_FILLING_H
#define QV_CACHE_FILLING_H

#include "qwenvit_cache.h"

struct qv_filling {
    qv_cache *there; /* as it was when this was opened; NULL: it is no cache yet */
    qv_cache_writer *writer;
    qv_cache_layout layout;
    bool retry_failed;
    qv_cache_trust trust;
    int64_t n_gone; /* of those that are there, whose files are not */
};

enum qv_filling_state { QV_FILLING_WANTED, QV_FILLING_THERE, QV_FILLING_FAILED_BEFORE };

/* Reads what is there of the folder. What qv_cache_open returns. */
qv_status qv_filling_open(struct qv_filling *f, const char *dir, bool retry_failed, qv_error *err);
/* Begins to write, after all that is there; options->after is not looked at. What qv_cache_writer_open
 * returns. */
qv_status qv_filling_begin(struct qv_filling *f, const char *dir,
                           const qv_cache_writer_options *options, qv_error *err);
/* Returns what is to be done with a key: what failed before is wanted if retry_failed, and what is there is
 * not, whether its file still is or not. */
enum qv_filling_state qv_filling_compare(struct qv_filling *f, const char *key,
                                         const qv_cache_source *source);

/* The dtype in which tokens are computed and put: bf16 for a cache of bf16, f32 for the others. */
qv_dtype qv_filling_dtype(const qv_cache_layout *layout);
/* Puts rows of that dtype, for a cache of f16 each value rounded once. QV_EUNSUPPORTED for a value that f16
 * does not hold, which is the clip's failure; all others are the cache's. */
qv_status qv_filling_put(const struct qv_filling *f, qv_cache_entry *entry, const qv_tokens *rows,
                         qv_error *err);

/* Seals what was finished, and forgets all. The first failure of the disk is told here at the latest. */
qv_status qv_filling_close(struct qv_filling *f, qv_error *err);

#endif
