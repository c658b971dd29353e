/* SPDX-License-Identifier: MIT */
/*
 * Tests drivers and libraries of CUDA that this machine does not have. The calls that ask for them
 * answer as a test wants (the linker puts them between, --wrap). Needs no GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "qwenvit.h"

static struct {
    cudaError_t error;
    int devices, driver;
    size_t cudnn;
} here;

cudaError_t __wrap_cudaGetDeviceCount(int *count);
cudaError_t __wrap_cudaDriverGetVersion(int *version);
size_t __wrap_cudnnGetVersion(void);

cudaError_t
__wrap_cudaGetDeviceCount(int *count)
{
    *count = here.devices;
    return here.error;
}

cudaError_t
__wrap_cudaDriverGetVersion(int *version)
{
    *version = here.driver;
    return cudaSuccess;
}

size_t
__wrap_cudnnGetVersion(void)
{
    return here.cudnn;
}

/* The error of --backend cuda. auto takes another backend and gives the same reason. */
static const char *
refusal(void)
{
    static qv_error err;
    qv_context *ctx = NULL;
    qv_context_info info;
    assert_int_equal(qv_context_open(&(qv_context_options){ .backend = "cuda" }, &ctx, &err),
                     QV_ENODEVICE);
    assert_int_equal(qv_context_open(NULL, &ctx, NULL), QV_OK);
    qv_context_get_info(ctx, &info);
    assert_non_null(strstr(info.passed_over, err.text));
    qv_context_close(&ctx);
    return err.text;
}

static void
expect(const char *words)
{
    const char *text = refusal();
    if (!strstr(text, words))
        fail_msg("not \"%s\": %s", words, text);
}

static void
drivers_and_devices(void **state)
{
    (void)state;
    here.cudnn = 91900;
    here.error = cudaErrorInsufficientDriver;
    expect("there is no driver here");
    here.driver = 11040;
    expect("the driver here is for CUDA 11.4, and this needs one for 1");
    here.error = cudaErrorNoDevice;
    expect("no CUDA-capable device is detected");
    here.error = cudaSuccess;
    expect("there is none");
}

/* The version of the loaded library counts, not that of the headers. */
static void
old_cudnn(void **state)
{
    (void)state;
    here.devices = 1;
    here.cudnn = 91402;
    expect("cuDNN 9.14.2 was found, and 9.15 or newer is needed");
    here.cudnn = 90701;
    expect("cuDNN 9.7.1 was found");
    if (getenv("QV_TEST_GPU"))
        return;
    here.cudnn = 91500;
    assert_null(strstr(refusal(), "cuDNN")); /* The next call finds no device. */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_and_devices),
        cmocka_unit_test(old_cudnn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
