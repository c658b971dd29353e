/* SPDX-License-Identifier: MIT */
/* qwenvit encode: clips and pictures -> safetensors of vision tokens. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "error.h"
#include "safetensors.h"
#include "tool.h"

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
    struct qv_safetensors_writer *writer;
    struct tool_picture *picture;
    uint8_t *frames;      /* a chunk */
    double *timestamps_s; /* of all sampled frames */
    qv_tokens tokens;     /* of a chunk, f32 or bf16 as the file */
    float *wide;          /* tokens in f32 for the picture, where the file has bf16 */
    int64_t n_read, n_tokens;
    double seconds;
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

static void
close_job(struct job *job)
{
    qv_plan_free(&job->plan);
    qv_clip_close(&job->clip);
    qv_safetensors_writer_abort(&job->writer);
    tool_picture_close(&job->picture);
    free(job->frames);
    free(job->timestamps_s);
    free(job->tokens.tokens);
    for (int i = 0; i < QV_MAX_DEEPSTACK; i++)
        free(job->tokens.deepstack[i]);
    free(job->wide);
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
    char *text = json_dumps(j, JSON_COMPACT);
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
write_chunk(struct job *job, qv_error *err)
{
    uint64_t at = (uint64_t)job->n_tokens * row_bytes(job);
    uint64_t bytes = (uint64_t)job->tokens.n * row_bytes(job);
    qv_status status = QV_OK;
    for (int i = 0; i < 1 + job->model.n_deepstack && !status; i++)
        status = qv_safetensors_writer_put(job->writer, (size_t)i, at,
                                           i ? job->tokens.deepstack[i - 1] : job->tokens.tokens,
                                           bytes, err);
    job->n_tokens += job->tokens.n;
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
    if (!status && job->picture)
        status = tool_picture_write(job->picture, job->o->picture, err);
    if (!status)
        status = qv_safetensors_writer_finish(&job->writer, err);
    return status;
}

/* ---- encoding -------------------------------------------------------------------------------- */

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
    job->tokens.capacity = job->plan_info.chunk_pairs * job->plan_info.tokens_per_pair;
    size_t bytes = (size_t)job->tokens.capacity * row_bytes(job);
    bool ok = (job->tokens.tokens = malloc(bytes)) != NULL;
    for (int i = 0; i < job->model.n_deepstack; i++)
        ok = (job->tokens.deepstack[i] = malloc(bytes)) != NULL && ok;
    job->frames = malloc((size_t)job->plan_info.chunk_frames * (size_t)job->info.width *
                         (size_t)job->info.height * 3);
    job->timestamps_s = calloc((size_t)job->info.n_frames, sizeof *job->timestamps_s);
    if (job->o->picture && output_dtype(job) == QV_BF16)
        ok = (job->wide = malloc(2 * bytes)) != NULL && ok;
    if (!ok || !job->frames || !job->timestamps_s)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a chunk", job->path);
    if (job->o->picture)
        status = tool_picture_open(&job->info, &job->model, &job->picture, err);
    return status ? status : open_output(job, err);
}

/* A full chunk, or what is left. *n is 0 at the end. */
static qv_status
read_chunk(struct job *job, int64_t *n, qv_error *err)
{
    size_t frame_bytes = (size_t)job->info.width * (size_t)job->info.height * 3;
    for (*n = 0; *n < job->plan_info.chunk_frames;) {
        int64_t got = 0, room = job->info.n_frames - job->n_read;
        int64_t want = job->plan_info.chunk_frames - *n;
        if (room < want)
            want = room;
        if (!want)
            break;
        qv_status status = qv_clip_read(job->clip, job->frames + (size_t)*n * frame_bytes, want,
                                        &got, job->timestamps_s + job->n_read, err);
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
add_to_picture(struct job *job, int64_t n_frames)
{
    const float *tokens = job->tokens.tokens;
    if (job->wide) {
        const uint16_t *h = job->tokens.tokens;
        for (int64_t i = 0; i < job->tokens.n * job->model.out_hidden; i++) {
            uint32_t u = (uint32_t)h[i] << 16;
            memcpy(&job->wide[i], &u, sizeof u);
        }
        tokens = job->wide;
    }
    tool_picture_add(job->picture, job->frames, n_frames, tokens);
}

static qv_status
encode_clip(struct job *job, qv_error *err)
{
    struct tool_progress progress;
    double began = tool_seconds();
    tool_progress_begin(&progress, job->path, job->info.n_frames, job->o->quiet);
    for (;;) {
        int64_t n;
        qv_status status = read_chunk(job, &n, err);
        if (!status && n)
            status = qv_plan_push(job->plan, job->frames, n, err);
        if (!status && n)
            status = qv_plan_pull(job->plan, &job->tokens, err);
        if (!status && n && job->picture)
            add_to_picture(job, n);
        if (!status && n)
            status = write_chunk(job, err);
        if (status)
            return status;
        if (!n)
            break;
        tool_progress_show(&progress, job->n_read);
    }
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

static void
report(const struct job *job)
{
    const int64_t *g = job->info.grid_thw;
    if (job->o->json) {
        tool_print_json(
            json_pack("{s:s, s:s, s:[I,I,I], s:I, s:I, s:I, s:f, s:s, s:I, s:s, s:I}", "clip",
                      job->path, "output", job->output, "grid_thw", (json_int_t)g[0],
                      (json_int_t)g[1], (json_int_t)g[2], "tokens", (json_int_t)job->n_tokens,
                      "width", (json_int_t)job->model.out_hidden, "frames",
                      (json_int_t)job->info.n_frames, "seconds", job->seconds, "precision",
                      qv_dtype_name(job->model.dtype), "damaged_frames",
                      (json_int_t)qv_clip_damaged(job->clip), "lowering", job->plan_info.lowering,
                      "peak_rss_bytes", (json_int_t)peak_rss_bytes()));
        return;
    }
    printf("%s: %lld frame%s of %dx%d -> %lld tokens of %lld in %.2f s (%s) -> %s\n", job->path,
           (long long)job->info.n_frames, job->info.n_frames == 1 ? "" : "s", job->info.width,
           job->info.height, (long long)job->n_tokens, (long long)job->model.out_hidden,
           job->seconds, qv_dtype_name(job->model.dtype), job->output);
    int64_t damaged = qv_clip_damaged(job->clip);
    if (damaged)
        tool_complain("%s: %lld damaged frame%s replaced by the one before", job->path,
                      (long long)damaged, damaged == 1 ? " was" : "s were");
}

/* OUT itself for one clip; for several, OUT/NAME.safetensors. */
static qv_status
name_output(struct job *job, qv_error *err)
{
    struct stat st;
    const char *out = job->o->output;
    bool folder = !stat(out, &st) && S_ISDIR(st.st_mode);
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
encode_one(const struct tool_options *o, qv_context *ctx, qv_model *model, const char *path,
           qv_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a job", path);
    job->o = o;
    job->path = path;
    qv_model_get_info(model, &job->model);
    qv_context_get_info(ctx, &job->context);
    qv_status status = name_output(job, err);
    if (!status)
        status = open_job(job, model, err);
    if (!status)
        status = encode_clip(job, err);
    if (!status)
        report(job);
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
    qv_model *model = NULL;
    qv_model_options options = { .dtype = o->dtype };
    qv_status status = tool_open_context(o, &ctx, &err);
    if (!status)
        status = qv_model_load(ctx, o->model, &options, &model, &err);
    if (status)
        code = tool_fail(status, &err);
    size_t failed = 0;
    for (size_t i = 0; i < o->n_arguments && !code; i++) {
        status = encode_one(o, ctx, model, o->arguments[i], &err);
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
    qv_context_close(&ctx);
    return code;
}
