/* SPDX-License-Identifier: MIT */
/*
 * qwenvit encode: clips and pictures -> safetensors of vision tokens. Three things go on at once:
 * the clip's own thread decodes, this one feeds the device, and one writes tokens to the file.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "commit.h"
#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "command/tool.h"

enum { MOST_AHEAD = 2, TOKEN_SETS = 2 };

/* Tokens on their way to the file: one set is filled while the other is written. */
struct outbox {
    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        qv_tokens tokens; /* of a chunk, f32 or bf16 as the file */
        int64_t first;    /* row of the file */
    } sets[TOKEN_SETS];
    /* under the lock */
    int64_t n_put, n_done;
    bool ended; /* there will be no more */
    qv_status status;
    qv_error error;
    double busy_s;
};

/* One clip on its way. Half-built is fine for close_job. */
struct job {
    const struct tool_options *o;
    qv_model_info model;
    qv_context_info context;
    const char *path;
    char output[4096];
    qv_clip *clip;
    qv_clip_info info;
    qv_plan *plan;
    qv_plan_info plan_info;
    int64_t ahead;
    struct qv_safetensors_writer *writer; /* the outbox's while its thread runs */
    struct outbox outbox;
    struct tool_picture *picture;
    uint8_t *frames[MOST_AHEAD]; /* of chunks that were pushed and not pulled */
    int64_t n_frames[MOST_AHEAD];
    double *timestamps_s; /* of all sampled frames */
    float *wide;          /* tokens in f32 for the picture, where the file has bf16 */
    int64_t n_read, n_tokens, n_pushed, n_pulled; /* frames; rows; chunks */
    double seconds, wait_decode_s, wait_device_s, wait_write_s;
};

/* Tensors of the file, in this order: tokens, DeepStack's, the grid, the timestamps. */
enum { MOST_TENSORS = 3 + QV_MAX_DEEPSTACK };

static qv_dtype
output_dtype(const struct job *job)
{
    return job->o->output_dtype ? job->o->output_dtype : QV_F32;
}

static size_t
row_bytes(const struct job *job)
{
    return (size_t)job->model.out_hidden * (output_dtype(job) == QV_BF16 ? 2 : 4);
}

static int64_t
total_tokens(const struct job *job)
{
    const int64_t *g = job->info.grid_thw, m = job->model.merge_size;
    return g[0] * g[1] * g[2] / (m * m);
}

/* ---- output ---------------------------------------------------------------------------------- */

static char *
preprocessing_text(const struct job *job)
{
    const qv_clip_info *c = &job->info;
    json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:I, s:I, s:i, s:i, s:I}", "kind",
                          c->picture ? "picture" : "video", "codec", c->codec, "format", c->format,
                          "source_width", c->source_width, "source_height", c->source_height,
                          "rotation", c->rotation, "source_fps", c->source_fps, "source_frames",
                          (json_int_t)c->source_frames, "sampled_frames", (json_int_t)c->n_frames,
                          "width", c->width, "height", c->height, "damaged_frames",
                          (json_int_t)qv_clip_damaged(job->clip));
    char *text = qv_json_text(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

static qv_status
open_output(struct job *job, qv_error *err)
{
    struct qv_safetensor tensors[MOST_TENSORS];
    char names[MOST_TENSORS][24];
    size_t n = 0;
    const char *type = output_dtype(job) == QV_BF16 ? "BF16" : "F32";
    int64_t rows = total_tokens(job);
    memset(tensors, 0, sizeof tensors);
    for (int i = 0; i < 1 + job->model.n_deepstack; i++, n++) {
        snprintf(names[n], sizeof names[n], i ? "deepstack.%d" : "tokens", i - 1);
        snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "%s", type);
        tensors[n].n_dims = 2;
        tensors[n].shape[0] = rows;
        tensors[n].shape[1] = job->model.out_hidden;
    }
    snprintf(names[n], sizeof names[n], "grid_thw");
    snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "I64");
    tensors[n].n_dims = 2;
    tensors[n].shape[0] = 1;
    tensors[n++].shape[1] = 3;
    snprintf(names[n], sizeof names[n], "timestamps");
    snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "F64");
    tensors[n].n_dims = 1;
    tensors[n++].shape[0] = job->info.n_frames;
    for (size_t i = 0; i < n; i++)
        tensors[i].name = names[i];

    char *preprocessing = preprocessing_text(job);
    if (!preprocessing)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for metadata", job->path);
    const char *const metadata[][2] = {
        { "format", "qwenvit" },
        { "qwenvit_version", qv_version() },
        { "source", job->path },
        { "model", job->model.model_type },
        { "weights_digest", *job->model.digest ? job->model.digest : "unknown" },
        { "precision", qv_dtype_name(job->model.dtype) },
        { "backend", job->context.backend },
        { "device", job->context.device },
        { "preprocessing", preprocessing },
    };
    qv_status status =
        qv_safetensors_writer_open(job->output, tensors, n, metadata,
                                   sizeof metadata / sizeof *metadata, &job->writer, err);
    free(preprocessing);
    return status;
}

static qv_status
write_chunk(struct job *job, const qv_tokens *t, int64_t first, qv_error *err)
{
    uint64_t at = (uint64_t)first * row_bytes(job), bytes = (uint64_t)t->n * row_bytes(job);
    qv_status status = QV_OK;
    for (int i = 0; i < 1 + job->model.n_deepstack && !status; i++)
        status = qv_safetensors_writer_put(job->writer, (size_t)i, at,
                                           i ? t->deepstack[i - 1] : t->tokens, bytes, err);
    return status;
}

/* How many frames were damaged is known at the end. */
static qv_status
amend_output(struct job *job, qv_error *err)
{
    char *preprocessing = preprocessing_text(job);
    if (!preprocessing)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for metadata", job->path);
    qv_status status =
        qv_safetensors_writer_amend(job->writer, "preprocessing", preprocessing, err);
    free(preprocessing);
    return status;
}

static qv_status
finish_output(struct job *job, qv_error *err)
{
    size_t grid = 1 + (size_t)job->model.n_deepstack;
    qv_status status = qv_safetensors_writer_put(job->writer, grid, 0, job->info.grid_thw,
                                                 sizeof job->info.grid_thw, err);
    if (!status)
        status = qv_safetensors_writer_put(job->writer, grid + 1, 0, job->timestamps_s,
                                           (uint64_t)job->info.n_frames * sizeof(double), err);
    if (!status)
        status = amend_output(job, err);
    if (!status && job->picture)
        status = tool_picture_write(job->picture, job->o->picture, err);
    if (!status)
        status = qv_safetensors_writer_finish(&job->writer, err);
    return status;
}

/* ---- the outbox ------------------------------------------------------------------------------ */

/* Its thread. What comes behind a failure is not written: the file will not appear. */
static void *
write_chunks(void *user)
{
    struct job *job = user;
    struct outbox *b = &job->outbox;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->n_done == b->n_put && !b->ended)
            pthread_cond_wait(&b->changed, &b->lock);
        if (b->n_done == b->n_put || b->status)
            break;
        int set = (int)(b->n_done % TOKEN_SETS);
        pthread_mutex_unlock(&b->lock);
        qv_error error = { 0 };
        double began = tool_seconds();
        qv_status status = write_chunk(job, &b->sets[set].tokens, b->sets[set].first, &error);
        double busy_s = tool_seconds() - began;
        pthread_mutex_lock(&b->lock);
        b->busy_s += busy_s;
        b->n_done++;
        if (status) {
            b->status = status;
            b->error = error;
        }
        pthread_cond_signal(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static qv_status
open_outbox(struct job *job, qv_error *err)
{
    struct outbox *b = &job->outbox;
    int64_t rows = job->plan_info.chunk_pairs * job->plan_info.tokens_per_pair;
    size_t bytes = (size_t)rows * row_bytes(job);
    bool ok = true;
    for (int set = 0; set < TOKEN_SETS; set++) {
        qv_tokens *t = &b->sets[set].tokens;
        t->capacity = rows;
        ok = (t->tokens = malloc(bytes)) != NULL && ok;
        for (int i = 0; i < job->model.n_deepstack; i++)
            ok = (t->deepstack[i] = malloc(bytes)) != NULL && ok;
    }
    if (!ok)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a chunk's tokens", job->path);
    if (pthread_mutex_init(&b->lock, NULL))
        return qv_fail(err, QV_ENOMEM, "%s: no lock can be made", job->path);
    if (pthread_cond_init(&b->changed, NULL)) {
        pthread_mutex_destroy(&b->lock);
        return qv_fail(err, QV_ENOMEM, "%s: no condition variable can be made", job->path);
    }
    b->has_lock = true;
    b->has_thread = !pthread_create(&b->thread, NULL, write_chunks, job);
    return b->has_thread ? QV_OK
                         : qv_fail(err, QV_ENOMEM, "%s: no thread to write with", job->path);
}

/* When all that was put is written, or writing has failed; closed, it says so again. */
static qv_status
end_outbox(struct outbox *b, qv_error *err)
{
    if (b->has_thread) {
        pthread_mutex_lock(&b->lock);
        b->ended = true;
        pthread_cond_signal(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    b->has_thread = false;
    if (b->status && err)
        *err = b->error;
    return b->status;
}

static void
close_outbox(struct outbox *b)
{
    end_outbox(b, NULL);
    if (b->has_lock) {
        pthread_cond_destroy(&b->changed);
        pthread_mutex_destroy(&b->lock);
    }
    for (int set = 0; set < TOKEN_SETS; set++) {
        free(b->sets[set].tokens.tokens);
        for (int i = 0; i < QV_MAX_DEEPSTACK; i++)
            free(b->sets[set].tokens.deepstack[i]);
    }
}

/* Waits until there is a set to fill. */
static qv_status
wait_for_set(struct outbox *b, qv_tokens **out, qv_error *err)
{
    pthread_mutex_lock(&b->lock);
    while (b->n_put - b->n_done == TOKEN_SETS && !b->status)
        pthread_cond_wait(&b->changed, &b->lock);
    qv_status status = b->status;
    if (status && err)
        *err = b->error;
    *out = &b->sets[b->n_put % TOKEN_SETS].tokens;
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* Hands over the set that was waited for. */
static void
put_set(struct outbox *b, int64_t first)
{
    pthread_mutex_lock(&b->lock);
    b->sets[b->n_put % TOKEN_SETS].first = first;
    b->n_put++;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* First the thread that uses the rest. */
static void
close_job(struct job *job)
{
    close_outbox(&job->outbox);
    qv_plan_free(&job->plan);
    qv_clip_close(&job->clip);
    qv_safetensors_writer_abort(&job->writer);
    tool_picture_close(&job->picture);
    for (int i = 0; i < MOST_AHEAD; i++)
        free(job->frames[i]);
    free(job->timestamps_s);
    free(job->wide);
}

static qv_status
open_buffers(struct job *job, qv_error *err)
{
    size_t frame_bytes = (size_t)job->info.width * (size_t)job->info.height * 3;
    int64_t rows = job->plan_info.chunk_pairs * job->plan_info.tokens_per_pair;
    bool ok = (job->timestamps_s = calloc((size_t)job->info.n_frames, sizeof(double))) != NULL;
    job->ahead =
        job->plan_info.chunks_ahead < MOST_AHEAD ? job->plan_info.chunks_ahead : MOST_AHEAD;
    for (int64_t i = 0; i < job->ahead; i++) {
        job->frames[i] = malloc((size_t)job->plan_info.chunk_frames * frame_bytes);
        ok = job->frames[i] && ok;
    }
    if (job->o->picture && output_dtype(job) == QV_BF16)
        ok = (job->wide = malloc(2 * (size_t)rows * row_bytes(job))) != NULL && ok;
    return ok ? QV_OK : qv_fail(err, QV_ENOMEM, "%s: no memory for a chunk", job->path);
}

static qv_status
open_job(struct job *job, qv_model *model, qv_error *err)
{
    qv_status status = qv_clip_open(job->path, &job->model.image, &job->model.video, &job->o->clip,
                                    &job->clip, err);
    if (status)
        return status;
    qv_clip_get_info(job->clip, &job->info);
    qv_plan_options options = { .grid_h = job->info.grid_thw[1],
                                .grid_w = job->info.grid_thw[2],
                                .still = job->info.picture,
                                .image_norm = job->info.picture,
                                .output = output_dtype(job),
                                .chunk_pairs = job->info.picture ? 1 : job->o->chunk_pairs };
    status = qv_plan_create(model, &options, &job->plan, err);
    if (status)
        return status;
    qv_plan_get_info(job->plan, &job->plan_info);
    status = open_buffers(job, err);
    if (!status && job->o->picture)
        status = tool_picture_open(&job->info, &job->model, &job->picture, err);
    if (!status)
        status = open_output(job, err);
    return status ? status : open_outbox(job, err);
}

/* A full chunk, or what is left. *n is 0 at the end. */
static qv_status
read_chunk(struct job *job, uint8_t *frames, int64_t *n, qv_error *err)
{
    size_t frame_bytes = (size_t)job->info.width * (size_t)job->info.height * 3;
    for (*n = 0; *n < job->plan_info.chunk_frames;) {
        int64_t got = 0, room = job->info.n_frames - job->n_read;
        int64_t want = job->plan_info.chunk_frames - *n;
        if (room < want)
            want = room;
        if (!want)
            break;
        qv_status status = qv_clip_read(job->clip, frames + (size_t)*n * frame_bytes, want, &got,
                                        job->timestamps_s + job->n_read, err);
        if (status)
            return status;
        if (!got)
            return qv_fail(err, QV_EFORMAT, "%s: ended before its last sampled frame", job->path);
        *n += got;
        job->n_read += got;
    }
    return QV_OK;
}

static void
add_to_picture(struct job *job, const uint8_t *frames, int64_t n_frames, const qv_tokens *t)
{
    const float *tokens = t->tokens;
    if (job->wide) {
        const uint16_t *h = t->tokens;
        for (int64_t i = 0; i < t->n * job->model.out_hidden; i++) {
            uint32_t u = (uint32_t)h[i] << 16;
            memcpy(&job->wide[i], &u, sizeof u);
        }
        tokens = job->wide;
    }
    tool_picture_add(job->picture, frames, n_frames, tokens);
}

/* The next chunk to the device; *more is false where the clip has ended. */
static qv_status
push_chunk(struct job *job, bool *more, qv_error *err)
{
    int64_t slot = job->n_pushed % job->ahead, *n = &job->n_frames[slot];
    double began = tool_seconds();
    qv_status status = read_chunk(job, job->frames[slot], n, err);
    double read = tool_seconds();
    job->wait_decode_s += read - began;
    *more = *n > 0;
    if (status || !*n)
        return status;
    status = qv_plan_push(job->plan, job->frames[slot], *n, err);
    job->wait_device_s += tool_seconds() - read;
    job->n_pushed++;
    return status;
}

/* The oldest chunk's tokens to the outbox. */
static qv_status
pull_chunk(struct job *job, qv_error *err)
{
    int64_t slot = job->n_pulled % job->ahead;
    qv_tokens *t;
    double began = tool_seconds();
    qv_status status = wait_for_set(&job->outbox, &t, err);
    double waited = tool_seconds();
    job->wait_write_s += waited - began;
    if (!status)
        status = qv_plan_pull(job->plan, t, err);
    job->wait_device_s += tool_seconds() - waited;
    if (status)
        return status;
    if (job->picture)
        add_to_picture(job, job->frames[slot], job->n_frames[slot], t);
    int64_t rows = t->n;
    put_set(&job->outbox, job->n_tokens);
    job->n_tokens += rows;
    job->n_pulled++;
    return QV_OK;
}

static qv_status
encode_clip(struct job *job, qv_error *err)
{
    struct tool_progress progress;
    double began = tool_seconds();
    bool more = true;
    qv_status status = QV_OK;
    tool_progress_begin(&progress, job->path, job->info.n_frames, job->o->quiet);
    while (more && !status) {
        if (job->n_pushed - job->n_pulled == job->ahead)
            status = pull_chunk(job, err);
        if (!status)
            status = push_chunk(job, &more, err);
        if (!status && more)
            tool_progress_show(&progress, job->n_read);
    }
    while (!status && job->n_pulled < job->n_pushed)
        status = pull_chunk(job, err);
    if (status)
        return status;
    double all_pulled = tool_seconds();
    status = end_outbox(&job->outbox, err);
    job->wait_write_s += tool_seconds() - all_pulled;
    if (status)
        return status;
    tool_progress_end(&progress, job->n_read);
    job->seconds = tool_seconds() - began;
    return finish_output(job, err);
}

static int64_t
peak_rss_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return usage.ru_maxrss; /* bytes there, KiB elsewhere */
#else
    return (int64_t)usage.ru_maxrss * 1024;
#endif
}

/* Frames of the clip, sampled or not, while frames were being decoded: all of them are. */
static double
frames_per_s(const struct job *job)
{
    return (double)job->info.source_frames / (qv_clip_busy_seconds(job->clip) + 1e-9);
}

/* Of the three that go on at once. The device's own time shows where the others wait for it. */
static double
slowest_stage_s(const struct job *job)
{
    double most = qv_clip_busy_seconds(job->clip);
    most = job->wait_device_s > most ? job->wait_device_s : most;
    return job->outbox.busy_s > most ? job->outbox.busy_s : most;
}

static qv_status
report_json(const struct job *job, qv_error *err)
{
    const int64_t *g = job->info.grid_thw;
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:[I,I,I], s:I, s:I, s:I, s:f, s:s, s:I, s:s, s:I}", "clip",
                  job->path, "decoder", job->o->clip.trusted ? "thread" : "process", "output",
                  job->output, "grid_thw", (json_int_t)g[0], (json_int_t)g[1], (json_int_t)g[2],
                  "tokens", (json_int_t)job->n_tokens, "width", (json_int_t)job->model.out_hidden,
                  "frames", (json_int_t)job->info.n_frames, "seconds", job->seconds, "precision",
                  qv_dtype_name(job->model.dtype), "damaged_frames",
                  (json_int_t)qv_clip_damaged(job->clip), "lowering", job->plan_info.lowering,
                  "peak_rss_bytes", (json_int_t)peak_rss_bytes());
    int missing = json_object_update_new(
        j, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "decode_s",
                     qv_clip_busy_seconds(job->clip), "write_s", job->outbox.busy_s,
                     "wait_decode_s", job->wait_decode_s, "wait_device_s", job->wait_device_s,
                     "wait_write_s", job->wait_write_s, "over_slowest_stage",
                     job->seconds / (slowest_stage_s(job) + 1e-9), "frames_per_s",
                     frames_per_s(job), "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN)));
    missing |=
        json_object_update_new(j, json_pack("{s:{s:s, s:s, s:i}, s:s, s:s}", "machine", "backend",
                                            job->context.backend, "device", job->context.device,
                                            "threads", job->context.threads, "version",
                                            qv_version(), "commit", QV_COMMIT));
    if (missing) {
        json_decref(j);
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a result", job->path);
    }
    return tool_emit_json(job->o, j, err);
}

/* Where the time went, of a clip that took long enough to ask. */
static void
report_stages(const struct job *job)
{
    if (job->info.picture || job->seconds < 1)
        return;
    printf("  waited %.2f s for frames, %.2f s for the device, %.2f s for writing; %.1f frames a "
           "second decoded; %.2f times the slowest stage\n",
           job->wait_decode_s, job->wait_device_s, job->wait_write_s, frames_per_s(job),
           job->seconds / (slowest_stage_s(job) + 1e-9));
}

static qv_status
report(const struct job *job, qv_error *err)
{
    if (job->o->json)
        return report_json(job, err);
    printf("%s: %lld frame%s of %dx%d -> %lld tokens of %lld in %.2f s (%s) -> %s\n", job->path,
           (long long)job->info.n_frames, job->info.n_frames == 1 ? "" : "s", job->info.width,
           job->info.height, (long long)job->n_tokens, (long long)job->model.out_hidden,
           job->seconds, qv_dtype_name(job->model.dtype), job->output);
    report_stages(job);
    int64_t damaged = qv_clip_damaged(job->clip);
    if (damaged)
        tool_complain("%s: %lld damaged frame%s replaced by the one before", job->path,
                      (long long)damaged, damaged == 1 ? " was" : "s were");
    return QV_OK;
}

/* OUT itself for one clip; for several, OUT/NAME.safetensors. */
static qv_status
name_output(struct job *job, qv_error *err)
{
    const char *out = job->o->output;
    bool folder = tool_is_folder(out);
    if (job->o->n_arguments > 1 && !folder)
        return qv_fail(err, QV_EINVAL, "%s: with several clips, -o must be an existing folder",
                       out);
    const char *slash = strrchr(job->path, '/');
    int n = folder ? snprintf(job->output, sizeof job->output, "%s/%s.safetensors", out,
                              slash ? slash + 1 : job->path)
                   : snprintf(job->output, sizeof job->output, "%s", out);
    if (n < 0 || (size_t)n >= sizeof job->output)
        return qv_fail(err, QV_EINVAL, "%s: the output's name is too long", out);
    return QV_OK;
}

static qv_status
encode_one(const struct tool_options *o, const qv_context_info *context, qv_model *model,
           const char *path, qv_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a job", path);
    job->o = o;
    job->path = path;
    qv_model_get_info(model, &job->model);
    job->context = *context;
    qv_status status = name_output(job, err);
    if (!status)
        status = open_job(job, model, err);
    if (!status)
        status = encode_clip(job, err);
    if (!status)
        status = report(job, err);
    close_job(job);
    free(job);
    return status;
}

static int
check_usage(const struct tool_options *o)
{
    const char *wrong = !o->n_arguments                    ? "no clip given"
                        : !o->model                        ? "--model DIR is required"
                        : !o->output                       ? "-o OUT is required"
                        : o->picture && o->n_arguments > 1 ? "--picture goes with one clip"
                                                           : NULL;
    if (wrong)
        tool_complain("encode: %s (qwenvit encode --help)", wrong);
    return wrong ? TOOL_USAGE : TOOL_DONE;
}

int
tool_encode(const struct tool_options *o)
{
    int code = check_usage(o);
    if (code)
        return code;
    qv_error err = { 0 };
    qv_context *ctx = NULL;
    qv_context_info context;
    qv_model *model = NULL;
    qv_model_options options = { .dtype = o->dtype };
    qv_status status = tool_open_context(o, &ctx, &err);
    if (!status)
        qv_context_get_info(ctx, &context);
    if (!status)
        status = qv_model_load(ctx, o->model, &options, &model, &err);
    if (status)
        code = tool_fail(status, &err);
    size_t failed = 0;
    for (size_t i = 0; i < o->n_arguments && !code; i++) {
        status = encode_one(o, &context, model, o->arguments[i], &err);
        if (!status)
            continue;
        failed++;
        int why = tool_fail(status, &err);
        if (o->n_arguments == 1 || why == TOOL_DEVICE || why == TOOL_USAGE)
            code = why;
    }
    if (!code && failed) {
        tool_complain("%zu of %zu clips failed", failed, o->n_arguments);
        code = TOOL_FAILED;
    }
    qv_model_free(&model);
    tool_close_context(&ctx, &context);
    return code;
}
