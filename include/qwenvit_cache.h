/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_cache: a folder of vision tokens, with a key per clip. Any number of processes may write
 * to it and be killed at any moment, and anyone may read it: each part is a safetensors file that
 * appears whole and synced or not at all, and never changes (docs/cache.md has the format).
 *
 *     qv_cache_open        reads the indexes of all parts
 *     qv_cache_find        finds a key, or qv_cache_at the item of a number
 *     qv_cache_hold        maps the item's tensors into memory, until qv_cache_release
 *     qv_cache_close
 *     qv_cache_prune       removes keys, and records that do not count
 * qv_cache_fill_open (qwenvit_clips.h) fills a cache.
 *
 * The conventions of qwenvit.h hold; the empty answers are 0, false, NULL, zeros and
 * QV_CACHE_MISSING.
 *
 * If a key has several records, the record that was sealed last counts (of records sealed at the
 * same time, the one in the last part by name). If that record is of a failure, and the last record
 * that is ok has the same source (path, stretch, options, size and time of the file), the record
 * that is ok counts instead.
 *
 * Threads. Several threads may use an open cache at once.
 */
#ifndef QWENVIT_CACHE_H
#define QWENVIT_CACHE_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QV_CACHE_MAX_KEY 4096 /* bytes of a key; a byte that is not UTF-8 counts as three, %XX */

typedef struct qv_cache qv_cache; /* a folder that is open for reading */

/* ---- opening a cache ------------------------------------------------------------------------- */

/* A key's tensors: tokens [n, width] and n_deepstack outputs [n, width]. */
typedef struct qv_cache_layout {
    qv_dtype dtype; /* QV_BF16 or QV_F32 */
    int64_t width;
    int n_deepstack;
} qv_cache_layout;

typedef struct qv_cache_info {
    qv_cache_layout layout;
    int64_t n_ok, n_failed;     /* keys */
    int64_t n_parts, n_damaged; /* parts; how many of them cannot be used */
    int64_t n_superseded;       /* records that do not count, because another record of their key
                                 * does */
    uint64_t part_bytes;        /* size of all parts that can be used */
    uint64_t damaged_bytes;     /* size of the parts that cannot be used */
    uint64_t bytes;             /* size of the tensors of keys that are ok */
    uint64_t superseded_bytes;  /* size of the tensors of records that do not count */
    int64_t sealed;             /* time of the part that was sealed last, in nanoseconds since
                                 * 1970 */
    size_t index_bytes;         /* memory of the index: about 150 bytes per key, and the keys */
    const char *made_by;        /* all of qwenvit-cache.json */
} qv_cache_info;

/* Returns whether a folder is a cache, or claims to be one: it has a qwenvit-cache.json. */
QV_API bool qv_cache_exists(const char *dir);
/* Opens a cache, and reads and checks the indexes of all its parts; tensors and records are left to
 * qv_cache_verify (docs/cache.md). If a part is damaged or not a regular file, its keys are
 * missing, and qv_cache_damage reports it. Needs memory for the index (qv_cache_info.index_bytes),
 * and during the call as much as the largest part's index (32 MiB at most). Returns QV_EIO,
 * QV_EFORMAT (no cache, or another version), QV_ENOMEM, or QV_EBACKEND (the file system or its
 * server is gone). */
QV_API qv_status qv_cache_open(const char *dir, qv_cache **out, qv_error *err);
QV_API void qv_cache_close(qv_cache **cache);
QV_API void qv_cache_get_info(const qv_cache *cache, qv_cache_info *out);
/* Returns why damaged part i of n_damaged cannot be used; the text names its file. NULL for an i
 * past the last. *superseded is set to whether nothing is lost with the part: its index names its
 * keys, and each of them has a record elsewhere that counts before the one here or has the same
 * source. qv_cache_prune removes such a part. To find that out the call reads the part's index;
 * `superseded` may be NULL. */
QV_API const char *qv_cache_damage(const qv_cache *cache, int64_t i, bool *superseded);

/* ---- finding keys, and their tensors --------------------------------------------------------- */

/* Writes a key as caches spell it to out[QV_CACHE_MAX_KEY + 1]: bytes that are not UTF-8 become
 * %XX. Returns QV_EFORMAT for a key that is empty, begins with "__" or is too long. */
QV_API qv_status qv_cache_key(const char *bytes, char *out, qv_error *err);
/* Returns the XXH3-64 of a key as caches spell it. Shard i of n has the keys with hash % n = i. */
QV_API uint64_t qv_cache_key_hash(const char *key);

/* A key and what the cache knows about it. Its texts are valid until the cache is closed. */
typedef struct qv_cache_item {
    const char *key;
    int64_t index;    /* the item's number, for qv_cache_at */
    qv_status status; /* QV_OK, or why the clip failed; a failed clip has no tensors */
    int64_t rows, n_timestamps;
    const char *part;        /* name of the part's file */
    int64_t part_index;      /* number of the part, of n_parts in the order of names */
    int64_t bytes, mtime_ns; /* size and time of the source's file */
    uint64_t xxh3;           /* checksum, as docs/cache.md defines it */
    double sampled_fps;      /* of a clip; 0: an image, or not in the record */
    int is_image;            /* 1: an image; 0: a clip; -1: the clip failed */
    /* offsets in the part's file, in bytes: of the tokens; from them to the first DeepStack output
     * and from each to the next; of grid_thw, which the timestamps follow */
    uint64_t tokens_at, deepstack_step, grid_at;
    /* the tensors in memory, from qv_cache_hold to qv_cache_release; otherwise NULL */
    const void *tokens;                      /* [rows, width] */
    const void *deepstack[QV_MAX_DEEPSTACK]; /* [rows, width] */
    const int64_t *grid_thw;                 /* [3] */
    const double *timestamps_s;              /* [n_timestamps] */
    uint64_t held_in;                        /* for the library only */
} qv_cache_item;

/* Finds the item of a key as caches spell it, without mapping a part; out->key is NULL if there is
 * none. Fails only for NULL. */
QV_API qv_status qv_cache_find(const qv_cache *cache, const char *key, qv_cache_item *out,
                               qv_error *err);
/* Gets item i of n_ok + n_failed, in the order of the parts, without mapping a part. Returns
 * QV_EINVAL if no such item exists. */
QV_API qv_status qv_cache_at(const qv_cache *cache, int64_t i, qv_cache_item *out, qv_error *err);
/* Maps an item's part, if it is not mapped yet, and sets the item's tensors: nothing is copied, and
 * no file stays open. The tensors are valid until qv_cache_release, which must follow each hold
 * once, or until the cache is closed. A part without holds stays mapped until room is needed: the
 * part that was released first is unmapped first. If the part is gone because somebody pruned the
 * cache, the indexes are read again, and the item gets the same tensors from their new place
 * (its part and offsets keep their values). A failed item gets nothing. Returns QV_EIO if the part
 * cannot be mapped, is not the file that it was, or is gone and the key is gone or was made again;
 * QV_ENOMEM if 32,768 parts are held, or the process has no room for more. Truncating a held part
 * kills the process (SIGBUS). */
QV_API qv_status qv_cache_hold(const qv_cache *cache, qv_cache_item *item, qv_error *err);
/* Ends a hold, and sets the item's tensors to NULL. An item that is not held stays as it is. */
QV_API void qv_cache_release(const qv_cache *cache, qv_cache_item *item);
/* Sets *out to item i's record, a JSON object, which the caller free()s. */
QV_API qv_status qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err);
/* Reads item i's tensors and compares their checksum. Also checks header and records of its part,
 * as in docs/cache.md, once for consecutive keys of a part. Returns QV_EFORMAT if
 * anything differs. */
QV_API qv_status qv_cache_verify(const qv_cache *cache, int64_t i, qv_error *err);

/* ---- comparing with the sources -------------------------------------------------------------- */

/* What a key's tokens are made from. A run computes a key again if this differs from its record. */
typedef struct qv_cache_source {
    const char *path;      /* as in the list; any bytes */
    double start_s, end_s; /* a stretch of the clip, to the nanosecond; 0: from its beginning, to
                            * its end */
    int64_t bytes;         /* size of the file */
    int64_t mtime_ns;      /* time of the file's last change, since 1970 */
    const char *options;   /* text of this clip's own options, or NULL */
} qv_cache_source;

typedef enum qv_cache_state {
    QV_CACHE_MISSING,
    QV_CACHE_DONE,
    QV_CACHE_FAILED,
    QV_CACHE_CHANGED,     /* there are tokens, of another path, stretch, size, time or options */
    QV_CACHE_SOURCE_GONE, /* there are tokens, and the source has no size and no time: its file is
                           * gone */
    QV_CACHE_STATE_MAX = 0x7fff
} qv_cache_state;
/* Which parts of a source are not compared. Stretch and options always are. */
typedef enum qv_cache_trust {
    QV_CACHE_TRUST_NOTHING,
    QV_CACHE_TRUST_TIMES, /* times are not compared: a file with the same path and size is the same,
                           * as after a repeated download */
    QV_CACHE_TRUST_KEYS,  /* times and paths are not compared: a key names a clip, and a file of the
                           * same size is the same anywhere */
    QV_CACHE_TRUST_MAX = 0x7fff
} qv_cache_trust;
/* Compares a key's record with a source. Options that only repeat the cache's description of all
 * clips count as no options. */
QV_API qv_cache_state qv_cache_compare(const qv_cache *cache, const char *key,
                                       const qv_cache_source *source, qv_cache_trust trust);

/* ---- pruning --------------------------------------------------------------------------------- */

typedef struct qv_cache_prune_options {
    /* remove records that do not count, and broken parts. Parts of another version or layout, and
     * parts that cannot be read now, stay */
    bool superseded;
    /* [n_keep] keys as caches spell them: all keys but these are removed; NULL: keep all */
    const char *const *keep;
    size_t n_keep;
    const char *const *drop; /* [n_drop] keys to remove, with all their records; NULL: none */
    size_t n_drop;
    bool dry_run; /* change nothing and take no lock; the counts are what would happen */
    bool no_lock; /* for a file system without locks: the caller guarantees that nobody else adds to
                   * this cache or prunes it */
    /* Called with a message for each part that should have changed and was left as it was. NULL: no
     * calls. */
    void (*told)(void *user, const char *words);
    /* Called before each part and each of its keys: false ends the call, with no part half done.
     * NULL: the call goes on. */
    bool (*go_on)(void *user, int64_t parts_done, int64_t n_parts);
    void *user; /* passed to both functions */
} qv_cache_prune_options;

typedef struct qv_cache_pruned {
    int64_t keys;      /* keys that were removed: dropped, or not kept */
    int64_t missing;   /* keys of `drop` that were not there */
    int64_t records;   /* removed records that did not count, removed keys' included */
    int64_t rewritten; /* parts that were replaced by new ones */
    int64_t removed;   /* parts that were removed without replacement */
    int64_t broken;    /* broken parts that were removed */
    int64_t left;      /* parts that should have been changed or read, and could not be */
    int64_t freed;     /* bytes of files that were freed */
    uint64_t beside; /* the most bytes on disk of new parts while the old parts were still there */
    bool stopped;    /* go_on ended the call */
} qv_cache_pruned;

/* Removes records from a cache, part by part: a part's remaining records are copied, unchanged and
 * with the part's time of sealing, to a new part, which is synced and named before the old one is
 * removed. A part that would be empty is removed. So a process that ends at any moment, or a full
 * disk, loses nothing, and running it again continues. Readers that have the cache open keep what
 * is mapped, and find the rest in its new place. Nobody else may write to the cache meanwhile.
 * *out is filled in any case. Returns QV_ESTATE while a writer is open or somebody else prunes the
 * cache; QV_EUNSUPPORTED if the file system has no locks (but not with no_lock or dry_run);
 * QV_EINVAL for NULL, for invalid options, and if keep is given and empty; the errors of
 * qv_cache_open; QV_EIO if the folder cannot be changed or is full, or if keys must be removed
 * while a part cannot be read but is not broken: an older record of a key might come back from
 * it. */
QV_API qv_status qv_cache_prune(const char *dir, const qv_cache_prune_options *options,
                                qv_cache_pruned *out, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
