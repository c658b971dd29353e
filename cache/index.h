/* SPDX-License-Identifier: MIT */
/* The index of an open cache: its parts, where each key's tensors are, and whatever decides if the
 * key must be computed again. Records are read from the part on demand. */
#pragma once

#include "part_index.h"

struct qv_index_part {
    char *path;
    const char *name; /* the last piece of the path */
    struct qv_index_head head;
    uint64_t bytes; /* size of the file */
    uint64_t rows;  /* rows of tokens in all its records */
    bool damaged;
    bool gone; /* it was listed, but was gone when it was about to be read */
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
    uint64_t bytes;   /* size of the tensors of all records, including superseded ones */
    bool has_dropped; /* a key had two records, and the superseded one was dropped */
};

const char *qv_index_name(const struct qv_cache_index *c, const struct qv_index_key *k);
/* Doubles the table. It must be called once before any lookup. */
qv_status qv_index_grow(struct qv_cache_index *c, qv_error *err);
/* Adds row i of a part. The latest success and the latest failure of a key are kept. */
qv_status qv_index_add(struct qv_cache_index *c, const struct qv_part_index *p, size_t i,
                       uint32_t part, qv_error *err);
/* Sets a part's path and name. Returns false if out of memory. */
bool qv_index_name_part(struct qv_index_part *p, const char *dir, const char *name);
/* Keeps only the effective record of each key. */
void qv_index_settle(struct qv_cache_index *c);
/* Finds a key by its name and the name's qv_part_index_hash. NULL if it does not exist. */
const struct qv_index_key *qv_index_find(const struct qv_cache_index *c, const char *key,
                                         uint64_t hash);
/* Copies `from` to `to`, which is empty except for dir. */
qv_status qv_index_copy(struct qv_cache_index *to, const struct qv_cache_index *from,
                        qv_error *err);
void qv_index_free(struct qv_cache_index *c);
