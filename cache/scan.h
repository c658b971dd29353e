/* SPDX-License-Identifier: MIT */
/* Reads the header of a part with suspicion: all of it must fit the rest, the layout and the file's
 * size. */
#ifndef QV_CACHE_SCAN_H
#define QV_CACHE_SCAN_H

#include "cache.h"

/* A key of a part. Offsets are the file's. */
struct qv_scan_item {
    size_t name, name_bytes; /* place of the key in the scanner's names, each of which ends with a
                              * NUL */
    uint64_t hash;           /* hash of the key, with the scanner's seed */
    uint64_t at[QV_CACHE_MAX_TENSORS], grid, times; /* where tensors begin */
    uint64_t n_times;
    int64_t rows;
    unsigned seen; /* a bit for each tensor */
    bool recorded;
    /* from the key's record */
    qv_status status;
    uint64_t record, record_bytes; /* place in the scanner's records */
    uint64_t path, asked, xxh3;    /* as in struct qv_index_key */
    int64_t bytes, mtime_ns;
    double sampled_fps; /* 0: the record does not say */
    int8_t is_image;    /* -1: the record does not say */
};

struct qv_scan_range {
    uint64_t at, end;
};

/* A scanner serves many parts, and reuses what it has allocated. */
struct qv_scanner {
    qv_cache_layout layout;
    uint64_t seed;
    /* results for the part that was scanned last */
    int64_t sealed_ns;
    uint64_t size, header; /* bytes of the file, and of the header with its length */
    struct qv_text text, records, names;
    struct qv_scan_item *items;
    size_t n_items;
    /* working memory */
    struct qv_text word, path, start, end, options;
    struct qv_scan_range *ranges;
    uint32_t *table;
    size_t n_ranges, items_room, ranges_room, table_room, last;
    uint64_t n_unused;
    unsigned metadata; /* a bit for each field that was there */
    bool foreign;      /* a part that is wrong has another version or layout, and may be whole */
    char rate[32];     /* the last sampled_fps as text, and */
    double rate_fps;   /* as a number: most keys of a part have the same */
};

uint64_t qv_scan_hash(uint64_t seed, const char *key, size_t bytes);
/* Reads a part's header. Returns QV_EFORMAT if the file is no valid part, and what
 * qv_file_open() and qv_file_read() return if it cannot be read. */
qv_status qv_scan_part(struct qv_scanner *s, const char *path, qv_error *err);
void qv_scan_free(struct qv_scanner *s);
/* Returns whether the part that was scanned last, valid or not, has said in correct records which
 * keys it has. */
bool qv_scan_has_records(const struct qv_scanner *s);

/* ---- used by scan.c alone -------------------------------------------------------------------- */

/* Returns the item of a key of the part, and makes it if it does not exist; NULL for lack of
 * memory. */
struct qv_scan_item *qv_scan_item_of(struct qv_scanner *s, const char *key, size_t bytes);
struct qv_cursor;
/* Fails as qv_cursor_fail does, and notes that the part may be whole for another version or in another
 * cache. */
bool qv_scan_fail_foreign(struct qv_scanner *s, struct qv_cursor *c, const char *wrong);
/* Reads a string into `to`, and replaces what was in it. */
bool qv_scan_text(struct qv_cursor *c, struct qv_text *to);
/* Reads s->records, and gives each record to its key's item. Errors are reported through
 * `outer`. */
bool qv_scan_records(struct qv_scanner *s, struct qv_cursor *outer);

#endif
