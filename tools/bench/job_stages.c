/* SPDX-License-Identifier: MIT */
/* Runs each way of `qwenvit bench job` once: a stage alone, or a job. */
#include <stdlib.h>
#include <string.h>

#include "command/cache_command.h"
#include "cores.h"
#include "error.h"
#include "job_stages.h"

enum { SINKS = 4 }; /* as many as the command has */

/* ---- several threads ------------------------------------------------------------------------- */

typedef qv_status crew_work(struct job_bench *j, size_t i, qv_error *err);

struct crew {
    struct job_bench *j;
    crew_work *work;
    size_t next;
    qv_status status;
    qv_error error;
};

static void *
crew_run(void *user)
{
    struct crew *c = user;
    for (;;) {
        qv_error err = { 0 };
        pthread_mutex_lock(&c->j->lock);
        const size_t i = c->status ? c->j->list.n : c->next++;
        pthread_mutex_unlock(&c->j->lock);
        const qv_status s = i < c->j->list.n ? c->work(c->j, i, &err) : QV_OK;
        if (i >= c->j->list.n)
            return NULL;
        pthread_mutex_lock(&c->j->lock);
        if (s && !c->status) {
            c->status = s;
            c->error = err;
        }
        pthread_mutex_unlock(&c->j->lock);
    }
}

static qv_status
by_crew(struct job_bench *j, crew_work *work, int n_threads, qv_error *err)
{
    struct crew c = { .j = j, .work = work };
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    int n = 0;
    while (threads && n < n_threads && !pthread_create(&threads[n], NULL, crew_run, &c))
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    if (n < n_threads)
        return qv_fail(err, QV_ENOMEM, "%d threads cannot be made", n_threads);
    if (c.status)
        *err = c.error;
    return c.status;
}

/* ---- stages alone ---------------------------------------------------------------------------- */

static qv_status
read_clip(qv_clip *clip, const qv_outcome *info, qv_error *err)
{
    const size_t frame = (size_t)info->width * (size_t)info->height * 3;
    uint8_t *frames = malloc((size_t)info->n_frames * frame);
    qv_status s =
        frames ? QV_OK
               : qv_fail(err, QV_ENOMEM, "no memory for %lld frames", (long long)info->n_frames);
    int64_t n = 1;
    for (int64_t done = 0; done < info->n_frames && n && !s; done += n)
        s = qv_clip_read(clip, frames + (size_t)done * frame, info->n_frames - done, &n, NULL, err);
    free(frames);
    return s;
}

/* Returns how many threads decode entry i, as a job decides: one, but every core where few clips
 * are left. */
static int
decoding_threads(const struct job_bench *j, size_t i)
{
    const size_t cores = (size_t)qv_usable_cores(), others = i < cores - 1 ? i : cores - 1;
    const size_t wanted = j->list.n - i + others;
    return wanted * 2 > cores && wanted > 1 ? 1 : 0;
}

static qv_status
decode(struct job_bench *j, size_t i, qv_decode by, qv_error *err)
{
    const struct tool_entry *entry = &j->list.at[i];
    qv_clip_options options = qvm_options_merge(entry->own, &j->o.clip);
    qv_clip *clip = NULL;
    qv_outcome info;
    options.threads = decoding_threads(j, i);
    options.decode = by;
    qv_status s = qv_clip_open(entry->path, &j->m.image, &j->m.video, &options, &clip, err);
    if (s)
        return s;
    qv_clip_get_info(clip, &info);
    s = read_clip(clip, &info, err);
    qv_clip_get_info(clip, &info);
    if (!s && by == QV_DECODE_GPU && info.decoded_by != by)
        s = qv_fail(err, QV_EFORMAT, "%s: no GPU decodes it, since %s", entry->path, info.not_gpu);
    qv_clip_close(&clip);
    j->items[i].is_image = info.is_image;
    memcpy(j->items[i].grid_thw, info.grid_thw, sizeof info.grid_thw);
    return s;
}

/* Decodes a clip as a job does: by a GPU, if one has room, or else by the CPU. */
static qv_status
decode_clip(struct job_bench *j, size_t i, qv_error *err)
{
    pthread_mutex_lock(&j->lock);
    const bool on_gpu = j->on_gpu < j->gpu_decoders;
    j->on_gpu += on_gpu;
    pthread_mutex_unlock(&j->lock);
    const qv_status s = decode(j, i, on_gpu ? QV_DECODE_GPU : QV_DECODE_CPU, err);
    pthread_mutex_lock(&j->lock);
    j->on_gpu -= on_gpu;
    pthread_mutex_unlock(&j->lock);
    return s;
}

/* Returns the output of a clip. All outputs share the same bytes. */
static qv_tokens
tokens_of(const struct job_bench *j, size_t i)
{
    qv_tokens t = { .tokens = j->data };
    t.n = t.capacity = job_rows_of(&j->items[i]) / (j->m.merge_size * j->m.merge_size);
    for (int d = 0; d < j->m.n_deepstack; d++)
        t.deepstack[d] = j->data;
    return t;
}

/* Writes a clip as the command's sink does. */
static qv_status
write_clip(struct job_bench *j, size_t i, qv_error *err)
{
    static const char *const metadata[][2] = { { "made", "random" } };
    static const double time_s[1];
    char name[32];
    const qv_tokens t = tokens_of(j, i);
    snprintf(name, sizeof name, "%zu", i);
    char *path = qv_path_join(j->work, name);
    const struct qv_token_file_options o = { .path = path,
                                             .source = name,
                                             .dtype = QV_BF16,
                                             .n_deepstack = j->m.n_deepstack,
                                             .n_grids = 1,
                                             .n_timestamps = 1,
                                             .rows = t.n,
                                             .width = j->m.out_hidden };
    const void *deepstack[QV_MAX_DEEPSTACK];
    for (int d = 0; d < QV_MAX_DEEPSTACK; d++)
        deepstack[d] = t.deepstack[d];
    const struct qv_token_file_data data = { .tokens = t.tokens,
                                             .deepstack = deepstack,
                                             .grid_thw = j->items[i].grid_thw,
                                             .timestamps_s = time_s };
    const qv_status s = path ? qv_token_file_save(&o, &data, metadata, 1, err)
                             : qv_fail(err, QV_ENOMEM, "no memory for a path");
    free(path);
    return s;
}

static qv_status
put_clip(struct job_bench *j, size_t i, qv_error *err)
{
    const qv_tokens t = tokens_of(j, i);
    return bench_put_tokens(j->writer, j->list.at[i].key, &t, err);
}

/* Puts clips as the command's sink does, until the last part is sealed. */
static qv_status
write_parts(struct job_bench *j, qv_error *err)
{
    qv_status s = bench_start_parts(j->work, &j->m, &j->writer, err);
    if (s)
        return s;
    s = by_crew(j, put_clip, SINKS, err);
    const qv_status sealed = qv_cache_writer_close(&j->writer, s ? NULL : err);
    return s ? s : sealed;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static qv_job_options
options_of(const struct job_bench *j)
{
    return (qv_job_options){
        .output = QV_BF16, .sinks = SINKS, .chunk_rows = j->o.chunk_rows, .clip = j->o.clip
    };
}

qv_status
job_ask_decoders(struct job_bench *j, qv_error *err)
{
    const qv_job_options options = options_of(j);
    qv_job_progress p;
    qv_job *job = NULL;
    const qv_status s = qv_job_open(j->devices.models, j->devices.n, &options, &job, err);
    if (s)
        return s;
    qv_job_get_progress(job, &p);
    j->decoders = p.decoders;
    j->gpu_decoders = (int)p.gpu_decoders;
    qv_job_close(&job);
    return QV_OK;
}

/* Runs a job over the clips, or over frames that were decoded before. */
static qv_status
run_job(struct job_bench *j, enum bench_job_way way, double *ms, qv_error *err)
{
    const qv_job_options options = options_of(j);
    qv_job_progress *p = &j->progress[way];
    qv_job *job = NULL;
    qv_status s = qv_job_open(j->devices.models, job_devices_of(j, way), &options, &job, err);
    if (s)
        return s;
    for (size_t i = 0; i < j->list.n && !s; i++) {
        const struct tool_entry *entry = &j->list.at[i];
        const qv_clip_options clip = qvm_options_merge(entry->own, &j->o.clip);
        qv_job_source source = { .key = entry->key, .path = entry->path, .clip = &clip };
        if (way != BENCH_JOB_DISCARD)
            source =
                (qv_job_source){ .key = entry->key, .kind = QV_SOURCE_FRAMES, .item = j->items[i] };
        s = qv_job_add(job, &source, err);
    }
    if (!s)
        s = qv_job_end(job, err);
    qv_job_get_progress(job, p);
    *ms = 1e3 * p->elapsed_s;
    qv_job_close(&job);
    return s || !p->failed ? s
                           : qv_fail(err, QV_EFORMAT, "%lld of the clips cannot be encoded",
                                     (long long)p->failed);
}

qv_status
job_work(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = ((struct job_way *)user)->j;
    const enum bench_job_way way = ((struct job_way *)user)->way;
    const double began_s = qv_seconds();
    struct tool_cache_times times = { 0 };
    double job_s = 0;
    qv_status s = QV_OK;
    j->o.output = j->o.out = j->work;
    switch (way) {
    case BENCH_JOB_DECODE: s = by_crew(j, decode_clip, j->decoders, err); break;
    case BENCH_JOB_FILES: s = by_crew(j, write_clip, SINKS, err); break;
    case BENCH_JOB_PARTS: s = write_parts(j, err); break;
    case BENCH_JOB_ENCODE:
        s = bench_ended("the job", tool_encode_on(&j->o, &j->devices, &job_s), err);
        break;
    case BENCH_JOB_CACHE:
        s = bench_ended("the job", tool_cache_run_on(&j->o, &j->devices, &times), err);
        break;
    default: return run_job(j, way, ms, err);
    }
    *ms = 1e3 * (job_s + times.job_s > 0 ? job_s + times.job_s : qv_seconds() - began_s);
    tool_clear_folder(j->work);
    return s;
}
