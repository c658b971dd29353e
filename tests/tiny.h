/* SPDX-License-Identifier: MIT */
/* A golden checkpoint, opened; for tests that need any tower. Include after cmocka.h. */
#ifndef QV_TESTS_TINY_H
#define QV_TESTS_TINY_H

#include <stdlib.h>
#include <string.h>

#include "qwenvit.h"

struct tiny {
    qv_context *ctx;
    qv_model *model;
    qv_model_info info;
};

static inline struct tiny
tiny_open(const char *backend, qv_dtype dtype, int threads)
{
    struct tiny t = { 0 };
    qv_error err = { 0 };
    qv_context_options o = { .backend = backend, .threads = threads };
    qv_model_options m = { .dtype = dtype };
    if (qv_context_open(&o, &t.ctx, &err) ||
        qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl", &m, &t.model, &err))
        fail_msg("%s", err.text);
    qv_model_get_info(t.model, &t.info);
    return t;
}

static inline void
tiny_close(struct tiny *t)
{
    qv_model_free(&t->model);
    qv_context_close(&t->ctx);
}

/* n frames of a grid, each different, from a seed. The caller frees. */
static inline uint8_t *
tiny_frames(const struct tiny *t, int64_t n, int64_t grid_h, int64_t grid_w, uint32_t seed)
{
    size_t bytes = (size_t)(n * grid_h * grid_w * t->info.patch_size * t->info.patch_size * 3);
    uint8_t *frames = malloc(bytes);
    assert_non_null(frames);
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525 + 1013904223;
        frames[i] = (uint8_t)(seed >> 24);
    }
    return frames;
}

/* Tokens and every DeepStack output of n frames, one behind the other: [outputs, n_tokens, out].
 * Pushed chunk by chunk. The caller frees; *bytes is the size. */
static inline float *
tiny_encode(const struct tiny *t, qv_plan_options options, const uint8_t *frames, int64_t n,
            size_t *bytes)
{
    qv_error err = { 0 };
    qv_plan *plan = NULL;
    qv_plan_info info;
    if (qv_plan_create(t->model, &options, &plan, &err))
        fail_msg("%s", err.text);
    qv_plan_get_info(plan, &info);
    int64_t per_pair = info.chunk_frames / info.chunk_pairs, outputs = 1 + t->info.n_deepstack;
    int64_t tokens = (n + per_pair - 1) / per_pair * info.tokens_per_pair, row = 0;
    size_t frame =
        (size_t)(options.grid_h * options.grid_w * t->info.patch_size * t->info.patch_size * 3);
    *bytes = (size_t)(outputs * tokens * t->info.out_hidden) * sizeof(float);
    float *all = malloc(*bytes);
    assert_non_null(all);
    for (int64_t at = 0; at < n; at += info.chunk_frames) {
        int64_t count = n - at < info.chunk_frames ? n - at : info.chunk_frames;
        qv_tokens out = { .tokens = all + row * t->info.out_hidden, .capacity = tokens - row };
        for (int i = 0; i < t->info.n_deepstack; i++)
            out.deepstack[i] = all + ((1 + i) * tokens + row) * t->info.out_hidden;
        if (qv_plan_push(plan, frames + (size_t)at * frame, count, &err) ||
            qv_plan_pull(plan, &out, &err))
            fail_msg("%s", err.text);
        row += out.n;
    }
    assert_int_equal(row, tokens);
    qv_plan_free(&plan);
    return all;
}

#endif
