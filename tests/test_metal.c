/* SPDX-License-Identifier: MIT */
/*
 * The Metal backend's host code, over the emulator: memory of the caller used in place, times, a
 * GPU without bfloat, and every call of Metal's failing once.
 */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "metal_emulator/emulator.h"
#include "tiny.h"

static const qv_context_options metal = { .backend = "metal" };

/* ---- memory ---------------------------------------------------------------------------------- */

static float *
pages(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), bytes), 0);
    memset(p, 0, bytes);
    return p;
}

/* Whole pages are used where they lie, others are copied: the same values, and nothing kept. */
static void
pages_are_used_in_place(void **state)
{
    (void)state;
    enum { PAGE = 4096, C = 8, O = 8, SIDE = 32 }; /* 32 * 32 * 8 floats: 8 pages */
    qv_error err = { 0 };
    qv_context *ctx = NULL;
    qv_conv3d *conv = NULL;
    qv_conv3d_info info;
    float weight[O * C];
    for (int i = 0; i < O * C; i++)
        weight[i] = (float)(i % 5 - 2);
    assert_int_equal(sysconf(_SC_PAGESIZE) % PAGE, 0);
    assert_int_equal(qv_context_open(&metal, &ctx, &err), QV_OK);
    const qv_conv3d_desc d = { .d = 1,
                               .h = SIDE,
                               .w = SIDE,
                               .c = C,
                               .o = O,
                               .kernel = { 1, 1, 1 },
                               .layout = QV_LAYOUT_CHANNELS_LAST,
                               .dtype = QV_F32 };
    if (qv_conv3d_create(ctx, &d, &(qv_conv3d_weights){ .weight = weight }, NULL, &conv, &err))
        fail_msg("%s", err.text);
    qv_conv3d_get_info(conv, &info);
    float *x = pages(info.x_bytes + PAGE), *y = pages(info.y_bytes + PAGE);
    float *odd_x = x + PAGE / sizeof(float) / 2, *odd_y = y + PAGE / sizeof(float) / 2;
    float *expected = malloc(info.y_bytes), *values = malloc(info.x_bytes);
    assert_true(expected && values);
    for (size_t i = 0; i < info.x_bytes / sizeof(float); i++)
        values[i] = (float)(i % 7) - 3;
    memcpy(odd_x, values, info.x_bytes);
    assert_int_equal(qv_conv3d_run(conv, odd_x, odd_y, &err), QV_OK);
    memcpy(expected, odd_y, info.y_bytes);
    memcpy(x, values, info.x_bytes);
    memset(y, 0xff, info.y_bytes);
    assert_int_equal(qv_conv3d_run(conv, x, y, &err), QV_OK);
    assert_memory_equal(y, expected, info.y_bytes);
    free(x); /* the backend holds neither any more */
    free(y);
    free(expected);
    free(values);
    qv_conv3d_free(&conv);
    qv_context_close(&ctx);
}

/* ---- work ------------------------------------------------------------------------------------ */

static void
marks_measure_the_work_between(void **state)
{
    (void)state;
    enum { N = 4096 };
    const struct qv_backend *be = &qv_backend_metal;
    struct qv_device *dev = NULL;
    struct qv_kernel *kernel = NULL;
    struct qv_memory *x = NULL, *y = NULL;
    qv_error err = { 0 };
    size_t scratch;
    double ms = -1;
    struct qv_op op = { .kind = QV_OP_convert };
    op.u.convert = (struct qv_op_convert){ .n = N, .from = QV_F32, .dtype = QV_F32 };
    assert_int_equal(be->open(&(struct qv_device_options){ 0 }, &dev, &err), QV_OK);
    assert_int_equal(be->prepare(dev, &op, 0, &kernel, &scratch, &err), QV_OK);
    assert_int_equal(be->alloc(dev, N * sizeof(float), &x, &err), QV_OK);
    assert_int_equal(be->alloc(dev, N * sizeof(float), &y, &err), QV_OK);
    struct qv_call call = { .kernel = kernel, .operands = { { x, 0 }, { y, 0 } } };
    assert_int_equal(be->run(dev, &call, 1, &err), QV_OK);
    assert_int_equal(be->mark(dev, QV_MARK_BEGIN, &err), QV_OK);
    for (int i = 0; i < 100; i++) /* more than are kept waiting */
        assert_int_equal(be->run(dev, &call, 1, &err), QV_OK);
    assert_int_equal(be->mark(dev, QV_MARK_END, &err), QV_OK);
    assert_int_equal(be->wait(dev, QV_MARK_END, &err), QV_OK);
    assert_int_equal(be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, &err), QV_OK);
    assert_true(ms > 0 && ms < 60e3);
    assert_int_equal(be->mark(dev, QV_MARK_BEGIN, &err), QV_OK); /* nothing between */
    assert_int_equal(be->mark(dev, QV_MARK_END, &err), QV_OK);
    assert_int_equal(be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, &err), QV_OK);
    assert_true(ms == 0);
    be->free(dev, x);
    be->free(dev, y);
    be->release(dev, kernel);
    be->close(dev);
}

/* Every tile is timed once; the file then answers, and the same bits come out of the same file. */
static void
tuning_takes_from_its_file(void **state)
{
    (void)state;
    char file[] = "test_metal_tune.json";
    qv_error err = { 0 };
    size_t n = 0, m = 0;
    float *tokens[2] = { NULL, NULL };
    remove(file);
    for (int i = 0; i < 2; i++) {
        struct tiny t = { 0 };
        const qv_context_options o = { .backend = "metal", .tune_file = file, .tune = i == 0 };
        if (qv_context_open(&o, &t.ctx, &err) ||
            qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl", NULL, &t.model, &err))
            fail_msg("%s", err.text);
        qv_model_get_info(t.model, &t.info);
        uint8_t *frames = tiny_frames(&t, 2, 4, 4, 1);
        tokens[i] =
            tiny_encode(&t, (qv_plan_options){ .grid_h = 4, .grid_w = 4 }, frames, 2, i ? &m : &n);
        free(frames);
        tiny_close(&t);
        assert_int_equal(access(file, R_OK), 0);
    }
    assert_int_equal(n, m);
    assert_memory_equal(tokens[0], tokens[1], n);
    free(tokens[0]);
    free(tokens[1]);
    remove(file);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Opens, loads, encodes a few frames; whatever fails says so. */
static qv_status
encode(const uint8_t *frames, float *tokens, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    qv_tokens out = { .tokens = tokens, .capacity = 64 };
    qv_plan_options o = { .grid_h = 4, .grid_w = 4, .chunk_pairs = 1 };
    qv_status status = qv_context_open(&metal, &ctx, err);
    if (!status)
        status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", NULL, &model, err);
    if (!status)
        status = qv_plan_create(model, &o, &plan, err);
    if (!status)
        status = qv_plan_push(plan, frames, 2, err);
    if (!status)
        status = qv_plan_pull(plan, &out, err);
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
    return status;
}

/* A process of its own, as kernels are compiled once in one: the n'th call fails. Its exit status: 0
 * encoded, 1 failed in words, 2 failed without. */
static int
encode_failing(long n, const uint8_t *frames, float *tokens)
{
    int result = -1;
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qv_error err = { 0 };
        emulator_calls_left = n;
        qv_status status = encode(frames, tokens, &err);
        exit(!status ? 0 : *err.text ? 1 : 2); /* where a sanitizer looks for leaks */
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void
every_call_may_fail(void **state)
{
    (void)state;
    struct tiny t = tiny_open("ref", QV_F32, 1);
    uint8_t *frames = tiny_frames(&t, 2, 4, 4, 1);
    float *tokens = calloc(64, (size_t)t.info.out_hidden * sizeof(float));
    long n = 0;
    int result = 1;
    assert_non_null(tokens);
    for (; result; n++) {
        result = encode_failing(n, frames, tokens);
        assert_in_range(result, 0, 1);
        assert_true(n < 1000);
    }
    assert_true(n > 20);
    free(tokens);
    free(frames);
    tiny_close(&t);
}

static void
without_bfloat_f32_says_so(void **state)
{
    (void)state;
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_context_info info;
    qv_error err = { 0 };
    assert_int_equal(setenv("QV_EMULATED_FAMILY", "7", 1), 0);
    assert_int_equal(qv_context_open(&metal, &ctx, &err), QV_OK);
    qv_context_get_info(ctx, &info);
    assert_int_equal(info.dtype, QV_F32);
    assert_non_null(strstr(info.dtype_reason, "no bfloat"));
    qv_model_options o = { .dtype = QV_BF16 };
    qv_plan *plan = NULL;
    qv_plan_options p = { .grid_h = 4, .grid_w = 4 };
    qv_status status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", &o, &model, &err);
    if (!status)
        status = qv_plan_create(model, &p, &plan, &err);
    assert_int_equal(status, QV_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "no bfloat"));
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
    unsetenv("QV_EMULATED_FAMILY");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail), /* first: its processes find no kernel compiled */
        cmocka_unit_test(pages_are_used_in_place),
        cmocka_unit_test(marks_measure_the_work_between),
        cmocka_unit_test(tuning_takes_from_its_file),
        cmocka_unit_test(without_bfloat_f32_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
