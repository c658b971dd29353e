/* SPDX-License-Identifier: MIT */
/* Opens and ends a job, and checks its options. */
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "dtype.h"
#include "item.h"
#include "numbers.h"

enum { MOST_THREADS = 1024, MOST_MODELS = 64, DEFAULT_QUEUE = 512, MOST_QUEUE = 1 << 20 };
#define DEFAULT_MEMORY ((int64_t)512 << 20)

/* ---- options --------------------------------------------------------------------------------- */

static qv_status
check_options(const qv_job_options *o, qv_error *err)
{
    const struct {
        const char *name;
        int64_t value, most;
    } numbers[] = { { "decoders", o->decoders, MOST_THREADS },
                    { "sinks", o->sinks, MOST_THREADS },
                    { "queue", o->queue, MOST_QUEUE },
                    { "chunk_rows", o->chunk_rows, INT32_MAX }, /* a plan may have a lower limit */
                    { "memory", o->memory, INT64_MAX / 2 },
                    { "ahead", o->ahead, INT64_MAX / 2 } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value < 0 || numbers[i].value > numbers[i].most)
            return qv_fail(err, QV_EINVAL, "%s is %lld; it must be from 0 to %lld", numbers[i].name,
                           (long long)numbers[i].value, (long long)numbers[i].most);
    if (o->output != QV_DTYPE_AUTO && o->output != QV_F32 && o->output != QV_BF16)
        return qv_fail(err, QV_EINVAL, "output is %s; it must be f32 or bf16",
                       qv_dtype_name(o->output));
    return QV_OK;
}

/* By default only GPUs that compute the job's tokens decode, and only in a locked process. */
static void
choose_decoders(qv_job *job, const qv_model *model)
{
    const qv_decode decode = job->o.clip.decode;
    qv_context_info context;
    qv_context_get_info(qv_model_context(model), &context);
    job->on_gpu = decode == QV_DECODE_GPU;
    job->looks_for_gpu = decode == QV_DECODE_AUTO && !strcmp(context.backend, "cuda");
    job->lanes = qv_job_lanes_of(job->o.decoders, job->cores, job->n_devices, decode,
                                 job->on_gpu || job->looks_for_gpu);
}

static struct qv_job_client
client_of(qv_job *job, const qv_job_options *o)
{
    return (struct qv_job_client){ .job = job,
                                   .queue = (size_t)(o->queue ? o->queue : DEFAULT_QUEUE),
                                   .refuse_when_full = o->refuse_when_full,
                                   .most_ahead = o->ahead };
}

static void
set_options(qv_job *job, const qv_job_options *o, size_t n_models)
{
    job->o = *o;
    job->n_devices = n_models <= MOST_MODELS ? (int)n_models : 0; /* check_models refuses more */
    job->cores = qv_usable_cores();
    job->o.output = o->output ? o->output : QV_F32;
    job->o.memory = o->memory ? o->memory : DEFAULT_MEMORY;
    job->decoder = o->clip.decoder;
    job->last_waiting = &job->waiting;
    job->last_told = &job->told;
    job->own = client_of(job, o);
    job->n_sinks = o->sinks ? o->sinks : 1;
}

/* Returns how towers with equal weights differ, for an error that names their weights. */
static const char *
say_difference(const qv_model_info *a, const qv_model_info *b)
{
    return strcmp(a->digest, b->digest) || a->dtype != b->dtype ? ""
           : strcmp(a->config, b->config) ? ", but different numbers in config.json"
                                          : ", but different numbers in its preprocessor files";
}

/* Checks that all models are copies of one tower, so that their tokens are interchangeable. */
static qv_status
check_models(qv_job *job, qv_model *const *models, size_t n, qv_error *err)
{
    if (!n || n > MOST_MODELS)
        return qv_fail(err, QV_EINVAL, "open job: n_models is %zu; it must be from 1 to %d", n,
                       MOST_MODELS);
    if (!models[0])
        return qv_fail(err, QV_EINVAL, "open job: models[0] is NULL");
    qv_model_get_info(models[0], &job->model);
    for (size_t i = 1; i < n; i++) {
        qv_model_info m = { 0 };
        for (size_t j = 0; j < i; j++)
            if (models[j] == models[i])
                return qv_fail(err, QV_EINVAL, "open job: models %zu and %zu are the same object",
                               j, i);
        if (!models[i])
            return qv_fail(err, QV_EINVAL, "open job: models[%zu] is NULL", i);
        qv_model_get_info(models[i], &m);
        if (strcmp(m.identity, job->model.identity) || m.dtype != job->model.dtype)
            return qv_fail(err, QV_EINVAL,
                           "open job: model %zu is %s in %s with weights %s; the first is %s in %s "
                           "with weights %s%s",
                           i, m.model_type, qv_dtype_name(m.dtype), m.digest, job->model.model_type,
                           qv_dtype_name(job->model.dtype), job->model.digest,
                           say_difference(&m, &job->model));
    }
    choose_decoders(job, models[0]);
    return QV_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Records how many patches a pack has, the most tokens of usual chunks (packs, and chunks that one
 * clip fills), and the bytes per token. */
static void
set_sizes(qv_job *job, const qv_model *model)
{
    const qv_model_info *m = &job->model;
    const int64_t patches = m->merge_size * m->merge_size;
    const qv_packing packing = qv_model_packing(model, job->o.chunk_rows);
    job->pack_rows = !job->o.alone || job->o.chunk_rows ? packing.rows : 0;
    const int64_t tokens = job->pack_rows / patches;
    job->usual_tokens = tokens > packing.alone_tokens ? tokens : packing.alone_tokens;
    job->hidden = job->o.hidden ? patches * m->hidden : 0;
    job->token_bytes = ((1 + m->n_deepstack) * m->out_hidden + job->hidden) *
                       (int64_t)qv_dtype_bytes(job->o.output);
}

/* Opens the feeder, which makes each device's plan for packs. */
static qv_status
open_devices(qv_job *job, qv_model *const *models, qv_error *err)
{
    const qv_feeder_options options = { .output = job->o.output,
                                        .hidden = job->o.hidden,
                                        .chunk_rows = job->o.chunk_rows,
                                        .alone = job->o.alone,
                                        .warm_up = job->o.warm_up };
    qv_model_info info;
    for (int i = 0; i < job->n_devices; i++) {
        job->devices[i].job = job;
        job->devices[i].index = i;
        job->devices[i].model = models[i];
        qv_model_get_info(models[i], &info);
        const bool own = job->n_devices > 1 || job->looks_for_gpu;
        job->devices[i].gpu = own ? info.device : job->o.clip.gpu;
        job->devices[i].decodes = job->on_gpu;
    }
    set_sizes(job, models[0]);
    return qv_feeder_open(models, (size_t)job->n_devices, &options, &job->feeder, err);
}

static qv_status
make_workers(qv_job *job, qv_error *err)
{
    const size_t readers = (size_t)job->lanes.n;
    job->devices = calloc((size_t)job->n_devices, sizeof *job->devices);
    job->readers = calloc(readers, sizeof *job->readers);
    job->sinks = calloc((size_t)job->n_sinks, sizeof *job->sinks);
    job->threads =
        calloc(readers + (size_t)job->n_devices + (size_t)job->n_sinks, sizeof *job->threads);
    return job->devices && job->readers && job->sinks && job->threads
               ? QV_OK
               : qv_fail(err, QV_ENOMEM, "no memory for %d decoders of a job", job->lanes.n);
}

static bool
start_thread(qv_job *job, void *(*run)(void *), void *user)
{
    const bool runs = !pthread_create(&job->threads[job->n_threads], NULL, run, user);
    job->n_threads += runs;
    return runs;
}

static qv_status
start_workers(qv_job *job, struct qv_job_worker *workers, int n, void *(*run)(void *),
              qv_error *err)
{
    for (int i = 0; i < n; i++) {
        workers[i] = (struct qv_job_worker){ .job = job, .lane = i };
        if (!start_thread(job, run, &workers[i]))
            return qv_fail(err, QV_ENOMEM, "cannot start thread %d of a job", i);
    }
    return QV_OK;
}

static qv_status
start_threads(qv_job *job, qv_error *err)
{
    qv_status status = start_workers(job, job->readers, job->lanes.n, qv_job_read, err);
    if (!status)
        status = start_workers(job, job->sinks, job->n_sinks, qv_job_sink_thread, err);
    for (int i = 0; i < job->n_devices && !status; i++)
        if (!start_thread(job, qv_job_compute, &job->devices[i]))
            status = qv_fail(err, QV_ENOMEM, "cannot start the thread of device %d of a job", i);
    return status;
}

qv_status
qv_job_open(qv_model *const *models, size_t n_models, const qv_job_options *options, qv_job **out,
            qv_error *err)
{
    QV_NEED(err, models, options, out);
    qv_status status = check_options(options, err);
    if (status)
        return status;
    qv_job *job = calloc(1, sizeof *job);
    if (!job)
        return qv_fail(err, QV_ENOMEM, "no memory for a job");
    set_options(job, options, n_models);
    status = check_models(job, models, n_models, err);
    if (!status)
        status = make_workers(job, err);
    if (!status)
        status = qv_job_lock_open(job, err);
    if (!status)
        status = open_devices(job, models, err);
    if (!status && job->looks_for_gpu)
        qv_job_find_gpus(job, job->decoder);
    job->opened_s = qv_seconds();
    if (!status)
        status = start_threads(job, err);
    if (status)
        qv_job_close(&job);
    else
        *out = job;
    return status;
}

/* ---- clients --------------------------------------------------------------------------------- */

qv_status
qv_job_client_open(qv_job *job, int64_t queue, bool refuse_when_full, int64_t ahead,
                   qv_job_client **out, qv_error *err)
{
    QV_NEED(err, job, out);
    const qv_job_options o = { .queue = queue,
                               .refuse_when_full = refuse_when_full,
                               .ahead = ahead };
    const qv_status status = check_options(&o, err);
    if (status)
        return status;
    qv_job_client *client = malloc(sizeof *client);
    if (!client)
        return qv_fail(err, QV_ENOMEM, "no memory for a client of a job");
    *client = client_of(job, &o);
    client->users = 1;
    *out = client;
    return QV_OK;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Frees the frames of chunks that the sink has not received. Pairs that wait in the feeder are
 * freed with their item. */
static void
free_pieces(qv_job *job)
{
    for (int i = 0; i < job->n_devices * QV_JOB_BUFFERS; i++) {
        struct qv_job_buffer *b = &job->devices[i / QV_JOB_BUFFERS].buffers[i % QV_JOB_BUFFERS];
        for (size_t p = 0; p < b->n; p++)
            qv_job_free_frames(job, &b->pieces[p].frames);
    }
}

/* Ends all threads, and reports each unfinished item to the sink, from this thread, as cancelled.
 * Progress may be read meanwhile, so an item leaves the list before it is reported and freed. */
static void
finish(qv_job *job)
{
    qv_job_cancel(job);
    while (job->n_threads)
        pthread_join(job->threads[--job->n_threads], NULL);
    pthread_mutex_lock(&job->lock);
    free_pieces(job);
    while (job->items) {
        struct qv_job_item *item = job->items;
        qv_job_unlink_item(job, item);
        pthread_mutex_unlock(&job->lock); /* the sink may lock it to read the progress */
        qv_job_cancel_item(job, item);
        pthread_mutex_lock(&job->lock);
        qv_job_free_item(job, item);
    }
    pthread_mutex_unlock(&job->lock);
}

qv_status
qv_job_end(qv_job *job, qv_error *err)
{
    QV_NEED(err, job);
    pthread_mutex_lock(&job->lock);
    job->ended = true;
    qv_job_wake(job, QV_JOB_ADDERS);
    qv_job_wake(job, QV_JOB_DEVICES);
    while (!job->stopping && job->n_items)
        qv_job_wait_asking(job, QV_JOB_ENDERS);
    pthread_mutex_unlock(&job->lock);
    finish(job);
    return job->status ? qv_fail(err, job->status, "%s", job->error.text) : QV_OK;
}

void
qv_job_cancel(qv_job *job)
{
    QV_NEED_OR(, job);
    pthread_mutex_lock(&job->lock);
    qv_job_stop(job);
    pthread_mutex_unlock(&job->lock);
}

void
qv_job_close(qv_job **handle)
{
    qv_job *job = handle ? *handle : NULL;
    if (!job)
        return;
    if (job->has_lock)
        finish(job);
    qv_feeder_close(&job->feeder); /* waits for the devices to finish writing to their buffers */
    for (int i = 0; job->devices && i < job->n_devices; i++)
        qv_job_device_close(&job->devices[i]);
    qv_decoder_stop(&job->own_decoder);
    qv_job_lock_close(job);
    free(job->devices);
    free(job->readers);
    free(job->sinks);
    free(job->threads);
    free(job);
    *handle = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

qv_status
qv_job_memory(qv_model *const *models, size_t n_models, const qv_job_options *options,
              int64_t *bytes, qv_error *err)
{
    QV_NEED(err, models, options, bytes);
    qv_job job = { 0 };
    qv_status status = check_options(options, err);
    if (!status) {
        set_options(&job, options, n_models);
        status = check_models(&job, models, n_models, err);
    }
    if (status)
        return status;
    set_sizes(&job, models[0]);
    *bytes = job.o.memory + job.lanes.n * QV_RING_BYTES +
             (int64_t)n_models * QV_JOB_BUFFERS * job.usual_tokens * job.token_bytes;
    return QV_OK;
}
