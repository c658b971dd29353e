/* SPDX-License-Identifier: MIT */
/*
 * Tests that each verb of the CUDA backend calls CUDA with its device's context current, and leaves
 * the caller's thread with the contexts that it had, whatever these are: none, another device's, or
 * one that the caller made; and which gemm_few it takes. The driver and the runtime are this file's
 * and fake_cuda.c's. Needs no GPU.
 */

#include "test.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "engine/backend.h"
#include "op_parse.h"

/* ---- the driver: contexts, and a thread's stack of them -------------------------------------- */

enum { DEVICES = 2, OURS = 1, DEPTH = 8 };
static char contexts[DEVICES + 1]; /* the devices' primary ones, and the caller's own */
#define CONTEXT(i) ((CUcontext)(void *)&contexts[i])
#define OWN CONTEXT(DEVICES)

static _Thread_local CUcontext stack[DEPTH];
static _Thread_local int depth;
static CUresult push_fails;
static int retained;

static CUcontext
current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static CUresult
retain(CUcontext *context, CUdevice device)
{
    retained++;
    *context = CONTEXT(device);
    return CUDA_SUCCESS;
}

static CUresult
get_current(CUcontext *context)
{
    *context = current();
    return CUDA_SUCCESS;
}

static CUresult
push(CUcontext context)
{
    if (push_fails)
        return push_fails;
    assert_true(depth < DEPTH);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult
pop(CUcontext *context)
{
    assert_true(depth > 0);
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

cudaError_t
cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *result)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = { { "cuDevicePrimaryCtxRetain", (void (*)(void))retain },
                      { "cuCtxGetCurrent", (void (*)(void))get_current },
                      { "cuCtxPushCurrent", (void (*)(void))push },
                      { "cuCtxPopCurrent", (void (*)(void))pop } };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, symbol)) {
            memcpy(function, &functions[i].function, sizeof *function);
            *result = cudaDriverEntryPointSuccess;
            return cudaSuccess;
        }
    return cudaErrorSymbolNotFound;
}

/* ---- the runtime, as far as its results are used --------------------------------------------- */

void fake_cuda_called(const char *name);

static int calls;
static const char *wrong; /* a call in another context than the device's; NULL: none */
static cudaError_t malloc_fails;

void
fake_cuda_called(const char *name)
{
    calls++;
    if (current() != CONTEXT(OURS))
        wrong = name;
}

static cudaError_t
make(const char *name, void *out, void *made)
{
    fake_cuda_called(name);
    memcpy(out, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceCount(int *count)
{
    *count = DEVICES;
    return cudaSuccess;
}

#undef cudaGetDeviceProperties
cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    *p = (struct cudaDeviceProp){ .major = 9, .name = "a GPU" };
    return cudaSuccess;
}

/* As the runtime does: it knows nothing of a context that was there before. */
cudaError_t
cudaSetDevice(int device)
{
    depth += !depth;
    stack[depth - 1] = CONTEXT(device);
    return cudaSuccess;
}

cudaError_t
cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    fake_cuda_called("cudaPointerGetAttributes");
    *a = (struct cudaPointerAttributes){ .type = cudaMemoryTypeUnregistered };
    return cudaSuccess;
}

cudaError_t
cudaMalloc(void **p, size_t bytes)
{
    fake_cuda_called("cudaMalloc");
    return malloc_fails ? malloc_fails : make("cudaMalloc", p, malloc(bytes));
}

cudaError_t
cudaMallocHost(void **p, size_t bytes)
{
    return make("cudaMallocHost", p, malloc(bytes));
}

cudaError_t
cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    return make("cudaHostAlloc", p, malloc(bytes));
}

cudaError_t
cudaFree(void *p)
{
    fake_cuda_called("cudaFree");
    free(p);
    return cudaSuccess;
}

cudaError_t
cudaFreeHost(void *p)
{
    fake_cuda_called("cudaFreeHost");
    free(p);
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    return make("cudaStreamCreateWithFlags", s, contexts);
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    return make("cudaEventCreateWithFlags", e, contexts);
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t graph, unsigned long long flags)
{
    return make("cudaGraphInstantiate", e, contexts);
}

size_t
cudnnGetVersion(void)
{
    return 92000;
}

size_t
cublasLtGetVersion(void)
{
    return 130000;
}

cudnnStatus_t
cudnnCreate(cudnnHandle_t *handle)
{
    make("cudnnCreate", handle, contexts);
    return CUDNN_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtCreate(cublasLtHandle_t *handle)
{
    make("cublasLtCreate", handle, contexts);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- every verb ------------------------------------------------------------------------------ */

static CUcontext before[DEPTH];
static int before_depth;

static void
remember(void)
{
    memcpy(before, stack, sizeof before);
    before_depth = depth;
    calls = 0;
    wrong = NULL;
}

/* Checks what a verb left behind, and that it called CUDA at all, in the right context. */
static void
check(const char *verb, bool has_called)
{
    if (wrong)
        fail_msg("%s: %s was called in another context", verb, wrong);
    if (depth != before_depth || memcmp(before, stack, (size_t)depth * sizeof *stack))
        fail_msg("%s: the thread has other contexts than before", verb);
    if (has_called != (calls > 0))
        fail_msg("%s: %d calls of CUDA", verb, calls);
}

#define EXPECT(status, call)                                                                       \
    do {                                                                                           \
        remember();                                                                                \
        assert_int_equal(call, status);                                                            \
        check(#call, true);                                                                        \
    } while (0)
#define DO(call)                                                                                   \
    do {                                                                                           \
        remember();                                                                                \
        call;                                                                                      \
        check(#call, true);                                                                        \
    } while (0)

static struct qv_device *
open_device(void *stream)
{
    struct qv_device *dev = NULL;
    qv_error err = { 0 };
    EXPECT(QV_OK, qv_backend_cuda.open(&(struct qv_device_options){ .ordinal = OURS,
                                                                    .stream = stream,
                                                                    .threads = 1 },
                                       &dev, &err));
    return dev;
}

static void
every_verb(struct qv_device *dev)
{
    const struct qv_backend *b = &qv_backend_cuda;
    const struct qv_matrix matrix = { .n = 4, .k = 8, .dtype = QV_F32 };
    static float values[64];
    struct qv_memory *memory, wrapped;
    struct qv_layout layout;
    struct qv_kernel *kernel;
    struct qv_recording *recording;
    struct qv_op op;
    size_t scratch;
    double ms;
    void *pages;
    qv_error err = { 0 };
    EXPECT(QV_OK, b->alloc(dev, sizeof values, &memory, &err));
    const struct qv_buffer all = { memory, 0 };
    EXPECT(QV_OK, b->upload(dev, all, values, sizeof values, &err));
    EXPECT(QV_OK, b->download(dev, &(struct qv_download){ values, all, sizeof values }, 1, &err));
    EXPECT(false, b->wrap(dev, values, sizeof values, &wrapped));
    EXPECT(QV_OK, b->lock_pages(dev, 64, &pages, &err));
    DO(b->unlock_pages(dev, pages));
    static int32_t start[2];
    static int16_t weights[2];
    const struct qv_axis axis = {
        .in = 2, .out = 2, .taps = 1, .start = start, .weights = weights
    };
    const struct qv_resize same = { .down = axis, .across = axis };
    void *frames = NULL;
    EXPECT(QV_OK, b->resize(dev, &same, &frames, &err));
    EXPECT(QV_OK, b->read_frames(dev, values, frames, 8, &err));
    DO(b->free_frames(dev, frames));
    assert_ok(b->layout(dev, &matrix, &layout, ERR));
    EXPECT(QV_OK, b->lay_out(dev, &matrix, 0, 4, values, all, &err));
    assert_ok(qv_op_parse("convert n=16 x=f32 y=bf16", &op, ERR));
    remember();
    assert_ok(b->prepare(dev, &op, 0, &kernel, &scratch, ERR));
    check("prepare", false);
    const struct qv_call call = { .kernel = kernel, .operands = { all, { memory, 128 } } };
    EXPECT(QV_OK, b->run(dev, &call, 1, &err));
    EXPECT(QV_OK, b->record(dev, &call, 1, &recording, &err));
    EXPECT(QV_OK, b->replay(dev, recording, &err));
    EXPECT(QV_OK, b->wait_side(dev, recording, &err));
    EXPECT(QV_OK, b->mark(dev, QV_MARK_BEGIN, &err));
    EXPECT(QV_OK, b->wait(dev, QV_MARK_BEGIN, &err));
    EXPECT(QV_OK, b->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, &err));
    EXPECT(QV_OK, b->sync(dev, &err));
    DO(b->forget(dev, recording));
    remember();
    b->release(dev, kernel);
    check("release", false);
    DO(b->free(dev, memory));
    /* failures too */
    malloc_fails = cudaErrorMemoryAllocation;
    EXPECT(QV_ENOMEM, b->alloc(dev, 64, &memory, &err));
    malloc_fails = cudaSuccess;
    DO(b->close(dev));
}

static void
with(int n, CUcontext outer, CUcontext inner)
{
    depth = n;
    stack[0] = outer;
    stack[1] = inner;
    every_verb(open_device(NULL));
    every_verb(open_device(contexts)); /* on a stream of the caller's */
    assert_int_equal(depth, n);
}

TEST(contexts_are_kept)
{
    with(0, NULL, NULL);
    with(1, CONTEXT(0), NULL);
    with(1, CONTEXT(OURS), NULL);
    with(1, OWN, NULL);
    with(2, CONTEXT(OURS), OWN);
    with(2, OWN, CONTEXT(0));
    assert_true(retained > 0);
}

/* A context that cannot be made current fails the verb, which then calls nothing. */
TEST(no_context)
{
    depth = 0;
    struct qv_device *dev = open_device(NULL);
    struct qv_memory *memory, wrapped;
    void *pages;
    qv_error err = { 0 };
    push_fails = CUDA_ERROR_INVALID_CONTEXT;
    remember();
    assert_int_equal(qv_backend_cuda.alloc(dev, 64, &memory, &err), QV_EBACKEND);
    assert_non_null(strstr(err.text, "cuCtxPushCurrent"));
    assert_int_equal(qv_backend_cuda.lock_pages(dev, 64, &pages, &err), QV_EBACKEND);
    assert_false(qv_backend_cuda.wrap(dev, contexts, 1, &wrapped));
    check("alloc", false);
    push_fails = CUDA_SUCCESS;
    qv_backend_cuda.close(dev);
}

/* CUDA's gemm_few has one form; its refusal names what it accepts. */
TEST(forms_of_gemm_few)
{
    static const struct {
        const char *text;
        qv_status status;
    } cases[] = {
        { "gemm_few m=1 n=16 k=64 alpha=1 w_bits=4 w_group=64 dtype=bf16", QV_OK },
        { "gemm_few m=1 n=1048560 k=64 alpha=1 w_bits=8 w_group=64 w=f16 dtype=bf16", QV_OK },
        { "gemm_few m=1 n=16 k=64 alpha=1 w_bits=4 w_group=64 w=bf16 dtype=f32", QV_EUNSUPPORTED },
        { "gemm_few m=1 n=16 k=64 alpha=1 w_bits=4 w_group=64 w=f32 dtype=bf16", QV_EUNSUPPORTED },
        { "gemm_few m=1 n=1048561 k=64 alpha=1 w_bits=8 w_group=64 dtype=bf16", QV_EUNSUPPORTED },
    };
    depth = 0;
    struct qv_device *dev = open_device(NULL);
    EACH (c, cases) {
        struct qv_kernel *kernel = NULL;
        struct qv_op op;
        size_t scratch;
        qv_error err = { 0 };
        assert_ok(qv_op_parse(c->text, &op, ERR));
        assert_int_equal(qv_backend_cuda.prepare(dev, &op, 0, &kernel, &scratch, &err), c->status);
        if (kernel)
            qv_backend_cuda.release(dev, kernel);
        else
            assert_non_null(strstr(err.text, "accepts x=bf16, w=bf16 or f16, and n up to 1048560"));
    }
    qv_backend_cuda.close(dev);
}
