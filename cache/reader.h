/* SPDX-License-Identifier: MIT */
/* Shared by the reader's files: an open cache, its parts, and which of them are damaged. */
#pragma once

#include <pthread.h>

#include "index.h"
#include "maps.h"
#include "open.h"

struct qv_cache_damaged {
    char *words;
    size_t part;
    enum qv_cache_fault fault;
};

/* The last checked part, and the result. */
struct qv_cache_last {
    size_t part; /* 1 + the part; 0: none */
    qv_status status;
    qv_error error;
};

/* Keeps the result of a check, unless a second check may have a different result. */
static inline void
qv_cache_looked(struct qv_cache_last *last, size_t part, qv_status status)
{
    last->part = status && status != QV_EFORMAT ? 0 : part + 1;
    last->status = status;
}

static inline qv_status
qv_cache_found(const struct qv_cache_last *last, qv_error *err)
{
    if (last->status && err)
        *err = last->error;
    return last->status;
}

struct qv_cache {
    char *dir, *made_by;
    qv_cache_layout layout;
    struct qv_cache_reading how; /* without names of parts */
    uint64_t seed;
    struct qv_cache_index index;
    struct qv_cache_damaged *damage;
    struct qv_part_maps *maps; /* maps have their own lock */
    size_t n_damage;
    uint64_t part_bytes, damaged_bytes;
    struct qv_cache_usual usual;
    bool has_lock;
    pthread_mutex_t *lock;                  /* guards the fields below */
    struct qv_cache_last recorded, checked; /* whose records were read; that was checked */
    char *records;                          /* of the part `recorded` */
    qv_cache *later; /* the folder as read again, once a part was gone; or NULL */
};

const struct qv_index_key *qv_cache_find_key(const qv_cache *c, const char *key);
/* Returns QV_EINVAL if i is not an item. */
qv_status qv_cache_check_index(const qv_cache *c, int64_t i, qv_error *err);

/* Reads the named parts, or lists and reads the folder's parts until no new one appears. */
qv_status qv_cache_scan(qv_cache *c, const struct qv_cache_reading *how, qv_error *err);

/* Retries after a part could not be read. If its file is gone, *later is the folder's current
 * state, and *item the item with the same tokens or failure there; without such an item this is an
 * error. If the file still exists, *later is NULL and `failed` is returned. */
qv_status qv_cache_look_again(const qv_cache *c, const struct qv_index_key *k, qv_status failed,
                              const qv_cache **later, qv_cache_item *item, qv_error *err);
