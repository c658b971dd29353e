/* SPDX-License-Identifier: MIT */
/* Opens a golden checkpoint, for tests that need any tower. Include this file after test.h. */
#pragma once

#include <math.h>

#include "dtype.h"
#include "model/model.h"
#include "towers/weights.h"

struct tiny {
    qv_context *ctx;
    qv_model *model;
    qv_model_info info;
};

static inline void
tiny_free_model(void *model)
{
    qv_model_free(&(qv_model *){ model });
}

static inline void
tiny_close_context(void *ctx)
{
    qv_context_close(&(qv_context *){ ctx });
}

/* A context, which is closed when the test is over. */
static inline qv_context *
tiny_context_with(const qv_context_options *o)
{
    qv_context *ctx = NULL;
    assert_ok(qv_context_open(o, &ctx, ERR));
    return test_ends(ctx, tiny_close_context);
}

static inline qv_context *
tiny_context(const char *backend)
{
    return tiny_context_with(&(qv_context_options){ .backend = backend });
}

/* The model and its context are closed when the test is over. */
static inline struct tiny
tiny_open_on(const qv_context_options *o, const char *dir, const qv_model_options *options)
{
    struct tiny t = { .ctx = tiny_context_with(o) };
    assert_ok(qv_model_load(t.ctx, dir, options, &t.model, ERR));
    test_ends(t.model, tiny_free_model);
    qv_model_get_info(t.model, &t.info);
    return t;
}

static inline struct tiny
tiny_open_model(const char *dir, const char *backend, const qv_model_options *options, int threads)
{
    const qv_context_options o = { .backend = backend, .threads = threads };
    return tiny_open_on(&o, dir, options);
}

static inline struct tiny
tiny_open_family(const char *dir, const char *backend, qv_dtype dtype, int threads)
{
    return tiny_open_model(dir, backend, &(qv_model_options){ .dtype = dtype }, threads);
}

static inline struct tiny
tiny_open(const char *backend, qv_dtype dtype, int threads)
{
    return tiny_open_family(QV_GOLDEN "/qwen3_vl", backend, dtype, threads);
}

/* Closes it while the test goes on. */
static inline void
tiny_close(struct tiny *t)
{
    test_end(t->model);
    test_end(t->ctx);
    t->model = NULL;
    t->ctx = NULL;
}

/* n frames of a grid, each different, from a seed. */
static inline uint8_t *
tiny_frames(const struct tiny *t, int64_t n, int64_t grid_h, int64_t grid_w, uint32_t seed)
{
    size_t bytes = (size_t)(n * grid_h * grid_w * t->info.patch_size * t->info.patch_size * 3);
    uint8_t *frames = test_alloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        frames[i] = (uint8_t)(test_random(&seed) >> 24);
    return frames;
}

/* Makes room for the tokens and every DeepStack output of n items, one after the other: [outputs,
 * n_tokens, out] in f32 or bf16. */
static inline qv_tokens
tiny_tokens(const struct tiny *t, const qv_item *items, size_t n, qv_dtype output, size_t *bytes)
{
    int64_t area = t->info.merge_size * t->info.merge_size, tokens = 0;
    for (size_t i = 0; i < n; i++)
        tokens += items[i].grid_thw[0] * items[i].grid_thw[1] * items[i].grid_thw[2] / area;
    size_t one = (size_t)(tokens * t->info.out_hidden) * (output == QV_BF16 ? 2 : 4);
    *bytes = one * (size_t)(1 + t->info.n_deepstack);
    char *all = test_alloc(*bytes);
    qv_tokens out = { .tokens = all, .capacity = tokens };
    for (int i = 0; i < t->info.n_deepstack; i++)
        out.deepstack[i] = all + (size_t)(1 + i) * one;
    return out;
}

static inline bool
tiny_same(const void *a, const void *b, size_t n, qv_dtype dtype)
{
    return !memcmp(a, b, n * qv_dtype_bytes(dtype));
}

/* Encodes items with one call; *bytes is the result's size. */
static inline void *
tiny_encode(const struct tiny *t, qv_input input, const qv_item *items, size_t n,
            const qv_plan_options *options, size_t *bytes)
{
    qv_tokens out = tiny_tokens(t, items, n, options ? options->output : QV_F32, bytes);
    assert_ok(qv_encode(t->model, input, items, n, options, &out, ERR));
    assert_int_equal(out.n, out.capacity);
    return out.tokens;
}

/* The same of an image's worth of fixed frames. */
static inline void *
tiny_fixed_tokens(const struct tiny *t, size_t *bytes)
{
    uint8_t *frames = tiny_frames(t, 2, 4, 6, 3);
    const qv_item item = { .data = frames, .grid_thw = { 1, 4, 6 } };
    void *tokens = tiny_encode(t, QV_INPUT_FRAMES, &item, 1, NULL, bytes);
    return tokens;
}

/* A model that is read in slices of a few bytes lies on the device like the one that is read whole,
 * with any number of threads. */
static inline void
tiny_slices_are_the_same(const char *dir, const char *backend, const qv_model_options *options)
{
    struct tiny whole = tiny_open_model(dir, backend, options, 1);
    for (int threads = 1; threads <= 4; threads += 3)
        for (size_t bytes = 1; bytes < 10000; bytes = bytes * 7 + 1) {
            qv_weights_slice_bytes = bytes;
            struct tiny cut = tiny_open_model(dir, backend, options, threads);
            qv_weights_slice_bytes = 0;
            const struct qv_weights *a = &whole.model->weights, *b = &cut.model->weights;
            assert_string_equal(a->digest, b->digest);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->memory->base, b->memory->base, a->bytes);
            tiny_close(&cut);
        }
}

static inline void
tiny_free_plan(void *plan)
{
    qv_plan_free(&(qv_plan *){ plan });
}

static inline qv_plan *
tiny_plan(const struct tiny *t, const qv_plan_options *options)
{
    qv_plan *plan = NULL;
    assert_ok(qv_plan_create(t->model, options, &plan, ERR));
    return test_ends(plan, tiny_free_plan);
}

/* Runs one chunk through a plan whose output has the given dtype. */
static inline void *
tiny_chunk(const struct tiny *t, qv_plan *plan, const qv_item *items, size_t n, qv_dtype output,
           size_t *bytes)
{
    qv_tokens out = tiny_tokens(t, items, n, output, bytes);
    assert_ok(qv_plan_push(plan, items, n, ERR) || qv_plan_pull(plan, &out, ERR));
    assert_int_equal(out.n, out.capacity);
    return out.tokens;
}
