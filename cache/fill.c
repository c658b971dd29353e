/* SPDX-License-Identifier: MIT */
/*
 * Runs the clips that a cache lacks through a job, and writes their tokens into parts. A clip's
 * failure becomes its record. A failure of the device or the disk ends the run, and so may its
 * caller: what is finished by then is sealed.
 */
#define _POSIX_C_SOURCE 200809L
#include "qwenvit_fill.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "clock.h"
#include "error.h"
#include "filling.h"
#include "media/option_list.h"
#include "options.h"

enum { SINKS = 4, QUEUE = 512 };

/* A clip that is wanted. */
struct clip {
    const char *key, *path;             /* path is NULL for a clip in memory */
    const qv_cache_fill_memory *memory; /* NULL for a file */
    const qv_clip_options *own;
    int64_t bytes, mtime_ns; /* of its file, before the job opened it; or of its memory */
    uint64_t xxh3;           /* hash of a clip in memory */
    qv_cache_entry *cached;  /* its entry in the cache; belongs to the sink */
};

/* A clip's source, with the memory of its texts. */
struct identity {
    qv_cache_source source;
    char path[24], options[QV_CACHE_OPTIONS_BYTES];
};

struct qv_cache_fill {
    char *dir;
    qv_cache_fill_options o;
    struct qv_filling filling;
    struct clip *clips; /* [n] */
    size_t n, room;
    qv_job *job;
    int64_t patch_size; /* the model's */
    bool has_lock;
    pthread_mutex_t lock; /* guards counts, status and error */
    qv_cache_fill_counts counts;
    qv_status status; /* the failure that ended the run */
    qv_error error;
    atomic_bool ended; /* a failure ended the run: no more results are accepted */
    bool stopped;      /* the caller stopped the run: no more clips are added, and finished ones are
                        * still accepted */
    bool is_over;      /* qv_cache_fill_end was called */
};

/* ---- the sink -------------------------------------------------------------------------------- */

/* Ends the run with a failure. The caller must not hold the lock. */
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

static void
look_at(const struct clip *clip, struct identity *id)
{
    if (clip->memory)
        snprintf(id->path, sizeof id->path, "xxh3:%016" PRIx64, clip->xxh3);
    id->source = qv_cache_source_of(clip->memory ? id->path : clip->path, clip->own, id->options);
}

/* Sets the identity for a record. The file may have changed meanwhile, so it is that of the file
 * that was read; if it could not be opened, that of the file before the job, so that a file that
 * has appeared since is computed again. */
static void
look_back(const struct clip *clip, const qv_job_result *result, struct identity *id)
{
    const bool was_read = result->clip && !clip->memory;
    look_at(clip, id);
    id->source.bytes = was_read ? result->clip->file_bytes : clip->bytes;
    id->source.mtime_ns = was_read ? result->clip->file_mtime_ns : clip->mtime_ns;
}

/* Writes rows of a result. A failure of the cache ends the run; a failure of the clip alone is only
 * returned. */
static qv_status
put(qv_cache_fill *f, struct clip *clip, const qv_job_result *result, qv_error *err)
{
    if (!clip->cached) {
        struct identity id;
        look_back(clip, result, &id);
        const qv_status s =
            qv_cache_begin(f->filling.writer, clip->key, &id.source,
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

/* Sets what the record says of a clip's frames, from its file or from its caller. */
static void
tell_frames(const struct clip *clip, const qv_job_result *result, qv_cache_result *done)
{
    const qv_cache_fill_memory *m = clip->memory;
    if (result->clip) {
        done->frames = result->clip->n_frames;
        done->sampled_fps = result->clip->sampled_fps;
        done->timestamps_s = result->timestamps_s;
    } else if (m && m->kind == QV_SOURCE_FRAMES) {
        done->frames = m->item.n_frames;
        done->sampled_fps = m->sampled_fps;
        done->timestamps_s = m->timestamps_s;
    }
    done->n_timestamps = done->timestamps_s ? done->frames : 0;
}

/* Finishes a key. status is the result's, or why its rows could not be stored. */
static qv_status
finish(qv_cache_fill *f, struct clip *clip, const qv_job_result *result, qv_status status,
       const char *words, qv_error *err)
{
    qv_cache_result done = { .status = status,
                             .error = words,
                             .is_image = result->is_image,
                             .remark = result->clip ? (int)result->clip->remark : 0,
                             .damaged_frames = result->damaged_frames,
                             .grid_thw = { result->grid_thw[0], result->grid_thw[1],
                                           result->grid_thw[2] } };
    tell_frames(clip, result, &done);
    if (status && f->o.told)
        f->o.told(f->o.user, clip->key, status, words);
    pthread_mutex_lock(&f->lock);
    f->counts.failed += status != QV_OK;
    f->counts.done += !status;
    f->counts.tokens += status ? 0 : result->n_tokens;
    f->counts.frames += status ? 0 : done.frames;
    pthread_mutex_unlock(&f->lock);
    const qv_status s = qv_cache_finish(&clip->cached, &done, err);
    return s ? end_run(f, s, err) : status;
}

/* The job's sink. After a failure in a call that is not the last of its clip, one more call follows
 * that reports it again. */
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
            s = qv_fail(err, QV_ESTATE, "%s: the run has ended", clip->key);
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
    if (f->o.clip.decode == QV_DECODE_AUTO)
        f->o.clip.decode = QV_DECODE_CPU; /* a GPU does not notice all damage, and a cache stays */
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
    return f ? f->filling.there : NULL;
}

void
qv_cache_fill_get_counts(const qv_cache_fill *f, qv_cache_fill_counts *out)
{
    if (!f || !out)
        return;
    pthread_mutex_t *lock = (pthread_mutex_t *)&f->lock; /* a callback may ask while sinks count */
    pthread_mutex_lock(lock);
    *out = f->counts;
    pthread_mutex_unlock(lock);
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

/* id is the clip's identity now. */
static qv_status
take_clip(qv_cache_fill *f, const struct clip *clip, const struct identity *id, bool *wanted,
          qv_error *err)
{
    const enum qv_filling_state state = qv_filling_compare(&f->filling, clip->key, &id->source);
    f->counts.there += state == QV_FILLING_THERE;
    f->counts.gone = f->filling.n_gone;
    f->counts.failed_before += state == QV_FILLING_FAILED_BEFORE;
    if (wanted)
        *wanted = state == QV_FILLING_WANTED;
    return state == QV_FILLING_WANTED ? remember(f, clip, err) : QV_OK;
}

qv_status
qv_cache_fill_add(qv_cache_fill *f, const char *key, const char *path, const qv_clip_options *own,
                  bool *wanted, qv_error *err)
{
    if (!f || !key || !path)
        return qv_fail(err, QV_EINVAL, "add a clip: fill, key or path is NULL");
    struct clip clip = { .key = key, .path = path, .own = own };
    struct identity id;
    look_at(&clip, &id);
    clip.bytes = id.source.bytes;
    clip.mtime_ns = id.source.mtime_ns;
    return take_clip(f, &clip, &id, wanted, err);
}

/* Hashes all that a clip in memory is made of. Bytes alone do not tell frames apart: those of 64x32
 * pixels may be those of 32x64, of fewer and larger frames, or of an image. */
static uint64_t
hash_memory(const qv_cache_fill_memory *m)
{
    uint64_t hash = XXH3_64bits(m->data, m->n_bytes);
    if (m->kind != QV_SOURCE_FRAMES)
        return hash;
    const qv_item *item = &m->item;
    const int64_t shape[] = { item->n_frames,    item->grid_thw[0], item->grid_thw[1],
                              item->grid_thw[2], item->is_image,    m->timestamps_s != NULL };
    hash = XXH3_64bits_withSeed(shape, sizeof shape, hash);
    hash = XXH3_64bits_withSeed(&m->sampled_fps, sizeof m->sampled_fps, hash);
    const size_t n = m->timestamps_s ? (size_t)item->n_frames : 0;
    return XXH3_64bits_withSeed(m->timestamps_s, n * sizeof *m->timestamps_s, hash);
}

qv_status
qv_cache_fill_add_memory(qv_cache_fill *f, const char *key, const qv_cache_fill_memory *m,
                         const qv_clip_options *own, bool *wanted, qv_error *err)
{
    if (!f || !key || !m || !m->data || !m->n_bytes || !QV_RESERVED_IS_ZERO(m) ||
        (m->kind != QV_SOURCE_BYTES && m->kind != QV_SOURCE_FRAMES))
        return qv_fail(err, QV_EINVAL, "%s: neither the bytes of a file nor frames were given",
                       key ? key : "no key");
    if (m->kind == QV_SOURCE_FRAMES && m->item.n_frames < 1)
        return qv_fail(err, QV_EINVAL, "%s: n_frames is %lld; it must be at least 1", key,
                       (long long)m->item.n_frames);
    struct clip clip = { .key = key, .memory = m, .own = own, .bytes = (int64_t)m->n_bytes };
    struct identity id;
    clip.xxh3 = hash_memory(m);
    look_at(&clip, &id);
    id.source.bytes = clip.bytes;
    id.source.mtime_ns = 0;
    return take_clip(f, &clip, &id, wanted, err);
}

void
qv_cache_fill_forget(qv_cache_fill *f)
{
    if (f)
        f->n = 0;
}

/* ---- the run --------------------------------------------------------------------------------- */

static qv_cache_layout
layout_of(const qv_cache_fill_options *o, const qv_model_info *info)
{
    return (qv_cache_layout){ .dtype = o->tokens ? o->tokens : QV_BF16,
                              .width = info->out_hidden,
                              .n_deepstack = o->no_deepstack ? 0 : info->n_deepstack,
                              .packed = o->packed };
}

static void
warn(void *user, const char *words)
{
    const qv_cache_fill *f = user;
    if (f->o.told)
        f->o.told(f->o.user, NULL, QV_OK, words);
}

qv_status
qv_cache_fill_begin(qv_cache_fill *f, const qv_model *model, qv_error *err)
{
    if (!f || !model || f->is_over)
        return qv_fail(err, QV_EINVAL, "a fill can begin only on a model, and before it has ended");
    if (f->filling.writer)
        return QV_OK;
    qv_model_info info;
    qv_model_get_info(model, &info);
    char *by = NULL;
    const int64_t rows = qv_model_pack_rows(model, f->o.chunk_rows);
    qv_status s = qv_cache_made_by(&info, rows, &f->o.clip, &by, err);
    if (s)
        return s;
    const qv_cache_writer_options options = { .layout = layout_of(&f->o, &info),
                                              .made_by = by,
                                              .shard = f->o.shard,
                                              .n_shards = f->o.n_shards,
                                              .part_bytes = f->o.part_bytes,
                                              .part_seconds = f->o.part_seconds,
                                              .told = warn,
                                              .user = f };
    s = qv_filling_begin(&f->filling, f->dir, &options, err);
    free(by);
    return s;
}

/* Opens the job first, so that nothing is made in the folder if that fails. */
static qv_status
open_job(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    qv_model_info info;
    qv_model_get_info(models[0], &info);
    f->patch_size = info.patch_size;
    const qv_cache_layout layout = layout_of(&f->o, &info);
    const qv_job_options options = { .sink = take_result,
                                     .user = f,
                                     .output = qv_filling_dtype(&layout),
                                     .decoders = f->o.decoders,
                                     .sinks = SINKS,
                                     .queue = QUEUE,
                                     .chunk_rows = f->o.chunk_rows,
                                     .clip = f->o.clip };
    const qv_status s = qv_job_open(models, n_models, &options, &f->job, err);
    return s ? s : qv_cache_fill_begin(f, models[0], err);
}

static bool
is_over(qv_cache_fill *f)
{
    f->stopped = f->stopped || (f->o.go_on && !f->o.go_on(f->o.user, f->job));
    return f->stopped || atomic_load(&f->ended);
}

/* Waits until n clips are done, or the job or the run has ended, and returns how many are done. It
 * asks go_on every moment, so that a caller who ends the run is heard soon. */
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

/* Checks that frames in memory have the bytes that the job will read. A shape whose size overflows
 * is left to the job, which refuses it. */
static qv_status
check_frames(const qv_cache_fill *f, const struct clip *clip, qv_error *err)
{
    const qv_item *item = &clip->memory->item;
    uint64_t height, width, bytes;
    if (clip->memory->kind != QV_SOURCE_FRAMES ||
        __builtin_mul_overflow(item->grid_thw[1], f->patch_size, &height) ||
        __builtin_mul_overflow(item->grid_thw[2], f->patch_size, &width) ||
        __builtin_mul_overflow(height, width, &bytes) ||
        __builtin_mul_overflow(bytes, 3 * (uint64_t)item->n_frames, &bytes) ||
        bytes == clip->memory->n_bytes)
        return QV_OK;
    return qv_fail(err, QV_EINVAL, "%s: %zu bytes were given; %lld frames of %llux%llu take %llu",
                   clip->key, clip->memory->n_bytes, (long long)item->n_frames,
                   (unsigned long long)width, (unsigned long long)height,
                   (unsigned long long)bytes);
}

static qv_status
add_to_job(qv_cache_fill *f, struct clip *clip, qv_error *err)
{
    const qv_cache_fill_memory *m = clip->memory;
    const qv_status s = m ? check_frames(f, clip, err) : QV_OK;
    if (s)
        return s;
    const qv_clip_options own = qvm_options_merge(clip->own, &f->o.clip);
    qv_job_source source = { .key = clip->key, .path = clip->path, .clip = &own, .user = clip };
    if (m) {
        source.kind = m->kind;
        source.bytes = m->data;
        source.n_bytes = m->n_bytes;
        source.item = m->item;
        source.item.data = m->data;
    }
    return qv_job_add(f->job, &source, err);
}

/* Adds all clips to the job. It keeps fewer clips unfinished than the job's queue holds, because
 * qv_job_add would wait otherwise, and nobody would ask go_on. */
static qv_status
compute(qv_cache_fill *f, qv_error *err)
{
    qv_status s = QV_OK;
    int64_t n = 0, done = 0;
    while (n < (int64_t)f->n && !s) {
        if (n - done >= QUEUE)
            done = wait_for(f, n - QUEUE + 1);
        if (is_over(f))
            break;
        s = add_to_job(f, &f->clips[n++], err);
    }
    if (!s)
        wait_for(f, n);
    return s || is_over(f) ? s : qv_job_end(f->job, err);
}

/* The failure that ended the run is reported rather than the job's, and either rather than the
 * sealing's. */
static qv_status
run(qv_cache_fill *f, qv_model *const *models, size_t n_models, bool is_last, qv_error *err)
{
    if (!f || !models || !n_models || !models[0] || f->is_over)
        return qv_fail(err, QV_EINVAL,
                       "a fill runs on at least one model, and only before it has ended");
    f->stopped = false;
    f->status = QV_OK;
    atomic_store(&f->ended, false);
    qv_status s = f->n ? open_job(f, models, n_models, err) : qv_cache_fill_begin(f, *models, err);
    f->is_over = is_last;
    if (is_last)
        qv_cache_close(&f->filling.there); /* frees a large index that is no longer needed */
    const double began_s = qv_seconds();
    if (!s && f->job)
        s = compute(f, err);
    qv_job_close(&f->job); /* clips under way come to the sink as cancelled */
    f->n = 0;
    if (f->status) {
        s = f->status;
        if (err)
            *err = f->error;
    }
    qv_error sealing = { 0 };
    const qv_status sealed = is_last             ? qv_filling_close(&f->filling, &sealing)
                             : f->filling.writer ? qv_cache_seal(f->filling.writer, &sealing)
                                                 : QV_OK;
    f->counts.seconds += qv_seconds() - began_s;
    if (!s && sealed && err)
        *err = sealing;
    return s ? s : sealed;
}

qv_status
qv_cache_fill_run(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    return run(f, models, n_models, false, err);
}

qv_status
qv_cache_fill_end(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    return run(f, models, n_models, true, err);
}
