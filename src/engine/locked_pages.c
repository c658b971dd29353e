/* SPDX-License-Identifier: MIT */
/* Page-locked host memory that is kept for the next use. */
#include "context.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct qv_locked_block {
    size_t bytes; /* of what follows */
    alignas(max_align_t) char of_the_caller[];
};

void
qv_locked_pages_open(struct qv_locked_pages *pages)
{
    *pages = (struct qv_locked_pages){ .n_idle = 0 };
    pthread_mutex_init(&pages->lock, NULL);
}

static struct qv_locked_block *
take_idle(struct qv_locked_pages *pages, int i)
{
    struct qv_locked_block *block = pages->idle[i];
    pages->idle[i] = pages->idle[--pages->n_idle];
    pages->idle_bytes -= block->bytes;
    return block;
}

/* Returns the smallest idle block with at least this many bytes; -1: there is none. */
static int
find_idle(const struct qv_locked_pages *pages, size_t bytes)
{
    int best = -1;
    for (int i = 0; i < pages->n_idle; i++)
        if (pages->idle[i]->bytes >= bytes &&
            (best < 0 || pages->idle[i]->bytes < pages->idle[best]->bytes))
            best = i;
    return best;
}

static bool
is_full(const struct qv_locked_pages *pages, size_t bytes)
{
    return pages->n_idle == QV_IDLE_BLOCKS || bytes > QV_IDLE_BYTES ||
           pages->idle_bytes > QV_IDLE_BYTES - bytes;
}

/* Returns whether there were any. */
static bool
drop_idle(struct qv_locked_pages *pages, struct qv_device *dev)
{
    pthread_mutex_lock(&pages->lock);
    const bool any = pages->n_idle > 0;
    while (pages->n_idle)
        dev->backend->unlock_pages(dev, take_idle(pages, 0));
    pthread_mutex_unlock(&pages->lock);
    return any;
}

void
qv_locked_pages_close(struct qv_locked_pages *pages, struct qv_device *dev)
{
    drop_idle(pages, dev);
    pthread_mutex_destroy(&pages->lock);
}

qv_status
qv_locked_pages_take(struct qv_locked_pages *pages, struct qv_device *dev, size_t bytes, void **out,
                     qv_error *err)
{
    const size_t before = offsetof(struct qv_locked_block, of_the_caller);
    void *block = NULL;
    qv_status status = QV_OK;
    if (bytes > SIZE_MAX - before)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes on the host", bytes);
    pthread_mutex_lock(&pages->lock);
    const int found = find_idle(pages, bytes);
    if (found >= 0)
        block = take_idle(pages, found);
    pthread_mutex_unlock(&pages->lock);
    if (!block)
        status = dev->backend->lock_pages(dev, before + bytes, &block, err);
    if (status && drop_idle(pages, dev))
        status = dev->backend->lock_pages(dev, before + bytes, &block, err);
    if (status)
        return status;
    if (found < 0)
        ((struct qv_locked_block *)block)->bytes = bytes;
    *out = ((struct qv_locked_block *)block)->of_the_caller;
    return QV_OK;
}

void
qv_locked_pages_give(struct qv_locked_pages *pages, struct qv_device *dev, void *p)
{
    struct qv_locked_block *block =
        (void *)((char *)p - offsetof(struct qv_locked_block, of_the_caller));
    const size_t bytes = block->bytes;
    pthread_mutex_lock(&pages->lock);
    for (int least; is_full(pages, bytes) && (least = find_idle(pages, 0)) >= 0 &&
                    pages->idle[least]->bytes < bytes;)
        dev->backend->unlock_pages(dev, take_idle(pages, least));
    const bool kept = !is_full(pages, bytes);
    if (kept) {
        pages->idle[pages->n_idle++] = block;
        pages->idle_bytes += bytes;
    }
    pthread_mutex_unlock(&pages->lock);
    if (!kept)
        dev->backend->unlock_pages(dev, block);
}
