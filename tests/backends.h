/* SPDX-License-Identifier: MIT */
/* Finds the built-in backends that can be tested on this machine. Include this file after
 * test.h. */
#pragma once

#include "qwenvit.h"

static const char *const test_backends[] = {
    "ref",
#ifdef QV_WITH_METAL
    "metal",
#endif
#ifdef QV_WITH_CPU
    "cpu",
#endif
#ifdef QV_WITH_CUDA
    "cuda",
#endif
};
enum { N_TEST_BACKENDS = sizeof test_backends / sizeof *test_backends };
static const qv_dtype test_dtypes[] = { QV_F32, QV_BF16 };
enum { N_TEST_DTYPES = sizeof test_dtypes / sizeof *test_dtypes };

/* A GPU may be missing. If QV_TEST_GPU is set, a backend that cannot be tested fails the test. */
static inline bool
backend_is_here(const char *name)
{
    qv_context *ctx = NULL;
    qv_error err = { 0 };
    if (strcmp(name, "cuda") != 0)
        return true;
    qv_status status = qv_context_open(&(qv_context_options){ .backend = name }, &ctx, &err);
    qv_context_close(&ctx);
    if (status && (status != QV_ENODEVICE || getenv("QV_TEST_GPU")))
        fail_msg("%s", err.text);
    return !status;
}

/* The dtype in which a backend (NULL: the default one) computes by default. */
static inline qv_dtype
own_dtype(const char *name)
{
    qv_context *ctx = NULL;
    qv_context_info info;
    assert_ok(qv_context_open(&(qv_context_options){ .backend = name }, &ctx, ERR));
    qv_context_get_info(ctx, &info);
    qv_context_close(&ctx);
    return info.dtype;
}

/* oneDNN does not have bf16 GEMMs for every CPU, so bf16 is only tried on CPUs where it is the
 * default. */
static inline bool
dtype_is_here(const char *name, qv_dtype dtype)
{
    return backend_is_here(name) &&
           (strcmp(name, "cpu") != 0 || dtype == QV_F32 || own_dtype(name) == dtype);
}

/* EACH_BACKEND (b) { ... } is done with *b at each backend that can be tried, and
 * EACH_RUN (b, dtype) { ... } with each dtype as well. */
#define EACH_BACKEND(b)                                                                            \
    EACH (b, test_backends)                                                                        \
        if (backend_is_here(*b))
#define EACH_RUN(b, dtype)                                                                         \
    EACH (b, test_backends)                                                                        \
        EACH (dtype, test_dtypes)                                                                  \
            if (dtype_is_here(*b, *dtype))

/* The backend for a test that needs any device that computes in `dtype`. It is NULL, the default,
 * if the default backend computes in that dtype by itself. */
static inline const char *
backend_for(qv_dtype dtype)
{
    return dtype == QV_F32 || own_dtype(NULL) == dtype ? NULL : "ref";
}
