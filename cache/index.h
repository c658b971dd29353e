/* SPDX-License-Identifier: MIT */
/* The index of an open cache: its parts, where each key's tensors are, and what decides whether the
 * key is computed again. The record is read from the part when it is asked for. */
#pragma once

#include "part_index.h"

struct qv_index_part {
    char *path;
    const char *name; /* the last piece of the path */
    struct qv_index_head head;
    uint64_t bytes; /* size of the file */
    uint64_t rows;  /* rows of tokens of all its records */
    bool damaged;
    bool gone; /* it was listed, but was gone when its turn to be read came */
};

struct qv_index_key {
    struct qv_index_row row; /* as in its part */
    uint64_t name;           /* offset in the names */
    uint32_t part, hash;     /* hash: low bits, as the table never has more places */
};

struct qv_cache_index {
    const char *dir;             /* for error texts */
    struct qv_index_part *parts; /* [n_parts], by name */
    struct qv_index_key *keys;   /* [n_keys] */
    uint32_t *table;             /* [table_room]: 1 + the key's number; 0: free */
    struct qv_text names;
    size_t n_parts, n_keys, keys_room, table_room;
    uint64_t bytes;   /* size of the tensors of all records, even those that do not count */
    bool has_dropped; /* a key had two records, and the one that does not count is not kept */
};

const char *qv_index_name(const struct qv_cache_index *c, const struct qv_index_key *k);
/* Makes the table twice as large. It must be called once before anything is looked up. */
qv_status qv_index_grow(struct qv_cache_index *c, qv_error *err);
/* Adds row i of a part; of a key's records that are ok, and of those that failed, the latest
 * stays. */
qv_status qv_index_add(struct qv_cache_index *c, const struct qv_part_index *p, size_t i,
                       uint32_t part, qv_error *err);
/* Sets a part's path and name. Returns false for lack of memory. */
bool qv_index_name_part(struct qv_index_part *p, const char *dir, const char *name);
/* Leaves each key only the record that counts. */
void qv_index_settle(struct qv_cache_index *c);
/* Finds a key by its name and qv_part_index_hash of it. NULL: there is none. */
const struct qv_index_key *qv_index_find(const struct qv_cache_index *c, const char *key,
                                         uint64_t hash);
/* Makes `to`, which is empty but for dir, equal to `from`. */
qv_status qv_index_copy(struct qv_cache_index *to, const struct qv_cache_index *from,
                        qv_error *err);
void qv_index_free(struct qv_cache_index *c);
