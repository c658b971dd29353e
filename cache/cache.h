/* SPDX-License-Identifier: MIT */
/* Declares what the writer and the reader of a cache share: names, texts, qwenvit-cache.json. */
#pragma once

#include <jansson.h>

#include "clips/option_list.h"
#include "files/text.h"
#include "writer.h"

#define QV_CACHE_DESCRIPTION "qwenvit-cache.json"
#define QV_CACHE_FORMAT "qwenvit-cache"
#define QV_CACHE_VERSION "2"
/* What is wrong with a cache or part of another version. */
#define QV_CACHE_OTHER                                                                             \
    "another version of qwenvit made it, and this one reads \"" QV_CACHE_VERSION "\"; fill it "    \
                                                                                 "again"
#define QV_CACHE_ALIGN 64u                          /* alignment of tensors of tokens */
#define QV_CACHE_PAGE 4096u                         /* alignment of a part's data */
#define QV_CACHE_MAX_ROOM ((uint64_t)16 << 20)      /* limit for a part's header with its length */
#define QV_CACHE_MAX_TENSORS (1 + QV_MAX_DEEPSTACK) /* limit for a key's tensors of tokens */
#define QV_CACHE_SECONDS 40                         /* bytes of a text of seconds */

/* ---- texts ----------------------------------------------------------------------------------- */

/* Writes seconds to the nanosecond, as in "1.25", whatever the locale; "": there are none. */
void qv_cache_seconds(double seconds, char text[QV_CACHE_SECONDS]);

/* ---- layouts, records and descriptions ------------------------------------------------------- */

/* Return the number of a key's tensors of tokens, their dtype's name, and the bytes of a row. */
int qv_cache_n_tensors(const qv_cache_layout *l);
const char *qv_cache_dtype_name(qv_dtype dtype); /* NULL for a dtype that caches do not hold */
size_t qv_cache_row_bytes(const qv_cache_layout *l);
uint64_t qv_cache_hash(const void *bytes, size_t n); /* XXH3-64 */
/* Returns a hash of a source's piece and options, given as in records; NULL or "": there is
 * none. */
uint64_t qv_cache_asked_hash(const char *start, const char *end, const char *options);

/* Returns the latest time of sealing that a part's header may give: 100 years from now. New parts
 * get later times than existing ones, so the last time of 64 bits would leave none for them. This
 * bound accepts the times of clocks that were merely wrong, and moves, so that no part blocks
 * others for long. */
int64_t qv_cache_latest_ns(void);

/* Prints one clip's own options as records have them; NULL: none is set. */
const char *qv_cache_options_text(const qv_clip_options *own, char text[QV_CACHE_OPTIONS_BYTES]);

/* What a clip without options of its own gets, by the description; 0: not given. */
struct qv_cache_usual {
    qv_clip_options of[3]; /* for a clip, for an image, and for what may be either */
};
struct qv_cache_usual qv_cache_usual_of(const json_t *description);
/* Returns options without those that ask for the usual values, in `text` or unchanged; NULL: none
 * is left. Records have them with is_image -1, without what clips and images both get, because what
 * failed may be either. For a clip (0) or an image (1), the values usual for that kind go too, or
 * all are written in full: a record has the same options if it has either form. */
const char *qv_cache_normal(const struct qv_cache_usual *usual, int is_image, bool in_full,
                            const char *options, char text[QV_CACHE_OPTIONS_BYTES]);
/* Returns a description for comparing: options equal to the model's own values are 0, and what
 * tokens do not depend on is left out. NULL for lack of memory. */
json_t *qv_cache_resolved(const json_t *description);

/* Makes qwenvit-cache.json of a layout and made_by. The caller owns *out. */
qv_status qv_cache_describe(const qv_cache_layout *l, const char *made_by, json_t **out,
                            qv_error *err);
/* Reads the folder's qwenvit-cache.json; *there is false if there is none. */
qv_status qv_cache_description(const char *dir, bool *there, json_t **root, qv_cache_layout *l,
                               qv_error *err);
/* Returns QV_EFORMAT, naming the first difference and both models, if `run` is not like `there`. */
qv_status qv_cache_same(const char *dir, const json_t *there, const json_t *run, qv_error *err);
