/* SPDX-License-Identifier: MIT */
/*
 * Tests CUDA drivers, libraries and GPUs that this machine does not have, and a failing one. The
 * calls that query them return what a test wants (the linker wraps them, --wrap), and the objects
 * that they would create are NULL. Needs no GPU.
 */

#include "test.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "engine/context.h"

static struct {
    cudaError_t error, free_error;
    int devices, driver, sm;
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

#undef cudaGetDeviceProperties
cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *props, int device);
cudaError_t __wrap_cudaGetDeviceProperties_v2(struct cudaDeviceProp *props, int device);

cudaError_t
__wrap_cudaGetDeviceProperties(struct cudaDeviceProp *props, int device)
{
    *props = (struct cudaDeviceProp){ .name = "GPU", .major = here.sm / 10, .minor = here.sm % 10 };
    return cudaSuccess;
}

cudaError_t
__wrap_cudaGetDeviceProperties_v2(struct cudaDeviceProp *props, int device)
{
    return __wrap_cudaGetDeviceProperties(props, device);
}

#define SUCCEEDS(call, parameters)                                                                 \
    cudaError_t __wrap_##call parameters;                                                          \
    cudaError_t __wrap_##call parameters                                                           \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }
#define FREES(call, parameters)                                                                    \
    cudaError_t __wrap_##call parameters;                                                          \
    cudaError_t __wrap_##call parameters                                                           \
    {                                                                                              \
        return here.free_error;                                                                    \
    }
#define UNUSED __attribute__((unused))
SUCCEEDS(cudaSetDevice, (UNUSED int device))
SUCCEEDS(cudaMalloc, (UNUSED void **p, UNUSED size_t n))
SUCCEEDS(cudaMemPoolCreate, (UNUSED cudaMemPool_t * pool, UNUSED const struct cudaMemPoolProps *p))
SUCCEEDS(cudaMemPoolSetAttribute,
         (UNUSED cudaMemPool_t pool, UNUSED enum cudaMemPoolAttr a, UNUSED void *value))
SUCCEEDS(cudaMallocHost, (UNUSED void **p, UNUSED size_t n))
SUCCEEDS(cudaStreamCreateWithFlags, (UNUSED cudaStream_t * stream, UNUSED unsigned flags))
SUCCEEDS(cudaEventCreateWithFlags, (UNUSED cudaEvent_t * event, UNUSED unsigned flags))
SUCCEEDS(cudaMemsetAsync, (UNUSED void *p, UNUSED int c, UNUSED size_t n, UNUSED cudaStream_t s))
SUCCEEDS(cudaStreamSynchronize, (UNUSED cudaStream_t stream))
SUCCEEDS(cudaStreamBeginCapture, (UNUSED cudaStream_t stream, UNUSED enum cudaStreamCaptureMode m))
SUCCEEDS(cudaStreamEndCapture, (UNUSED cudaStream_t stream, UNUSED cudaGraph_t *graph))
SUCCEEDS(cudaGraphUpload, (UNUSED cudaGraphExec_t graph, UNUSED cudaStream_t stream))
FREES(cudaFree, (UNUSED void *p))
FREES(cudaGraphExecDestroy, (UNUSED cudaGraphExec_t graph))

cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long flags);

cudaError_t
__wrap_cudaGraphInstantiate(cudaGraphExec_t *exec, UNUSED cudaGraph_t graph,
                            UNUSED unsigned long long flags)
{
    *exec = (cudaGraphExec_t)&here;
    return cudaSuccess;
}

/* The driver's functions for contexts: the device's is current all the time. */
static CUresult
give_context(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult
retain_context(CUcontext *context, UNUSED CUdevice device)
{
    return give_context(context);
}

static CUresult
push_context(UNUSED CUcontext context)
{
    return CUDA_SUCCESS;
}

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result);

cudaError_t
__wrap_cudaGetDriverEntryPointByVersion(const char *name, void **function, UNUSED unsigned version,
                                        UNUSED unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *result)
{
    const bool retains = !strcmp(name, "cuDevicePrimaryCtxRetain"),
               pushes = !strcmp(name, "cuCtxPushCurrent");
    CUresult (*const retain)(CUcontext *, CUdevice) = retain_context;
    CUresult (*const push)(CUcontext) = push_context;
    CUresult (*const give)(CUcontext *) = give_context;
    memcpy(function,
           retains  ? (const void *)&retain
           : pushes ? (const void *)&push
                    : (const void *)&give,
           sizeof *function);
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
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

TEST(drivers_and_devices)
{
    here.cudnn = 91900;
    here.error = cudaErrorInsufficientDriver;
    expect("no driver is installed");
    here.driver = 11040;
    expect("the driver supports CUDA 11.4, but 1");
    here.error = cudaErrorNoDevice;
    expect("no CUDA-capable device is detected");
    here.error = cudaSuccess;
    expect("none was found");
}

/* The loaded library's version counts, not the headers'. */
TEST(old_cudnn)
{
    here.devices = 1;
    here.cudnn = 91402;
    expect("cuDNN 9.14.2 was found, but 9.15 or newer is needed");
    here.cudnn = 90701;
    expect("cuDNN 9.7.1 was found");
    if (getenv("QV_TEST_GPU"))
        return;
    here.cudnn = 91500;
    assert_null(strstr(refusal(), "cuDNN")); /* The next call finds no device. */
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

static qv_status
open_gpu(int sm, qv_context **out, qv_error *err)
{
    here.error = here.free_error = cudaSuccess;
    here.devices = 1;
    here.cudnn = 91900;
    here.sm = sm;
    return qv_context_open(&(qv_context_options){ .backend = "cuda" }, out, err);
}

/* Expects the words in the warning of a context on such a GPU, or no warning. */
static void
expect_warning(int sm, const char *words)
{
    qv_context *ctx = NULL;
    qv_context_info info;
    qv_error err = { 0 };
    if (open_gpu(sm, &ctx, &err))
        fail_msg("sm_%d: %s", sm, err.text);
    qv_context_get_info(ctx, &info);
    if (words ? !strstr(info.warning, words) : *info.warning != 0)
        fail_msg("sm_%d: not \"%s\": %s", sm, words ? words : "", info.warning);
    qv_context_close(&ctx);
}

/* The build decides what a GPU runs; the rules themselves are tested in
 * test_cuda_architectures.c. */
TEST(gpus_that_kernels_were_not_built_for)
{
    static const int built[] = { QV_CUDA_ARCHITECTURES };
    const int newest = built[sizeof built / sizeof *built - 1];
    const int later = newest % 10 < 9 ? newest + 1 : newest; /* runs the newest one's code */
    char words[60];
    qv_context *ctx = NULL;
    qv_error err = { 0 };
    expect_warning(newest, NULL);
    expect_warning(later, NULL);
    snprintf(words, sizeof words, "the driver compiles the sm_%d ones", newest);
    expect_warning(990, words);
    const int refused = built[0] > 80 ? 80 : newest > 110 ? 110 : 0; /* 0: it runs on all */
    if (!refused)
        return;
    assert_int_equal(open_gpu(refused, &ctx, &err), QV_ENODEVICE);
    snprintf(words, sizeof words, "it: build with -DQV_CUDA_ARCHITECTURES=%d", refused);
    assert_non_null(strstr(err.text, "none of this build's kernels run on"));
    assert_non_null(strstr(err.text, words));
}

/* Opens a GPU, and allocates memory on it. */
static qv_context *
open_with_memory(struct qv_memory **memory)
{
    qv_context *ctx = NULL;
    assert_ok(open_gpu(90, &ctx, ERR) || ctx->backend->alloc(ctx->dev, 64, memory, ERR));
    return ctx;
}

/* If the device is lost while memory is freed, the next call reports it or, if no call follows, the
 * context's warning. */
TEST(memory_that_is_not_given_back)
{
    for (int recording = 0; recording < 2; recording++) {
        static const char words[] = "the CUDA context was lost when cuda";
        struct qv_memory *memory = NULL;
        qv_context *ctx = open_with_memory(&memory);
        struct qv_recording *recorded;
        qv_context_info info;
        qv_error err = { 0 };
        assert_ok(ctx->backend->record(ctx->dev, NULL, 0, &recorded, ERR));
        here.free_error = recording ? cudaErrorIllegalAddress : cudaSuccess;
        ctx->backend->forget(ctx->dev, recorded);
        here.free_error = recording ? cudaSuccess : cudaErrorIllegalAddress;
        ctx->backend->free(ctx->dev, memory);
        here.free_error = cudaSuccess;
        qv_context_get_info(ctx, &info);
        assert_non_null(strstr(info.warning, words));
        assert_non_null(
            strstr(info.warning, recording ? "cudaGraphExecDestroy" : "cudaFree reported"));
        assert_int_equal(ctx->backend->sync(ctx->dev, &err), QV_EBACKEND);
        assert_non_null(strstr(err.text, words));
        qv_context_close(&ctx);
    }
}

/* CUDA refuses to free while another thread captures a graph. That block is lost, the device is
 * not. */
TEST(memory_that_cuda_keeps)
{
    struct qv_memory *memory = NULL;
    qv_context *ctx = open_with_memory(&memory);
    qv_context_info info;
    here.free_error = cudaErrorStreamCaptureUnsupported;
    ctx->backend->free(ctx->dev, memory);
    here.free_error = cudaSuccess;
    qv_context_get_info(ctx, &info);
    assert_non_null(strstr(info.warning, "not freed: cudaFree reported"));
    assert_ok(ctx->backend->sync(ctx->dev, ERR));
    qv_context_close(&ctx);
}
