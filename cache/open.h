/* SPDX-License-Identifier: MIT */
/* A cache opened in other ways than qv_cache_open's, for the binding and for tests. */
#ifndef QV_CACHE_OPEN_H
#define QV_CACHE_OPEN_H

#include "qwenvit_cache.h"

struct qv_cache_reading {
    size_t most_maps; /* parts mapped at once; 0: 32768, half of what Linux lets a process have */
    size_t most_idle; /* of these, parts of which nobody holds a key; 0: 1024 */
    bool writable;    /* tensors may be written to; what is written stays in this process */
    const char *const *parts; /* names of files, [n_parts]: those alone; NULL: all that are there */
    size_t n_parts;
};

/* What is wrong with a part that cannot be used. */
enum qv_cache_fault {
    QV_CACHE_BROKEN, /* it was cut or altered, or is no part: what it had is lost */
    QV_CACHE_FOREIGN, /* of another version or layout: another build, or another cache, may read it */
    QV_CACHE_UNREADABLE, /* its bytes cannot be had, now; or it is no regular file */
};

/* qv_cache_open. A part that is named and not there is a damaged one. */
qv_status qv_cache_open_as(const char *dir, const struct qv_cache_reading *how, qv_cache **out,
                           qv_error *err);
/* The file of part i of n_parts. */
const char *qv_cache_part(const qv_cache *cache, int64_t i);
/* Returns the number of the part that qv_cache_damage(cache, i) tells of. */
int64_t qv_cache_damaged_part(const qv_cache *cache, int64_t i);
/* When part i of n_parts was sealed; 0 where it is damaged. */
int64_t qv_cache_part_sealed(const qv_cache *cache, int64_t i);

#endif
