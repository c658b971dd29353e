/* SPDX-License-Identifier: MIT */
/*
 * Memory that the plans of a model share: of each chunk under way what is its own (input, tables,
 * tokens), then what all have in turn (activations, scratch), as their work is done in order.
 */
#ifndef QV_MODEL_ARENA_H
#define QV_MODEL_ARENA_H

#include "engine/context.h"

enum { QV_MOST_CHUNKS = QV_MARK_BEGIN - QV_MARK_CHUNK };

struct qv_arena {
    struct qv_memory *memory;
    size_t own_bytes, work_bytes;          /* of one chunk; of all in turn */
    int n_chunks;                          /* that may be under way */
    const qv_plan *chunks[QV_MOST_CHUNKS]; /* whose chunk each is; NULL: free */
    int users;                             /* plans, and the model */
};

qv_status qv_arena_open(qv_context *ctx, size_t own_bytes, size_t work_bytes, struct qv_arena **out,
                        qv_error *err);
/* Another user; and one less: the last one frees it. */
struct qv_arena *qv_arena_share(struct qv_arena *arena);
void qv_arena_leave(qv_context *ctx, struct qv_arena **arena);

/* Where a byte of a chunk's own memory lies, and one of the common. */
size_t qv_arena_own(const struct qv_arena *arena, int chunk, size_t at);
size_t qv_arena_work(const struct qv_arena *arena, size_t at);

/* A chunk that is not under way, or -1. */
int qv_arena_free_chunk(const struct qv_arena *arena);

#endif
