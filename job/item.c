/* SPDX-License-Identifier: MIT */
/* An item's life: it is taken up, goes to the feeder, may fail or be dropped, and is freed after
 * its end call. */
#include <stdlib.h>
#include <string.h>

#include "item.h"

const struct qv_job_kind qv_job_kinds[QV_JOB_KINDS] = {
    [QV_SOURCE_PATH] = { .is_clip = true, .input = QV_INPUT_FRAMES },
    [QV_SOURCE_BYTES] = { .is_clip = true, .input = QV_INPUT_FRAMES },
    [QV_SOURCE_FRAMES] = { .input = QV_INPUT_FRAMES },
    [QV_SOURCE_PATCHES] = { .input = QV_INPUT_PATCHES },
    [QV_SOURCE_PATCHES_BF16] = { .input = QV_INPUT_PATCHES_BF16 },
};

/* ---- clients --------------------------------------------------------------------------------- */

/* The job's own client has no owner to close it. */
static void
leave(struct qv_job_client *client)
{
    if (!--client->users && client->is_closed)
        free(client);
}

/* ---- failures -------------------------------------------------------------------------------- */

void
qv_job_free_frames(qv_job *job, struct qv_job_frames **holder)
{
    struct qv_job_frames *frames = *holder;
    *holder = NULL;
    if (!frames || --frames->users)
        return;
    job->used -= frames->bytes;
    free(frames->at);
    free(frames);
    qv_job_wake(job, QV_JOB_READERS);
}

/* Removes an item's waiting pairs from the feeder: they must not be read any more. */
static void
drop(qv_job *job, struct qv_job_item *item)
{
    qv_feeder_piece piece;
    while (item->feed && qv_feeder_drop(job->feeder, item->feed, &piece)) {
        struct qv_job_frames *frames = piece.user;
        qv_job_free_frames(job, &frames);
        item->holders--;
    }
    item->feed = NULL;
}

void
qv_job_fail_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err)
{
    if (item->status)
        return;
    item->status = status;
    item->error = *err;
    drop(job, item);
    qv_job_wake(job, QV_JOB_READERS); /* its reader can stop */
}

/* ---- items ----------------------------------------------------------------------------------- */

void
qv_job_free_item(qv_job *job, struct qv_job_item *item)
{
    drop(job, item);
    free((void *)(uintptr_t)item->source.key);
    free((void *)(uintptr_t)item->source.path);
    free(item->timestamps_s);
    if (item->client)
        leave(item->client);
    free(item);
}

void
qv_job_unlink_item(qv_job *job, struct qv_job_item *item)
{
    *item->link = item->next;
    if (item->next)
        item->next->link = item->link;
    job->n_items--;
}

enum qv_job_state
qv_job_let_go(qv_job *job, struct qv_job_item *item)
{
    if (--item->holders)
        return item->state;
    if (item->state == QV_JOB_READ && item->status)
        item->state = QV_JOB_FAILED;
    if (item->state != QV_JOB_TOLD)
        return item->state;
    job->progress.done++;
    job->progress.failed += item->status != QV_OK;
    if (item->outcome.source_frames && !item->outcome.is_image) {
        job->progress.source_frames += item->outcome.source_frames;
        job->progress.decoded_frames += item->outcome.decoded_frames;
        job->progress.gpu_clips += item->outcome.decoded_by == QV_DECODE_GPU;
    }
    qv_job_unlink_item(job, item);
    qv_job_free_item(job, item);
    if (!job->n_items)
        qv_job_wake(job, QV_JOB_ENDERS);
    return QV_JOB_DONE;
}

void
qv_job_take_up(qv_job *job, struct qv_job_item *item)
{
    struct qv_job_item **link = &job->waiting;
    while (*link != item)
        link = &(*link)->next_waiting;
    *link = item->next_waiting;
    if (!*link)
        job->last_waiting = link;
    job->n_waiting--;
    item->client->waiting--;
    qv_job_count(item->client, 0, item->held);
    qv_job_wake(job, QV_JOB_ADDERS);
}

void
qv_job_tell_failure(qv_job *job, struct qv_job_item *item)
{
    item->holders++;
    job->n_failures++;
    qv_job_tell(job, &item->end);
}

void
qv_job_lose_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err)
{
    item->holders++; /* the waiting pairs may hold it alone, and are removed */
    qv_job_fail_item(job, item, status, err);
    if (item->state == QV_JOB_WAITING) {
        qv_job_take_up(job, item);
        item->state = QV_JOB_READ;
    }
    if (qv_job_let_go(job, item) == QV_JOB_FAILED) /* else its holders release it soon */
        qv_job_tell_failure(job, item);
}

static void
drop_item(qv_job *job, struct qv_job_item *item)
{
    qv_error why;
    const qv_status status = qv_fail(&why, QV_ESTATE, "%s: it was dropped", item->source.key);
    item->is_dropped = true;
    qv_job_lose_item(job, item, status, &why);
}

/* Drops a client's sources with this ticket; 0: all of them. */
static size_t
drop_items(qv_job *job, const struct qv_job_client *client, uint64_t ticket)
{
    size_t n = 0;
    for (struct qv_job_item *item = job->items, *next; item; item = next) {
        next = item->next;
        const bool is_meant = item->client == client && (!ticket || item->source.ticket == ticket);
        if (!is_meant || item->status || item->is_ending)
            continue;
        drop_item(job, item);
        n++;
    }
    return n;
}

size_t
qv_job_drop(qv_job *job, const qv_job_client *client, uint64_t ticket)
{
    QV_NEED_OR(0, job);
    if (!ticket)
        return 0;
    pthread_mutex_lock(&job->lock);
    const size_t n = drop_items(job, client ? client : &job->own, ticket);
    pthread_mutex_unlock(&job->lock);
    return n;
}

static void
close_client(qv_job_client *client, bool is_last)
{
    qv_job *job = client->job;
    pthread_mutex_lock(&job->lock);
    client->is_closed = true;
    drop_items(job, client, 0);
    qv_job_wake(job, QV_JOB_ADDERS);
    if (is_last)
        leave(client);
    pthread_mutex_unlock(&job->lock);
}

void
qv_job_client_cancel(qv_job_client *client)
{
    QV_NEED_OR(, client);
    close_client(client, false);
}

void
qv_job_client_close(qv_job_client **client)
{
    if (client && *client)
        close_client(*client, true);
    if (client)
        *client = NULL;
}

qv_status
qv_job_feed(qv_job *job, struct qv_job_item *item, qv_error *err)
{
    const char *name = item->task.path ? item->task.path : item->source.key;
    const int64_t *g = item->whole.grid_thw, merge = job->model.merge_size;
    const bool is_taken_up = item->state == QV_JOB_READING;
    pthread_mutex_lock(&job->lock);
    const qv_status status = qv_feeder_add(job->feeder, qv_job_kind_of(item)->input, &item->whole,
                                           name, item, &item->feed, err);
    if (!status) {
        item->step = item->feed->step;
        item->n_tokens = g[0] * g[1] * g[2] / (merge * merge);
        const int64_t bytes = item->n_tokens * job->token_bytes;
        item->held += bytes;
        if (is_taken_up)
            qv_job_count(item->client, bytes, bytes);
    }
    pthread_mutex_unlock(&job->lock);
    return status;
}
