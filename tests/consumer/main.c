/* SPDX-License-Identifier: MIT */
/* A picture through an installed qwenvit: read and sized by libqwenvit_media, encoded by libqwenvit.
 * Usage: consumer MODEL [DECODER], in a folder where it may write. The shared library finds
 * qwenvit-decoder by itself, a program that holds the static one says where it is. */
#include <qwenvit_media.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEIGHT = 70, WIDTH = 100 };

/* The picture as frames[2, height, width, 3], one twice, and its grid; NULL after a failure. */
static uint8_t *
read_picture(const char *program, int64_t grid_thw[3], qv_error *err)
{
    static const char file[] = "picture.png";
    static uint8_t rgb[HEIGHT * WIDTH * 3];
    for (size_t i = 0; i < sizeof rgb; i++)
        rgb[i] = (uint8_t)(i * i / 97);
    qv_preprocess rules = qv_preprocess_default(true);
    qv_clip_options options = { 0 };
    qv_clip *clip = NULL;
    if (qv_write_png(file, rgb, HEIGHT, WIDTH, err) ||
        (program && qv_decoder_start(program, &options.decoder, err)) ||
        qv_clip_open(file, &rules, &rules, &options, &clip, err))
        return NULL;
    qv_clip_info info;
    qv_clip_get_info(clip, &info);
    memcpy(grid_thw, info.grid_thw, sizeof info.grid_thw);
    int64_t height = 0, width = 0, n = 0;
    size_t bytes = (size_t)info.height * (size_t)info.width * 3;
    uint8_t *frames = malloc(2 * bytes);
    if (qv_smart_resize(0, HEIGHT, WIDTH, &rules, &height, &width, err) || height != info.height ||
        width != info.width || qv_clip_read(clip, frames, 1, &n, NULL, err) || n != 1) {
        free(frames);
        frames = NULL;
    } else {
        memcpy(frames + bytes, frames, bytes);
    }
    qv_clip_close(&clip);
    qv_decoder_stop(&options.decoder);
    return frames;
}

static qv_status
encode(qv_context *ctx, const char *dir, const uint8_t *frames, const int64_t grid_thw[3],
       int64_t *n_tokens, qv_error *err)
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
    status = qv_encode(model, QV_INPUT_FRAMES, frames, grid_thw, 1, NULL, &out, err);
    for (int64_t i = 0; !status && i < n * info.out_hidden; i++)
        if (!isfinite(values[i]) || values[i] == 0)
            status = QV_EBACKEND;
    *n_tokens = out.n;
    free(values);
    qv_model_free(&model);
    return status;
}

int
main(int argc, char **argv)
{
    qv_context *ctx = NULL;
    qv_error err = { 0 };
    int64_t grid_thw[3], n_tokens = 0;
    if (argc < 2 || argc > 3 || strcmp(qv_version(), QV_VERSION) != 0)
        return 2;
    uint8_t *frames = read_picture(argv[2], grid_thw, &err);
    qv_status status = frames ? qv_context_open(NULL, &ctx, &err) : QV_EIO;
    if (!status)
        status = encode(ctx, argv[1], frames, grid_thw, &n_tokens, &err);
    qv_context_close(&ctx);
    free(frames);
    printf("%s %s: %lld tokens\n", qv_status_name(status), err.text, (long long)n_tokens);
    return status != QV_OK;
}
