/* SPDX-License-Identifier: MIT */
/* The public calls: chunks and bits, errors and their texts, lifetimes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "backends.h"
#include "tiny.h"

#define FOR_EACH_RUN(on, type)                                                                     \
    for (int on = 0; on < N_TEST_BACKENDS; on++)                                                   \
        for (int type = 0;                                                                         \
             type < N_TEST_DTYPES && dtype_is_here(test_backends[on], test_dtypes[type]); type++)

static void
same_bits_every_time(void **state)
{
    (void)state;
    FOR_EACH_RUN(on, type)
    {
        struct tiny t = tiny_open(test_backends[on], test_dtypes[type], 2);
        uint8_t *frames = tiny_frames(&t, 8, 6, 4, 7);
        qv_plan_options o = { .grid_h = 6, .grid_w = 4, .chunk_pairs = 4 };
        size_t n, m;
        float *a = tiny_encode(&t, o, frames, 8, &n), *b = tiny_encode(&t, o, frames, 8, &m);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        free(frames);
        tiny_close(&t);
    }
}

/* The first pairs of a long clip, a clip cut short, and one that starts on a chunk: same bits. */
static void
chunks_do_not_depend_on_length(void **state)
{
    (void)state;
    enum { CHUNK = 3, ALL = 16, OUTPUT_FRAMES = 2 };
    FOR_EACH_RUN(on, type)
    {
        struct tiny t = tiny_open(test_backends[on], test_dtypes[type], 2);
        qv_plan_options o = { .grid_h = 4, .grid_w = 6, .chunk_pairs = CHUNK };
        uint8_t *frames = tiny_frames(&t, ALL, 4, 6, 9);
        size_t frame = (size_t)(4 * 6 * t.info.patch_size * t.info.patch_size * 3), n, m;
        int64_t per_pair = 6 * t.info.out_hidden, pairs = ALL / OUTPUT_FRAMES;
        int64_t outputs = 1 + t.info.n_deepstack;
        float *whole = tiny_encode(&t, o, frames, ALL, &n);
        float *cut = tiny_encode(&t, o, frames, 8, &m); /* 4 pairs: a padded last chunk */
        for (int64_t i = 0; i < outputs; i++)
            assert_memory_equal(whole + i * pairs * per_pair, cut + i * 4 * per_pair,
                                (size_t)(4 * per_pair) * sizeof(float));
        float *shard = tiny_encode(&t, o, frames + 2 * CHUNK * frame, 6, &m);
        for (int64_t i = 0; i < outputs; i++)
            assert_memory_equal(whole + (i * pairs + CHUNK) * per_pair, shard + i * 3 * per_pair,
                                (size_t)(3 * per_pair) * sizeof(float));
        free(whole);
        free(cut);
        free(shard);
        free(frames);
        tiny_close(&t);
    }
}

static double
worst_distance(const float *a, const float *b, int64_t rows, int64_t cols)
{
    double worst = 0;
    for (int64_t i = 0; i < rows; i++) {
        double off = 0, size = 0;
        for (int64_t j = i * cols; j < (i + 1) * cols; j++) {
            off += ((double)a[j] - b[j]) * ((double)a[j] - b[j]);
            size += (double)b[j] * b[j];
        }
        if (!(sqrt(off / size) <= worst))
            worst = sqrt(off / size);
    }
    return worst;
}

/* One frame counts as two equal ones, and a still is the same picture with half the work. */
static void
one_frame_is_two_equal_ones(void **state)
{
    (void)state;
    FOR_EACH_RUN(on, type)
    {
        struct tiny t = tiny_open(test_backends[on], test_dtypes[type], 2);
        uint8_t *one = tiny_frames(&t, 1, 4, 4, 11);
        size_t frame = (size_t)(16 * t.info.patch_size * t.info.patch_size * 3), n, m, k;
        uint8_t *two = malloc(2 * frame);
        memcpy(two, one, frame);
        memcpy(two + frame, one, frame);
        qv_plan_options o = { .grid_h = 4, .grid_w = 4, .chunk_pairs = 1 };
        float *a = tiny_encode(&t, o, one, 1, &n), *b = tiny_encode(&t, o, two, 2, &m);
        o.still = true;
        float *c = tiny_encode(&t, o, one, 1, &k);
        assert_int_equal(n, m);
        assert_int_equal(n, k);
        assert_memory_equal(a, b, n);
        double far = worst_distance(c, a, 4 * (1 + t.info.n_deepstack), t.info.out_hidden);
        assert_true(far <= (test_dtypes[type] == QV_F32 ? 2e-5 : 0.05));
        free(a);
        free(b);
        free(c);
        free(one);
        free(two);
        tiny_close(&t);
    }
}

static void
several_sizes_through_one_model(void **state)
{
    (void)state;
    FOR_EACH_RUN(on, type)
    {
        struct tiny t = tiny_open(test_backends[on], test_dtypes[type], 2);
        const int64_t grids[][2] = { { 2, 2 }, { 8, 2 }, { 4, 6 }, { 2, 2 } };
        size_t n;
        float *first = NULL;
        for (size_t i = 0; i < 4; i++) {
            uint8_t *frames = tiny_frames(&t, 2, grids[i][0], grids[i][1], 5);
            qv_plan_options o = { .grid_h = grids[i][0], .grid_w = grids[i][1] };
            float *tokens = tiny_encode(&t, o, frames, 2, &n);
            if (i == 3) {
                assert_memory_equal(first, tokens, n);
                free(tokens);
            } else if (i == 0) {
                first = tokens;
            } else {
                free(tokens);
            }
            free(frames);
        }
        free(first);
        tiny_close(&t);
    }
}

static void
bf16_output_is_rounded_f32_output(void **state)
{
    (void)state;
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 2, 2, 4, 5);
    qv_error err = { 0 };
    int64_t n = 2 * t.info.out_hidden;
    float *wide = malloc((size_t)n * 4);
    uint16_t *narrow = malloc((size_t)n * 2);
    for (int i = 0; i < 2; i++) {
        qv_plan_options o = { .grid_h = 2, .grid_w = 4, .output = i ? QV_BF16 : QV_F32 };
        qv_plan *plan = NULL;
        qv_tokens out = { .tokens = i ? (void *)narrow : (void *)wide, .capacity = 2 };
        if (qv_plan_create(t.model, &o, &plan, &err) || qv_plan_push(plan, frames, 2, &err) ||
            qv_plan_pull(plan, &out, &err))
            fail_msg("%s", err.text);
        qv_plan_free(&plan);
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)narrow[i] << 16;
        float f;
        memcpy(&f, &u, 4);
        assert_true(fabsf(f - wide[i]) <= fabsf(wide[i]) * 0x1p-8f);
    }
    free(wide);
    free(narrow);
    free(frames);
    tiny_close(&t);
}

#define REFUSED(call, status_, words)                                                              \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        assert_int_equal((call), (status_));                                                       \
        assert_int_equal(err.status, (status_));                                                   \
        if (!strstr(err.text, (words)))                                                            \
            fail_msg("\"%s\" does not say \"%s\"", err.text, (words));                             \
    } while (0)

static void
wrong_calls_are_refused_with_words(void **state)
{
    (void)state;
    qv_error err;
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "tpu" }, &ctx, &err), QV_ENODEVICE,
            "tpu");
#ifdef QV_WITH_METAL
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "metal", .device = 99 }, &ctx, &err),
            QV_ENODEVICE, "device 99");
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "metal", .plain = "gemm,nor" }, &ctx,
                            &err),
            QV_EINVAL, "\"nor\"");
#else
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "metal" }, &ctx, &err), QV_ENODEVICE,
            "not in this build");
#endif
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "ref", .plain = "gemm" }, &ctx, &err),
            QV_EINVAL, "ref has no plain kernels");
#ifdef QV_WITH_CUDA
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "cuda", .device = 99 }, &ctx, &err),
            QV_ENODEVICE, backend_is_here("cuda") ? "device 99" : "no NVIDIA GPU can be used");
#else
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "cuda" }, &ctx, &err), QV_ENODEVICE,
            "not in this build");
#endif
    REFUSED(qv_context_open(&(qv_context_options){ .backend = "ref", .device = 1 }, &ctx, &err),
            QV_ENODEVICE, "device 1");
    REFUSED(qv_context_open(&(qv_context_options){ .reserved = { 1 } }, &ctx, &err), QV_EINVAL,
            "reserved");
    assert_null(ctx);

    struct tiny t = tiny_open("ref", QV_F32, 1);
    REFUSED(qv_model_load(t.ctx, "/nonexistent/folder", NULL, &model, &err), QV_EIO,
            "/nonexistent/folder");
    REFUSED(qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl", &(qv_model_options){ .dtype = QV_U8 },
                          &model, &err),
            QV_EINVAL, "u8");
    assert_null(model);
    REFUSED(qv_plan_create(t.model, NULL, &plan, &err), QV_EINVAL, "grid");
    REFUSED(qv_plan_create(t.model, &(qv_plan_options){ .grid_h = 3, .grid_w = 4 }, &plan, &err),
            QV_EINVAL, "3 x 4");
    REFUSED(qv_plan_create(t.model,
                           &(qv_plan_options){ .grid_h = 2, .grid_w = 4, .chunk_pairs = -1 }, &plan,
                           &err),
            QV_EINVAL, "-1");
    REFUSED(qv_plan_create(t.model,
                           &(qv_plan_options){ .grid_h = INT64_MAX - 1, .grid_w = INT64_MAX - 1 },
                           &plan, &err),
            QV_EINVAL, "multiple of 2");
    assert_null(plan);
    tiny_close(&t);
}

static void
push_and_pull_take_turns(void **state)
{
    (void)state;
    qv_error err;
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 4, 2, 2, 5);
    float tokens[64];
    qv_plan *plan = NULL;
    qv_tokens out = { .tokens = tokens, .capacity = 0, .n = -7 };
    assert_int_equal(
        qv_plan_create(t.model, &(qv_plan_options){ .grid_h = 2, .grid_w = 2, .chunk_pairs = 1 },
                       &plan, &err),
        QV_OK);
    REFUSED(qv_plan_pull(plan, &out, &err), QV_ESTATE, "nothing to pull");
    REFUSED(qv_plan_push(plan, frames, 0, &err), QV_EINVAL, "1 to 2");
    REFUSED(qv_plan_push(plan, frames, 3, &err), QV_EINVAL, "1 to 2");
    assert_int_equal(qv_plan_push(plan, frames, 2, &err), QV_OK);
    REFUSED(qv_plan_push(plan, frames, 2, &err), QV_ESTATE, "not been pulled");
    REFUSED(qv_plan_pull(plan, &out, &err), QV_EINVAL, "capacity is 0");
    assert_int_equal(out.n, -7); /* untouched, and nothing lost */
    out.capacity = 1;
    assert_int_equal(qv_plan_pull(plan, &out, &err), QV_OK);
    assert_int_equal(out.n, 1);
    qv_plan_free(&plan);
    assert_null(plan);
    qv_plan_free(&plan);
    free(frames);
    tiny_close(&t);
}

static void
a_described_model_has_costs_and_no_weights(void **state)
{
    (void)state;
    qv_error err;
    struct tiny t = tiny_open("ref", QV_F32, 1);
    qv_model *model = NULL;
    qv_plan *plan = NULL, *real = NULL;
    qv_plan_info info, same;
    qv_plan_options o = { .grid_h = 4, .grid_w = 4 };
    uint8_t byte = 0;
    assert_int_equal(qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl",
                                   &(qv_model_options){ .describe = true }, &model, &err),
                     QV_OK);
    assert_int_equal(qv_plan_create(model, &o, &plan, &err), QV_OK);
    assert_int_equal(qv_plan_create(t.model, &o, &real, &err), QV_OK);
    qv_plan_get_info(plan, &info);
    qv_plan_get_info(real, &same);
    assert_true(info.flops > 0 && info.flops == same.flops);
    assert_int_equal(info.arena_bytes, same.arena_bytes);
    assert_string_equal(info.lowering, "patchify");
    REFUSED(qv_plan_push(plan, &byte, 1, &err), QV_ESTATE, "no weights");
    qv_plan_free(&plan);
    qv_plan_free(&real);
    qv_model_free(&model);
    tiny_close(&t);
}

static void
names_of_everything(void **state)
{
    (void)state;
    assert_string_equal(qv_version(), QV_VERSION);
    assert_string_equal(qv_status_name(QV_EFORMAT), "QV_EFORMAT");
    assert_non_null(qv_status_name((qv_status)999));
    assert_string_equal(qv_dtype_name(QV_BF16), "bf16");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_every_time),
        cmocka_unit_test(chunks_do_not_depend_on_length),
        cmocka_unit_test(one_frame_is_two_equal_ones),
        cmocka_unit_test(several_sizes_through_one_model),
        cmocka_unit_test(bf16_output_is_rounded_f32_output),
        cmocka_unit_test(wrong_calls_are_refused_with_words),
        cmocka_unit_test(push_and_pull_take_turns),
        cmocka_unit_test(a_described_model_has_costs_and_no_weights),
        cmocka_unit_test(names_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
