/* SPDX-License-Identifier: MIT */
/* A part that is being written: room for a header, then blocks of tokens. Sealing writes the small
 * tensors of all keys behind them, and the header. */
#ifndef QV_CACHE_PART_H
#define QV_CACHE_PART_H

#include "cache.h"
#include "file.h"

/* A key's place in a part: tensor i of the layout begins at `at` + i * `step`. Offsets are the
 * file's. */
struct qv_cache_block {
    uint64_t at, step, bytes; /* bytes: n_tensors * step */
    int64_t rows;             /* rows that were written */
};

/* A key that is finished and ok. */
struct qv_cache_done {
    char *key;
    struct qv_cache_block block;
    uint64_t small; /* offset of grid_thw among the small tensors */
    int64_t n_timestamps;
};

struct qv_cache_range {
    uint64_t at, end;
};

struct qv_cache_part {
    struct qv_cache_part *next;
    struct qv_cache_file file;
    uint64_t room;   /* room for the header with its length; data begin behind it */
    uint64_t end;    /* end of the blocks */
    uint64_t header; /* bytes that the header takes, at most */
    struct qv_text records, small;
    struct qv_cache_done *done;
    struct qv_cache_range *unused;
    size_t n_done, n_unused, done_room, unused_room;
    uint64_t *keys; /* hashes of the keys that were begun in it; 0: a free place */
    size_t n_keys, keys_room;
    size_t n_records, n_open; /* keys that have a record; keys that are not finished */
    double began_s;
};

/* Returns the most bytes of a header that a key and its record take, however the key ends. */
uint64_t qv_cache_part_need(const qv_cache_layout *l, const char *key, const char *path,
                            const char *options);
/* Returns the most bytes of a header that a key takes if its record is known. */
uint64_t qv_cache_part_known_need(const qv_cache_layout *l, const char *key, bool ok,
                                  const struct qv_text *record);
/* Returns the least room for a header with keys that need so many bytes together. */
uint64_t qv_cache_part_least(uint64_t need);

qv_status qv_cache_part_open(const struct qv_cache_folder *folder, uint64_t room, double now_s,
                             struct qv_cache_part **out, qv_error *err);
void qv_cache_part_free(struct qv_cache_part **part);

/* Returns whether a key of that hash was begun in the part. A part may have a key only once. */
bool qv_cache_part_has(const struct qv_cache_part *p, uint64_t hash);
qv_status qv_cache_part_note(struct qv_cache_part *p, uint64_t hash); /* adds a hash; QV_ENOMEM */
bool qv_cache_part_fits(const struct qv_cache_part *p, uint64_t need);
/* Reserves a place for a key of at most `rows` rows. */
struct qv_cache_block qv_cache_part_take(struct qv_cache_part *p, const qv_cache_layout *l,
                                         int64_t rows, uint64_t need);
/* Gives back a range of a block; the block's rows before `from` stay. Returns QV_ENOMEM. */
qv_status qv_cache_part_unuse(struct qv_cache_part *p, uint64_t from, uint64_t end);
/* Adds a finished key with its tensors of tokens, and its small tensors. */
qv_status qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                            const struct qv_cache_block *block, const int64_t grid_thw[3],
                            const double *timestamps_s, int64_t n_timestamps);
/* Adds a finished key's record, which is JSON. In the header's account its size replaces `need`. */
void qv_cache_part_record(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                          bool ok, uint64_t need, const struct qv_text *record);

/* Drops a key that was begun and gets no record: its room in the header is given back, and it may
 * be begun again. */
void qv_cache_part_drop(struct qv_cache_part *p, uint64_t hash, uint64_t need);

/* The name of a part: "part-SHARD-of-SHARDS-HOST-RUN-COUNT.safetensors", or, if it replaces another
 * part, "STEM.COUNT.safetensors". */
struct qv_cache_part_name {
    int64_t shard, n_shards;
    const char *stem; /* NULL for a part that replaces none */
    unsigned *count;  /* raised for each name that is tried */
    char text[256];   /* the name that was tried last */
};
/* Writes the small tensors and the header, and publishes the part under a free name. sealed_ns is
 * the time that its header gives. */
qv_status qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                             struct qv_cache_part_name *name, int64_t sealed_ns, qv_error *err);

#endif
