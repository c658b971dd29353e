/* SPDX-License-Identifier: MIT */
/* A part under construction: room in front, then blocks of tokens. Sealing writes the small tensors
 * after them, and the header, index, keys and records in front. */
#pragma once

#include "file.h"
#include "part_index.h"

/* A key's place in the file: tensor i begins at `at` + i * `step`. */
struct qv_cache_block {
    uint64_t at, step, bytes; /* bytes: n_tensors * step */
    uint64_t need;            /* the most bytes that the key needs in front */
    int64_t rows;             /* rows that were written */
};

/* A finished key. Sealing sets the places in its row. */
struct qv_cache_done {
    struct qv_index_row row;
    const char *key, *record; /* key ends with a NUL */
    unsigned char *small;     /* the bytes of grid_thw and timestamps */
};

struct qv_cache_part {
    struct qv_cache_part *next;
    struct qv_cache_file file;
    uint64_t room;       /* room for everything in front; data begin after it */
    uint64_t end;        /* end of the blocks */
    uint64_t tokens_end; /* end of the tokens of finished keys */
    uint64_t small;      /* bytes of their small tensors */
    uint64_t front;      /* the most bytes that everything in front of the data needs */
    struct {
        uint64_t hash;              /* of the key */
        char *key;                  /* free() */
        struct qv_cache_done *done; /* from malloc; NULL: the key is not finished */
    } * keys;                       /* [n_keys]: the keys begun in it */
    size_t n_keys, keys_room, n_open;
    double began_s;
    char ffmpeg[QV_CACHE_FFMPEG_BYTES]; /* FFmpeg that decoded its clips; "": unknown */
};

/* Returns the most bytes that a key and its record need in front, whatever the key's outcome. */
uint64_t qv_cache_part_need(const qv_cache_layout *l, const char *key, const char *path,
                            const char *options);
/* Returns the most bytes that a key with a known record needs in front. */
uint64_t qv_cache_part_known_need(const qv_cache_layout *l, const char *key, bool ok,
                                  size_t record_bytes);
/* Returns the least room for keys that need this many bytes in total. */
uint64_t qv_cache_part_least(uint64_t need);

qv_status qv_cache_part_open(const struct qv_cache_folder *folder, uint64_t room, double now_s,
                             struct qv_cache_part **out, qv_error *err);
void qv_cache_part_free(struct qv_cache_part **part);

/* Returns whether the key was begun in the part. A part holds a key at most once. */
bool qv_cache_part_has(const struct qv_cache_part *p, const char *key);
bool qv_cache_part_fits(const struct qv_cache_part *p, uint64_t need);
/* Begins a key of at most `rows` rows, and reserves a place for it. Returns QV_ENOMEM. */
qv_status qv_cache_part_begin(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                              int64_t rows, uint64_t need, struct qv_cache_block *out,
                              qv_error *err);
/* Abandons a key: it gets no record, and may be begun again. */
void qv_cache_part_drop(struct qv_cache_part *p, const char *key, const struct qv_cache_block *b);
/* Finishes a key with its row, record and, on success, small tensors, and reserves their disk
 * space. If this fails, the key is dropped. */
qv_status qv_cache_part_add(struct qv_cache_part *p, const qv_cache_layout *l, const char *key,
                            const struct qv_index_row *row, const struct qv_text *record,
                            const struct qv_cache_block *b, const int64_t grid_thw[3],
                            const double *timestamps_s, qv_error *err);

/* The name of a part: its beginning, a count of `digits` digits, and ".safetensors". */
struct qv_cache_part_name {
    char begin[256];
    int digits;
    unsigned *count; /* incremented for each name tried */
};
/* Writes the rest of the part, checks it, and publishes the part under a free name. */
qv_status qv_cache_part_seal(struct qv_cache_part *p, const qv_cache_layout *l,
                             const struct qv_cache_usual *usual, struct qv_cache_part_name *name,
                             int64_t sealed_ns, qv_error *err);
