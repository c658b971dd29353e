/* SPDX-License-Identifier: MIT */
/* Remembers prepared kernels by their operation's value, so that the thousandth clip shape costs
 * little. */
#include <stdlib.h>

#include "error.h"
#include "context.h"
#include "grow.h"

/* How many entries that no plan uses are kept at most. One shape of a tower needs about a dozen. */
enum { MOST_IDLE = 512 };

static void
drop(qv_context *ctx, struct qv_kernel_entry *e)
{
    ctx->backend->release(ctx->dev, e->kernel);
    e->kernel = NULL;
}

/* Returns a slot for one more entry: a dropped entry's slot, the slot of the least recently used
 * idle entry if many are idle, or a new one. NULL if out of memory. */
static struct qv_kernel_entry *
place(qv_context *ctx)
{
    struct qv_kernel_cache *cache = &ctx->kernels;
    struct qv_kernel_entry *oldest = NULL;
    size_t idle = 0;
    for (size_t i = 0; i < cache->n; i++) {
        struct qv_kernel_entry *e = &cache->entries[i];
        if (!e->kernel)
            return e;
        if (e->users)
            continue;
        idle++;
        if (!oldest || e->used_at < oldest->used_at)
            oldest = e;
    }
    if (idle >= MOST_IDLE) {
        drop(ctx, oldest);
        return oldest;
    }
    struct qv_kernel_entry *grown =
        qv_grown(cache->entries, cache->n, &cache->capacity, sizeof *grown);
    if (!grown)
        return NULL;
    cache->entries = grown;
    return &grown[cache->n++];
}

qv_status
qv_kernel_get(qv_context *ctx, const struct qv_op *op, size_t *index, qv_error *err)
{
    struct qv_kernel_cache *cache = &ctx->kernels;
    struct qv_kernel_entry *e = NULL;
    for (size_t i = 0; i < cache->n && !e; i++)
        if (cache->entries[i].kernel && qv_op_equal(&cache->entries[i].op, op))
            e = &cache->entries[i];
    if (!e) {
        struct qv_kernel *kernel = NULL;
        size_t scratch_bytes = 0;
        qv_status status = qv_op_check(op, err);
        if (!status)
            status = ctx->backend->prepare(ctx->dev, op, 0, &kernel, &scratch_bytes, err);
        if (status)
            return status;
        e = place(ctx);
        if (!e) {
            ctx->backend->release(ctx->dev, kernel);
            return qv_fail(err, QV_ENOMEM, "no memory to remember a kernel");
        }
        *e =
            (struct qv_kernel_entry){ .op = *op, .kernel = kernel, .scratch_bytes = scratch_bytes };
    }
    e->users++;
    e->used_at = ++cache->clock;
    *index = (size_t)(e - cache->entries);
    return QV_OK;
}

void
qv_kernel_put(qv_context *ctx, size_t index)
{
    ctx->kernels.entries[index].users--;
}

void
qv_kernels_free(qv_context *ctx)
{
    struct qv_kernel_cache *cache = &ctx->kernels;
    for (size_t i = 0; i < cache->n; i++)
        if (cache->entries[i].kernel)
            drop(ctx, &cache->entries[i]);
    free(cache->entries);
    *cache = (struct qv_kernel_cache){ 0 };
}
