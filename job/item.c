/* SPDX-License-Identifier: MIT */
/* Follows an item: it is added, goes to the feeder, may fail, and is freed after its end call. */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "clips/decoders.h"

#define MOST_BYTES ((int64_t)1 << 42) /* of a source, so that sums of them do not overflow */

const struct qv_job_kind qv_job_kinds[QV_JOB_KINDS] = {
    [QV_SOURCE_PATH] = { .is_clip = true, .input = QV_INPUT_FRAMES },
    [QV_SOURCE_BYTES] = { .is_clip = true, .input = QV_INPUT_FRAMES },
    [QV_SOURCE_FRAMES] = { .input = QV_INPUT_FRAMES },
    [QV_SOURCE_PATCHES] = { .input = QV_INPUT_PATCHES },
    [QV_SOURCE_PATCHES_BF16] = { .input = QV_INPUT_PATCHES_BF16 },
};

/* ---- clients --------------------------------------------------------------------------------- */

void
qv_job_count(struct qv_job_client *client, int64_t ahead, int64_t results)
{
    if (!client->most_ahead)
        return;
    client->ahead += ahead;
    client->results += results;
    if (ahead >= 0)
        return;
    qv_job_wake(client->job, QV_JOB_ADDERS);
    qv_job_wake(client->job, QV_JOB_READERS);
}

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

/* Takes an item's waiting pairs out of the feeder: they must not be read any more. */
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
    qv_job_wake(job, QV_JOB_READERS); /* its reader need not go on */
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
qv_job_lose_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err)
{
    item->holders++; /* its waiting pairs may be all that holds it */
    qv_job_fail_item(job, item, status, err);
    if (item->state == QV_JOB_WAITING) {
        qv_job_take_up(job, item);
        item->state = QV_JOB_READ;
    }
    if (qv_job_let_go(job, item) != QV_JOB_FAILED)
        return; /* its holders release it soon */
    item->holders++;
    item->next_dropped = job->dropped;
    job->dropped = item;
    qv_job_wake(job, QV_JOB_SINKS);
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

/* An item whose data come with each put is a clip; the feeder's errors name only its grid. */
qv_status
qv_job_feed(qv_job *job, struct qv_job_item *item, const char *name, qv_error *err)
{
    const bool is_clip = qv_job_kind_of(item)->is_clip;
    const int64_t *g = item->whole.grid_thw, merge = job->model.merge_size;
    const bool is_taken_up = item->state == QV_JOB_READING;
    qv_error inner;
    pthread_mutex_lock(&job->lock);
    const qv_status status = qv_feeder_add(job->feeder, qv_job_kind_of(item)->input, &item->whole,
                                           is_clip ? "an item" : name, item, &item->feed, &inner);
    if (!status) {
        item->step = item->feed->step;
        item->n_tokens = g[0] * g[1] * g[2] / (merge * merge);
        const int64_t bytes = qv_job_token_bytes(job, item->n_tokens);
        item->held += bytes;
        if (is_taken_up)
            qv_job_count(item->client, bytes, bytes);
    }
    pthread_mutex_unlock(&job->lock);
    if (status)
        return is_clip ? qv_fail(err, status, "%s: %s", name, inner.text)
                       : qv_fail(err, status, "%s", inner.text);
    return QV_OK;
}

/* ---- adding ---------------------------------------------------------------------------------- */

static qv_status
check_source(const qv_job_source *s, qv_error *err)
{
    if (!s->key && (s->kind != QV_SOURCE_PATH || !s->path))
        return qv_fail(err, QV_EINVAL, "add source: it has no key");
    const char *name = s->key ? s->key : s->path;
    if (s->status)
        return qv_ends_all(s->status)
                   ? qv_fail(err, QV_EINVAL, "%s: status is %s; must be a failure of one source",
                             name, qv_status_name(s->status))
                   : QV_OK;
    if (s->kind == QV_SOURCE_PATH && !s->path)
        return qv_fail(err, QV_EINVAL, "%s: path is NULL", name);
    if (s->kind == QV_SOURCE_BYTES && !s->bytes)
        return qv_fail(err, QV_EINVAL, "%s: bytes is NULL", name);
    if (s->kind == QV_SOURCE_BYTES && (!s->n_bytes || s->n_bytes > MOST_BYTES))
        return qv_fail(err, QV_EINVAL, "%s: n_bytes is %zu; must be 1 to %lld", name, s->n_bytes,
                       (long long)MOST_BYTES);
    return (unsigned)s->kind < QV_JOB_KINDS
               ? QV_OK
               : qv_fail(err, QV_EINVAL, "%s: kind is %d, not a qv_source_kind", name,
                         (int)s->kind);
}

/* Starts the devices' GPU processes, all at once, as each takes half a second. */
static void
start_gpus(qv_job *job, qv_decoder *decoder)
{
    for (int i = 0; i < job->n_devices && !job->gpus_started; i++)
        qv_decoder_gpu(decoder, job->devices[i].gpu, false, NULL);
    job->gpus_started = true;
}

/* Returns whether an item's reader goes on. */
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

/* Makes the clip's task of its options; if they are wrong, the clip fails in its turn. The job's
 * own decoder starts for the first clip that needs it. */
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
    if (job->o.clip.decode == QV_DECODE_GPU && o.decoder)
        start_gpus(job, o.decoder);
    const bool looks = !job->had_clip && job->looks_for_gpu;
    job->had_clip = true;
    pthread_mutex_unlock(&job->lock);
    if (looks)
        qv_job_find_opened_gpus(job, o.decoder);
    item->source.clip = NULL;
    item->decode = o.decode;
    item->status = qvm_task_make(s->path ? s->path : s->key, &job->model.image, &job->model.video,
                                 &o, &item->task, &item->error);
    if (item->status)
        item->source.kind = QV_SOURCE_FRAMES; /* nothing is read of it */
    return status;
}

/* Returns how many frames a source of frames or patches has, which its caller need not say. */
static int64_t
frames_of(const qv_job *job, const qv_job_source *s)
{
    const qv_item *item = &s->item;
    return item->n_frames   ? item->n_frames
           : item->is_image ? 1
                            : item->grid_thw[0] * job->model.temporal_patch_size;
}

/* Returns how many bytes of the caller's memory a source is. */
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
        status = s->item.data ? qv_job_feed(job, item, name, err)
                              : qv_fail(err, QV_EINVAL, "%s: data is NULL", name);
        if (!status) {
            item->outcome.is_image = s->item.is_image;
            item->outcome.n_frames = frames_of(job, s);
            memcpy(item->outcome.grid_thw, s->item.grid_thw, sizeof s->item.grid_thw);
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

/* Returns QV_OK if there is room. A source above the bound waits until nothing else is ahead. */
static qv_status
find_place(const struct qv_job_item *item, qv_error *why)
{
    const struct qv_job_client *c = item->client;
    const char *name = item->source.key;
    const int64_t bytes = item->lent + item->held;
    if (c->waiting == c->queue)
        return qv_fail(why, QV_EFULL, "%s: %zu sources wait; no more are accepted now", name,
                       c->waiting);
    if (c->most_ahead && c->ahead && c->ahead + bytes > c->most_ahead)
        return qv_fail(why, QV_EFULL,
                       "%s: it takes %lld bytes, and %lld bytes are ahead; %lld together at most",
                       name, (long long)bytes, (long long)c->ahead, (long long)c->most_ahead);
    return QV_OK;
}

/* Waits under the lock for room for a source, or returns why there will be none. */
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
               ? qv_fail(err, QV_ESTATE, "%s: the job was ended; no more sources may be added",
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
