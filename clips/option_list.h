/* SPDX-License-Identifier: MIT */
/* options.inc as a table, for all code that reads options. Caches use nothing else of clips. */
#pragma once

#include <float.h>
#include <stddef.h>
#include <string.h>

#include "qwenvit_clips.h"

#define QVM_MAX_ASKED                                                                              \
    ((int64_t)1 << 40)          /* of min_pixels and max_pixels, as in preprocessor files */
#define QVM_MAX_SAMPLED 1048576 /* the most frames sampled from one clip */
enum { QVM_MOST_GPUS = 16, QVM_MOST_THREADS = 1024 };

enum qvm_kind {
    QVM_A_FLAG,
    QVM_A_COUNT,
    QVM_A_PLACE,
    QVM_A_ABOVE_0,
    QVM_A_FROM_0,
    QVM_A_LIKE,
    QVM_A_DECODE,
    QVM_KINDS
};
enum qvm_scope {
    QVM_PIECE = 1,
    QVM_TIMES = 2,
    QVM_MADE_BY = 4,
    QVM_EVEN_UNSET = 8,
    QVM_UTILS = 16
};

struct qvm_option {
    const char *name, *row, *flag;
    enum qvm_kind kind;
    unsigned scopes;
    size_t at, size; /* of the member in qv_clip_options */
    double most;
};

static const struct qvm_option qvm_options[] = {
#define QV_CLIP_OPTION(member, name, row, kind, most, scopes, flag, value, help)                   \
    { name,                                                                                        \
      row,                                                                                         \
      flag,                                                                                        \
      QVM_A_##kind,                                                                                \
      scopes,                                                                                      \
      offsetof(qv_clip_options, member),                                                           \
      sizeof(((qv_clip_options *)NULL)->member),                                                   \
      (double)(most) },
#include "options.inc"
};
#define QVM_EACH_OPTION(p)                                                                         \
    for (const struct qvm_option *p = qvm_options;                                                 \
         p < qvm_options + sizeof qvm_options / sizeof *qvm_options; p++)

static inline bool
qvm_option_is_real(const struct qvm_option *p)
{
    return p->kind == QVM_A_ABOVE_0 || p->kind == QVM_A_FROM_0;
}

/* Returns whether caches write the option only if it is set, and then after the others. */
static inline bool
qvm_option_is_later(const struct qvm_option *p)
{
    return !(p->scopes & QVM_EVEN_UNSET);
}

/* Returns an option's value; for a name, its index in the list of names. */
static inline int64_t
qvm_option_integer(const struct qvm_option *p, const qv_clip_options *o)
{
    const void *at = (const char *)o + p->at;
    return p->size == sizeof(bool)      ? *(const bool *)at
           : p->size == sizeof(int32_t) ? *(const int32_t *)at
                                        : *(const int64_t *)at;
}

static inline double
qvm_option_real(const struct qvm_option *p, const qv_clip_options *o)
{
    return qvm_option_is_real(p) ? *(const double *)(const void *)((const char *)o + p->at)
                                 : (double)qvm_option_integer(p, o);
}

/* Sets a real option to `real`, any other to `integer` or the nearest value that fits. */
static inline void
qvm_option_put(const struct qvm_option *p, qv_clip_options *o, int64_t integer, double real)
{
    void *at = (char *)o + p->at;
    if (qvm_option_is_real(p))
        *(double *)at = real;
    else if (p->size == sizeof(bool))
        *(bool *)at = integer != 0;
    else if (p->size == sizeof(int32_t))
        *(int32_t *)at = (int32_t)(integer < INT32_MAX ? integer : INT32_MAX);
    else
        *(int64_t *)at = integer;
}

/* Returns the options of all clips (NULL: none), overridden by those of a row (NULL: none). */
static inline qv_clip_options
qvm_options_merge(const qv_clip_options *own, const qv_clip_options *all)
{
    qv_clip_options o = { 0 };
    if (all)
        o = *all;
    QVM_EACH_OPTION (p)
        if (own && p->row && (p->scopes & QVM_PIECE || qvm_option_real(p, own) != 0))
            memcpy((char *)&o + p->at, (const char *)own + p->at, p->size);
    if (own && own->fps != 0)
        o.num_frames = 0;
    return o;
}

/* Sets the option. Returns NULL, or what the value must be; `strict` rejects 0, which means unset
 * for most options (clip_options.c). */
const char *qvm_option_take(const struct qvm_option *p, qv_clip_options *o, const qv_value *value,
                            bool strict);
/* The first checks that a row's stretch does not end before it starts. The second checks the bounds
 * of options and their combinations, and may also return QV_EUNSUPPORTED; with `flags` its errors
 * show options as on the command line, --num-frames (clip_options.c). */
qv_status qvm_check_row(const qv_clip_options *own, qv_error *err);
qv_status qvm_check_options(const char *path, bool flags, const qv_clip_options *o, qv_error *err);
