/* SPDX-License-Identifier: MIT */
/* The internals of a feeder. feeder.c keeps the waiting frame pairs, feeder_chunks.c fills chunks
 * with them. */
#pragma once

#include "feeder.h"
#include "plan.h"

/* An item. */
struct qv_fed {
    qv_feed shown; /* first, because it is the caller's handle */
    struct qv_fed *next, **link;
    qv_item whole;
    qv_input input;
    qv_capacity capacity, pair; /* pack: what its pairs are packed in; pair: what one pair needs */
    int64_t put, waiting;       /* frame pairs put so far; how many of them wait */
};

/* Frame pairs that wait. */
struct qv_waiting {
    struct qv_waiting *next;
    struct qv_fed *fed;
    qv_feeder_piece piece;
    int64_t number; /* of the put */
};

/* The pieces that wait for chunks of one capacity and one input. */
struct qv_feeder_pack {
    struct qv_feeder_pack *next;
    qv_capacity capacity;
    /* the capacity of its chunks, which qv_encode lowers if all waiting pairs need less */
    qv_capacity room;
    qv_input input;
    bool begun;                         /* a chunk was chosen from it */
    struct qv_waiting *waiting, **last; /* the oldest; the link for the next one */
    size_t n;
};

struct qv_filled {
    qv_feeder_chunk shown; /* first, because it is what the caller sees */
    qv_feeder_piece pieces[QV_FEEDER_PIECES];
    qv_capacity room, capacity; /* its pack's room; its plan's capacity */
    qv_input input;
    qv_plan *plan; /* set while the chunk is in progress; chunks of one capacity share it */
};

/* A device, which only its own thread uses. */
struct qv_feeder_device {
    qv_model *model;
    struct qv_filled chunks[QV_MOST_CHUNKS];
    int64_t n_pushed, n_pulled, n_timed; /* n_timed: the pulled chunks included in took_s */
    bool is_chosen;                      /* the next chunk is chosen but not pushed */
    bool has_turn;                       /* at the device (qv_turn_take) */
    /* began_s: when the device began to compute the oldest chunk in progress. took_s: how long the
     * last chunk would have taken if full. until_s: how long an idle device waits for the next
     * chunk to fill (INFINITY: not known yet) */
    double began_s, took_s, until_s;
    qv_capacity last; /* what the last chunk needed */
    int64_t repeats;  /* chunks before it that needed the same */
};

struct qv_feeder {
    qv_plan_options plan; /* of every plan; its capacity is the requested one */
    bool is_call;         /* it serves one call of qv_encode */
    bool alone, fixed;    /* fixed: a chunk that is not full has its pack's capacity too */
    /* the capacities of most pairs' packs, and of a full chunk of large pairs in one */
    qv_capacity pack, usual;
    struct qv_feeder_pack *packs;
    struct qv_fed *feeds;
    int64_t n_puts;
    int n_devices;
    struct qv_feeder_device devices[];
};

/* Opens a feeder for one call of qv_encode: everything is put first, a plan is made once the
 * previous plan has no chunk in progress, and plans have all of the caller's options. */
qv_status qv_feeder_open_call(qv_model *model, const qv_plan_options *options, bool alone,
                              qv_feeder **out, qv_error *err);

/* Begin the feeder's turn at a device, unless it has begun; and end it, if it has begun. */
void qv_feeder_take_turn(struct qv_feeder_device *d);
void qv_feeder_end_turn(struct qv_feeder_device *d);

/* Returns the oldest chunk in progress, or NULL. */
const qv_feeder_chunk *qv_feeder_oldest(const qv_feeder *f, int device);
/* Drops the chunk that qv_feeder_ready has chosen, for tools that only show chunks. */
void qv_feeder_pass(qv_feeder *f, int device);

/* Takes n pairs off the front of the piece at a link of the pack, and frees a piece that is empty.
 * The link is then the next piece's. */
qv_feeder_piece qv_feeder_take(const qv_feeder *f, struct qv_feeder_pack *pack,
                               struct qv_waiting **link, int64_t n);
/* Frees the pack if nothing waits in it. */
void qv_feeder_free_empty(qv_feeder *f, struct qv_feeder_pack *pack);

/* Returns the capacity of the chunks that an item's pairs are packed into, if chunks of `rows`
 * patches were requested; see qv_capacity_for_pairs. */
qv_capacity qv_pack_capacity(const qv_model *model, int64_t rows, const int64_t grid_thw[3]);
/* Returns the capacity for a chunk that uses `used` of `chunk`; see qv_capacity_for_chunk. */
qv_capacity qv_chunk_capacity(const qv_model *model, const qv_capacity *chunk,
                              const qv_capacity *used, bool more, int64_t repeats);
