/* SPDX-License-Identifier: MIT */
/* Shared by the writer and the reader of a cache: names, texts and qwenvit-cache.json. */
#pragma once

#include <jansson.h>

#include "clips/option_list.h"
#include "files/text.h"
#include "writer.h"

#define QV_CACHE_DESCRIPTION "qwenvit-cache.json"
#define QV_CACHE_FORMAT "qwenvit-cache"
#define QV_CACHE_VERSION "2"
/* The error for a cache or part written by another version. */
#define QV_CACHE_OTHER                                                                             \
    "another version of qwenvit made it, and this one reads only \"" QV_CACHE_VERSION              \
    "\": fill it again"
#define QV_CACHE_ALIGN 64u                          /* alignment of tensors of tokens */
#define QV_CACHE_PAGE 4096u                         /* alignment of a part's data */
#define QV_CACHE_MAX_ROOM ((uint64_t)16 << 20)      /* limit for a part's header with its length */
#define QV_CACHE_MAX_TENSORS (1 + QV_MAX_DEEPSTACK) /* limit for a key's tensors of tokens */
#define QV_CACHE_SECONDS 40                         /* size of a text of seconds */

/* ---- texts ----------------------------------------------------------------------------------- */

/* Writes seconds to the nanosecond, such as "1.25", in any locale; "" if there are none. */
void qv_cache_seconds(double seconds, char text[QV_CACHE_SECONDS]);

/* ---- layouts, records and descriptions ------------------------------------------------------- */

/* Return the number of a key's tensors of tokens, their dtype's name, and the bytes of a row. */
int qv_cache_n_tensors(const qv_cache_layout *l);
const char *qv_cache_dtype_name(qv_dtype dtype); /* NULL for a dtype that caches do not support */
size_t qv_cache_row_bytes(const qv_cache_layout *l);
uint64_t qv_cache_hash(const void *bytes, size_t n); /* XXH3-64 */
/* Returns a hash of a source's stretch and options, in the form of records; NULL or "": none. */
uint64_t qv_cache_asked_hash(const char *start, const char *end, const char *options);

/* Returns the latest sealing time that a part's header may give: 100 years from now. New parts get
 * later times than existing parts, so a part with the largest 64-bit time would block all new ones.
 * This bound tolerates clocks that were wrong, and moves with time, so no part blocks new ones for
 * long. */
int64_t qv_cache_latest_ns(void);

/* Prints one clip's own options in the form that records use; NULL if none is set. */
const char *qv_cache_options_text(const qv_clip_options *own, char text[QV_CACHE_OPTIONS_BYTES]);

/* What the description sets for a clip without its own options; 0: not set. */
struct qv_cache_usual {
    qv_clip_options of[3]; /* for a clip, for an image, and for a source that may be either */
};
struct qv_cache_usual qv_cache_usual_of(const json_t *description);
/* Returns the options without those equal to the defaults, in `text` or unchanged; NULL if none
 * remains. Records are written with is_image -1, which drops only defaults that clips and images
 * share, because a source that failed may be either. For a clip (0) or an image (1), the defaults
 * of that kind are dropped too, or all options are written in full: either form in a record means
 * the same options. */
const char *qv_cache_normal(const struct qv_cache_usual *usual, int is_image, bool in_full,
                            const char *options, char text[QV_CACHE_OPTIONS_BYTES]);
/* Returns a description for comparison: options equal to the model's own values are 0, and fields
 * that do not affect tokens are left out. NULL if out of memory. */
json_t *qv_cache_resolved(const json_t *description);

/* Makes qwenvit-cache.json from a layout and made_by. The caller owns *out. */
qv_status qv_cache_describe(const qv_cache_layout *l, const char *made_by, json_t **out,
                            qv_error *err);
/* Reads the folder's qwenvit-cache.json; *there is false if it does not exist. */
qv_status qv_cache_description(const char *dir, bool *there, json_t **root, qv_cache_layout *l,
                               qv_error *err);
/* Returns QV_EFORMAT, naming the first difference and both models, if `run` is not like `there`. */
qv_status qv_cache_same(const char *dir, const json_t *there, const json_t *run, qv_error *err);
