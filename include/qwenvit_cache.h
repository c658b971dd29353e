/* SPDX-License-Identifier: MIT */
/*
 * qwenvit_cache: a folder of vision tokens, with a key per clip. Any number of processes may write
 * to it and be killed at any moment, and anyone may read it: each part is a safetensors file that
 * appears whole and synced or not at all, and never changes (docs/cache.md has the format).
 *
 *     qv_cache_open        reads the indexes of all parts
 *     qv_cache_find        finds a key; qv_cache_at finds an item by its number
 *     qv_cache_hold        maps the item's tensors into memory, until qv_cache_release
 *     qv_cache_close
 *     qv_cache_prune       removes keys and superseded records
 * qv_cache_fill_open (qwenvit_clips.h) fills a cache.
 *
 * The conventions of qwenvit.h apply; the empty values are 0, false, NULL, zeros and
 * QV_CACHE_MISSING.
 *
 * A key may have several records. The one that was sealed last counts; on a tie, it is the one in
 * the part whose name sorts last. There is one exception: if that record is a failure, and the last
 * successful record has the same source (path, stretch, options, file size and file time), the
 * successful record counts. All other records of the key are superseded.
 *
 * Threads. Several threads may use an open cache at once.
 */
#ifndef QWENVIT_CACHE_H
#define QWENVIT_CACHE_H

#include "qwenvit.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QV_CACHE_MAX_KEY 4096 /* bytes of a key; each byte that is not UTF-8 counts as three: %XX */

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
    int64_t n_ok, n_failed; /* keys with tokens, and keys of failed clips */
    int64_t n_parts;        /* all parts */
    int64_t n_damaged;      /* the parts that cannot be used */
    int64_t n_superseded;   /* records that do not count, because another record of the key does */
    uint64_t part_bytes;    /* size of all parts that can be used */
    uint64_t damaged_bytes; /* size of the parts that cannot be used */
    uint64_t bytes;         /* size of the tensors of keys that are ok */
    uint64_t superseded_bytes; /* size of the tensors of superseded records */
    int64_t sealed;            /* when the last part was sealed, in nanoseconds since 1970 */
    size_t index_bytes;        /* memory of the index: about 150 bytes per key, and the keys */
    const char *made_by;       /* the text of qwenvit-cache.json */
} qv_cache_info;

/* Returns whether a folder contains a qwenvit-cache.json, and so is a cache or claims to be one. */
QV_API bool qv_cache_exists(const char *dir);
/*
 * Opens a cache, and reads and checks the indexes of all its parts. Tensors and records are checked
 * only by qv_cache_verify (docs/cache.md). If a part is damaged or not a regular file, its keys are
 * missing, and qv_cache_damage returns the reason.
 *
 * The call needs memory for the index (qv_cache_info.index_bytes) and, until it returns, for the
 * largest part's index (at most 32 MiB). Returns QV_EIO; QV_EFORMAT if the folder is not a cache or
 * has a different version; QV_ENOMEM; or QV_EBACKEND if the file system or its server is gone.
 */
QV_API qv_status qv_cache_open(const char *dir, qv_cache **out, qv_error *err);
QV_API void qv_cache_close(qv_cache **cache);
QV_API void qv_cache_get_info(const qv_cache *cache, qv_cache_info *out);
/* Returns why damaged part i of n_damaged cannot be used, in a text that names its file; NULL if i
 * is out of range. *superseded becomes true if qv_cache_prune would remove the part, because
 * no data is lost with it: its index can be read, and each of its keys has a record in another part
 * that takes precedence or has the same source. `superseded` may be NULL; then the part's
 * index is not read. */
QV_API const char *qv_cache_damage(const qv_cache *cache, int64_t i, bool *superseded);

/* ---- finding keys, and their tensors --------------------------------------------------------- */

/* Writes a key as caches spell it to out[QV_CACHE_MAX_KEY + 1]: bytes that are not UTF-8 become
 * %XX. Returns QV_EFORMAT for a key that is empty, begins with "__" or is too long. */
QV_API qv_status qv_cache_key(const char *bytes, char *out, qv_error *err);
/* Returns the XXH3-64 of a key as caches spell it. Shard i of n has the keys with hash % n = i. */
QV_API uint64_t qv_cache_key_hash(const char *key);

/* A key and what the cache knows about it. Its strings are valid until the cache is closed. */
typedef struct qv_cache_item {
    const char *key;
    int64_t index;    /* the item's number, for qv_cache_at */
    qv_status status; /* QV_OK, or why the clip failed; a failed clip has no tensors */
    int64_t rows, n_timestamps;
    const char *part;        /* name of the part's file */
    int64_t part_index;      /* number of the part, of n_parts in the order of names */
    int64_t bytes, mtime_ns; /* size and time of the source's file */
    uint64_t xxh3;           /* checksum, as docs/cache.md defines it */
    double sampled_fps;      /* of a clip; 0 for an image, or if the record does not have it */
    int is_image;            /* 1: an image; 0: a clip; -1: the clip failed */
    /* Where the tensors lie in the part's file, in bytes: the offset of the tokens; the step from
     * the tokens to the first DeepStack output, and from each output to the next; and the offset of
     * grid_thw, which the timestamps follow. */
    uint64_t tokens_at, deepstack_step, grid_at;
    /* The tensors in memory, from qv_cache_hold to qv_cache_release; otherwise NULL. */
    const void *tokens;                      /* [rows, width] */
    const void *deepstack[QV_MAX_DEEPSTACK]; /* [rows, width] */
    const int64_t *grid_thw;                 /* [3] */
    const double *timestamps_s;              /* [n_timestamps] */
    uint64_t held_in;                        /* for the library only */
} qv_cache_item;

/* Finds the item of a key as caches spell it, without mapping a part. If there is no such key, the
 * call succeeds and out->key is NULL. */
QV_API qv_status qv_cache_find(const qv_cache *cache, const char *key, qv_cache_item *out,
                               qv_error *err);
/* Gets item i of n_ok + n_failed, in the order of parts, without mapping a part. Returns QV_EINVAL
 * if there is no item i. */
QV_API qv_status qv_cache_at(const qv_cache *cache, int64_t i, qv_cache_item *out, qv_error *err);
/*
 * Maps an item's part, if it is not mapped yet, and sets the item's tensors. Nothing is copied, and
 * no file stays open. The tensors are valid until qv_cache_release, which must be called once per
 * hold, or until the cache is closed. A failed item has no tensors to map.
 *
 * A part that is no longer held stays mapped until room is needed. The part that was released first
 * is then unmapped first.
 *
 * If the part is gone because the cache was pruned, the indexes are read again, and the item gets
 * the same tensors from their new place. Its `part` and its offsets do not change.
 *
 * Returns QV_EIO if the part cannot be mapped, has been replaced by another file, or is gone and
 * its key was removed or computed again. Returns QV_ENOMEM if 32,768 parts are held, or the process
 * has no room for more. Truncating a held part kills the process (SIGBUS).
 */
QV_API qv_status qv_cache_hold(const qv_cache *cache, qv_cache_item *item, qv_error *err);
/* Ends a hold, and sets the item's tensors to NULL. An item that is not held is not changed. */
QV_API void qv_cache_release(const qv_cache *cache, qv_cache_item *item);
/* Sets *out to item i's record, a JSON object, which the caller must free(). */
QV_API qv_status qv_cache_record(const qv_cache *cache, int64_t i, char **out, qv_error *err);
/* Reads item i's tensors and verifies their checksum. Also checks the header and the records of its
 * part (docs/cache.md); for consecutive items of one part it does this once. Returns QV_EFORMAT if
 * anything differs. */
QV_API qv_status qv_cache_verify(const qv_cache *cache, int64_t i, qv_error *err);

/* ---- comparing with the sources -------------------------------------------------------------- */

/* What a key's tokens are computed from. A run recomputes a key if its record differs. */
typedef struct qv_cache_source {
    const char *path;      /* as in the list; any bytes */
    double start_s, end_s; /* a stretch of the clip, to the nanosecond; 0: its beginning or end */
    int64_t bytes;         /* size of the file */
    int64_t mtime_ns;      /* time of the file's last change, in nanoseconds since 1970 */
    const char *options;   /* text of this clip's own options, as in records; NULL: none */
} qv_cache_source;

typedef enum qv_cache_state {
    QV_CACHE_MISSING,
    QV_CACHE_DONE,
    QV_CACHE_FAILED,
    QV_CACHE_CHANGED,     /* tokens exist, for a different path, stretch, size, time or options */
    QV_CACHE_SOURCE_GONE, /* tokens exist, but the source's size and time are 0: its file is gone */
    QV_CACHE_STATE_MAX = 0x7fff
} qv_cache_state;
/* Which facts about a source are not compared. Stretch and options always are. */
typedef enum qv_cache_trust {
    QV_CACHE_TRUST_NOTHING,
    QV_CACHE_TRUST_TIMES, /* times are not compared: a file with the same path and size counts as
                           * the same, for example after a repeated download */
    QV_CACHE_TRUST_KEYS,  /* times and paths are not compared: a key identifies a clip, and a file
                           * of the same size counts as the same wherever it is */
    QV_CACHE_TRUST_MAX = 0x7fff
} qv_cache_trust;
/* Compares a key's record with a source. Options equal to the cache's options for all clips count
 * as unset. */
QV_API qv_cache_state qv_cache_compare(const qv_cache *cache, const char *key,
                                       const qv_cache_source *source, qv_cache_trust trust);

/* ---- pruning --------------------------------------------------------------------------------- */

typedef struct qv_cache_prune_options {
    /* Removes superseded records and broken parts. Parts with a different version or layout are
     * kept, and so are parts that cannot be read now. */
    bool superseded;
    /* [n_keep] keys as caches spell them. All other keys are removed. NULL: keeps all. */
    const char *const *keep;
    size_t n_keep;
    const char *const *drop; /* [n_drop] keys to remove, with all their records; NULL: none */
    size_t n_drop;
    bool dry_run; /* changes nothing and takes no lock; the counts are what would have been done */
    /* For a file system without locks: the caller guarantees that nobody else adds to this cache or
     * prunes it. */
    bool no_lock;
    /* Called with a message for each part that should have been changed but could not be. NULL: not
     * called. */
    void (*told)(void *user, const char *words);
    /* Called before each part and each of its keys. If it returns false, the call ends, and leaves
     * no part half done. NULL: not called. */
    bool (*go_on)(void *user, int64_t parts_done, int64_t n_parts);
    void *user; /* passed to both functions */
} qv_cache_prune_options;

typedef struct qv_cache_pruned {
    int64_t keys;      /* keys that were removed: dropped, or not kept */
    int64_t missing;   /* keys of `drop` that the cache did not contain */
    int64_t records;   /* superseded records that were removed, including those of removed keys */
    int64_t rewritten; /* parts that were replaced by new ones */
    int64_t removed;   /* parts that were removed without replacement */
    int64_t broken;    /* broken parts that were removed */
    int64_t left;      /* parts that should have been changed or read, and could not be */
    int64_t freed;     /* bytes of files that were freed */
    uint64_t beside;   /* the most bytes of new parts on disk while their old parts still existed */
    bool stopped;      /* go_on ended the call */
} qv_cache_pruned;

/*
 * Removes records from a cache, part by part. A part's remaining records are copied unchanged, with
 * the part's sealing time, to a new part, which is synced and named before the old one is removed.
 * A part that would be empty is removed. So nothing is lost if the process ends at any moment or
 * the disk is full, and running it again continues.
 *
 * Readers that have the cache open keep what is mapped, and find the rest in its new place. Nobody
 * else may write to the cache meanwhile. *out is always filled in.
 *
 * Returns QV_ESTATE while a writer is open or another process prunes the cache; QV_EUNSUPPORTED if
 * the file system has no locks (but not with no_lock or dry_run); QV_EINVAL for NULL, for invalid
 * options, and if `keep` is set but empty; and the errors of qv_cache_open. Returns QV_EIO if the
 * folder cannot be changed or is full. It also returns QV_EIO if keys must be removed while a part
 * cannot be read but is not broken, because an older record of a key in that part might count
 * again.
 */
QV_API qv_status qv_cache_prune(const char *dir, const qv_cache_prune_options *options,
                                qv_cache_pruned *out, qv_error *err);

#ifdef __cplusplus
}
#endif
#endif
