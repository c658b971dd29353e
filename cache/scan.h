/* SPDX-License-Identifier: MIT */
/* The header of a part, read with suspicion: nothing of it is believed that does not fit the rest, the
 * layout and the file's size. */
#ifndef QV_CACHE_SCAN_H
#define QV_CACHE_SCAN_H

#include "cache.h"

/* A key of a part. Offsets are the file's. */
struct qv_scan_item {
    size_t name, name_bytes; /* of the key, in the scanner's names, which end with a NUL */
    uint64_t hash;           /* of the key, with the scanner's seed */
    uint64_t at[QV_CACHE_MAX_TENSORS], grid, times; /* where tensors begin */
    uint64_t n_times;
    int64_t rows;
    unsigned seen; /* a bit for each tensor */
    bool recorded;
    /* of its record */
    qv_status status;
    uint64_t record, record_bytes; /* in the scanner's records */
    uint64_t path, asked, xxh3;    /* as in struct qv_index_key */
    int64_t bytes, mtime_ns;
    double sampled_fps; /* 0: it does not say */
    int8_t is_image;    /* -1: it does not say */
};

struct qv_scan_range {
    uint64_t at, end;
};

/* One for many parts: what it allocates is used again. */
struct qv_scanner {
    qv_cache_layout layout;
    uint64_t seed;
    /* of the part that was scanned last */
    int64_t sealed_ns;
    uint64_t size, header; /* bytes of the file, and of the header with its length */
    struct qv_text text, records, names;
    struct qv_scan_item *items;
    size_t n_items;
    /* to work with */
    struct qv_text word, path, start, end, options;
    struct qv_scan_range *ranges;
    uint32_t *table;
    size_t n_ranges, items_room, ranges_room, table_room, last;
    uint64_t n_unused;
    unsigned metadata; /* a bit for each field that was there */
    bool foreign;  /* what is wrong with it: it is of another version or layout, and may be whole */
    char rate[32]; /* the last sampled_fps, as text, */
    double rate_fps; /* and as a number */
};

uint64_t qv_scan_hash(uint64_t seed, const char *key, size_t bytes);
/* QV_EFORMAT where what it holds is no part, QV_EIO where it cannot be read. */
qv_status qv_scan_part(struct qv_scanner *s, const char *path, qv_error *err);
void qv_scan_free(struct qv_scanner *s);
/* Whether the part that was scanned last, whole or not, has said which keys it has, in records that are right. */
bool qv_scan_has_records(const struct qv_scanner *s);

/* ---- what scan.c stands on ------------------------------------------------------------------- */

/* The item of a key of the part, which is made if it is not there; NULL for lack of memory. */
struct qv_scan_item *qv_scan_item_of(struct qv_scanner *s, const char *key, size_t bytes);
struct qv_cursor;
/* Reads a string into `to`, in place of what was in it. */
bool qv_scan_text(struct qv_cursor *c, struct qv_text *to);
/* Reads s->records, each of which goes to its key's item. What is wrong is said by `outer`. */
bool qv_scan_records(struct qv_scanner *s, struct qv_cursor *outer);

#endif
