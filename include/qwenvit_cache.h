/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_cache: a folder of vision tokens, with a key for each clip. Any number of processes may
 * write to it and may be killed at any moment, and anyone may read it: each part is a safetensors
 * file that appears whole and synced or not at all, and is never changed (docs/cache.md is the
 * format).
 *
 * The conventions of qwenvit.h hold. A pointer may be NULL only where its description says so:
 * otherwise a function returns QV_EINVAL, or, if it returns no status, the answer for nothing: 0,
 * false, NULL, zeros or QV_CACHE_MISSING. Fields named `reserved` must be 0.
 *
 * If a key has several records, the one that was sealed last
 * counts (among equals, the one in the last part by name). If that record says that the clip
 * failed, and the last record that is ok is of the same source (path, piece, options, size and time
 * of the file), the ok one counts instead.
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

#define QV_CACHE_MAX_KEY 4096 /* bytes of a key; one that is not UTF-8 counts as three, %XX */

typedef struct qv_cache qv_cache;               /* a folder that is open for reading */
typedef struct qv_cache_writer qv_cache_writer; /* a run that adds to a folder */
typedef struct qv_cache_entry qv_cache_entry;   /* a key that is being written */

/* ---- keys ------------------------------------------------------------------------------------ */

/* Writes a key as caches spell it: bytes that are not UTF-8 become %XX. out holds QV_CACHE_MAX_KEY
 * + 1 bytes. Returns QV_EFORMAT for a key that is empty, begins with "__" or is too long. */
QV_API qv_status qv_cache_key(const char *bytes, char *out, qv_error *err);
/* Returns the XXH3-64 of a key as caches spell it. Shard i of n has the keys with hash % n = i. */
QV_API uint64_t qv_cache_key_hash(const char *key);

/* The source of a key's tokens. A key is computed again if its source differs from the one that the
 * cache has recorded. */
typedef struct qv_cache_source {
    const char *path;      /* as it stands in the list; any bytes */
    double start_s, end_s; /* a piece of the clip, to the nanosecond; 0: from its beginning, to its
                          * end */
    int64_t bytes;         /* size of the file */
    int64_t mtime_ns;      /* time of the file's last change, since 1970 */
    const char *options;   /* text of the options that this clip alone has; or NULL */
    uint64_t reserved[4];
} qv_cache_source;

struct qv_clip_options; /* qwenvit_clips.h */

#define QV_CACHE_OPTIONS_BYTES 256
/* Returns the source that `qwenvit cache` records for a clip, whose file it looks at; a file that
 * does not exist has no size and no time. `own` has the options of this clip alone, or is NULL:
 * start_s and end_s become the piece, and fps, max_frames, max_pixels, offset, length and
 * first_frame the options, if one of them is not 0; other fields are ignored. The result points to
 * `path` and `text`, which belong to the caller. `text` may be NULL if `own` is. It cannot fail;
 * the zeros that it returns for NULL are no source, as they have no path. In a record, bytes and
 * mtime_ns must be those of qv_outcome, because the file may have been replaced since it was
 * read. */
QV_API qv_cache_source qv_cache_source_of(const char *path, const struct qv_clip_options *own,
                                          char text[QV_CACHE_OPTIONS_BYTES]);

/* ---- writing --------------------------------------------------------------------------------- */

/* Makes the text for qv_cache_writer_options.made_by, as `qwenvit cache` has it: the model, its
 * weights and dtype, how frame pairs are packed (qv_model_packing of the job's chunk_rows), and how
 * clips without options of their own are sampled and resized. *out is a JSON object, for free().
 * Returns QV_EINVAL and QV_ENOMEM. */
QV_API qv_status qv_cache_made_by(const qv_model_info *model, const qv_packing *packing,
                                  const struct qv_clip_options *clip, char **out, qv_error *err);

/* The tensors of each key: tokens [n, width] and n_deepstack outputs [n, width]; or, packed, one
 * tensor [n, width * (1 + n_deepstack)], in which a row has its tokens first, then its DeepStack
 * outputs. */
typedef struct qv_cache_layout {
    qv_dtype dtype; /* QV_BF16, QV_F16 or QV_F32 */
    int64_t width;
    int n_deepstack;
    bool packed;
} qv_cache_layout;

typedef struct qv_cache_writer_options {
    qv_cache_layout layout;
    /* A JSON object with everything else that tokens depend on (model, weights, preprocessing,
     * dtype, capacity). It is stored in qwenvit-cache.json; a run whose made_by differs is refused.
     * NULL: {} */
    const char *made_by;
    int64_t shard, n_shards; /* part of each part's file name; n_shards 0: 1 */
    int64_t part_bytes;      /* a part is sealed once it has so many bytes; 0: 1 GiB */
    double part_seconds;     /* a part is sealed once it is so old; 0: 300 */
    int64_t after;           /* qv_cache_info.sealed of the folder as it was read: new records get
                              * later times; QV_EINVAL below 0, and more than 100 years from now */
    /* Called with a warning while the writer is opened: that this file system has no locks, so that
     * qv_cache_prune would not notice the writer. NULL: no calls. */
    void (*told)(void *user, const char *words);
    void *user; /* passed to told */
    uint64_t reserved[8];
} qv_cache_writer_options;

/* Opens a folder for adding keys, and makes it if it does not exist. Removes what dead processes of
 * this host left unfinished. Returns QV_EFORMAT if the folder holds something else, naming what
 * differs and both models; QV_EIO if it cannot be written to; QV_ESTATE while another process
 * prunes it. The folder cannot be pruned while a writer is open. */
QV_API qv_status qv_cache_writer_open(const char *dir, const qv_cache_writer_options *options,
                                      qv_cache_writer **out, qv_error *err);

/* Begins a key of at most `rows` rows, and reserves room for them in a part (0: the clip has failed
 * already). Waits while two parts are still being sealed. After a failure of the disk every call
 * returns that failure; what was finished before is sealed if it can be. */
QV_API qv_status qv_cache_begin(qv_cache_writer *writer, const char *key,
                                const qv_cache_source *source, int64_t rows, qv_cache_entry **out,
                                qv_error *err);
/* Writes the next tokens->n rows, in the layout's dtype, and the first n_deepstack of their
 * DeepStack outputs. The rows are written from the caller's memory before the call returns. Returns
 * QV_EINVAL for more rows than the key has room for and for rows that are NULL; then nothing was
 * written, and other rows may be put. */
QV_API qv_status qv_cache_put(qv_cache_entry *entry, const qv_tokens *tokens, qv_error *err);

/* The outcome of a key. */
typedef struct qv_cache_result {
    qv_status status;                 /* of the clip: QV_OK, or why it has no tokens */
    const char *error;                /* the text of the error, for a clip that failed */
    const struct qv_outcome *outcome; /* of a clip that is ok; sampled_fps is 0 for an image */
    const double *timestamps_s;       /* [outcome->n_frames]; NULL: none are known */
    uint64_t reserved[2];
} qv_cache_result;

/* Finishes a key with the rows that were put; it can be read once its part is sealed. Frees the
 * entry, also on failure. */
QV_API qv_status qv_cache_finish(qv_cache_entry **entry, const qv_cache_result *result,
                                 qv_error *err);
/* Gives up a key: it is not recorded. Frees the entry. */
QV_API void qv_cache_drop(qv_cache_entry **entry);

/* Seals what is finished, and waits for it. A part stays open while entries in it are not
 * finished. */
QV_API qv_status qv_cache_seal(qv_cache_writer *writer, qv_error *err);
/* Seals what is finished, and frees the writer, also on failure. Finish or drop all entries before.
 * If the disk failed and no call has said so yet, this one returns that failure. */
QV_API qv_status qv_cache_writer_close(qv_cache_writer **writer, qv_error *err);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct qv_cache_info {
    qv_cache_layout layout;
    int64_t n_ok, n_failed;     /* keys */
    int64_t n_parts, n_damaged; /* parts; those among them that cannot be used */
    int64_t n_superseded;       /* records that do not count, since their key has another that
                                 * does */
    uint64_t part_bytes;        /* size of all parts that can be used */
    uint64_t damaged_bytes;     /* size of the parts that cannot be used */
    uint64_t bytes;             /* size of the tensors of keys that are ok */
    uint64_t superseded_bytes;  /* size of the tensors of records that do not count */
    int64_t sealed;             /* time of the part that was sealed last, in nanoseconds since
                                 * 1970 */
    size_t index_bytes;         /* memory that the index takes: about 150 bytes per key, and the
                                 * keys */
    const char *made_by;        /* the whole of qwenvit-cache.json; belongs to the cache */
    uint64_t reserved[4];
} qv_cache_info;

/* Returns whether a folder has a qwenvit-cache.json: it is a cache, or claims to be one. */
QV_API bool qv_cache_exists(const char *dir);
/* Opens a cache and reads the indexes of all its parts, and checks all of them (docs/cache.md says
 * what it leaves to qv_cache_verify). A part that is damaged, or is not a regular file, is reported
 * by qv_cache_damage, and its keys are missing. It takes memory for the index
 * (qv_cache_info.index_bytes), and while it opens the largest index (32 MiB at most). Returns
 * QV_EIO, QV_EFORMAT (no cache, or one of another version), QV_ENOMEM, or QV_EBACKEND (the file
 * system or its server is gone). */
QV_API qv_status qv_cache_open(const char *dir, qv_cache **out, qv_error *err);
QV_API void qv_cache_close(qv_cache **cache);
QV_API void qv_cache_get_info(const qv_cache *cache, qv_cache_info *out);
/* Says how fast a run filled a cache: the work in the parts that it sealed after its first one, and
 * the time between the first and the last. */
typedef struct qv_cache_rate {
    int64_t clips, tokens; /* clips counts failed clips as well */
    int64_t parts;         /* the first one included */
    double seconds;        /* above 0 */
    uint64_t reserved[4];
} qv_cache_rate;
/* Measures the latest run: among the runs that sealed at least two parts and were not pruned,
 * the one that sealed a part last. A run is one process of a shard. Returns false if there is no
 * such run. */
QV_API bool qv_cache_last_rate(const qv_cache *cache, qv_cache_rate *out);
/* Returns why the damaged part i of n_damaged cannot be used; the text names its file. NULL for an
 * i past the last. *superseded becomes whether nothing is lost with the part: its index says which
 * keys it has, and each of them has a record elsewhere that counts before the one here, or was made
 * of the same source. qv_cache_prune removes such a part. To find that out the call reads the
 * part's index; with NULL it reads nothing. */
QV_API const char *qv_cache_damage(const qv_cache *cache, int64_t i, bool *superseded);

/* An item is a key and what the cache knows of it. Its strings belong to the cache, and live until
 * it is closed. */
typedef struct qv_cache_item {
    const char *key;
    int64_t index;    /* number of the item, as qv_cache_at takes it */
    qv_status status; /* QV_OK, or why the clip failed; a failed clip has no tensors */
    int64_t rows, n_timestamps;
    const char *part;        /* name of the part's file */
    int64_t part_index;      /* number of the part, of n_parts in the order of names */
    int64_t bytes, mtime_ns; /* size and time of the source's file */
    uint64_t xxh3;           /* checksum, as docs/cache.md defines it */
    double sampled_fps;      /* of a clip; 0: the item is an image, or its record does not say */
    int is_image;            /* 1: an image; 0: a clip; -1: its record does not say */
    /* Places in the part's file, in bytes: where the tokens begin, how far it is from there to each
     * DeepStack output, and where grid_thw begins, which the timestamps follow. */
    uint64_t tokens_at, deepstack_step, grid_at;
    /* The tensors in memory, from qv_cache_hold to qv_cache_release; NULL at other times. */
    const void *tokens; /* [rows, width], or packed [rows, width * (1 + n_deepstack)] */
    const void *deepstack[QV_MAX_DEEPSTACK]; /* [rows, width]; NULL in a packed cache */
    const int64_t *grid_thw;                 /* [3] */
    const double *timestamps_s;              /* [n_timestamps] */
    uint64_t held_in;                        /* for the library alone */
    uint64_t reserved[4];
} qv_cache_item;

/* Finds the item of a key as caches spell it; out->key is NULL if there is none. No part is mapped,
 * and the lookup itself cannot fail. */
QV_API qv_status qv_cache_find(const qv_cache *cache, const char *key, qv_cache_item *out,
                               qv_error *err);
/* Returns item i of n_ok + n_failed, in the order of the parts. No part is mapped. Returns
 * QV_EINVAL if there is no such item. */
QV_API qv_status qv_cache_at(const qv_cache *cache, int64_t i, qv_cache_item *out, qv_error *err);
/* Maps an item's part, if it is not mapped yet, and gives the item its tensors: nothing is copied,
 * and no file stays open. The tensors are valid until qv_cache_release, which must follow each hold
 * once; closing the cache ends them all. Parts that nobody holds stay mapped until their place is
 * needed, and the one that was released first goes first. If the part is gone because somebody
 * pruned the cache, the indexes are read again, and the item gets the same tensors from where they
 * are now (its part and places keep their values). Returns QV_EIO if the part cannot be mapped, is
 * not the file that it was, or is gone and the key is gone with it or was made again; QV_ENOMEM if
 * 32,768 parts are held, or the process has no room for more. A part that somebody truncates while
 * it is held ends the process (SIGBUS). An item that failed gets nothing. */
QV_API qv_status qv_cache_hold(const qv_cache *cache, qv_cache_item *item, qv_error *err);
/* Gives back what a hold gave, and sets the item's tensors to NULL. An item that is not held stays
 * as it is. */
QV_API void qv_cache_release(const qv_cache *cache, qv_cache_item *item);
/* Returns item i's record, a JSON object, for free(). */
QV_API qv_status qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err);
/* Reads item i's tensors and compares their checksum; and checks header and records of its part, as
 * docs/cache.md says, which is done once for keys in a row. Returns QV_EFORMAT if something
 * differs. */
QV_API qv_status qv_cache_verify(const qv_cache *cache, int64_t i, qv_error *err);

typedef enum qv_cache_state {
    QV_CACHE_MISSING,
    QV_CACHE_DONE,
    QV_CACHE_FAILED,
    QV_CACHE_CHANGED,     /* there are tokens, of another path, piece, size, time or options */
    QV_CACHE_SOURCE_GONE, /* there are tokens, and the source has no size and no time: its file is
                           * gone */
    QV_CACHE_STATE_MAX = 0x7fff
} qv_cache_state;
/* Says what is not compared of a source. Piece and options always are. */
typedef enum qv_cache_trust {
    QV_CACHE_TRUST_NOTHING,
    QV_CACHE_TRUST_TIMES, /* times are not compared: a file of the same path and size is the same,
                           * as after a download was repeated */
    QV_CACHE_TRUST_KEYS,  /* times and paths are not compared: a key names a clip, and a file of the
                          * same size is the same wherever it lies */
    QV_CACHE_TRUST_MAX = 0x7fff
} qv_cache_trust;
/* Compares what the cache has for a key with a source. Options that only repeat what the cache's
 * description says of all clips count as no options. */
QV_API qv_cache_state qv_cache_compare(const qv_cache *cache, const char *key,
                                       const qv_cache_source *source, qv_cache_trust trust);

/* ---- pruning --------------------------------------------------------------------------------- */

typedef struct qv_cache_prune_options {
    /* Removes records that do not count, and parts that are broken. Parts of another version or
     * layout, and parts that cannot be read now, stay. */
    bool superseded;
    const char *const
        *keep; /* [n_keep] keys as caches spell them: all others are removed; NULL: no key is
                * removed for it */
    size_t n_keep;
    const char *const *drop; /* [n_drop] keys to remove, with all of their records; NULL: none */
    size_t n_drop;
    bool dry_run; /* changes nothing and takes no lock; the counts say what would happen */
    bool no_lock; /* for a file system without locks: the caller vouches that nobody else adds to
                   * this cache or prunes it */
    /* Called with a text for each part that was to be changed and was left as it was. NULL: no
     * calls. */
    void (*told)(void *user, const char *words);
    /* Called before each part and each key of it: false ends the call, and no part is half done.
     * NULL: it goes on. */
    bool (*go_on)(void *user, int64_t parts_done, int64_t n_parts);
    void *user; /* passed to both functions */
    uint64_t reserved[8];
} qv_cache_prune_options;

typedef struct qv_cache_pruned {
    int64_t keys;      /* keys that were removed: dropped, or not kept */
    int64_t missing;   /* keys of `drop` that were not there */
    int64_t records;   /* records that did not count and were removed, those of removed keys
                        * included */
    int64_t rewritten; /* parts that others replaced */
    int64_t removed;   /* parts that were removed without replacement */
    int64_t broken;    /* parts that were broken, and were removed */
    int64_t left;      /* parts that were to be changed or looked at, and could not be */
    int64_t freed;     /* bytes of files that were freed */
    uint64_t beside;   /* the most bytes that new parts took on the disk while the old ones were
                        * still there */
    bool stopped;      /* go_on ended the call */
    uint64_t reserved[4];
} qv_cache_pruned;

/* Removes records from a cache, part by part: the records of a part that stay are copied, unchanged
 * and with the time at which the part was sealed, to a new part, which is synced and has its name
 * before the old one is removed. A part that would be empty is removed. So a process that ends
 * at any moment, or a full disk, loses nothing, and running it again goes on. Whoever has the cache
 * open for reading keeps what is mapped, and finds the rest where it is now. Nobody else may write
 * to the cache meanwhile: returns QV_ESTATE while a writer is open or somebody prunes it,
 * QV_EUNSUPPORTED if the file system has no locks (but not with no_lock or dry_run). Returns
 * QV_EINVAL for NULL, for options that are not valid, and if keep is given and empty; the errors of
 * qv_cache_open; QV_EIO if the folder cannot be changed or is full, and if keys are to be removed
 * while a part cannot be used but is not broken: an older record of such a key might come back from
 * it. *out is filled in any case. */
QV_API qv_status qv_cache_prune(const char *dir, const qv_cache_prune_options *options,
                                qv_cache_pruned *out, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
