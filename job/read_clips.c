/* SPDX-License-Identifier: MIT */
/* The readers' threads. Each takes up a source and reads its frames piece by piece. The memory for
 * all readers' frames together is limited. */
#include <stdlib.h>
#include <string.h>

#include "clips/decoders.h"
#include "item.h"
#include "more.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* Waits for a change while there is no room for an item's next frames. */
static void
wait_for_room(qv_job *job, struct qv_job_item *item)
{
    item->room.since_s = qv_seconds();
    qv_job_wait(job, QV_JOB_READERS);
    qv_job_clock_stop(&item->room, qv_seconds());
}

/* Waits for memory. Readers get it in the order of their requests, so that small pieces do not keep
 * a large one waiting. A piece above the limit gets it once no other piece has any. */
static void
wait_for_memory(qv_job *job, struct qv_job_item *item, size_t bytes)
{
    const size_t most = (size_t)job->o.memory;
    struct qv_job_item **link = &job->wants_memory;
    while (*link)
        link = &(*link)->next_wants_memory;
    *link = item;
    /* no piece may come for a while, so devices fill chunks with what they have */
    qv_job_wake(job, QV_JOB_DEVICES);
    while (!qv_job_is_over(job, item) &&
           (job->wants_memory != item || (job->used && job->used + bytes > most)))
        wait_for_room(job, item);
    for (link = &job->wants_memory; *link != item;)
        link = &(*link)->next_wants_memory;
    *link = item->next_wants_memory;
    item->next_wants_memory = NULL;
    qv_job_wake(job, QV_JOB_READERS);
}

/* Waits until an item's next frame pairs may be put. Returns false if the job or the item is over.
 * For a clip, `frames` then own the bytes counted for them. */
static bool
take_room(qv_job *job, struct qv_job_item *item, struct qv_job_frames *frames, size_t bytes)
{
    pthread_mutex_lock(&job->lock);
    while (!qv_job_is_over(job, item) && item->feed->full)
        wait_for_room(job, item);
    if (frames && !qv_job_is_over(job, item))
        wait_for_memory(job, item, bytes);
    const bool over = qv_job_is_over(job, item);
    if (frames && !over) {
        frames->bytes = bytes;
        job->used += bytes;
    }
    if (job->used > job->progress.most_frame_bytes)
        job->progress.most_frame_bytes = job->used;
    pthread_mutex_unlock(&job->lock);
    return !over;
}

/* ---- putting --------------------------------------------------------------------------------- */

/* Returns whether all of an item is in the feeder. */
static bool
is_all_put(const struct qv_job_item *item)
{
    return item->put && item->put >= item->whole.grid_thw[0];
}

/* Puts the item's next frame pairs into the feeder, as soon as few enough wait for the same chunks.
 * `frames` holds a clip's frames; otherwise it is NULL. */
static qv_status
put(qv_job *job, struct qv_job_item *item, struct qv_job_frames *frames, qv_error *err)
{
    qv_status status = QV_EFULL;
    pthread_mutex_lock(&job->lock);
    while (!qv_job_is_over(job, item) && status == QV_EFULL) {
        status = qv_feeder_put(job->feeder, item->feed, frames ? frames->at : NULL, frames, err);
        if (status == QV_EFULL)
            wait_for_room(job, item);
    }
    if (status) {
        qv_job_free_frames(job, &frames);
    } else {
        item->holders++;
        item->put += item->step;
        job->n_putting -= is_all_put(item);
        qv_job_wake(job, QV_JOB_DEVICES);
    }
    pthread_mutex_unlock(&job->lock);
    return status == QV_EFULL ? QV_OK : status;
}

/* ---- clips and images ---------------------------------------------------------------------- */

/* Finds out whether a device's GPU decodes, and records it. */
static void
find_gpu(qv_job *job, struct qv_job_device *d, qv_decoder *decoder)
{
    char why[sizeof d->not_gpu];
    qv_error err = { 0 };
    const qv_status status = qv_decoder_gpu(decoder, d->gpu, false, &err);
    qv_decoder_has_gpu(decoder, d->gpu, why);
    pthread_mutex_lock(&job->lock);
    d->decodes = !status;
    d->is_opening = status == QV_ESTATE;
    if (!d->decodes && !d->is_opening)
        snprintf(job->progress.no_gpu, sizeof job->progress.no_gpu, "%.199s", err.text);
    memcpy(d->not_gpu, why, sizeof why);
    job->on_gpu = job->looks_for_gpu = false;
    for (int i = 0; i < job->n_devices; i++) {
        job->on_gpu = job->on_gpu || job->devices[i].decodes;
        job->looks_for_gpu = job->looks_for_gpu || job->devices[i].is_opening;
    }
    job->gpus_started = true;
    qv_job_wake(job, QV_JOB_READERS);
    pthread_mutex_unlock(&job->lock);
}

static void
find_gpus(qv_job *job, qv_decoder *decoder)
{
    for (int i = 0; i < job->n_devices; i++)
        find_gpu(job, &job->devices[i], decoder);
}

/* Requested GPUs are all started at once, because each takes half a second. */
void
qv_job_find_gpus(qv_job *job, qv_decoder *decoder)
{
    const bool asked = job->o.clip.decode == QV_DECODE_GPU;
    for (int i = 0; i < job->n_devices && decoder && asked; i++)
        qv_decoder_gpu(decoder, job->devices[i].gpu, false, NULL);
    pthread_mutex_lock(&job->lock);
    const bool looks = job->looks_for_gpu;
    pthread_mutex_unlock(&job->lock);
    if (looks && decoder && qv_decoder_has_gpu(decoder, job->devices[0].gpu, NULL))
        find_gpus(job, decoder);
}

/* With QV_DECODE_AUTO, opens GPUs if that is worth it. */
static void
look_for_gpus(qv_job *job, const struct qv_job_item *item)
{
    pthread_mutex_lock(&job->lock);
    const bool ask = job->looks_for_gpu &&
                     (job->gpus_started ||
                      qv_job_wants_gpus(job->lanes.gpu, item->outcome.codec, job->n_waiting));
    pthread_mutex_unlock(&job->lock);
    if (ask)
        find_gpus(job, item->task.decoder);
}

/* Returns the device whose GPU decodes for this reader. */
static const struct qv_job_device *
device_of(const struct qv_job_worker *w)
{
    return &w->job->devices[w->lane % w->job->n_devices];
}

/* Sets who decodes the clip, and with how many threads. */
static void
choose_decoder(const struct qv_job_worker *w, struct qv_job_item *item, bool was_lost)
{
    qv_job *job = w->job;
    const struct qv_job_device *d = device_of(w);
    struct qvm_task *task = &item->task;
    pthread_mutex_lock(&job->lock);
    const bool holds[QV_JOB_CASES] = {
        [QV_JOB_CLIP_ASKS] = !job->lanes.gpu || item->decode != job->o.clip.decode,
        [QV_JOB_GPU_LOST] = was_lost,
        [QV_JOB_CORE_IS_FREE] = job->on_gpu && w->lane >= job->lanes.gpu,
        [QV_JOB_GPU_NEVER] = *d->not_gpu,
        [QV_JOB_GPU_NOT_YET] = !d->decodes,
    };
    const struct qv_job_choice choice = qv_job_who_decodes(item->decode, holds);
    const bool is_own =
        holds[QV_JOB_CLIP_ASKS] || (item->decode == QV_DECODE_GPU && job->n_devices == 1);
    qvm_task_decode(task, choice.decode, is_own ? task->gpu : d->gpu);
    if (!task->asked.threads)
        task->asked.threads =
            qv_job_threads_of(job->cores, job->n_waiting + (size_t)job->n_reading);
    snprintf(item->outcome.not_gpu, sizeof item->outcome.not_gpu, "%s",
             choice.reason ? choice.reason : d->not_gpu);
    pthread_mutex_unlock(&job->lock);
}

/* Records what is known about the item's clip by now. If decoding reports no reason why no GPU is
 * used, the job's reason stays. */
static void
take_outcome(qv_job *job, struct qv_job_item *item)
{
    qv_outcome now;
    qv_clip_get_info(item->clip, &now);
    pthread_mutex_lock(&job->lock);
    if (!*now.not_gpu)
        memcpy(now.not_gpu, item->outcome.not_gpu, sizeof now.not_gpu);
    item->outcome = now;
    pthread_mutex_unlock(&job->lock);
}

static qv_status
open_clip(const struct qv_job_worker *w, struct qv_job_item *item, qv_error *err)
{
    qv_job *job = w->job;
    choose_decoder(w, item, false);
    qv_status status = qvm_clip_open(&item->task, &item->clip, err);
    if (status == QV_EBACKEND && item->task.gpu >= 0) {
        find_gpus(job, item->task.decoder);
        choose_decoder(w, item, true);
        if (item->task.gpu < 0)
            status = qvm_clip_open(&item->task, &item->clip, err);
    }
    if (status)
        return status;
    take_outcome(job, item);
    const qv_outcome *found = &item->outcome;
    look_for_gpus(job, item);
    item->whole = (qv_item){ .n_frames = found->n_frames, .is_image = found->is_image };
    memcpy(item->whole.grid_thw, found->grid_thw, sizeof item->whole.grid_thw);
    item->timestamps_s = calloc((size_t)found->n_frames, sizeof *item->timestamps_s);
    if (!item->timestamps_s)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %lld timestamps", item->task.path,
                       (long long)found->n_frames);
    return qv_job_feed(job, item, err);
}

/* Reads n frames from number `first` on. */
static qv_status
read_frames(struct qv_job_item *item, uint8_t *to, int64_t first, int64_t n, qv_error *err)
{
    const size_t frame = (size_t)item->outcome.width * (size_t)item->outcome.height * 3;
    for (int64_t got, at = 0; at < n; at += got) {
        const qv_status status = qv_clip_read(item->clip, to + (size_t)at * frame, 1, &got,
                                              item->timestamps_s + first + at, err);
        if (status)
            return status;
        if (!got)
            return qv_fail(err, QV_EFORMAT, "%s: ended before its last sampled frame",
                           item->task.path);
    }
    return QV_OK;
}

/* Waits for room for n frames, and reads them into `frames`. */
static qv_status
fill_frames(qv_job *job, struct qv_job_item *item, struct qv_job_frames *frames, int64_t first,
            int64_t n, qv_error *err)
{
    const size_t bytes = (size_t)n * (size_t)item->outcome.width * (size_t)item->outcome.height * 3;
    if (!take_room(job, item, frames, bytes))
        return qv_fail(err, QV_ESTATE, "%s: cancelled", item->task.path);
    const double began_s = qv_seconds();
    frames->at = malloc(bytes);
    const qv_status status = frames->at ? read_frames(item, frames->at, first, n, err)
                                        : qv_fail(err, QV_ENOMEM, "%s: no memory for %lld frames",
                                                  item->task.path, (long long)n);
    take_outcome(job, item);
    pthread_mutex_lock(&job->lock);
    item->wait_decode_s += qv_seconds() - began_s;
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* Reads the clip's next frame pairs from `pair` on, and puts them. */
static qv_status
read_pairs(qv_job *job, struct qv_job_item *item, int64_t pair, qv_error *err)
{
    const int64_t one = item->outcome.is_image ? 1 : job->model.temporal_patch_size;
    const int64_t first = item->outcome.is_image ? 0 : pair * one;
    const int64_t most = item->outcome.is_image ? 1 : item->step * one,
                  left = item->outcome.n_frames - first;
    struct qv_job_frames *frames = malloc(sizeof *frames);
    if (!frames)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for frames", item->task.path);
    *frames = (struct qv_job_frames){ .users = 1 };
    const qv_status status = fill_frames(job, item, frames, first, left < most ? left : most, err);
    if (!status)
        return put(job, item, frames, err);
    pthread_mutex_lock(&job->lock);
    qv_job_free_frames(job, &frames);
    pthread_mutex_unlock(&job->lock);
    return status;
}

/* Reads a clip a few frame pairs at a time, so that little of it is in memory. If it is over
 * (QV_ESTATE), whoever ended it reports it. */
static qv_status
read_clip(const struct qv_job_worker *w, struct qv_job_item *item, qv_error *err)
{
    qv_status status = open_clip(w, item, err);
    for (int64_t pair = 0; !status && pair < item->whole.grid_thw[0]; pair += item->step)
        status = read_pairs(w->job, item, pair, err);
    return status == QV_ESTATE ? QV_OK : status;
}

/* ---- frames and patches ---------------------------------------------------------------------- */

static qv_status
put_item(qv_job *job, struct qv_job_item *item, qv_error *err)
{
    const int64_t pairs = item->whole.grid_thw[0];
    qv_status status = QV_OK;
    for (int64_t at = 0; at < pairs && !status && take_room(job, item, NULL, 0); at += item->step)
        status = put(job, item, NULL, err);
    return status;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool
may_read(const struct qv_job_worker *w)
{
    const qv_job *job = w->job;
    return qv_job_next_waiting(job) &&
           qv_job_lane_may_read(&job->lanes, w->lane, job->on_gpu, job->n_reading);
}

static struct qv_job_item *
take_source(struct qv_job_worker *w)
{
    qv_job *job = w->job;
    pthread_mutex_lock(&job->lock);
    while (!job->stopping && !may_read(w))
        qv_job_wait(job, QV_JOB_READERS);
    struct qv_job_item *item = NULL;
    if (!job->stopping) {
        item = qv_job_next_waiting(job);
        qv_job_take_up(job, item);
        item->began_s = qv_seconds();
        item->state = QV_JOB_READING;
        item->holders++;
        w->item = item;
        job->n_reading++;
        job->n_putting++;
        if (job->on_gpu) /* once all of the GPU's readers are busy, the CPU's may take sources */
            qv_job_wake(job, QV_JOB_READERS);
    }
    pthread_mutex_unlock(&job->lock);
    return item;
}

/* Queues a failure for the sink; at most one per reader waits. */
static void
report_failure(qv_job *job, struct qv_job_item *item)
{
    while (!job->stopping && job->n_failures >= job->lanes.n)
        qv_job_wait(job, QV_JOB_READERS);
    if (!job->stopping)
        qv_job_tell_failure(job, item);
}

static void
finish_reading(struct qv_job_worker *w, struct qv_job_item *item, qv_status status,
               const qv_error *err)
{
    qv_job *job = w->job;
    qv_clip_close(&item->clip);
    pthread_mutex_lock(&job->lock);
    job->progress.decode_s += qv_seconds() - item->began_s - item->room.sum_s;
    job->progress.room_s += item->room.sum_s;
    job->n_reading--;
    job->n_putting -= !is_all_put(item);
    w->item = NULL;
    if (item->state == QV_JOB_READING) /* the sink may have received the last piece */
        item->state = QV_JOB_READ;
    if (status)
        qv_job_fail_item(job, item, status, err);
    if (qv_job_let_go(job, item) == QV_JOB_FAILED)
        report_failure(job, item);
    qv_job_wake(job, QV_JOB_DEVICES); /* perhaps no more pieces are in progress */
    pthread_mutex_unlock(&job->lock);
}

void *
qv_job_read(void *worker)
{
    struct qv_job_worker *w = worker;
    qv_job *job = w->job;
    for (struct qv_job_item *item; (item = take_source(w)) != NULL;) {
        const bool is_clip = qv_job_kind_of(item)->is_clip;
        qv_error err = { 0 };
        qv_status status = is_clip ? read_clip(w, item, &err) : put_item(job, item, &err);
        finish_reading(w, item, status, &err);
    }
    return NULL;
}
