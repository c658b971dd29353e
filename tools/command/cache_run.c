/* SPDX-License-Identifier: MIT */
/*
 * qwenvit cache, making one: what the cache lacks of a list goes through a job (qwenvit_job.h), and what
 * comes of it into parts. What is wrong with a clip becomes its record; what is wrong with the device or
 * the disk ends the run, as a signal does: what is done by then is sealed.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"
#include "commit.h"
#include "dtype.h"
#include "encode.h"
#include "error.h"
#include "files/json.h"

enum { SINKS = 4, QUEUE = 512 };

/* A line that is to be done. */
struct clip {
    const struct tool_entry *entry;
    int64_t bytes, mtime_ns; /* of its file, before the job saw it */
    qv_cache_entry *cached;  /* the sink's */
};

struct run {
    const struct tool_options *o;
    struct tool_list list;
    struct clip *clips; /* [n] */
    size_t n;
    int64_t n_skipped, n_failed_before;
    struct tool_cache_times times;
    struct tool_devices *devices;
    qv_model_info model;
    qv_cache_layout layout;
    qv_cache_writer *writer;
    qv_job *job;
    struct tool_job_progress progress;
    pthread_mutex_t lock; /* of messages, and: */
    int64_t n_ok, n_failed, n_tokens;
    qv_status status; /* what ends the run */
    qv_error error;
    atomic_bool ended;
};

/* ---- signals --------------------------------------------------------------------------------- */

static volatile sig_atomic_t caught;

static void
on_signal(int number)
{
    caught = number; /* a second one ends the process at once: SA_RESETHAND */
}

static void
catch_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler != SIG_IGN) /* nohup */
            sigaction(numbers[i], &action, NULL);
}

/* ---- the sink -------------------------------------------------------------------------------- */

/* Ends the run. Under no lock. */
static qv_status
end_run(struct run *r, qv_status status, const qv_error *err)
{
    pthread_mutex_lock(&r->lock);
    if (!r->status) {
        r->status = status;
        r->error = *err;
    }
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->ended, true);
    return status;
}

/* f32 rows as f16, each value rounded once; one that f16 cannot hold is no token. */
static qv_status
to_f16(const float *from, int64_t n, uint16_t **out, qv_error *err)
{
    uint16_t *to = malloc((size_t)n * sizeof *to);
    if (!to)
        return qv_fail(err, QV_ENOMEM, "no memory for tokens as f16");
    for (int64_t i = 0; i < n; i++) {
        to[i] = qv_f32_to_f16(from[i]);
        if ((to[i] & 0x7fff) == 0x7c00) {
            free(to);
            return qv_fail(err, QV_EUNSUPPORTED,
                           "a token has the value %g, which f16 does not hold; --tokens bf16 does",
                           (double)from[i]);
        }
    }
    *out = to;
    return QV_OK;
}

static qv_status
put_f16(struct run *r, struct clip *clip, const qv_tokens *t, qv_error *err)
{
    qv_tokens half = { .n = t->n };
    uint16_t *rows[1 + QV_MAX_DEEPSTACK] = { NULL };
    const int64_t n = t->n * r->layout.width;
    qv_status s = QV_OK;
    for (int i = 0; i < 1 + r->layout.n_deepstack && !s; i++) {
        s = to_f16(i ? t->deepstack[i - 1] : t->tokens, n, &rows[i], err);
        *(i ? &half.deepstack[i - 1] : &half.tokens) = rows[i];
    }
    const bool lost = s == QV_EUNSUPPORTED;
    if (!s)
        s = qv_cache_put(clip->cached, &half, err);
    for (int i = 0; i < 1 + r->layout.n_deepstack; i++)
        free(rows[i]);
    return s && !lost ? end_run(r, s, err) : s;
}

/* Whatever becomes of the file meanwhile: the identity is that of the one that was read; of one that could
 * not be opened what it was before, so that a file that is there by now is done again. */
static qv_cache_source
source_of(const struct clip *clip, const qv_job_result *result,
          char options[QV_CACHE_OPTIONS_BYTES])
{
    qv_cache_source source = tool_cache_source(clip->entry, options);
    source.bytes = result->clip ? result->clip->file_bytes : clip->bytes;
    source.mtime_ns = result->clip ? result->clip->file_mtime_ns : clip->mtime_ns;
    return source;
}

/* A failure of the cache ends the run; one of the clip alone is returned. */
static qv_status
put(struct run *r, struct clip *clip, const qv_job_result *result, qv_error *err)
{
    char options[QV_CACHE_OPTIONS_BYTES];
    if (!clip->cached) {
        const qv_cache_source source = source_of(clip, result, options);
        const qv_status s =
            qv_cache_begin(r->writer, clip->entry->key, &source,
                           result->status ? 0 : result->n_tokens, &clip->cached, err);
        if (s)
            return end_run(r, s, err);
    }
    if (result->status || !result->n)
        return QV_OK;
    qv_tokens t = { .tokens = (void *)(uintptr_t)result->tokens, .n = result->n };
    for (int i = 0; i < r->layout.n_deepstack; i++)
        t.deepstack[i] = (void *)(uintptr_t)result->deepstack[i];
    if (r->layout.dtype == QV_F16)
        return put_f16(r, clip, &t, err);
    const qv_status s = qv_cache_put(clip->cached, &t, err);
    return s ? end_run(r, s, err) : s;
}

/* status: of the result, or why it is none. */
static qv_status
finish(struct run *r, struct clip *clip, const qv_job_result *result, qv_status status,
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
    pthread_mutex_lock(&r->lock);
    if (status)
        tool_complain("%s", words);
    r->n_failed += status != QV_OK;
    r->n_ok += !status;
    r->n_tokens += status ? 0 : result->n_tokens;
    tool_job_progress_show(&r->progress, r->job);
    pthread_mutex_unlock(&r->lock);
    const qv_status s = qv_cache_finish(&clip->cached, &done, err);
    return s ? end_run(r, s, err) : status;
}

/* After a failure that is no last call there is one more, which says it again. */
static qv_status
take_result(void *user, const qv_job_result *result, qv_error *err)
{
    struct run *r = user;
    struct clip *clip = result->user;
    qv_status s = result->status;
    const bool not_its_fault = result->cancelled || (s && tool_exit_code(s) == TOOL_DEVICE);
    if (!not_its_fault && !atomic_load(&r->ended)) {
        qv_error why = { 0 };
        const qv_status put_s = put(r, clip, result, &why);
        const char *words = put_s ? why.text : result->error;
        s = put_s ? put_s : s;
        if (result->last && !atomic_load(&r->ended))
            return finish(r, clip, result, s, words, err);
        if (put_s && err)
            *err = why;
    }
    if (not_its_fault || atomic_load(&r->ended)) {
        qv_cache_drop(&clip->cached);
        if (!s)
            s = qv_fail(err, QV_ESTATE, "%s: the run has ended", clip->entry->path);
    }
    return s;
}

/* ---- what is to be done ----------------------------------------------------------------------- */

static bool
is_wanted(struct run *r, const qv_cache *there, const struct tool_entry *entry, struct clip *out)
{
    char options[QV_CACHE_OPTIONS_BYTES];
    const qv_cache_source source = tool_cache_source(entry, options);
    *out = (struct clip){ .entry = entry, .bytes = source.bytes, .mtime_ns = source.mtime_ns };
    if (!there)
        return true;
    const qv_cache_state state = qv_cache_compare(there, entry->key, &source);
    const bool again = state == QV_CACHE_FAILED && r->o->retry_failed;
    r->n_failed_before += state == QV_CACHE_FAILED && !again;
    r->n_skipped += state == QV_CACHE_DONE;
    return again || state == QV_CACHE_MISSING || state == QV_CACHE_CHANGED;
}

/* The lines that the cache lacks. *after: what new parts are to come after. */
static qv_status
find_work(struct run *r, int64_t *after, qv_error *err)
{
    qv_cache *there = NULL;
    qv_cache_info info = { .sealed = 0 };
    char *description = qv_path_join(r->o->out, "qwenvit-cache.json");
    if (!description)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", r->o->out);
    qv_status s = qv_path_exists(description) ? tool_cache_open(r->o, &there, err) : QV_OK;
    free(description);
    if (there)
        qv_cache_get_info(there, &info);
    *after = info.sealed;
    size_t room = 0;
    for (size_t i = 0; i < r->list.n && !s; i++) {
        struct clip clip;
        if (!is_wanted(r, there, &r->list.at[i], &clip))
            continue;
        if (r->n == room) {
            room = 2 * room + 64;
            struct clip *clips = realloc(r->clips, room * sizeof *clips);
            if (!clips) {
                s = qv_fail(err, QV_ENOMEM, "no memory for %zu clips", room);
                break;
            }
            r->clips = clips;
        }
        r->clips[r->n++] = clip;
    }
    qv_cache_close(&there);
    return s;
}

/* ---- the run --------------------------------------------------------------------------------- */

static qv_status
open_job(struct run *r, qv_error *err)
{
    const qv_job_options options = { .sink = take_result,
                                     .user = r,
                                     .output = r->layout.dtype == QV_BF16 ? QV_BF16 : QV_F32,
                                     .sinks = SINKS,
                                     .queue = QUEUE,
                                     .chunk_rows = r->o->chunk_rows,
                                     .clip = r->o->clip };
    return qv_job_open(r->devices->models, r->devices->n, &options, &r->job, err);
}

static qv_status
open_writer(struct run *r, int64_t after, qv_error *err)
{
    char *by = NULL;
    const int64_t rows = qv_model_pack_rows(r->devices->models[0], r->o->chunk_rows);
    qv_status s = qv_cache_made_by(&r->model, rows, &r->o->clip, &by, err);
    if (s)
        return s;
    const qv_cache_writer_options options = { .layout = r->layout,
                                              .made_by = by,
                                              .shard = r->o->shard[0],
                                              .n_shards = r->o->shard[1],
                                              .part_bytes = r->o->part_bytes,
                                              .part_seconds = r->o->part_seconds,
                                              .after = after };
    s = qv_cache_writer_open(r->o->out, &options, &r->writer, err);
    free(by);
    return s;
}

static bool
is_over(struct run *r)
{
    return caught || atomic_load(&r->ended);
}

/* Waits until so many are done, or the job or the run has ended: a signal is heard within a moment.
 * Returns how many are. */
static int64_t
wait_for(struct run *r, int64_t n)
{
    const struct timespec moment = { .tv_nsec = 20000000 };
    qv_job_progress p;
    for (;;) {
        qv_job_get_progress(r->job, &p);
        if (is_over(r) || p.done >= n || p.ended)
            return p.done;
        nanosleep(&moment, NULL);
    }
}

/* There are always fewer that are not done than the job's queue holds: else qv_job_add would wait, and no
 * signal were heard. */
static qv_status
add_all(struct run *r, qv_error *err)
{
    qv_status s = QV_OK;
    int64_t n = 0, done = 0;
    tool_job_progress_begin(&r->progress, (int64_t)r->n, r->o->quiet);
    while (n < (int64_t)r->n && !s) {
        if (n - done >= QUEUE)
            done = wait_for(r, n - QUEUE + 1);
        if (is_over(r))
            break;
        struct clip *clip = &r->clips[n++];
        const qv_clip_options options = qv_row_options(clip->entry->own, &r->o->clip);
        const qv_job_source source = {
            .key = clip->entry->key, .path = clip->entry->path, .clip = &options, .user = clip
        };
        s = qv_job_add(r->job, &source, err);
    }
    if (!s)
        wait_for(r, n);
    if (!s && !is_over(r))
        s = qv_job_end(r->job, err);
    tool_job_progress_end();
    return s;
}

static qv_status
report(const struct run *r, qv_error *err)
{
    if (!r->o->json) {
        printf(
            "%s: %lld done, %lld tokens, %lld failed; %lld were there, %lld had failed before%s\n",
            r->o->out, (long long)r->n_ok, (long long)r->n_tokens, (long long)r->n_failed,
            (long long)r->n_skipped, (long long)r->n_failed_before,
            r->n_failed_before ? " (--retry-failed)" : "");
        return QV_OK;
    }
    json_t *j =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:I, s:s, s:s}", "cache",
                  tool_json_text(r->o->out), "done", (json_int_t)r->n_ok, "tokens",
                  (json_int_t)r->n_tokens, "failed", (json_int_t)r->n_failed, "there",
                  (json_int_t)r->n_skipped, "failed_before", (json_int_t)r->n_failed_before,
                  "interrupted", caught != 0, "list_s", r->times.list_s, "look_s", r->times.look_s,
                  "job_s", r->times.job_s, "peak_bytes", (json_int_t)tool_peak_bytes(), "version",
                  qv_version(), "commit", QV_COMMIT);
    return j ? tool_emit_json(r->o, j, err) : qv_fail(err, QV_ENOMEM, "no memory for a result");
}

/* What fails from here on is the device or the disk, unless the cache is of another kind. */
static int
exit_code(qv_status s)
{
    return s == QV_EFORMAT || s == QV_EUNSUPPORTED ? TOOL_BAD_INPUT
           : s == QV_EINVAL                        ? TOOL_USAGE
                                                   : TOOL_DEVICE;
}

static int
run_job(struct run *r, int64_t after, qv_error *err)
{
    qv_status s = open_job(r, err);
    if (!s)
        s = open_writer(r, after, err);
    const double began_s = tool_seconds();
    if (!s)
        s = add_all(r, err);
    qv_job_close(&r->job); /* what is under way comes to the sink as cancelled */
    if (r->status) {
        s = r->status;
        *err = r->error;
    }
    qv_error sealing = { 0 };
    const qv_status sealed = qv_cache_writer_close(&r->writer, &sealing);
    r->times.job_s = tool_seconds() - began_s;
    if (!s && sealed) {
        s = sealed;
        *err = sealing;
    }
    if (s) {
        tool_complain("%s", err->text);
        return exit_code(s);
    }
    s = report(r, err);
    return s ? tool_fail(s, err) : r->n_failed || r->n_failed_before ? TOOL_FAILED : TOOL_DONE;
}

static int
run_all(struct run *r, qv_error *err)
{
    int64_t after = 0;
    const double began_s = tool_seconds();
    qv_status s = tool_cache_list(r->o, &r->list, err);
    r->times.list_s = tool_seconds() - began_s;
    if (!s)
        s = find_work(r, &after, err);
    r->times.look_s = tool_seconds() - began_s - r->times.list_s;
    if (!s && !r->devices->n)
        s = tool_devices_open(r->o, r->devices, err);
    if (s)
        return tool_fail(s, err);
    qv_model_get_info(r->devices->models[0], &r->model);
    r->layout = (qv_cache_layout){ .dtype = r->o->tokens ? r->o->tokens : QV_BF16,
                                   .width = r->model.out_hidden,
                                   .n_deepstack = r->o->no_deepstack ? 0 : r->model.n_deepstack,
                                   .packed = r->o->packed };
    return run_job(r, after, err);
}

int
tool_cache_run_on(const struct tool_options *o, struct tool_devices *devices,
                  struct tool_cache_times *times)
{
    struct run r = { .o = o, .devices = devices };
    qv_error err = { 0 };
    if (pthread_mutex_init(&r.lock, NULL))
        return tool_fail(qv_fail(&err, QV_ENOMEM, "no lock can be made"), &err);
    const int code = run_all(&r, &err);
    *times = r.times;
    pthread_mutex_destroy(&r.lock);
    free(r.clips);
    tool_list_free(&r.list);
    return code;
}

int
tool_cache_run(const struct tool_options *o)
{
    struct tool_devices devices = { .n = 0 };
    struct tool_cache_times times;
    catch_signals();
    const int code = tool_cache_run_on(o, &devices, &times);
    tool_devices_close(&devices);
    if (caught) { /* as a shell's loop wants to see it */
        tool_complain("interrupted: what was done is sealed; run it again to go on");
        signal(caught, SIG_DFL);
        raise(caught);
    }
    return code;
}
