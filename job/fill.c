/* SPDX-License-Identifier: MIT */
/* Runs the clips that a cache lacks through a job, and writes their tokens into parts. A failed
 * clip gets a record of its failure. A failure of the device or the disk, or the caller, ends the
 * run; everything finished by then is sealed. */
#include "qwenvit_clips.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "clock.h"
#include "error.h"
#include "grow.h"
#include "clips/decoders.h"
#include "clips/option_list.h"
#include "cache/writer.h"
#include "model/feeder.h"
#include "more.h"

enum { SINKS = 4 };

/* A clip that is wanted. */
struct clip {
    const char *key, *path;      /* path is NULL for a clip in memory */
    const qv_job_source *memory; /* NULL for a file */
    const qv_clip_options *own;
    int64_t bytes, mtime_ns; /* of its file before the job opened it, or of its memory */
    uint64_t xxh3;           /* hash of a clip in memory */
};

/* A clip's source, with memory for its texts. */
struct identity {
    qv_cache_source source;
    char path[24], options[QV_CACHE_OPTIONS_BYTES];
};

struct qv_cache_fill {
    char *dir;
    qv_cache_fill_options o;
    qv_cache *there; /* the cache as it was when the fill was opened; NULL: there was none yet */
    qv_cache_writer *writer;
    qv_cache_layout layout;
    struct clip *clips; /* [n] */
    size_t n, room;
    qv_job *job;
    int64_t patch_size; /* the model's */
    bool has_lock;
    pthread_mutex_t lock; /* guards counts, status and error */
    qv_cache_fill_counts counts;
    qv_status status; /* the failure that ended the run */
    qv_error error;
    bool stopped; /* the caller stopped the run: what is finished by then is accepted */
    bool is_over; /* qv_cache_fill_end was called */
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
    qv_job_cancel(f->job);
    return status;
}

static bool
has_ended(qv_cache_fill *f)
{
    pthread_mutex_lock(&f->lock);
    const bool ended = f->status != QV_OK;
    pthread_mutex_unlock(&f->lock);
    return ended;
}

static void
look_at(const struct clip *clip, struct identity *id)
{
    if (clip->memory)
        snprintf(id->path, sizeof id->path, "xxh3:%016" PRIx64, clip->xxh3);
    id->source = qv_cache_source_of(clip->memory ? id->path : clip->path, clip->own, id->options);
}

/* Begins a record with the facts of the file that was read or, if it could not be opened, with its
 * facts before the job, so that a file that has appeared since is computed again. */
static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    qv_cache_fill *f = user;
    const struct clip *clip = r->user;
    const bool was_read = r->outcome.source_frames && !clip->memory;
    qv_cache_entry *begun = NULL;
    struct identity id;
    look_at(clip, &id);
    id.source.bytes = was_read ? r->outcome.file_bytes : clip->bytes;
    id.source.mtime_ns = was_read ? r->outcome.file_mtime_ns : clip->mtime_ns;
    const qv_status s =
        qv_cache_begin(f->writer, clip->key, &id.source, r->status ? 0 : r->n_tokens, &begun, err);
    *entry = begun;
    return s ? end_run(f, s, err) : QV_OK;
}

/* A failure of the cache ends the run; a failure of the clip does not. */
static qv_status
put(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    qv_cache_fill *f = user;
    (void)r;
    const qv_status s = qv_cache_put(entry, &rows->tokens, err);
    return s && s != QV_EUNSUPPORTED ? end_run(f, s, err) : s;
}

/* Finishes the record of a clip that is done, or that failed through its own fault. */
static qv_status
finish(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    qv_cache_fill *f = user;
    const struct clip *clip = r->user;
    qv_cache_entry *cached = entry;
    if (r->cancelled || qv_ends_all(r->status) || has_ended(f)) {
        qv_cache_drop(&cached);
        return r->cancelled || has_ended(f)
                   ? QV_OK
                   : end_run(f, qv_fail(err, r->status, "%s", r->error), err);
    }
    if (!cached) {
        const qv_status s = begin(user, r, &entry, err);
        if (s)
            return s;
        cached = entry;
    }
    const qv_cache_result done = { .status = r->status,
                                   .error = r->error,
                                   .outcome = &r->outcome,
                                   .timestamps_s = r->timestamps_s };
    if (r->status && f->o.told)
        f->o.told(f->o.user, clip->key, r->status, r->error);
    pthread_mutex_lock(&f->lock);
    f->counts.failed += r->status != QV_OK;
    f->counts.done += !r->status;
    f->counts.tokens += r->status ? 0 : r->n_tokens;
    f->counts.frames += r->status ? 0 : r->outcome.n_frames;
    f->counts.damaged += !r->status && r->outcome.damaged_frames > 0;
    pthread_mutex_unlock(&f->lock);
    const qv_status s = qv_cache_finish(&cached, &done, err);
    return s ? end_run(f, s, err) : QV_OK;
}

/* ---- what is wanted -------------------------------------------------------------------------- */

qv_status
qv_cache_fill_open(const char *dir, const qv_cache_fill_options *options, qv_cache_fill **out,
                   qv_error *err)
{
    QV_NEED(err, dir, options, out);
    qv_cache_fill *f = calloc(1, sizeof *f);
    if (!f)
        return qv_no_memory(dir, err);
    f->o = *options;
    f->dir = strdup(dir);
    f->has_lock = !pthread_mutex_init(&f->lock, NULL);
    const qv_status s = !f->dir || !f->has_lock ? qv_no_memory(dir, err)
                        : qv_cache_exists(dir)  ? qv_cache_open(dir, &f->there, err)
                                                : QV_OK;
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
    qv_cache_close(&f->there);
    qv_cache_writer_close(&f->writer, NULL);
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
    return f ? f->there : NULL;
}

void
qv_cache_fill_get_counts(const qv_cache_fill *fill, qv_cache_fill_counts *out)
{
    QV_NEED_OR(, fill, out);
    pthread_mutex_t *lock =
        (pthread_mutex_t *)&fill->lock; /* a callback may ask while sinks count */
    pthread_mutex_lock(lock);
    *out = fill->counts;
    pthread_mutex_unlock(lock);
}

static qv_status
remember(qv_cache_fill *f, const struct clip *clip, qv_error *err)
{
    struct clip *clips = qv_grown(f->clips, f->n, &f->room, sizeof *clips);
    if (!clips)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu clips", f->n + 1);
    f->clips = clips;
    f->clips[f->n++] = *clip;
    return QV_OK;
}

/* A clip that the cache has is not wanted, even if its file is gone. */
static qv_status
take_clip(qv_cache_fill *f, const struct clip *clip, const struct identity *id, bool *wanted,
          qv_error *err)
{
    const qv_cache_state state =
        f->there ? qv_cache_compare(f->there, clip->key, &id->source, f->o.trust)
                 : QV_CACHE_MISSING;
    const bool there = state == QV_CACHE_DONE || state == QV_CACHE_SOURCE_GONE;
    const bool failed_before = state == QV_CACHE_FAILED && !f->o.retry_failed;
    f->counts.there += there;
    f->counts.gone += state == QV_CACHE_SOURCE_GONE;
    f->counts.failed_before += failed_before;
    if (wanted)
        *wanted = !there && !failed_before;
    return there || failed_before ? QV_OK : remember(f, clip, err);
}

qv_status
qv_cache_fill_add(qv_cache_fill *fill, const char *key, const char *path,
                  const qv_clip_options *own, bool *wanted, qv_error *err)
{
    QV_NEED(err, fill, key, path);
    struct clip clip = { .key = key, .path = path, .own = own };
    struct identity id;
    look_at(&clip, &id);
    clip.bytes = id.source.bytes;
    clip.mtime_ns = id.source.mtime_ns;
    return take_clip(fill, &clip, &id, wanted, err);
}

/* Hashes everything that defines a clip in memory. The bytes alone do not distinguish frames of
 * 64x32 pixels from 32x64, from fewer but larger frames, or from an image. */
static uint64_t
hash_memory(const qv_job_source *m)
{
    uint64_t hash = XXH3_64bits(m->bytes, m->n_bytes);
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
qv_cache_fill_add_memory(qv_cache_fill *f, const char *key, const qv_job_source *m,
                         const qv_clip_options *own, bool *wanted, qv_error *err)
{
    if (!m->bytes || !m->n_bytes || (m->kind != QV_SOURCE_BYTES && m->kind != QV_SOURCE_FRAMES))
        return qv_fail(err, QV_EINVAL, "%s: neither the bytes of a file nor frames were given",
                       key);
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
                              .n_deepstack = o->no_deepstack ? 0 : info->n_deepstack };
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
        return qv_fail(err, QV_EINVAL, "begin fill: fill or model is NULL, or the fill has ended");
    if (f->writer)
        return QV_OK;
    qv_cache_info before = { .sealed = 0 };
    qv_model_info info;
    qv_model_get_info(model, &info);
    char *by = NULL, ffmpeg[QV_FFMPEG_BYTES] = ""; /* unknown without a decoder */
    qv_decoder_ffmpeg(f->o.clip.decoder, ffmpeg, NULL);
    const qv_packing packing = qv_model_packing(model, f->o.chunk_rows);
    qv_status s = qv_cache_made_by(&info, packing.rows, packing.rule, &f->o.clip, &by, err);
    if (s)
        return s;
    if (f->there)
        qv_cache_get_info(f->there, &before);
    f->layout = layout_of(&f->o, &info);
    const qv_cache_writer_options options = { .layout = f->layout,
                                              .made_by = by,
                                              .shard = f->o.shard,
                                              .n_shards = f->o.n_shards,
                                              .part_bytes = f->o.part_bytes,
                                              .part_seconds = f->o.part_seconds,
                                              .after = before.sealed,
                                              .told = warn,
                                              .user = f,
                                              .ffmpeg = ffmpeg };
    s = qv_cache_writer_open(f->dir, &options, &f->writer, err);
    free(by);
    return s;
}

static bool
go_on(void *user, qv_job *job)
{
    qv_cache_fill *f = user;
    f->stopped = f->stopped || (f->o.go_on && !f->o.go_on(f->o.user, job));
    return !f->stopped;
}

/* Opens the job first, so that nothing is created in the folder if that fails. */
static qv_status
open_job(qv_cache_fill *f, qv_model *const *models, size_t n_models, qv_error *err)
{
    qv_model_info info;
    qv_model_get_info(models[0], &info);
    f->patch_size = info.patch_size;
    const qv_job_options options = { .sink = { begin, put, finish, f },
                                     .output = layout_of(&f->o, &info).dtype == QV_BF16 ? QV_BF16
                                                                                        : QV_F32,
                                     .decoders = f->o.decoders,
                                     .sinks = SINKS,
                                     .chunk_rows = f->o.chunk_rows,
                                     .clip = f->o.clip,
                                     .go_on = go_on };
    const qv_status s = qv_job_open(models, n_models, &options, &f->job, err);
    return s ? s : qv_cache_fill_begin(f, models[0], err);
}

/* Checks that frames have as many bytes as the job will read. The job rejects shapes that
 * overflow. */
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
    return qv_fail(err, QV_EINVAL, "%s: %zu bytes were given; %lld frames of %llux%llu need %llu",
                   clip->key, clip->memory->n_bytes, (long long)item->n_frames,
                   (unsigned long long)width, (unsigned long long)height,
                   (unsigned long long)bytes);
}

/* Invalid frames fail only their clip. Files are read later, so a failure to add one has a
 * different cause, such as a decoder that does not start. */
static qv_status
add_to_job(qv_cache_fill *f, struct clip *clip, qv_error *err)
{
    const qv_job_source *m = clip->memory;
    qv_error why = { 0 };
    qv_status s = m ? check_frames(f, clip, &why) : QV_OK;
    const qv_clip_options own = qvm_options_merge(clip->own, &f->o.clip);
    qv_job_source source = m ? *m : (qv_job_source){ .path = clip->path };
    source.key = clip->key;
    source.item.data = source.bytes;
    source.clip = &own;
    source.user = clip;
    if (!s)
        s = qv_job_add(f->job, &source, &why);
    if (s && source.kind == QV_SOURCE_FRAMES && !qv_ends_all(s)) {
        const qv_error failure = why;
        source.status = s;
        source.error = failure.text;
        s = qv_job_add(f->job, &source, &why);
    }
    if (s && err)
        *err = why;
    return s;
}

/* Adds all clips to the job, which calls go_on wherever it waits. */
static qv_status
compute(qv_cache_fill *f, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < f->n && !s && (i || go_on(f, f->job)); i++)
        s = add_to_job(f, &f->clips[i], err);
    if (!s && !f->stopped)
        s = qv_job_end(f->job, err);
    return f->stopped && s == QV_ESTATE ? QV_OK : s;
}

/* Reports the failure that ended the run in preference to the job's, and either in preference to a
 * failure of sealing. */
static qv_status
run(qv_cache_fill *f, qv_model *const *models, size_t n_models, bool is_last, qv_error *err)
{
    if (!n_models || !models[0] || f->is_over)
        return qv_fail(
            err, QV_EINVAL,
            "run fill: n_models is 0, models[0] is NULL, or qv_cache_fill_end was called");
    f->stopped = false;
    f->status = QV_OK;
    qv_status s = f->n ? open_job(f, models, n_models, err) : qv_cache_fill_begin(f, *models, err);
    f->is_over = is_last;
    if (is_last)
        qv_cache_close(&f->there); /* frees a large index that nothing needs now */
    const double began_s = qv_seconds();
    if (!s && f->job)
        s = compute(f, err);
    qv_job_close(&f->job); /* clips in progress are reported to the sink as cancelled */
    f->n = 0;
    if (f->status) {
        s = f->status;
        if (err)
            *err = f->error;
    }
    qv_error sealing = { 0 };
    const qv_status sealed = is_last     ? qv_cache_writer_close(&f->writer, &sealing)
                             : f->writer ? qv_cache_seal(f->writer, &sealing)
                                         : QV_OK;
    f->counts.seconds += qv_seconds() - began_s;
    if (!s && sealed && err)
        *err = sealing;
    return s ? s : sealed;
}

qv_status
qv_cache_fill_run(qv_cache_fill *fill, qv_model *const *models, size_t n_models, qv_error *err)
{
    QV_NEED(err, fill, models);
    return run(fill, models, n_models, false, err);
}

qv_status
qv_cache_fill_end(qv_cache_fill *fill, qv_model *const *models, size_t n_models, qv_error *err)
{
    QV_NEED(err, fill, models);
    return run(fill, models, n_models, true, err);
}
