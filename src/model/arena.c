/* SPDX-License-Identifier: MIT */
#include "model.h"

#include <stdlib.h>

#include "error.h"

qv_status
qv_arena_open(qv_context *ctx, size_t own_bytes, size_t work_bytes, struct qv_arena **out,
              qv_error *err)
{
    struct qv_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return qv_fail(err, QV_ENOMEM, "no memory for an arena");
    *arena = (struct qv_arena){ .own_bytes = qv_aligned(own_bytes),
                                .work_bytes = qv_aligned(work_bytes),
                                .n_chunks = ctx->caps.chunks,
                                .users = 1 };
    qv_status status =
        ctx->backend->alloc(ctx->dev,
                            (size_t)arena->n_chunks * arena->own_bytes + arena->work_bytes,
                            &arena->memory, err);
    if (status)
        free(arena);
    else
        *out = arena;
    return status;
}

struct qv_arena *
qv_arena_share(struct qv_arena *arena)
{
    arena->users++;
    return arena;
}

void
qv_arena_leave(qv_context *ctx, struct qv_arena **arena)
{
    struct qv_arena *a = *arena;
    *arena = NULL;
    if (!a || --a->users)
        return;
    ctx->backend->free(ctx->dev, a->memory);
    free(a);
}

size_t
qv_arena_own(const struct qv_arena *arena, int chunk, size_t at)
{
    return (size_t)chunk * arena->own_bytes + at;
}

size_t
qv_arena_work(const struct qv_arena *arena, size_t at)
{
    return (size_t)arena->n_chunks * arena->own_bytes + at;
}

int
qv_arena_free_chunk(const struct qv_arena *arena)
{
    for (int i = 0; i < arena->n_chunks; i++)
        if (!arena->chunks[i])
            return i;
    return -1;
}
