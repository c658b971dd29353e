/* SPDX-License-Identifier: MIT */
/* Takes an image through an installed qwenvit: it is read, sized and
 * encoded; then a job does the same. Usage: consumer MODEL [DECODER BACKENDS], in a folder where
 * it may write. The shared libraries find qwenvit-decoder and the backends by themselves. A program
 * with the static libraries says where they are. */
#include <qwenvit_clips.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEIGHT = 70, WIDTH = 100 };

/* The image as a frame[height, width, 3], and its grid. NULL after a failure. */
static uint8_t *
read_image(const char *program, int64_t grid_thw[3], qv_error *err)
{
    static const char file[] = "image.ppm";
    static uint8_t rgb[HEIGHT * WIDTH * 3];
    for (size_t i = 0; i < sizeof rgb; i++)
        rgb[i] = (uint8_t)(i * i / 97);
    qv_preprocess rules = qv_preprocess_default(true);
    qv_clip_options options = { 0 };
    qv_clip *clip = NULL;
    FILE *f = fopen(file, "wb");
    if (!f)
        return NULL;
    fprintf(f, "P6\n%d %d\n255\n", WIDTH, HEIGHT);
    fwrite(rgb, 1, sizeof rgb, f);
    fclose(f);
    if ((program && qv_decoder_start(program, &options.decoder, err)) ||
        qv_clip_open(file, &rules, &rules, &options, &clip, err))
        return NULL;
    qv_outcome info;
    qv_clip_get_info(clip, &info);
    memcpy(grid_thw, info.grid_thw, sizeof info.grid_thw);
    int64_t height = 0, width = 0, n = 0;
    size_t bytes = (size_t)info.height * (size_t)info.width * 3;
    uint8_t *frames = malloc(bytes);
    if (qv_smart_resize(0, HEIGHT, WIDTH, &rules, &height, &width, err) || height != info.height ||
        width != info.width || qv_clip_read(clip, frames, 1, &n, NULL, err) || n != 1) {
        free(frames);
        frames = NULL;
    }
    qv_clip_close(&clip);
    qv_decoder_stop(&options.decoder);
    return frames;
}

/* A sink that adds up the numbers of tokens. */
static qv_status
count(void *user, void *entry, const qv_job_result *result, const qv_job_rows *rows, qv_error *err)
{
    (void)entry;
    (void)result;
    (void)err;
    *(int64_t *)user += rows->tokens.n;
    return QV_OK;
}

/* Runs a job of two sources: the image's frame and its file. */
static qv_status
run_job(qv_model *model, const char *program, const qv_item *item, int64_t *n_tokens, qv_error *err)
{
    qv_job_options o = { .sink = { .rows = count, .user = n_tokens } };
    const qv_job_source frame = { .key = "frame", .kind = QV_SOURCE_FRAMES, .item = *item };
    const qv_job_source file = { .path = "image.ppm" };
    qv_job *job = NULL;
    if (program && qv_decoder_start(program, &o.clip.decoder, err))
        return QV_EBACKEND;
    qv_status status = qv_job_open(&model, 1, &o, &job, err);
    if (!status)
        status = qv_job_add(job, &frame, err);
    if (!status)
        status = qv_job_add(job, &file, err);
    if (!status)
        status = qv_job_end(job, err);
    qv_job_close(&job);
    qv_decoder_stop(&o.clip.decoder);
    return status;
}

static qv_status
encode(qv_context *ctx, const char *dir, const char *program, const uint8_t *frames,
       const int64_t grid_thw[3], int64_t *n_tokens, qv_error *err)
{
    qv_model *model = NULL;
    qv_model_info info;
    qv_status status = qv_model_load(ctx, dir, NULL, &model, err);
    if (status)
        return status;
    qv_model_get_info(model, &info);
    int64_t n = grid_thw[1] * grid_thw[2] / (info.merge_size * info.merge_size);
    float *values = calloc((size_t)n, (size_t)info.out_hidden * sizeof *values);
    qv_tokens out = { .tokens = values, .capacity = n };
    qv_item item = { .data = frames, .is_image = true };
    memcpy(item.grid_thw, grid_thw, sizeof item.grid_thw);
    status = qv_encode(model, QV_INPUT_FRAMES, &item, 1, NULL, &out, err);
    for (int64_t i = 0; !status && i < n * info.out_hidden; i++)
        if (!isfinite(values[i]) || values[i] == 0)
            status = QV_EBACKEND;
    if (!status)
        status = run_job(model, program, &item, n_tokens, err);
    if (*n_tokens != (status ? 0 : 2 * out.n))
        status = QV_EBACKEND;
    free(values);
    qv_model_free(&model);
    return status;
}

int
main(int argc, char **argv)
{
    qv_context *ctx = NULL;
    qv_context_options options = { 0 };
    qv_context_info info = { 0 };
    qv_error err = { 0 };
    int64_t grid_thw[3], n_tokens = 0;
    if ((argc != 2 && argc != 4) || strcmp(qv_version(), QV_VERSION) != 0)
        return 2;
    uint8_t *frames = read_image(argc > 2 ? argv[2] : NULL, grid_thw, &err);
    options.backends = argc > 2 ? argv[3] : NULL;
    qv_status status = frames ? qv_context_open(&options, &ctx, &err) : QV_EIO;
    if (!status)
        qv_context_get_info(ctx, &info);
    if (!status)
        status = encode(ctx, argv[1], argc > 2 ? argv[2] : NULL, frames, grid_thw, &n_tokens, &err);
    qv_context_close(&ctx);
    free(frames);
    printf("%s %s: %lld tokens\n", qv_status_name(status), err.text, (long long)n_tokens);
    printf("backend %s (%s)\n", info.backend, info.passed_over);
    return status != QV_OK;
}
