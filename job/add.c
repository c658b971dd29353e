/* SPDX-License-Identifier: MIT */
/* Adds a source to a job: checks it, turns it into an item, and waits until there is room. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "item.h"

#define MOST_BYTES ((int64_t)1 << 42) /* of a source, so that sums of them do not overflow */

/* ---- an item --------------------------------------------------------------------------------- */

static qv_status
check_source(const qv_job_source *s, qv_error *err)
{
    if (!s->key && (s->kind != QV_SOURCE_PATH || !s->path))
        return qv_fail(err, QV_EINVAL, "add source: the source has no key");
    const char *name = s->key ? s->key : s->path;
    if (s->status)
        return qv_ends_all(s->status)
                   ? qv_fail(err, QV_EINVAL, "%s: status is %s; it must be a failure of one source",
                             name, qv_status_name(s->status))
                   : QV_OK;
    if (s->kind == QV_SOURCE_PATH && !s->path)
        return qv_fail(err, QV_EINVAL, "%s: path is NULL", name);
    if (s->kind == QV_SOURCE_BYTES && !s->bytes)
        return qv_fail(err, QV_EINVAL, "%s: bytes is NULL", name);
    if (s->kind == QV_SOURCE_BYTES && (!s->n_bytes || s->n_bytes > MOST_BYTES))
        return qv_fail(err, QV_EINVAL, "%s: n_bytes is %zu; it must be from 1 to %lld", name,
                       s->n_bytes, (long long)MOST_BYTES);
    if (!(s->sampled_fps >= 0 && s->sampled_fps <= DBL_MAX))
        return qv_fail(err, QV_EINVAL, "%s: sampled_fps is %g; it must be 0 or more", name,
                       s->sampled_fps);
    return (unsigned)s->kind < QV_JOB_KINDS
               ? QV_OK
               : qv_fail(err, QV_EINVAL, "%s: kind is %d, not a qv_source_kind", name,
                         (int)s->kind);
}

/* Returns whether an item's reader should continue. */
static bool
goes_on(void *user)
{
    const struct qv_job_item *item = user;
    qv_job *job = item->client->job;
    pthread_mutex_lock(&job->lock);
    const bool goes_on = !qv_job_is_over(job, item);
    pthread_mutex_unlock(&job->lock);
    return goes_on;
}

/* Makes the clip's task from its options; if they are invalid, the clip fails in its turn. The
 * first clip that needs the job's own decoder starts it. */
static qv_status
set_task(qv_job *job, struct qv_job_item *item, qv_error *err)
{
    const struct qv_job_source *s = &item->source;
    qv_clip_options o = s->clip ? *s->clip : job->o.clip;
    o.go_on = goes_on;
    o.user = item;
    if (s->kind == QV_SOURCE_BYTES) {
        o.bytes = s->bytes;
        o.n_bytes = s->n_bytes;
    }
    qv_status status = QV_OK;
    pthread_mutex_lock(&job->lock);
    if (!o.decoder && !job->decoder) {
        status = qv_decoder_start(NULL, &job->own_decoder, err);
        job->decoder = job->own_decoder;
    }
    o.decoder = o.decoder ? o.decoder : job->decoder;
    const bool is_first = !status && !job->had_clip;
    job->had_clip = job->had_clip || is_first;
    pthread_mutex_unlock(&job->lock);
    if (is_first)
        qv_job_find_gpus(job, o.decoder);
    item->source.clip = NULL;
    item->decode = o.decode;
    item->status = qvm_task_make(s->path ? s->path : s->key, &job->model.image, &job->model.video,
                                 &o, &item->task, &item->error);
    if (item->status)
        item->source.kind = QV_SOURCE_FRAMES; /* nothing is read of it */
    return status;
}

/* Returns how many frames a source of frames or patches has, which its caller may leave out. */
static int64_t
frames_of(const qv_job *job, const qv_job_source *s)
{
    const qv_item *item = &s->item;
    return item->n_frames   ? item->n_frames
           : item->is_image ? 1
                            : item->grid_thw[0] * job->model.temporal_patch_size;
}

/* Returns how many bytes of the caller's memory a source uses. */
static int64_t
bytes_of(const qv_job *job, const qv_job_source *s)
{
    const qv_item *item = &s->item; /* only of frames and patches */
    if (qv_job_kinds[s->kind].is_clip)
        return s->kind == QV_SOURCE_BYTES ? (int64_t)s->n_bytes : 0;
    const int64_t *g = item->grid_thw, depth = job->model.temporal_patch_size;
    const int64_t pair = g[1] * g[2] * job->model.row_dim;
    if (s->kind == QV_SOURCE_FRAMES)
        return frames_of(job, s) * (pair / depth);
    return g[0] * pair * (s->kind == QV_SOURCE_PATCHES ? 4 : 2);
}

static qv_status
make_item(qv_job *job, const qv_job_source *s, struct qv_job_item **out, qv_error *err)
{
    const char *name = s->key ? s->key : s->path;
    struct qv_job_item *item = calloc(1, sizeof *item);
    if (!item)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a source", name);
    item->source = *s;
    item->client = s->client ? s->client : &job->own;
    item->held = QV_JOB_TEXTS;
    item->end.item = item;
    const char *path = s->status ? NULL : s->path;
    item->source.key = strdup(name);
    item->source.path = path ? strdup(path) : NULL;
    qv_status status = QV_OK;
    if (!item->source.key || (path && !item->source.path))
        status = qv_fail(err, QV_ENOMEM, "%s: no memory for a source", name);
    else if (s->status) { /* like a clip without frames, it is reported in its turn */
        item->source.kind = QV_SOURCE_FRAMES;
        item->status = qv_fail(&item->error, s->status, "%s", s->error ? s->error : "");
    } else if (qv_job_kinds[s->kind].is_clip)
        status = set_task(job, item, err);
    else {
        item->whole = s->item;
        status = s->item.data ? qv_job_feed(job, item, err)
                              : qv_fail(err, QV_EINVAL, "%s: data is NULL", name);
        if (!status) {
            qv_outcome *known = &item->outcome;
            known->is_image = s->item.is_image;
            known->n_frames = frames_of(job, s);
            known->sampled_fps = s->sampled_fps;
            if (s->sampled_fps > 0)
                known->second_per_grid_ts = (double)job->model.temporal_patch_size / s->sampled_fps;
            memcpy(known->grid_thw, s->item.grid_thw, sizeof known->grid_thw);
        }
    }
    item->lent = status || s->status ? 0 : bytes_of(job, s);
    pthread_mutex_lock(&job->lock);
    item->client->users++;
    if (status)
        qv_job_free_item(job, item);
    else
        *out = item;
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* ---- waiting for room ------------------------------------------------------------------------ */

/* Returns QV_OK if there is room. A source above the bound waits until nothing else is ahead. */
static qv_status
find_place(const struct qv_job_item *item, qv_error *why)
{
    const struct qv_job_client *c = item->client;
    const char *name = item->source.key;
    const int64_t bytes = item->lent + item->held;
    if (c->waiting == c->queue)
        return qv_fail(why, QV_EFULL, "%s: the queue is full: %zu sources are waiting", name,
                       c->waiting);
    if (c->most_ahead && c->ahead && c->ahead + bytes > c->most_ahead)
        return qv_fail(
            why, QV_EFULL,
            "%s: needs %lld bytes; sources and results not given back use %lld of %lld (ahead)",
            name, (long long)bytes, (long long)c->ahead, (long long)c->most_ahead);
    return QV_OK;
}

/* Waits under the lock for room for a source. Returns the failure if there never will be any. */
static qv_status
wait_for_place(qv_job *job, const struct qv_job_item *item, qv_error *err)
{
    const char *name = item->source.key;
    const struct qv_job_client *client = item->client;
    qv_error why;
    while (!job->stopping && !job->ended && !client->is_closed && find_place(item, &why)) {
        if (client->refuse_when_full)
            return qv_fail(err, why.status, "%s", why.text);
        qv_job_wait_asking(job, QV_JOB_ADDERS);
    }
    if (job->status)
        return qv_fail(err, job->status, "%s", job->error.text);
    return job->ended || job->stopping || client->is_closed
               ? qv_fail(err, QV_ESTATE, "%s: the job has ended; no more sources can be added",
                         name)
               : QV_OK;
}

qv_status
qv_job_add(qv_job *job, const qv_job_source *source, qv_error *err)
{
    QV_NEED(err, job, source);
    struct qv_job_item *item = NULL;
    qv_status status = check_source(source, err);
    if (!status)
        status = make_item(job, source, &item, err);
    if (status)
        return status;
    pthread_mutex_lock(&job->lock);
    status = wait_for_place(job, item, err);
    if (!status) {
        item->next = job->items;
        item->link = &job->items;
        if (job->items)
            job->items->link = &item->next;
        job->items = item;
        job->n_items++;
        qv_job_count(item->client, item->lent + item->held, 0);
        job->progress.added++;
        *job->last_waiting = item;
        job->last_waiting = &item->next_waiting;
        job->n_waiting++;
        item->client->waiting++;
        qv_job_wake(job, QV_JOB_READERS);
    }
    if (status)
        qv_job_free_item(job, item);
    pthread_mutex_unlock(&job->lock);
    return status;
}

void
qv_job_give_back(qv_job *job, qv_job_client *client, int64_t bytes)
{
    QV_NEED_OR(, job);
    if (bytes <= 0)
        return;
    pthread_mutex_lock(&job->lock);
    qv_job_count(client ? client : &job->own, -bytes, -bytes);
    pthread_mutex_unlock(&job->lock);
}
