/* SPDX-License-Identifier: MIT */
/* A part's index, as index.inc lists it: where the tensors and records of its keys are, and the
 * fields that decide whether a key is computed again. A part begins with its header, then `__index`
 * (a head, and one row per key), `__keys` (each ends with a NUL) and `__records` (one JSON object
 * per line), the last three at multiples of QV_CACHE_ALIGN. Opening a cache reads only index and
 * keys. */
#pragma once

#include "cache.h"
#include "open.h"

#define QV_INDEX_MAGIC 0x7865646e49637671u /* "qvcIndex" */
#define QV_INDEX_VERSION 2
#define QV_INDEX_ROW 128u                       /* bytes of a row, and of the head */
#define QV_CACHE_GRID_BYTES 24u                 /* bytes of a grid_thw */
#define QV_CACHE_MAX_FRONT ((uint64_t)32 << 20) /* limit for everything in front of the data */

typedef uint8_t qv_index_u8;
typedef int8_t qv_index_i8;
typedef uint16_t qv_index_u16;
typedef uint32_t qv_index_u32;
typedef uint64_t qv_index_u64;
typedef int64_t qv_index_i64;
typedef double qv_index_f64;
typedef bool qv_index_rest; /* whether any byte is not 0 */

struct qv_index_head {
#define QV_HEAD(kind, name, at, check, fault, words) qv_index_##kind name;
#include "index.inc"
};

/* tokens_at and small_at are the file offsets of the first tensor of tokens and of grid_thw, which
 * is followed by the timestamps; step is the distance between tensors, in units of QV_CACHE_ALIGN.
 * key_at and record_at are offsets in `__keys` and `__records`. is_image is -1, and sampled_fps 0,
 * if the record does not contain them. */
struct qv_index_row {
#define QV_ROW(kind, name, at, check, fault, words) qv_index_##kind name;
#include "index.inc"
};

/* A part as read. One struct can be reused for many parts, and keeps its memory. */
struct qv_part_index {
    qv_cache_layout layout; /* of the cache; the caller sets it */
    struct qv_index_head head;
    uint64_t size;           /* of the file */
    uint64_t header_bytes;   /* of the header including its length */
    uint64_t xxh3;           /* of the index as read */
    const unsigned char *at; /* the head, then rows and keys */
    const char *keys;
    bool is_readable;          /* the whole index is valid; the file may still be truncated */
    enum qv_cache_fault fault; /* of a part with an invalid index */
    unsigned char *bytes;      /* [room]: what was read from the file's beginning, or the index */
    size_t room;
    uint64_t seed;    /* of the hashes; the caller sets it */
    uint64_t *hashes; /* [n_rows]: of the keys */
    uint32_t *table;  /* [mask + 1]: 1 + a row's number, to find duplicate keys */
    size_t table_room, mask;
};

uint64_t qv_part_index_hash(uint64_t seed, const char *key, size_t bytes);

/* Reads and checks a part's index. Returns QV_EFORMAT if the file is not a valid part, or the
 * status of qv_file_open() and qv_file_read(). */
qv_status qv_part_index_read(struct qv_part_index *p, const char *path, qv_error *err);
void qv_part_index_free(struct qv_part_index *p);
struct qv_index_row qv_part_index_row(const struct qv_part_index *p, size_t i);

/* Reads the version of FFmpeg in a part's header; "" if it is missing or cannot be read. */
void qv_part_ffmpeg(const char *path, char version[QV_CACHE_FFMPEG_BYTES]);

void qv_index_store_head(unsigned char *to, const struct qv_index_head *h);
void qv_index_store_row(unsigned char *to, const struct qv_index_row *r);
/* Returns the checksum of the head and of the rows and padded keys that follow it. */
uint64_t qv_index_xxh3(const unsigned char *at, size_t bytes);
uint32_t qv_index_dtype(qv_dtype dtype); /* the name in files as four bytes: "BF16" */

static inline uint64_t
qv_index_padded(uint64_t bytes)
{
    return (bytes + QV_CACHE_ALIGN - 1) / QV_CACHE_ALIGN * QV_CACHE_ALIGN;
}

/* Return the file offsets of the keys and of the data, which follows everything else. */
static inline uint64_t
qv_index_keys_at(const struct qv_index_head *h)
{
    return h->header_bytes + QV_INDEX_ROW * (1 + h->n_rows);
}

static inline uint64_t
qv_index_data_at(const struct qv_index_head *h)
{
    return h->records_at + qv_index_padded(h->records_bytes);
}

/* Returns where the last tensor of tokens of a row ends. */
static inline uint64_t
qv_index_row_end(const qv_cache_layout *l, const struct qv_index_row *r)
{
    return r->tokens_at + (uint64_t)(qv_cache_n_tensors(l) - 1) * r->step * QV_CACHE_ALIGN +
           r->n_rows * (uint64_t)qv_cache_row_bytes(l);
}

/* Returns the size of a row's small tensors: its grid_thw and its timestamps. */
static inline uint64_t
qv_index_small_bytes(const struct qv_index_row *r)
{
    return r->status ? 0 : QV_CACHE_GRID_BYTES + sizeof(double) * (uint64_t)r->n_times;
}

/* Returns whether two rows have the same stretch and options of the same file. */
static inline bool
qv_index_same_source(const struct qv_index_row *a, const struct qv_index_row *b)
{
    return a->path == b->path && a->asked == b->asked && a->bytes == b->bytes &&
           a->mtime_ns == b->mtime_ns;
}

/* ---- header and records, which opening a cache does not look at ------------------------------ */

/* Reads a part's records and compares their checksum. The caller free()s *out, which ends with
 * NUL. */
qv_status qv_part_records(const char *path, const struct qv_index_head *h, char **out,
                          qv_error *err);
/* Appends a finished key's record, and makes its row except for places. The source's texts must be
 * UTF-8 and its options normalised; xxh3 is the checksum of a successful key. */
void qv_record_print(struct qv_text *t, const char *key, const qv_cache_source *source,
                     uint64_t xxh3, const qv_cache_result *result, struct qv_index_row *row);
/* Makes the same row from a record that ends with a NUL. `path` is for errors. */
qv_status qv_record_row(const char *record, size_t bytes, const struct qv_cache_usual *usual,
                        const char *path, const char *key, struct qv_index_row *out, qv_error *err);
/* Reads a part except for its tensors. Also checks that its header is a valid safetensors header
 * with the index's tensors, and that each record agrees with its row. */
qv_status qv_part_check(struct qv_part_index *p, const char *path,
                        const struct qv_cache_usual *usual, qv_error *err);
