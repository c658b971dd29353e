/* SPDX-License-Identifier: MIT */
/*
 * Tests backends in separate libraries, without a GPU. The libraries in place of libqwenvit_cuda.so
 * are missing, broken or from another build, or contain ref under another name.
 */

#include "test.h"

#include <dlfcn.h>
#include <pthread.h>

#include "tiny.h"

/* Checks that "cuda" cannot be opened from this folder and that the error has all of the words, and
 * that "auto" then takes another backend and gives the same reason. */
static void
refused(const char *folder, const char *words, const char *more)
{
    qv_context *ctx = NULL;
    qv_context_info info;
    qv_error err = { 0 };
    qv_context_options o = { .backend = "cuda", .backends = folder };
    assert_int_equal(qv_context_open(&o, &ctx, &err), QV_ENODEVICE);
    assert_null(ctx);
    if (!strstr(err.text, words) || !strstr(err.text, more))
        fail_msg("not \"%s\" and \"%s\": %s", words, more, err.text);
    o.backend = NULL;
    assert_ok(qv_context_open(&o, &ctx, ERR));
    qv_context_get_info(ctx, &info);
    assert_string_not_equal(info.backend, "cuda");
    char expected[600];
    snprintf(expected, sizeof expected, "cuda: %s", err.text);
    assert_string_equal(info.passed_over, expected);
    qv_context_close(&ctx);
}

/* This test comes first, because a driver that was loaded once stays. */
TEST(what_is_missing_is_said)
{
    refused("/nowhere", "no libqwenvit_cuda.so in", "/nowhere");
    if (dlopen("libcuda.so.1", RTLD_NOW))
        return;
    refused(QV_FAKES "/right", "no NVIDIA driver", "libcuda.so.1");
}

TEST(wrong_libraries_are_refused)
{
    qv_context *ctx = NULL;
    qv_context_info info;
    if (!dlopen(QV_FAKE_DRIVER, RTLD_NOW)) /* From now on it is found by its soname. */
        fail_msg("%s", dlerror());
    refused(QV_FAKES "/text", "text/libqwenvit_cuda.so cannot be opened", "invalid ELF header");
    refused(QV_FAKES "/needs", "libfake_cudnn.so: cannot open", "cuDNN 9.15 or newer is needed");
    refused(QV_FAKES "/empty", "not a qwenvit backend", "qv_backend_entry");
    refused(QV_FAKES "/wrong", "is from build 0.0.0-other", "this is build " QV_BUILD_ID);
    assert_int_equal(qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, NULL), QV_OK);
    qv_context_get_info(ctx, &info);
    assert_string_equal(info.passed_over, ""); /* This backend was asked for by name. */
    qv_context_close(&ctx);
}

static void *
open_and_close(void *failures)
{
    qv_context *ctx = NULL;
    qv_context_options o = { .backend = "cuda", .backends = QV_FAKES "/right" };
    *(int *)failures = 0;
    for (int i = 0; i < 20; i++) {
        *(int *)failures += qv_context_open(&o, &ctx, NULL) != QV_OK;
        qv_context_close(&ctx);
    }
    return NULL;
}

/* Many threads open the backend. The library's table is read once and then kept, whatever folder is
 * named. */
TEST(one_library_is_opened_once)
{
    enum { N = 8 };
    pthread_t threads[N];
    int failures[N];
    qv_context *ctx = NULL;
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, &failures[i]), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(failures[i], 0);
    }
    void *library = dlopen(QV_FAKES "/right/libqwenvit_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    assert_int_equal(*(int *)dlsym(library, "fake_entries"), 1);
    qv_context_options o = { .backend = "cuda", .backends = "/nowhere" };
    assert_int_equal(qv_context_open(&o, &ctx, NULL), QV_OK);
    qv_context_close(&ctx);
}

/* Computing uses the library's table, which gives the bits of ref. */
TEST(the_librarys_table_computes)
{
    enum { FRAMES = 2, GRID = 4 };
    float *tokens[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        struct tiny t = tiny_open(i ? "cuda" : "ref", QV_F32, 0);
        qv_context_info info;
        qv_context_get_info(t.ctx, &info);
        assert_string_equal(info.backend, i ? "cuda" : "ref");
        uint8_t *frames = tiny_frames(&t, FRAMES, GRID, GRID, 3);
        const qv_item item = { .data = frames, .grid_thw = { FRAMES / 2, GRID, GRID } };
        tokens[i] = tiny_encode(&t, QV_INPUT_FRAMES, &item, 1, NULL, &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(tokens[0], tokens[1], bytes[0]);
}
