/* SPDX-License-Identifier: MIT */
/* What the writer and the reader of a cache share: names, texts, qwenvit-cache.json. */
#ifndef QV_CACHE_CACHE_H
#define QV_CACHE_CACHE_H

#include <jansson.h>

#include "qwenvit_cache.h"

#define QV_CACHE_DESCRIPTION "qwenvit-cache.json"
#define QV_CACHE_FORMAT "qwenvit-cache"
#define QV_CACHE_VERSION "1"
#define QV_CACHE_ALIGN 64u                          /* tensors of tokens begin at multiples of it */
#define QV_CACHE_PAGE 4096u                         /* data begin at a multiple of it */
#define QV_CACHE_MAX_ROOM ((uint64_t)16 << 20)      /* of a part's header, with its length */
#define QV_CACHE_MAX_TENSORS (1 + QV_MAX_DEEPSTACK) /* of tokens, of a key */

/* ---- texts ----------------------------------------------------------------------------------- */

/* A text that grows. Once there was no memory for it, `lost` says so and nothing more is added. */
struct qv_text {
    char *at; /* free() */
    size_t n, room;
    bool lost;
};
void qv_text_add(struct qv_text *t, const char *bytes, size_t n);
void qv_text_say(struct qv_text *t, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* As the inside of a JSON string. UTF-8 stays as it is. */
void qv_text_escape(struct qv_text *t, const char *bytes, size_t n);
size_t qv_text_escaped(const char *bytes, size_t n); /* how many bytes that adds */
/* Seconds to the nanosecond, "1.25", whatever the locale. */
void qv_text_seconds(struct qv_text *t, double seconds);

/* ---- what both know -------------------------------------------------------------------------- */

/* Tensors of tokens that a key has, their columns, and their dtype's name in files. */
int qv_cache_n_tensors(const qv_cache_layout *l);
int64_t qv_cache_columns(const qv_cache_layout *l);
const char *qv_cache_dtype_name(qv_dtype dtype); /* NULL for one that caches do not hold */
size_t qv_cache_row_bytes(const qv_cache_layout *l);
/* "tokens", "packed", "deepstack.0" */
void qv_cache_tensor_name(const qv_cache_layout *l, int i, char out[24]);
/* What of a source is compared besides path, size and time: XXH3-64 of their texts; NULL: there is none. */
uint64_t qv_cache_asked_hash(const char *start, const char *end, const char *options);

/* Adds the record of a key that ended so. The texts of the source are UTF-8; xxh3: of one that is ok. */
void qv_cache_print_record(struct qv_text *t, const char *key, const qv_cache_source *source,
                           uint64_t xxh3, const qv_cache_result *result);

/* The latest time at which a part may say that it was sealed: 100 years from now, in nanoseconds since
 * 1970. New parts come later than those that are there, so one at the end of what 64 bits count would
 * leave no time to them. A bound that moves with the clock is one that no part can sit on for long; one
 * so far away takes every clock that was merely wrong, and is the same to clocks that differ. */
int64_t qv_cache_latest_ns(void);

/* What was asked of one clip alone, as it stands in records; 0: nothing. */
struct qv_cache_asked {
    int64_t fps_micro, max_frames, max_pixels, offset,
        bytes; /* fps_micro: frames in 10^6 seconds */
    bool first_frame;
};
/* Its text; NULL where nothing was asked. */
const char *qv_cache_asked_text(const struct qv_cache_asked *asked,
                                char text[QV_CACHE_OPTIONS_BYTES]);

/* What a clip or an image that asks for nothing of its own is given, as a cache's description says it;
 * 0: it does not say. */
struct qv_cache_usual {
    int64_t fps_micro, max_frames;
    int64_t max_pixels[2]; /* of a clip, of an image */
};
struct qv_cache_usual qv_cache_usual_of(const json_t *description);
/* Whether a record whose piece and options have the hash `asked` was made as this would be: one that
 * says what is usual asks for the same as one that says nothing. is_image as in records. */
bool qv_cache_asks_the_same(const struct qv_cache_usual *usual, int is_image, const char *start,
                            const char *end, const char *options, uint64_t asked);
/* A copy of a description for comparing: options that say what the model's are say nothing, and what its
 * tokens do not depend on is left out. NULL for lack of memory. */
json_t *qv_cache_resolved(const json_t *description);

/* qwenvit-cache.json: the text for a layout and what else is to be said, for free(). */
qv_status qv_cache_describe(const qv_cache_layout *l, const char *made_by, json_t **out,
                            qv_error *err);
/* Reads it from the folder. *there is false, and nothing read, if it is not there. */
qv_status qv_cache_description(const char *dir, bool *there, json_t **root, qv_cache_layout *l,
                               qv_error *err);
/* QV_EFORMAT naming the first value in which `run` differs from what stands in dir, and both models. */
qv_status qv_cache_same(const char *dir, const json_t *there, const json_t *run, qv_error *err);

#endif
