/* SPDX-License-Identifier: MIT */
/* Maps a cache's parts into memory; thread-safe. A part stays mapped while it is referenced. Some
 * idle parts stay mapped too, and the one that was released first is unmapped first. */
#pragma once

#include <pthread.h>

#include "qwenvit.h"

struct qv_part_map {
    void *at;               /* NULL: the part is not mapped */
    uint64_t bytes;         /* size of the file */
    uint32_t held;          /* number of references */
    uint32_t before, after; /* neighbours in the list of idle parts: 1 + a part's number; 0: none */
};

struct qv_part_maps {
    size_t most, most_idle; /* limits for mapped parts, and for idle ones among them */
    bool writable;          /* a process may write to its own copy of a page */
    /* guarded by the lock */
    struct qv_part_map *at; /* [n] */
    size_t n, n_mapped, n_idle;
    uint32_t first, last; /* ends of the list of idle parts, in the order of release */
    bool has_lock;
    pthread_mutex_t lock;
};

/* Prepares for n parts; set `most`, `most_idle` and `writable` first. Returns QV_ENOMEM. */
qv_status qv_part_maps_open(struct qv_part_maps *maps, size_t n, qv_error *err);
void qv_part_maps_close(struct qv_part_maps *maps);
/* Maps part i, the file at `path`, and references it; *out is its first byte. Returns QV_EIO if it
 * cannot be mapped or its size has changed; QV_ENOMEM if too many parts are referenced. */
qv_status qv_part_maps_hold(struct qv_part_maps *maps, size_t i, const char *path, const char **out,
                            qv_error *err);
void qv_part_maps_release(struct qv_part_maps *maps, size_t i);
