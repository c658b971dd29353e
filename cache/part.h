/* SPDX-License-Identifier: MIT */
/* A part that is being written: room for a header, blocks of tokens, and when it is sealed what is
 * small of all its keys, and the header. */
#ifndef QV_CACHE_PART_H
#define QV_CACHE_PART_H

#include "cache.h"
#include "file.h"

/* A key's place in a part: tensor i of the layout's begins at `at` + i * `step`. Offsets are the
 * file's. */
struct qv_cache_block {
    uint64_t at, step, bytes; /* bytes: n_tensors * step */
    int64_t rows;             /* that are there */
};

/* A key that is finished and ok. */
struct qv_cache_done {
    char *key;
    struct qv_cache_block block;
    uint64_t small; /* offset of grid_thw among what is small */
    int64_t n_timestamps;
};

struct qv_cache_range {
    uint64_t at, end;
};

struct qv_cache_part {
    struct qv_cache_part *next;
    struct qv_cache_file file;
    uint64_t room;   /* of the header with its length; data begin there */
    uint64_t end;    /* of the blocks */
    uint64_t header; /* bytes that it takes, at most */
    struct qv_text records, small;
    struct qv_cache_done *done;
    struct qv_cache_range *unused;
    size_t n_done, n_unused, done_room, unused_room;
    uint64_t *keys; /* hashes of those that were begun in it; 0: a free place */
    size_t n_keys, keys_room;
    size_t n_records, n_open; /* keys that have a record; that are not finished */
    double began_s;
};

/* At most so many bytes of a header a key and its record take, whatever becomes of it. */
uint64_t qv_cache_part_need(const qv_cache_layout *l, const char *key, const char *path,
                            const char *options);
/* At most so many bytes a key takes whose record is known. */
uint64_t qv_cache_part_known_need(const qv_cache_layout *l, const char *key, bool ok,
                                  const struct qv_text *record);
/* The least room with which keys fit that need so much together. */
uint64_t qv_cache_part_least(uint64_t need);

qv_status qv_cache_part_open(const struct qv_cache_folder *folder, uint64_t room, double now_s,
                             struct qv_cache_part **out, qv_error *err);
void qv_cache_part_free(struct qv_cache_part **part);

/* Whether a key of that hash was begun in it. A part has a key once. */
bool qv_cache_part_has(const struct qv_cache_part *p, uint64_t hash);
qv_status qv_cache_part_note(struct qv_cache_part *p, uint64_t hash); /* QV_ENOMEM */
bool qv_cache_part_fits(const struct qv_cache_part *p, uint64_t need);
/* A place for a key of at most `rows` rows. */
struct qv_cache_block qv_cache_part_take(struct qv_cache_part *p, const qv_cache_layout *l,
                                         int64_t rows, uint64_t need);
/* Gives a block back: what is before `from` stays a key's. QV_ENOMEM. */
qv_status qv_cache_part_unuse(struct qv_cache_part *p, uint64_t from, uint64_t end);
/* Adds a key with its tensors, and what is small of it. */
qv_status qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                            const struct qv_cache_block *block, const int64_t grid_thw[3],
                            const double *timestamps_s, int64_t n_timestamps);
/* Adds a record, JSON, of a key that is done: in the header's account it takes the place of `need`. */
void qv_cache_part_record(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                          bool ok, uint64_t need, const struct qv_text *record);

/* A key that was begun has no record: what it needed is given back, and it may be begun again. */
void qv_cache_part_drop(struct qv_cache_part *p, uint64_t hash, uint64_t need);

/* What a part is called: "part-SHARD-of-SHARDS-HOST-RUN-COUNT.safetensors", or, of one that takes another's
 * place, "STEM.COUNT.safetensors". */
struct qv_cache_part_name {
    int64_t shard, n_shards;
    const char *stem; /* or NULL */
    unsigned *count;  /* raised for each name that is tried */
    char text[256];   /* the last name */
};
/* Writes what is missing, and publishes it under a name that is free. sealed_ns: when, as its header says it. */
qv_status qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                             struct qv_cache_part_name *name, int64_t sealed_ns, qv_error *err);

#endif
