/* SPDX-License-Identifier: MIT */
/* What the files of the reader share: a cache that is open, its parts, and those of them that are damaged. */
#ifndef QV_CACHE_READER_H
#define QV_CACHE_READER_H

#include <pthread.h>

#include "index.h"
#include "maps.h"
#include "open.h"

struct qv_cache_damaged {
    char *words;
    size_t part;
    enum qv_cache_fault fault;
};

struct qv_cache {
    char *dir, *made_by;
    qv_cache_layout layout;
    struct qv_cache_reading how; /* without names of parts */
    uint64_t seed;
    struct qv_cache_index index;
    struct qv_cache_damaged *damage;
    struct qv_part_maps *maps; /* have a lock of their own */
    size_t n_damage;
    uint64_t part_bytes, damaged_bytes;
    struct qv_cache_usual usual;
    bool has_lock;
    pthread_mutex_t *lock;      /* of what follows */
    struct qv_scanner *scanner; /* of the part that was scanned last */
    size_t scanned;
    qv_cache
        *later; /* the folder as it was read again, once a part of this one was gone; or NULL */
};

qv_status qv_cache_no_memory(const qv_cache *c, qv_error *err);
/* For free(); NULL for lack of memory. */
char *qv_cache_part_path(const qv_cache *c, size_t part);
const struct qv_index_key *qv_cache_find_key(const qv_cache *c, const char *key);
/* QV_EINVAL where there is no item i. */
qv_status qv_cache_check_index(const qv_cache *c, int64_t i, qv_error *err);

/* Lists the folder's parts, or takes those that are named, and reads their headers into the index. What
 * is there at the end was there all the time: a part that comes while another goes is not missed. */
qv_status qv_cache_scan(qv_cache *c, const struct qv_cache_reading *how, qv_error *err);

/* After a failure to read a part: where its file is no more, *later is the folder as it is now, and *item
 * the item there that has the same tokens, or failed alike; the failure is kept in *err where there is none.
 * NULL where the file is still there: the failure was another one. */
qv_status qv_cache_look_again(const qv_cache *c, const struct qv_index_key *k, qv_status failed,
                              const qv_cache **later, qv_cache_item *item, qv_error *err);

#endif
