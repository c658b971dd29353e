/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_cache: a folder of vision tokens, a key for each clip. It is written by any number of
 * processes that may be killed at any moment, and read by anyone: each part is a safetensors file that
 * appears whole and synced or not at all, and is never changed (docs/cache.md is the format).
 *
 * The conventions of qwenvit.h hold. Of several records for a key the one that was sealed last counts (then
 * the last part by name); if it has failed, and the last that is ok is of the same source (path, piece,
 * options, size and time of the file), that one.
 *
 * Threads. A writer may be used by several threads at once, each qv_cache_entry by one at a time. A
 * cache that is open for reading may be used by several threads at once.
 */
#ifndef QWENVIT_CACHE_H
#define QWENVIT_CACHE_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QV_CACHE_MAX_KEY 4096 /* bytes of a key, those that are not UTF-8 counted as %XX */

typedef struct qv_cache qv_cache;               /* a folder that is read */
typedef struct qv_cache_writer qv_cache_writer; /* a run that adds to a folder */
typedef struct qv_cache_entry qv_cache_entry;   /* a key that is being written */

/* ---- keys ------------------------------------------------------------------------------------ */

/* A key as caches write it: bytes that are not UTF-8 become %XX. out: QV_CACHE_MAX_KEY + 1 bytes.
 * QV_EFORMAT for a key that is empty, begins with "__" or is too long. */
QV_API qv_status qv_cache_key(const char *bytes, char *out, qv_error *err);
/* XXH3-64 of a key as caches write it. Shard i of n has the keys with hash % n = i. */
QV_API uint64_t qv_cache_key_hash(const char *key);

/* Where a key's tokens come from. What differs from what stands in the cache is done again. */
typedef struct qv_cache_source {
    const char *path; /* as the list has it; any bytes */
    double start_s,
        end_s;           /* a piece of the clip, to the nanosecond; 0: from its begin, to its end */
    int64_t bytes;       /* of the file */
    int64_t mtime_ns;    /* of the file, since 1970 */
    const char *options; /* what else was asked of this clip alone, as text; or NULL */
    uint64_t reserved[4];
} qv_cache_source;

struct qv_clip_options; /* qwenvit_media.h */

#define QV_CACHE_OPTIONS_BYTES 192
/* The source that `qwenvit cache` has of a clip, whose file is looked at: one that is not there has no
 * size and no time. own: what is asked of this clip alone, or NULL. start_s and end_s become the piece;
 * fps, max_frames, max_pixels, offset and length the options, if one of them is not 0; the rest is not
 * looked at. What comes back points to `path` and to `text`, which are the caller's. It cannot fail. For
 * a record, bytes and mtime_ns are to be qv_clip_info's: the file may be another since it was read. */
QV_API qv_cache_source qv_cache_source_of(const char *path, const struct qv_clip_options *own,
                                          char text[QV_CACHE_OPTIONS_BYTES]);

/* ---- writing --------------------------------------------------------------------------------- */

/* For qv_cache_writer_options.made_by, as `qwenvit cache` says it: the model, its weights and dtype, the
 * capacity that frame pairs are packed in (qv_model_pack_rows of the job's chunk_rows), the rule by which they
 * are (QV_PACKING), and how clips without options of their own are sampled and resized. *out: a JSON object, for free(). QV_EINVAL, QV_ENOMEM. */
QV_API qv_status qv_cache_made_by(const qv_model_info *model, int64_t capacity,
                                  const struct qv_clip_options *clip, char **out, qv_error *err);

/* What each key has: tokens [n, width] and n_deepstack outputs [n, width]; or, packed, one tensor
 * [n, width * (1 + n_deepstack)], the tokens of a row first, then its DeepStack outputs. */
typedef struct qv_cache_layout {
    qv_dtype dtype; /* QV_BF16, QV_F16 or QV_F32 */
    int64_t width;
    int n_deepstack;
    bool packed;
} qv_cache_layout;

typedef struct qv_cache_writer_options {
    qv_cache_layout layout;
    /* A JSON object: what else tokens depend on (model, weights, preprocessing, dtype, capacity). It
     * stands in qwenvit-cache.json; a run that differs is refused. NULL: {} */
    const char *made_by;
    int64_t shard, n_shards; /* for the names of parts; n_shards 0: 1 */
    int64_t part_bytes;      /* after which a part is sealed; 0: 1 GiB */
    double part_seconds;     /* the same of its age; 0: 300 */
    int64_t after;           /* qv_cache_info.sealed of what is there: new records come later;
                              * QV_EINVAL below 0, and more than 100 years from now */
    uint64_t reserved[8];
} qv_cache_writer_options;

/* Begins to add to a folder, which is made if it is not there. Removes what dead processes of this
 * host left unfinished. QV_EFORMAT if the folder holds something else, naming what differs and both models;
 * QV_EIO where it cannot be written to; QV_ESTATE while somebody prunes it, and nobody can while it is open. */
QV_API qv_status qv_cache_writer_open(const char *dir, const qv_cache_writer_options *options,
                                      qv_cache_writer **out, qv_error *err);

/* Begins a key of at most `rows` rows, for which room is taken in a part (0: it has failed already).
 * Waits while two parts are still being sealed. After a failure of the disk every call says that
 * failure; what was finished before is sealed if it can be. */
QV_API qv_status qv_cache_begin(qv_cache_writer *writer, const char *key,
                                const qv_cache_source *source, int64_t rows, qv_cache_entry **out,
                                qv_error *err);
/* The next tokens->n rows, in the layout's dtype; of deepstack, the layout's first n_deepstack.
 * Written from where they are, before the return. */
QV_API qv_status qv_cache_put(qv_cache_entry *entry, const qv_tokens *tokens, qv_error *err);

/* How a key ended. */
typedef struct qv_cache_result {
    qv_status status;  /* of the clip: QV_OK, or why it has no tokens */
    const char *error; /* in words, of one that failed */
    int64_t frames, damaged_frames;
    int64_t grid_thw[3];
    const double *timestamps_s; /* [n_timestamps] */
    int64_t n_timestamps;
    double sampled_fps; /* qv_clip_info's, of a clip; 0: none */
    bool is_image;
    uint64_t reserved[2];
} qv_cache_result;

/* The key is done, with the rows that were put; it can be read once its part is sealed. Frees the
 * entry in any case. */
QV_API qv_status qv_cache_finish(qv_cache_entry **entry, const qv_cache_result *result,
                                 qv_error *err);
/* The key was not done, and is not recorded. */
QV_API void qv_cache_drop(qv_cache_entry **entry);

/* Seals what is finished, and waits for it. Entries that are not finished keep their part open. */
QV_API qv_status qv_cache_seal(qv_cache_writer *writer, qv_error *err);
/* The same, and frees the writer in any case. Entries are to be finished or dropped before. The first
 * failure of the disk is told here at the latest. */
QV_API qv_status qv_cache_writer_close(qv_cache_writer **writer, qv_error *err);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct qv_cache_info {
    qv_cache_layout layout;
    int64_t n_ok, n_failed;     /* keys */
    int64_t n_parts, n_damaged; /* parts; those that cannot be used */
    int64_t n_superseded;       /* records that do not count: others of their keys do */
    uint64_t part_bytes;        /* of all parts that can be used */
    uint64_t damaged_bytes;     /* of those that cannot */
    uint64_t bytes;             /* of the tensors of keys that are ok */
    uint64_t superseded_bytes;  /* of the tensors of records that do not count */
    int64_t sealed;             /* the latest part, in nanoseconds since 1970 */
    size_t index_bytes;         /* memory that it takes: about 150 bytes a key and the keys */
    const char *made_by;        /* qwenvit-cache.json, whole; belongs to the cache */
    uint64_t reserved[4];
} qv_cache_info;

/* Whether a folder is a cache, or says that it is one: qwenvit-cache.json is there. */
QV_API bool qv_cache_exists(const char *dir);
/* Reads the headers of all parts, which are checked as strictly as checkpoints are. A part that is
 * damaged, or no regular file, is told by qv_cache_damage, and its keys are not there. Memory: qv_cache_info.index_bytes,
 * and while it opens three times the largest header (32 MiB at most). QV_EIO, QV_EFORMAT (no cache,
 * one of another version), QV_ENOMEM. */
QV_API qv_status qv_cache_open(const char *dir, qv_cache **out, qv_error *err);
QV_API void qv_cache_close(qv_cache **cache);
QV_API void qv_cache_get_info(const qv_cache *cache, qv_cache_info *out);
/* How fast a run filled a cache: what it sealed after its first part, and how long after that. */
typedef struct qv_cache_rate {
    int64_t clips, tokens; /* clips: those that failed as well */
    int64_t parts;         /* the first one included */
    double seconds;        /* above 0 */
    uint64_t reserved[4];
} qv_cache_rate;
/* Of the runs that sealed two parts or more, none of which was pruned, that which sealed one last. A run is one
 * process of a shard. False where there is none. */
QV_API bool qv_cache_last_rate(const qv_cache *cache, qv_cache_rate *out);
/* Why part i of n_damaged cannot be used; its file is named. NULL behind the last. */
QV_API const char *qv_cache_damage(const qv_cache *cache, int64_t i);
/* Whether that costs nothing: its header says which keys it has, and each of them has a record elsewhere that
 * comes before the one here, or was made of the same source. qv_cache_prune removes it. Reads its header. */
QV_API bool qv_cache_damage_is_superseded(const qv_cache *cache, int64_t i);

/* An item is a key and what the cache knows of it. Its names belong to the cache, until that is closed. */
typedef struct qv_cache_item {
    const char *key;
    int64_t index;    /* it is item `index` */
    qv_status status; /* QV_OK, or why the clip failed; then there are no tensors */
    int64_t rows, n_timestamps;
    const char *part;   /* the name of its file, */
    int64_t part_index; /* which is the part of that number, of n_parts in the order of names */
    int64_t bytes, mtime_ns; /* of the source */
    uint64_t xxh3;           /* checksum, as docs/cache.md says */
    double sampled_fps;      /* of a clip; 0: of an image, or its record does not say */
    int is_image;            /* 1: an image; 0: a clip; -1: its record does not say */
    /* In the part's file, in bytes: where its tokens begin, how far it is from there to each DeepStack
     * output, and where grid_thw begins, behind which its timestamps lie. */
    uint64_t tokens_at, deepstack_step, grid_at;
    /* In memory, from qv_cache_hold to qv_cache_release; NULL else. */
    const void *tokens; /* [rows, width], or packed [rows, width * (1 + n_deepstack)] */
    const void *deepstack[QV_MAX_DEEPSTACK]; /* [rows, width]; NULL in a packed cache */
    const int64_t *grid_thw;                 /* [3] */
    const double *timestamps_s;              /* [n_timestamps] */
    uint64_t held_in;                        /* the library's */
    uint64_t reserved[4];
} qv_cache_item;

/* The item of a key as caches write it; out->key is NULL if it is not there. No part is mapped, and
 * nothing fails. */
QV_API qv_status qv_cache_find(const qv_cache *cache, const char *key, qv_cache_item *out,
                               qv_error *err);
/* Item i of n_ok + n_failed, in the order in which the parts have them. No part is mapped. QV_EINVAL
 * where there is no such item. */
QV_API qv_status qv_cache_at(const qv_cache *cache, int64_t i, qv_cache_item *out, qv_error *err);
/* Maps an item's part, if it is not, and gives the item its tensors: nothing is copied, and no file
 * stays open. They are good until the release, which each hold has once; closing the cache ends them
 * all. Parts that nobody holds stay mapped until others need their place, the one that was released
 * first going first. Where the part is gone because somebody pruned the cache, the headers are read again,
 * and the item gets the same tensors from where they are now (its part and places stay as they were).
 * QV_EIO if the part cannot be mapped or is not the file that it was, or is gone and the key with it or made
 * again; QV_ENOMEM if 32,768 parts are held, or the process has no room for more. A part that somebody cuts while it is
 * held ends the process (SIGBUS). An item that failed gets nothing. */
QV_API qv_status qv_cache_hold(const qv_cache *cache, qv_cache_item *item, qv_error *err);
/* Gives back what a hold gave; NULLs the item's tensors. Nothing to do where it has none. */
QV_API void qv_cache_release(const qv_cache *cache, qv_cache_item *item);
/* Item i's record, a JSON object, for free(). */
QV_API qv_status qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err);
/* Reads item i's tensors and compares their checksum: QV_EFORMAT if it differs. */
QV_API qv_status qv_cache_verify(const qv_cache *cache, int64_t i, qv_error *err);

typedef enum qv_cache_state {
    QV_CACHE_MISSING,
    QV_CACHE_DONE,
    QV_CACHE_FAILED,
    QV_CACHE_CHANGED, /* it is there, of another path, piece, size, time or options */
    QV_CACHE_SOURCE_GONE, /* its tokens are there, and the source has no size and no time: its file is gone */
    QV_CACHE_STATE_MAX = 0x7fff
} qv_cache_state;
/* What of a source is not compared. Piece and options always are. */
typedef enum qv_cache_trust {
    QV_CACHE_TRUST_NOTHING,
    QV_CACHE_TRUST_TIMES, /* a file of the same path and size is the same, as of a download that was repeated */
    QV_CACHE_TRUST_KEYS, /* a key names a clip: wherever a file of the same size lies, it is the same */
    QV_CACHE_TRUST_MAX = 0x7fff
} qv_cache_trust;
/* Whether what the cache has for a key is what the source would give. Options that ask for what the
 * cache's description says that all clips get are none. */
QV_API qv_cache_state qv_cache_compare(const qv_cache *cache, const char *key,
                                       const qv_cache_source *source);
QV_API qv_cache_state qv_cache_compare_trusting(const qv_cache *cache, const char *key,
                                                const qv_cache_source *source,
                                                qv_cache_trust trust);

/* ---- pruning --------------------------------------------------------------------------------- */

typedef struct qv_cache_prune_options {
    /* Records that do not count go, and parts that are broken. Parts of another version or layout, and those
     * that cannot be read now, stay. */
    bool superseded;
    const char *const
        *keep; /* [n_keep] keys as caches write them: all others go; NULL: none does */
    size_t n_keep;
    const char *const *drop; /* [n_drop] keys that go, with all of their records; NULL: none does */
    size_t n_drop;
    bool dry_run; /* nothing changes, and no lock is taken; counts say what would */
    bool no_lock; /* on a file system without locks: nobody else adds to this cache, or prunes it */
    /* Told, in words, of each part that was to be changed and was left as it was. NULL: nobody is. */
    void (*told)(void *user, const char *words);
    /* Asked before each part and each key of it: false ends it, and no part is half done. NULL: it goes on. */
    bool (*go_on)(void *user, int64_t parts_done, int64_t n_parts);
    void *user; /* of both */
    uint64_t reserved[8];
} qv_cache_prune_options;

typedef struct qv_cache_pruned {
    int64_t keys;      /* that are gone: dropped, or not kept */
    int64_t missing;   /* of `drop`, that were not there */
    int64_t records;   /* that did not count and are gone, those of such keys included */
    int64_t rewritten; /* parts in whose place are others, */
    int64_t removed;   /* in whose place is nothing, */
    int64_t broken;    /* that were broken, and are gone; */
    int64_t left;      /* that were to be changed, or looked at, and could not be */
    int64_t freed;     /* bytes of files */
    uint64_t beside;   /* the most bytes that lay on the disk beside what was there */
    bool stopped;      /* by go_on */
    uint64_t reserved[4];
} qv_cache_pruned;

/* Removes records from a cache, part by part: what stays of a part is copied, with its records as they are and
 * the time at which the part was sealed, to a new one, which is synced and has its name before the old one
 * goes. A part of which nothing stays is removed. So a process that ends at any moment, or a disk that is full,
 * loses nothing, and running it again goes on. Whoever has the cache open for reading keeps what is mapped,
 * and finds the rest where it is now.
 * The cache is to be nobody else's meanwhile: QV_ESTATE where a writer is open or somebody prunes it,
 * QV_EUNSUPPORTED where the file system has no locks (but not with no_lock or dry_run). QV_EINVAL for NULL, for
 * options that are none, and where keep is there and empty; what qv_cache_open returns; QV_EIO where the folder
 * cannot be changed or is full, and where keys are to go and a part cannot be used but is not broken: an older
 * record might come back from it. *out is filled in any case. */
QV_API qv_status qv_cache_prune(const char *dir, const qv_cache_prune_options *options,
                                qv_cache_pruned *out, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
