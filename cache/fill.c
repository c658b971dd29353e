/* SPDX-License-Identifier: MIT */
/*
 * What a cache lacks of a list goes through a job, and what comes of it into parts. What is wrong with a clip
 * becomes its record; what is wrong with the device or the disk ends the run, as its caller may: what is done
 * by then is sealed.
 */
#define _POSIX_C_SOURCE 200809L
#include "qwenvit_fill.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "error.h"
#include "filling.h"
#include "options.h"

enum { SINKS = 4, QUEUE = 512 };

/* A clip that is wanted. */
struct clip {
    const char *key, *path;
    const qv_row_own *own;
    int64_t bytes, mtime_ns; /* of its file, before the job saw it */
    qv_cache_entry *cached;  /* the sink's */
};

struct qv_cache_fill {
    char *dir;
    qv_cache_fill_options o;
    struct qv_filling filling;
    struct clip *clips; /* [n] */
    size_t n, room;
    qv_job *job;
    bool has_lock;
    pthread_mutex_t lock; /* of the counts, and: */
    qv_cache_fill_counts counts;
    qv_status status; /* what ends the run */
    qv_error error;
    atomic_bool ended; /* by a failure: nothing more is taken */
    bool stopped;      /* by its caller: no more is begun, and what is done by then is taken */
    bool was_ended;    /* qv_cache_fill_end was called */
};

/* ---- the sink -------------------------------------------------------------------------------- */

/* Ends the run. Under no lock. */
static qv_status
end_run(qv_cache_fill *f, qv_status status, const qv_error *err)
{
    pthread_mutex_lock(&f->lock);
    if (!f->status) {
        f->status = status;
        f->error = *err;
    }
    pthread_mutex_unlock(&f->lock);
    atomic_store(&f->ended, true);
    return status;
}

static qv_cache_source
look_at(const struct clip *clip, char text[QV_CACHE_OPTIONS_BYTES])
{
    static const qv_clip_options nothing;
    const qv_clip_options own = clip->own ? qv_row_options(clip->own, &nothing) : nothing;
    return qv_cache_source_of(clip->path, &own, text);
}

/* Whatever becomes of the file meanwhile: the identity is that of the one that was read; of one that could
 * not be opened what it was before, so that a file that is there by now is done again. */
static qv_cache_source
source_of(const struct clip *clip, const qv_job_result *result, char text[QV_CACHE_OPTIONS_BYTES])
{
    qv_cache_source source = look_at(clip, text);
    source.bytes = result->clip ? result->clip->file_bytes : clip->bytes;
    source.mtime_ns = result->clip ? result->clip->file_mtime_ns : clip->mtime_ns;
    return source;
}

/* A failure of the cache ends the run; one of the clip alone is returned. */
static qv_status
put(qv_cache_fill *f, struct clip *clip, const qv_job_result *result, qv_error *err)
{
    char text[QV_CACHE_OPTIONS_BYTES];
    if (!clip->cached) {
        const qv_cache_source source = source_of(clip, result, text);
        const qv_status s =
            qv_cache_begin(f->filling.writer, clip->key, &source,
                           result->status ? 0 : result->n_tokens, &clip->cached, err);
        if (s)
            return end_run(f, s, err);
    }
    if (result->status || !result->n)
        return QV_OK;
    qv_tokens t = { .tokens = (void *)(uintptr_t)result->tokens, .n = result->n };
    for (int i = 0; i < f->filling.layout.n_deepstack; i++)
        t.deepstack[i] = (void *)(uintptr_t)result->deepstack[i];
    const qv_status s = qv_filling_put(&f->filling, clip->cached, &t, err);
    return s && s != QV_EUNSUPPORTED ? end_run(f, s, err) : s;
}

/* status: of the result, or why it is none. */
static qv_status
finish(qv_cache_fill *f, struct clip *clip, const qv_job_result *result, qv_status status,
       const char *words, qv_error *err)
{
    const qv_cache_result done = { .status = status,
                                   .error = words,
                                   .frames = result->clip ? result->clip->n_frames : 0,
                                   .sampled_fps = result->clip ? result->clip->sampled_fps : 0,
                                   .is_image = result->is_image,
                                   .damaged_frames = result->damaged_frames,
                                   .grid_thw = { result->grid_thw[0], result->grid_thw[1],
                                                 result->grid_thw[2] },
                                   .timestamps_s = result->timestamps_s,
                                   .n_timestamps = result->clip ? result->clip->n_frames : 0 };
    if (status && f->o.told)
        f->o.told(f->o.user, clip->key, status, words);
    pthread_mutex_lock(&f->lock);
    f->counts.failed += status != QV_OK;
    f->counts.done += !status;
    f->counts.tokens += status ? 0 : result->n_tokens;
    pthread_mutex_unlock(&f->lock);
    const qv_status s = qv_cache_finish(&clip->cached, &done, err);
    return s ? end_run(f, s, err) : status;
}

/* After a failure that is no last call there is one more, which says it again. */
static qv_status
take_result(void *user, const qv_job_result *result, qv_error *err)
{
    qv_cache_fill *f = user;
    struct clip *clip = result->user;
    qv_status s = result->status;
    const bool not_its_fault = result->cancelled || qv_ends_all(s);
    if (!not_its_fault && !atomic_load(&f->ended)) {
        qv_error why = { 0 };
        const qv_status put_s = put(f, clip, result, &why);
        const char *words = put_s ? why.text : result->error;
        s = put_s ? put_s : s;
        if (result->last && !atomic_load(&f->ended))
            return finish(f, clip, result, s, words, err);
        if (put_s && err)
            *err = why;
    }
    if (not_its_fault || atomic_load(&f->ended)) {
        qv_cache_drop(&clip->cached);
        if (!s)
            s = qv_fail(err, QV_ESTATE, "%s: the run has ended", clip->path);
    }
    return s;
}

/* ---- what is wanted -------------------------------------------------------------------------- */

qv_status
qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options, qv_cache_fill **out,
                   qv_error *err)
{
    if (!dir || !options || !out)
        return qv_fail(err, QV_EINVAL, "dir, options or out is NULL");
    if (!QV_RESERVED_IS_ZERO(options))
        return qv_fail(err, QV_EINVAL, "reserved fill options must be 0");
    qv_cache_fill *f = calloc(1, sizeof *f);
    if (!f)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    f->o = *options;
    f->dir = strdup(dir);
    f->has_lock = !pthread_mutex_init(&f->lock, NULL);
    const qv_status s = f->dir && f->has_lock
                            ? qv_filling_open(&f->filling, dir, options->retry_failed, err)
                            : qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    f->filling.trust = options->trust;
    if (s)
        qv_cache_fill_close(&f);
    else
        *out = f;
    return s;
}

void
qv_cache_fill_close(qv_cache_fill **fill)
{
    qv_cache_fill *f = fill ? *fill : NULL;
    if (!f)
        return;
    qv_filling_close(&f->filling, NULL);
    if (f->has_lock)
        pthread_mutex_destroy(&f->lock);
    free(f->clips);
    free(f->dir);
    free(f);
    *fill = NULL;
}

const qv_cache *
qv_cache_fill_there(const qv_cache_fill *f)
{
    return f->filling.there;
}

void
qv_cache_fill_get_counts(const qv_cache_fill *f, qv_cache_fill_counts *out)
{
    *out = f->counts;
}

static qv_status
remember(qv_cache_fill *f, const struct clip *clip, qv_error *err)
{
    if (f->n == f->room) {
        const size_t room = 2 * f->room + 64;
        struct clip *clips = realloc(f->clips, room * sizeof *clips);
        if (!clips)
            return qv_fail(err, QV_ENOMEM, "no memory for %zu clips", room);
        f->clips = clips;
        f->room = room;
    }
    f->clips[f->n++] = *clip;
    return QV_OK;
}

qv_status
qv_cache_fill_add(qv_cache_fill *f, const char *key, const char *path, const qv_row_own *own,
                  bool *wanted, qv_error *err)
{
    char text[QV_CACHE_OPTIONS_BYTES];
    struct clip clip = { .key = key, .path = path, .own = own };
    const qv_cache_source source = look_at(&clip, text);
    clip.bytes = source.bytes;
    clip.mtime_ns = source.mtime_ns;
    const enum qv_filling_state state = qv_filling_compare(&f->filling, key, &source);
    f->counts.there += state == QV_FILLING_THERE;
    f->counts.gone = f->filling.n_gone;
    f->counts.failed_before += state == QV_FILLING_FAILED_BEFORE;
    if (wanted)
        *wanted = state == QV_FILLING_WANTED;
    return state == QV_FILLING_WANTED ? remember(f, &clip, err) : QV_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static qv_status
begin_writing(qv_cache_fill *f, qv_model *model, const qv_model_info *info,
              const qv_cache_layout *layout, qv_error *err)
{
    char *by = NULL;
    const int64_t rows = qv_model_pack_rows(model, f->o.chunk_rows);
    qv_status s = qv_cache_made_by(info, rows, &f->o.clip, &by, err);
    if (s)
        return s;
    const qv_cache_writer_options options = { .layout = *layout,
                                              .made_by = by,
                                              .shard = f->o.shard,
                                              .n_shards = f->o.n_shards,
                                              .part_bytes = f->o.part_bytes,
                                              .part_seconds = f->o.part_seconds };
    s = qv_filling_begin(&f->filling, f->dir, &options, err);
    free(by);
    return s;
}

/* Nothing is made in the folder before the job is there. */
static qv_status
begin(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    qv_model_info info;
    qv_model_get_info(models[0], &info);
    const qv_cache_layout layout = { .dtype = f->o.tokens ? f->o.tokens : QV_BF16,
                                     .width = info.out_hidden,
                                     .n_deepstack = f->o.no_deepstack ? 0 : info.n_deepstack,
                                     .packed = f->o.packed };
    const qv_job_options options = { .sink = take_result,
                                     .user = f,
                                     .output = qv_filling_dtype(&layout),
                                     .decoders = f->o.decoders,
                                     .sinks = SINKS,
                                     .queue = QUEUE,
                                     .chunk_rows = f->o.chunk_rows,
                                     .clip = f->o.clip };
    const qv_status s = qv_job_open(models, n_models, &options, &f->job, err);
    return s ? s : begin_writing(f, models[0], &info, &layout, err);
}

static bool
is_over(qv_cache_fill *f)
{
    f->stopped = f->stopped || (f->o.go_on && !f->o.go_on(f->o.user, f->job));
    return f->stopped || atomic_load(&f->ended);
}

/* Waits until so many are done, or the job or the run has ended: a caller that ends the run is heard within
 * a moment. Returns how many are. */
static int64_t
wait_for(qv_cache_fill *f, int64_t n)
{
    const struct timespec moment = { .tv_nsec = 20000000 };
    qv_job_progress p;
    for (;;) {
        qv_job_get_progress(f->job, &p);
        if (is_over(f) || p.done >= n || p.ended)
            return p.done;
        nanosleep(&moment, NULL);
    }
}

/* There are always fewer that are not done than the job's queue holds: else qv_job_add would wait, and who
 * ends the run would not be heard. */
static qv_status
run(qv_cache_fill *f, qv_error *err)
{
    qv_status s = QV_OK;
    int64_t n = 0, done = 0;
    while (n < (int64_t)f->n && !s) {
        if (n - done >= QUEUE)
            done = wait_for(f, n - QUEUE + 1);
        if (is_over(f))
            break;
        struct clip *clip = &f->clips[n++];
        const qv_clip_options own = clip->own ? qv_row_options(clip->own, &f->o.clip) : f->o.clip;
        const qv_job_source source = {
            .key = clip->key, .path = clip->path, .clip = &own, .user = clip
        };
        s = qv_job_add(f->job, &source, err);
    }
    if (!s)
        wait_for(f, n);
    return s || is_over(f) ? s : qv_job_end(f->job, err);
}

/* What ended the run comes before what the job says of it, and both before what sealing says. */
qv_status
qv_cache_fill_end(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    if (!models || !n_models || f->was_ended)
        return qv_fail(err, QV_EINVAL, "a fill ends once, on one model or more");
    f->was_ended = true;
    qv_status s = begin(f, models, n_models, err);
    qv_cache_close(&f->filling.there); /* a large index, which nobody needs any more */
    const double began_s = qv_seconds();
    if (!s)
        s = run(f, err);
    qv_job_close(&f->job); /* what is under way comes to the sink as cancelled */
    if (f->status) {
        s = f->status;
        if (err)
            *err = f->error;
    }
    qv_error sealing = { 0 };
    const qv_status sealed = qv_filling_close(&f->filling, &sealing);
    f->counts.seconds = qv_seconds() - began_s;
    if (!s && sealed && err)
        *err = sealing;
    return s ? s : sealed;
}
