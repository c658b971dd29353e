/* SPDX-License-Identifier: MIT */
/* The feeder, which jobs and qv_encode use to compute, and how frame pairs are packed. */
#pragma once

#include "qwenvit.h"

qv_context *qv_model_context(const qv_model *model); /* the context that it was loaded on */

/* How a model's frame pairs are packed into chunks. */
typedef struct qv_packing {
    int64_t rows;     /* patches in the chunks that most frame pairs go into */
    const char *rule; /* how chunks are filled; on some devices another rule changes bits */
    /* the most tokens in a chunk of one item's frame pairs only, unless one pair has more */
    int64_t alone_tokens;
} qv_packing;

/* Returns how the model's frame pairs are packed into chunks of chunk_rows patches (0: the device's
 * default size). The bits of tokens may depend on it, so caches record it. */
qv_packing qv_model_packing(const qv_model *model, int64_t chunk_rows);

/*
 * A feeder fills the chunks of one or more models with the frame pairs of many items, and keeps
 * each device busy. It creates the plans, and decides which pairs share a chunk. An item's frame
 * pairs are computed in order, all on one device; a long item spans several chunks. The capacity of
 * an item's pairs depends only on the size of its frames and the feeder's options.
 *
 * Threads. The caller provides one lock. Any thread may call qv_feeder_add, _put and _drop while it
 * holds the lock. One thread per device calls qv_feeder_ready, which needs the lock, and
 * qv_feeder_push and _pull, which do not. With a single thread no lock is needed.
 */
typedef struct qv_feeder qv_feeder;

typedef struct qv_feeder_options {
    qv_dtype output;    /* dtype of the tokens: QV_F32 (default) or QV_BF16 */
    int64_t chunk_rows; /* patches in a chunk; 0: the first device's default size */
    bool alone;         /* items share no chunks: each gets chunks sized for it */
    bool hidden;        /* as in qv_plan_options */
    /* if plans are slow to make, also make the plans of smaller chunks on opening, so that no later
     * item waits for one */
    bool warm_up;
} qv_feeder_options;

/* An item on its way through a feeder, which owns this struct and writes it. */
typedef struct qv_feed {
    void *user;   /* the caller's */
    int64_t step; /* how many frame pairs each put adds; the last put adds the rest */
    bool full;    /* two chunks' worth of its pairs are waiting: more would gain nothing */
    int device;   /* the device that computes its frame pairs; -1: not decided yet */
} qv_feed;

/* Consecutive frame pairs of an item, which one put added. */
typedef struct qv_feeder_piece {
    const qv_feed *feed; /* the item; valid while it is not dropped */
    void *user;          /* as passed to the put */
    qv_item item;        /* these frame pairs */
    int64_t first;       /* the number of the first of them in the item */
    bool ends, last;     /* it is the last piece of its put; it is the last piece of the item */
} qv_feeder_piece;

/* The most pieces in a chunk, and the most pieces considered for one. */
#define QV_FEEDER_PIECES 256

/* A chunk, valid from qv_feeder_ready until the next qv_feeder_ready after it was pulled. Tokens
 * are in the order of the pieces. */
typedef struct qv_feeder_chunk {
    const qv_feeder_piece *pieces;
    size_t n;
    int64_t rows; /* total patches of the pieces */
    bool is_rest; /* it took all frame pairs that were waiting for such a chunk */
    bool refused; /* qv_feeder_push failed because no plan can be made for the chunk */
    /* set by qv_feeder_push: how many patches and tokens the chunk has room for */
    int64_t capacity_rows, capacity_tokens;
} qv_feeder_chunk;

/* Opens a feeder for models of the same tower, each on its own device, and makes the plan that most
 * frame pairs need for each. From open to close only feeders, jobs and calls of qv_encode may use
 * the models' contexts. Returns QV_EINVAL, QV_ENOMEM, and the errors of qv_plan_create. */
qv_status qv_feeder_open(qv_model *const *models, size_t n_models, const qv_feeder_options *options,
                         qv_feeder **out, qv_error *err);

/* Announces an item, and decides its frame pairs' capacity. If item->data is NULL, each put brings
 * its own data, as for a clip that is being decoded. Returns QV_EINVAL for an invalid item, with a
 * message that begins with `name`. */
qv_status qv_feeder_add(qv_feeder *feeder, qv_input input, const qv_item *item, const char *name,
                        void *user, qv_feed **out, qv_error *err);

/* Puts an item's next frame pairs: feed->step of them, or the rest. `data` is their data, which
 * must stay valid until they are pushed or dropped; NULL if item->data was set. Returns QV_EFULL if
 * QV_FEEDER_PIECES puts wait for the same chunks, QV_ENOMEM, or QV_EINVAL if nothing is left of the
 * item. */
qv_status qv_feeder_put(qv_feeder *feeder, qv_feed *feed, const void *data, void *user,
                        qv_error *err);

/* Chooses the device's next chunk: as many of the oldest pairs as fit, then of the largest that
 * still fit. qv_feeder_push must follow. now_s is the time on any clock, in seconds. `more` says
 * that more pairs are coming, and can be put before the waiting ones are pushed. The waiting pairs
 * then wait for a full chunk while the device works, and once it is idle, for as long as a full
 * chunk takes to compute. Without `more` they go at once. Returns NULL if no chunk may go yet, or
 * if a chunk must be pulled first; *wait_s is lowered to the seconds after which to ask again. */
const qv_feeder_chunk *qv_feeder_ready(qv_feeder *feeder, int device, double now_s, bool more,
                                       double *wait_s);

/* Pushes the chunk that qv_feeder_ready chose. Returns the errors of qv_plan_create and
 * qv_plan_push. If the chunk is then `refused`, only its items have failed; after any other failure
 * the device is lost: drop its items, and do not use it again. */
qv_status qv_feeder_push(qv_feeder *feeder, int device, qv_error *err);

/* Waits for the device's oldest chunk and writes its tokens, like qv_plan_pull. Piece i's tokens go
 * to rows of `out` from first_rows[i] on; with NULL, they lie one after another. */
qv_status qv_feeder_pull(qv_feeder *feeder, int device, qv_tokens *out, const int64_t *first_rows,
                         qv_error *err);

/* Removes a waiting piece of the item and returns true; if none waits, frees the feed and returns
 * false. When an item has failed or is done, call it until it returns false. Chunks that have been
 * chosen are not changed. */
bool qv_feeder_drop(qv_feeder *feeder, qv_feed *feed, qv_feeder_piece *piece);

/* Waits for chunks in progress, and frees the feeder, all feeds and plans. */
void qv_feeder_close(qv_feeder **feeder);
