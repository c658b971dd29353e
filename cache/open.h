/* SPDX-License-Identifier: MIT */
/* Cache functions for the command, the Python binding and the tests, in addition to the public
 * header. */
#pragma once

#include "qwenvit_cache.h"

struct qv_cache_reading {
    size_t most_maps;         /* parts mapped at once; 0: 32768, half of Linux's limit */
    size_t most_idle;         /* the most mapped parts without a held key; 0: 1024 */
    bool writable;            /* tensors are writable; changes stay in this process */
    const char *const *parts; /* [n_parts] names of the only parts to read; NULL: all */
    size_t n_parts;
    const qv_cache *before; /* an earlier reading whose parts are reused, or NULL */
};

/* Why a part cannot be used. */
enum qv_cache_fault {
    QV_CACHE_BROKEN,     /* it was truncated or altered, or is not a part: its records are lost */
    QV_CACHE_FOREIGN,    /* it has another version or layout: another build or cache may read it */
    QV_CACHE_UNREADABLE, /* it cannot be read now, or is not a regular file */
};

/* Opens a cache. A part that is named but does not exist counts as damaged. */
qv_status qv_cache_open_as(const char *dir, const struct qv_cache_reading *how, qv_cache **out,
                           qv_error *err);
/* Returns the file name of part i of n_parts. */
const char *qv_cache_part(const qv_cache *cache, int64_t i);
/* Returns the number of the part that qv_cache_damage(cache, i) describes. */
int64_t qv_cache_damaged_part(const qv_cache *cache, int64_t i);

/* How fast a run filled a cache: the work in the parts sealed after its first part, and the time
 * from its first to its last part. */
typedef struct qv_cache_rate {
    int64_t clips, tokens; /* clips includes failed ones */
    int64_t parts;         /* includes the first one */
    double seconds;        /* above 0 */
} qv_cache_rate;
/* Measures the latest run (one process): among runs that sealed at least two parts and were not
 * pruned, the one that sealed a part last. Returns false if there is none. */
bool qv_cache_last_rate(const qv_cache *cache, qv_cache_rate *out);

#define QV_CACHE_FFMPEG_BYTES 64
/* Returns `version`, the version of FFmpeg that decoded the clips of part i of n_parts, which it
 * reads from the part's file; "" if the part does not record it or cannot be read. */
const char *qv_cache_part_ffmpeg(const qv_cache *cache, int64_t i,
                                 char version[QV_CACHE_FFMPEG_BYTES]);
