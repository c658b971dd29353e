/* SPDX-License-Identifier: MIT */
/*
 * Tests that need a GPU: device memory and the caller's streams, several chunks in progress at
 * once, the predicted use of memory, the failure of every CUDA call that creates something, and
 * finally a lost device. The linker (--wrap) inserts the wrappers of the calls.
 */

#include "test.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backends.h"
#include "engine/backend.h"
#include "op_parse.h"
#include "qwenvit_conv3d.h"
#include "tempdir.h"
#include "tiny.h"

cudaError_t trap_device(cudaStream_t stream);
cudaError_t keep_busy(cudaStream_t stream, int blocks, long long cycles);

/* ---- calls that are made to fail, and what is alive ------------------------------------------ */

static long fail_at;            /* The nth call of the test's thread from now fails; 0: none. */
static atomic_bool others_fail; /* Every call of another thread fails. */
static atomic_int alive;
static _Thread_local bool is_test;
static const char *failed_call;

static bool
fails(const char *call)
{
    if (!is_test)
        return others_fail;
    if (!fail_at || --fail_at)
        return false;
    failed_call = call;
    return true;
}

/* X(status type, call, parameters, arguments, the answer when it fails) */
#define MAKERS(X)                                                                                  \
    X(cudaError_t, cudaMalloc, (void **p, size_t n), (p, n), cudaErrorMemoryAllocation)            \
    X(cudaError_t, cudaMallocHost, (void **p, size_t n), (p, n), cudaErrorMemoryAllocation)        \
    X(cudaError_t, cudaHostAlloc, (void **p, size_t n, unsigned f), (p, n, f),                     \
      cudaErrorMemoryAllocation)                                                                   \
    X(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned f), (s, f),              \
      cudaErrorMemoryAllocation)                                                                   \
    X(cudaError_t, cudaMemPoolCreate, (cudaMemPool_t * p, const struct cudaMemPoolProps *q),       \
      (p, q), cudaErrorMemoryAllocation)                                                           \
    X(cudaError_t, cudaEventCreate, (cudaEvent_t * e), (e), cudaErrorMemoryAllocation)             \
    X(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned f), (e, f),                \
      cudaErrorMemoryAllocation)                                                                   \
    X(cudaError_t, cudaGraphInstantiate,                                                           \
      (cudaGraphExec_t * e, cudaGraph_t g, unsigned long long f), (e, g, f),                       \
      cudaErrorMemoryAllocation)                                                                   \
    X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * h), (h), CUBLAS_STATUS_ALLOC_FAILED)     \
    X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * h), (h),                                        \
      CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
#define BREAKERS(X)                                                                                \
    X(cudaError_t, cudaFree, (void *p), (p))                                                       \
    X(cudaError_t, cudaFreeHost, (void *p), (p))                                                   \
    X(cudaError_t, cudaStreamDestroy, (cudaStream_t s), (s))                                       \
    X(cudaError_t, cudaMemPoolDestroy, (cudaMemPool_t p), (p))                                     \
    X(cudaError_t, cudaEventDestroy, (cudaEvent_t e), (e))                                         \
    X(cudaError_t, cudaGraphExecDestroy, (cudaGraphExec_t e), (e))                                 \
    X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t h), (h))                                  \
    X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t h), (h))

#define MAKE(type, call, parameters, arguments, failure)                                           \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters                                                                  \
    {                                                                                              \
        if (fails(#call))                                                                          \
            return failure;                                                                        \
        type status = __real_##call arguments;                                                     \
        alive += status == 0;                                                                      \
        return status;                                                                             \
    }
#define BREAK(type, call, parameters, arguments)                                                   \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters                                                                  \
    {                                                                                              \
        alive -= arguments != NULL;                                                                \
        return __real_##call arguments;                                                            \
    }
MAKERS(MAKE)
BREAKERS(BREAK)

/* ---- device memory and streams --------------------------------------------------------------- */

enum { GRID_H = 4, GRID_W = 6, FRAMES = 8, PAIR_ROWS = GRID_H * GRID_W };

static size_t
frame_bytes(const struct tiny *t)
{
    return (size_t)(GRID_H * GRID_W * t->info.patch_size * t->info.patch_size * 3);
}

/* The options of a plan for `pairs` frame pairs of the grid, which lie densely. */
static qv_plan_options
dense(int64_t pairs)
{
    return (qv_plan_options){ .capacity.patches = pairs * PAIR_ROWS,
                              .capacity.segment_rows = PAIR_ROWS };
}

static qv_item
clip_of(const void *frames, int64_t n)
{
    return (qv_item){ .data = frames, .grid_thw = { n / 2, GRID_H, GRID_W } };
}

static struct tiny
open_on(cudaStream_t stream)
{
    qv_context_options o = { .backend = "cuda", .stream = stream };
    return tiny_open_on(&o, QV_GOLDEN "/qwen3_vl", NULL);
}

/* ---- the caller's context -------------------------------------------------------------------- */

/* A caller's thread: what is current in it before a call must be current after it. */
struct caller {
    int runtime; /* the device that it chose by cudaSetDevice; -1: none */
    bool own;    /* it has a context that it made with the driver */
    int ours;    /* the device that it has us compute on */
    char wrong[200];
};

/* the driver's */
static CUresult (*get_current)(CUcontext *);
static CUresult (*create)(CUcontext *, unsigned, CUdevice);
static CUresult (*destroy)(CUcontext);

static void
find_driver(const char *name, unsigned version, void *function)
{
    enum cudaDriverEntryPointQueryResult result;
    void *found = NULL;
    assert_int_equal(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault,
                                                      &result),
                     0);
    assert_non_null(found);
    memcpy(function, &found, sizeof found);
}

/* Writes into c->wrong if `call` failed, or the thread's context or device are not as they were. */
static void
judge(struct caller *c, const char *call, qv_status status, const qv_error *err, CUcontext context)
{
    CUcontext now = NULL;
    int device = -1;
    get_current(&now);
    if (c->runtime >= 0)
        cudaGetDevice(&device);
    if (c->wrong[0])
        return;
    if (status)
        snprintf(c->wrong, sizeof c->wrong, "%s: %.150s", call, err->text);
    else if (now != context || (c->runtime >= 0 && device != c->runtime))
        snprintf(c->wrong, sizeof c->wrong, "%s: context %p was %p, and device %d was %d", call,
                 (void *)now, (void *)context, device, c->runtime);
}

static void *
call_everything(void *p)
{
    struct caller *c = p;
    CUcontext context = NULL;
    qv_error err = { 0 };
    struct tiny t = { 0 };
    qv_plan *plan = NULL;
    void *pages = NULL;
    const qv_plan_options o = { .capacity.patches = 100 };
    if (c->runtime >= 0)
        cudaSetDevice(c->runtime);
    if (c->own)
        create(&context, 0, 0);
    get_current(&context);
#define STEP(call) judge(c, #call, call, &err, context)
    STEP(qv_context_open(&(qv_context_options){ .backend = "cuda", .device = c->ours }, &t.ctx,
                         &err));
    STEP(qv_model_load(t.ctx, QV_GOLDEN "/qwen3_vl", NULL, &t.model, &err));
    if (!c->wrong[0]) {
        qv_model_get_info(t.model, &t.info);
        uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 5);
        const qv_item clip = { .data = frames, .grid_thw = { FRAMES / 2, GRID_H, GRID_W } };
        size_t bytes;
        qv_tokens out = tiny_tokens(&t, &clip, 1, QV_F32, &bytes);
        STEP(qv_plan_create(t.model, &o, &plan, &err));
        STEP(qv_plan_push(plan, &clip, 1, &err));
        STEP(qv_plan_pull(plan, &out, &err));
        STEP(qv_encode(t.model, QV_INPUT_FRAMES, &clip, 1, NULL, &out, &err));
        STEP(qv_host_alloc(t.ctx, 4096, &pages, &err));
        STEP((qv_host_free(t.ctx, pages), QV_OK));
        STEP((qv_plan_free(&plan), QV_OK));
    }
    STEP((qv_model_free(&t.model), QV_OK));
    STEP((qv_context_close(&t.ctx), QV_OK));
#undef STEP
    if (c->own)
        destroy(context);
    return NULL;
}

/* In a thread without a context, in a thread with its own context, and in a thread that uses a
 * device: not ours, if there are two. */
TEST(the_callers_context_is_kept)
{
    int devices = 0;
    find_driver("cuCtxGetCurrent", 4000, &get_current);
    find_driver("cuCtxCreate", 3020, &create);
    find_driver("cuCtxDestroy", 4000, &destroy);
    assert_int_equal(cudaGetDeviceCount(&devices), 0);
    struct caller callers[] = { { .runtime = -1 },
                                { .runtime = -1, .own = true },
                                { .runtime = 0 },
                                { .runtime = 0, .ours = devices - 1 },
                                { .runtime = devices - 1 } };
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, call_everything, &callers[i]), 0);
        pthread_join(thread, NULL);
        if (callers[i].wrong[0])
            fail_msg("caller %zu: %s", i, callers[i].wrong);
    }
}

/* Frames and tokens in device memory give the same bits as on the host, on our stream or on the
 * caller's, dense or packed. */
TEST(device_memory_gives_the_same_bits)
{
    for (int kind = 0; kind < 4; kind++) {
        cudaStream_t stream = NULL;
        void *frames_there, *tokens_there;
        const qv_plan_options o =
            kind / 2 ? dense(FRAMES / 2) : (qv_plan_options){ .capacity.patches = 100 };
        if (kind % 2)
            assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
        struct tiny t = open_on(stream);
        uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 5);
        size_t bytes, input = FRAMES * frame_bytes(&t);
        qv_plan *plan = tiny_plan(&t, &o);
        qv_item clip = clip_of(frames, FRAMES);
        float *expected = tiny_chunk(&t, plan, &clip, 1, QV_F32, &bytes);
        bytes /= (size_t)(1 + t.info.n_deepstack); /* Only the tokens. */
        float *found = malloc(bytes);
        assert_int_equal(cudaMalloc(&frames_there, input), 0);
        assert_int_equal(cudaMalloc(&tokens_there, bytes), 0);
        assert_int_equal(cudaMemcpy(frames_there, frames, input, cudaMemcpyDefault), 0);
        clip.data = frames_there;
        qv_tokens out = { .tokens = tokens_there,
                          .capacity = (int64_t)(bytes / sizeof(float)) / t.info.out_hidden };
        for (int round = 0; round < 5; round++) { /* On the caller's stream, without waiting. */
            assert_ok(qv_plan_push(plan, &clip, 1, ERR) || qv_plan_pull(plan, &out, ERR));
        }
        if (stream)
            assert_int_equal(cudaStreamSynchronize(stream), 0);
        assert_int_equal(cudaMemcpy(found, tokens_there, bytes, cudaMemcpyDefault), 0);
        assert_memory_equal(found, expected, bytes);
        test_end(plan);
        tiny_close(&t);
        cudaFree(frames_there);
        cudaFree(tokens_there);
        if (stream)
            cudaStreamDestroy(stream);
        free(found);
    }
}

/* Frames and tokens in page-locked memory give the same bits as in pageable memory, which several
 * threads copy in pieces. The offsets are not at the start of a page or a slice. */
TEST(page_locked_memory_gives_the_same_bits)
{
    enum { H = 32, W = 48, PAIRS = 8, SHIFT = 5 }; /* 18 MB: several staging blocks. */
    const qv_plan_options o = { .capacity.patches = PAIRS * H * W };
    struct cudaPointerAttributes at;
    qv_error err = { 0 };
    struct tiny t = open_on(NULL);
    const size_t patch = (size_t)(t.info.patch_size * t.info.patch_size * 3);
    const size_t input = 2 * PAIRS * H * W * patch;
    uint8_t *frames = tiny_frames(&t, 2 * PAIRS, H, W, 11), *shifted = malloc(input + SHIFT);
    void *locked_frames = NULL, *locked_tokens = NULL;
    qv_plan *plan = tiny_plan(&t, &o);
    qv_item clip = { .data = frames, .grid_thw = { PAIRS, H, W } };
    size_t bytes;
    float *expected = tiny_chunk(&t, plan, &clip, 1, QV_F32, &bytes);
    bytes /= (size_t)(1 + t.info.n_deepstack); /* Only the tokens. */
    assert_ok(qv_host_alloc(t.ctx, input, &locked_frames, ERR) ||
              qv_host_alloc(t.ctx, bytes, &locked_tokens, ERR));
    assert_int_equal(cudaPointerGetAttributes(&at, locked_tokens), 0);
    assert_int_equal(at.type, cudaMemoryTypeHost);
    assert_non_null(shifted);
    memcpy(locked_frames, frames, input);
    memcpy(shifted + SHIFT, frames, input);
    qv_tokens out = { .tokens = locked_tokens,
                      .capacity = (int64_t)(bytes / sizeof(float)) / t.info.out_hidden };
    for (int kind = 0; kind < 2; kind++) {
        clip.data = kind ? (void *)(shifted + SHIFT) : locked_frames;
        memset(locked_tokens, 0xff, bytes);
        assert_ok(qv_plan_push(plan, &clip, 1, ERR) || qv_plan_pull(plan, &out, ERR));
        assert_memory_equal(locked_tokens, expected, bytes);
    }
    fail_at = 1;
    void *none = NULL;
    assert_int_equal(qv_host_alloc(t.ctx, input, &none, &err), QV_ENOMEM);
    fail_at = 0;
    assert_non_null(strstr(err.text, "cudaHostAlloc"));
    assert_null(none);
    qv_host_free(t.ctx, locked_frames);
    qv_host_free(t.ctx, locked_tokens);
    test_end(plan);
    tiny_close(&t);
    free(shifted);
}

TEST(conv3d_takes_device_memory)
{
    enum { N = 6 * 10 * 12 * 8, O = 16, Y = 6 * 10 * 12 * O };
    qv_context *ctx = NULL;
    qv_conv3d *conv = NULL;
    qv_error err = { 0 };
    qv_conv3d_desc d = { .d = 6,
                         .h = 10,
                         .w = 12,
                         .c = 8,
                         .o = O,
                         .kernel = { 1, 3, 3 },
                         .pad_front = { 0, 1, 1 },
                         .pad_back = { 0, 1, 1 },
                         .layout = QV_LAYOUT_CHANNELS_LAST,
                         .dtype = QV_F32 };
    static float x[N], weight[O * 8 * 9], y[Y], found[Y];
    void *x_there, *y_there;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 7 - 3);
    for (int i = 0; i < O * 8 * 9; i++)
        weight[i] = (float)(i % 5 - 2);
    assert_int_equal(qv_context_open(&(qv_context_options){ .backend = "cuda" }, &ctx, &err), 0);
    assert_ok(
        qv_conv3d_create(ctx, &d, &(qv_conv3d_weights){ .weight = weight }, NULL, &conv, ERR) ||
        qv_conv3d_run(conv, x, y, ERR));
    assert_int_equal(cudaMalloc(&x_there, sizeof x), 0);
    assert_int_equal(cudaMalloc(&y_there, sizeof y), 0);
    assert_int_equal(cudaMemcpy(x_there, x, sizeof x, cudaMemcpyDefault), 0);
    assert_ok(qv_conv3d_run(conv, x_there, y_there, ERR));
    assert_int_equal(cudaMemcpy(found, y_there, sizeof y, cudaMemcpyDefault), 0);
    assert_memory_equal(found, y, sizeof y);
    cudaFree(x_there);
    cudaFree(y_there);
    qv_conv3d_free(&conv);
    qv_context_close(&ctx);
}

/* Chunks that are pushed ahead while another stream keeps the device busy give the same bits, with
 * DeepStack's outputs, which are copied before their chunk ends. */
TEST(chunks_under_way_at_once)
{
    enum { CHUNKS = 4 };
    qv_error err = { 0 };
    qv_plan_info info;
    cudaStream_t other;
    struct tiny t = open_on(NULL);
    const qv_plan_options o = dense(1);
    uint8_t *frames = tiny_frames(&t, 2 * CHUNKS, GRID_H, GRID_W, 6);
    qv_plan *plan = tiny_plan(&t, &o);
    qv_plan_get_info(plan, &info);
    assert_int_equal(info.chunks_ahead, 2);
    float *expected[CHUNKS];
    size_t bytes;
    qv_item pairs[CHUNKS];
    for (int i = 0; i < CHUNKS; i++) {
        pairs[i] = clip_of(frames + (size_t)(2 * i) * frame_bytes(&t), 2);
        expected[i] = tiny_chunk(&t, plan, &pairs[i], 1, QV_F32, &bytes);
    }
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), 0);
    assert_int_equal(keep_busy(other, 64, 100 * 1000 * 1000), 0);
    qv_tokens out = tiny_tokens(&t, pairs, 1, QV_F32, &bytes);
    for (int i = 0; i < CHUNKS + 1; i++) {
        assert_ok(i < CHUNKS && qv_plan_push(plan, &pairs[i], 1, ERR));
        if (i == 1) /* Two are in progress, so a third is one too many. */
            assert_int_equal(qv_plan_push(plan, pairs, 1, &err), QV_ESTATE);
        assert_ok(i && qv_plan_pull(plan, &out, ERR));
        if (i)
            assert_memory_equal(out.tokens, expected[i - 1], bytes);
    }
    assert_int_equal(qv_plan_pull(plan, &(qv_tokens){ 0 }, &err), QV_ESTATE);
    qv_plan_push(plan, pairs, 1, &err); /* The plan is freed while its work is in progress, and its
                                         * memory is used again. */
    test_end(plan);
    plan = tiny_plan(&t, &o);
    assert_int_equal(qv_plan_pull(plan, &(qv_tokens){ 0 }, &err), QV_ESTATE);
    test_end(plan);
    cudaStreamDestroy(other);
    tiny_close(&t);
}

static void
look(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    (void)name, (void)rows, (void)n_rows, (void)n_cols;
    ++*(int *)user;
}

/* In the graph, DeepStack's mergers run in parallel with the blocks. Running step by step gives the
 * same bits. */
TEST(recorded_is_step_by_step)
{
    struct tiny t = open_on(NULL);
    uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 10);
    const qv_item items[] = { clip_of(frames, FRAMES),
                              { .data = frames, .grid_thw = { 1, 2, 4 }, .is_image = true } };
    qv_plan_options o = { .capacity.patches = FRAMES / 2 * PAIR_ROWS + 2 * 4 };
    size_t n, m;
    int layers = 0;
    qv_plan *plan = tiny_plan(&t, &o);
    float *recorded = tiny_chunk(&t, plan, items, 2, QV_F32, &n);
    test_end(plan);
    o.hook = look;
    o.hook_user = &layers;
    plan = tiny_plan(&t, &o);
    float *stepped = tiny_chunk(&t, plan, items, 2, QV_F32, &m);
    test_end(plan);
    assert_true(t.info.n_deepstack > 0 && layers > t.info.depth);
    assert_int_equal(n, m);
    assert_memory_equal(recorded, stepped, n);
    tiny_close(&t);
}

/* A clip by itself, larger than a chunk or not, has the same bits in bf16 as among other clips,
 * with which its frame pairs share chunks, for every size of heads. */
static void
check_pairs(const char *dir)
{
    static const int64_t grids[][3] = {
        { 9, 40, 46 }, { 2, 20, 36 }, { 5, 30, 50 }, { 1, 60, 90 }
    };
    enum { CLIPS = sizeof grids / sizeof *grids };
    struct tiny t = tiny_open_family(dir, "cuda", QV_BF16, 0);
    const size_t row = (size_t)t.info.out_hidden * sizeof(uint16_t);
    const qv_plan_options o = { .output = QV_BF16 };
    qv_item items[CLIPS];
    size_t n, all_bytes;
    int64_t total = 0, first = 0;
    for (uint32_t i = 0; i < CLIPS; i++) {
        const int64_t *g = grids[i];
        items[i] = (qv_item){ .data = tiny_frames(&t, 2 * g[0], g[1], g[2], i),
                              .grid_thw = { g[0], g[1], g[2] } };
        total += g[0] * g[1] * g[2] / 4;
    }
    char *all = tiny_encode(&t, QV_INPUT_FRAMES, items, CLIPS, &o, &all_bytes);
    for (int i = 0; i < CLIPS; i++) {
        const int64_t *g = grids[i], tokens = g[0] * g[1] * g[2] / 4;
        char *alone = tiny_encode(&t, QV_INPUT_FRAMES, &items[i], 1, &o, &n);
        for (int64_t j = 0; j < 1 + t.info.n_deepstack; j++)
            if (memcmp(all + (size_t)(j * total + first) * row, alone + (size_t)(j * tokens) * row,
                       (size_t)tokens * row) != 0)
                fail_msg("%s: clip %d has other bits alone than packed, output %d", dir, i, (int)j);
        first += tokens;
    }
    tiny_close(&t);
}

TEST(pairs_are_the_same_bits_alone_and_packed)
{
    const char *real = getenv("QV_TEST_MODEL");
    check_pairs(QV_GOLDEN "/qwen3_vl");
    check_pairs(QV_GOLDEN "/qwen2_5_vl");
    if (real)
        check_pairs(real);
}

/* Sets `text` to what describes the kernel that the device prepares for an operation. */
static void
describe(struct qv_device *dev, const char *words, char text[QV_KERNEL_BYTES])
{
    const struct qv_backend *be = &qv_backend_cuda;
    struct qv_kernel *kernel = NULL;
    struct qv_op op;
    size_t scratch;
    assert_ok(qv_op_parse(words, &op, ERR) || be->prepare(dev, &op, 0, &kernel, &scratch, ERR));
    be->describe(kernel, text, QV_KERNEL_BYTES);
    be->release(dev, kernel);
}

/* Tests that each operation names the kernel that runs it, with the reason for a fallback. */
TEST(kernels_have_names)
{
    struct cudaDeviceProp props;
    assert_int_equal(cudaGetDeviceProperties(&props, 0), 0);
    /* attention of longer segments, with heads of 64 to 80 */
    const char *const LONG = props.major == 9 ? "our own kernel for Hopper" : "cuDNN engine ";
    const struct {
        const char *op, *said, *more;
    } cases[] = {
        { "gemm m=760 n=1024 k=1024 alpha=1 bias=1 dtype=bf16", "cuBLASLt algorithm ", ", tile " },
        { "gemm m=760 n=1024 k=1024 alpha=1 bias=1 act=gelu_erf dtype=bf16", "cuBLASLt algorithm ",
          ", then our epilogue: cuBLASLt has only the tanh GELU" },
        { "gemm m=760 n=1024 k=1024 alpha=1 bias=1 act=gelu_quick dtype=bf16", "cuDNN engine ",
          "" },
        { "attention rows=128 segments=2 segment_rows=64 heads=2 head_dim=96 scale=1 dtype=bf16",
          "cuDNN engine ", "" },
        { "attention rows=128 segments=2 heads=2 head_dim=96 scale=1 dtype=bf16", "cuDNN engine ",
          "" },
        { "attention rows=128 segments=2 segment_rows=64 heads=2 head_dim=72 scale=1 dtype=bf16",
          LONG, "" },
        { "attention rows=128 segments=2 heads=2 head_dim=64 scale=1 dtype=bf16", LONG, "" },
        { "attention rows=128 segments=4 longest=64 heads=2 head_dim=80 scale=1 dtype=bf16",
          "our own kernel for short segments", "" },
        { "attention rows=128 segments=2 longest=65 heads=2 head_dim=80 scale=1 dtype=bf16", LONG,
          "" },
        { "gate rows=8 cols=64 act=silu dtype=bf16", "our kernel", "" },
        { "gather rows=8 cols=64 x_rows=8 x=f32 y=bf16", "our kernel", "" },
        { "attention rows=128 segments=2 heads=2 head_dim=64 scale=1 dtype=f32",
          "naive kernel: attention: cuDNN does not support it: ", "it is not in bf16" },
        { "norm rows=4 cols=64 eps=1e-6 dtype=f32", "our kernel", "" },
    };
    const struct qv_backend *be = &qv_backend_cuda;
    struct qv_device *dev = NULL;
    assert_ok(be->open(&(struct qv_device_options){ 0 }, &dev, ERR));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[QV_KERNEL_BYTES];
        describe(dev, cases[i].op, text);
        printf("%s: %s\n", cases[i].op, text);
        if (strncmp(text, cases[i].said, strlen(cases[i].said)) || !strstr(text, cases[i].more))
            fail_msg("%s: \"%s\", not \"%s%s\"", cases[i].op, text, cases[i].said, cases[i].more);
    }
    be->close(dev);
}

/* On Hopper no product uses clusters of more than two blocks, which cuBLASLt suggests for these
 * sizes (nothing else for the last four), and which sometimes fail while another process uses the
 * GPU. */
TEST(clusters_are_small_on_hopper)
{
    static const char *const ops[] = {
        "gemm m=10560 n=1024 k=4096 alpha=1 bias=1 residual_rows=10560 dtype=bf16",
        "gemm m=10560 n=1024 k=1024 alpha=1 bias=1 residual_rows=10560 dtype=bf16",
        "gemm m=1520 n=2560 k=4096 alpha=1 bias=1 dtype=bf16",
        "gemm m=760 n=1280 k=3456 alpha=1 bias=1 residual_rows=760 dtype=bf16",
        "gemm m=760 n=1280 k=1280 alpha=1 bias=1 residual_rows=760 dtype=bf16",
        "gemm m=760 n=1152 k=4352 alpha=1 bias=1 residual_rows=760 dtype=bf16",
        "gemm m=256 n=1280 k=1280 alpha=1 bias=1 dtype=bf16",
    };
    const struct qv_backend *be = &qv_backend_cuda;
    struct qv_device *dev = NULL;
    struct cudaDeviceProp props;
    assert_int_equal(cudaGetDeviceProperties(&props, 0), 0);
    if (props.major != 9)
        skip();
    assert_ok(be->open(&(struct qv_device_options){ 0 }, &dev, ERR));
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char text[QV_KERNEL_BYTES];
        describe(dev, ops[i], text);
        int cols, rows;
        const char *clusters = strstr(text, ", clusters ");
        if (!clusters || sscanf(clusters, ", clusters %dx%d", &cols, &rows) != 2 || cols * rows > 2)
            fail_msg("%s: \"%s\"", ops[i], text);
    }
    be->close(dev);
}

/* ---- a product and the operation after it ---------------------------------------------------- */

/* Fills an operand with random values of magnitudes up to 1, in bf16 only -1, 0 and 1 if `exact`, so
 * that sums are exact; coordinates in a table; or quantised values of about 0.1. */
static void
fill_values(const struct qv_view *v, uint32_t seed, bool exact, void *values)
{
    enum { POSITIONS = 64 };
    if (v->groups.bits) {
        memset(values, 0x3c, v->bytes); /* 0.01 in bf16 */
        return;
    }
    for (size_t i = 0; i < v->bytes / qv_dtype_bytes(v->dtype); i++) {
        const uint32_t random = test_random(&seed) >> 8;
        const float f = (float)random / (1 << 23) - 1;
        if (v->dtype == QV_I32)
            ((int32_t *)values)[i] = (int32_t)random % POSITIONS;
        else
            qv_store(values, v->dtype, (int64_t)i,
                     exact && v->dtype == QV_BF16 ? roundf(1.5F * f) : f);
    }
}

/* Returns how many kernels the device enqueues for calls; they are captured, not run. */
static size_t
count_kernels(struct qv_device *dev, cudaStream_t stream, const struct qv_call *calls, size_t n)
{
    cudaGraph_t graph;
    size_t kernels = 0;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
    assert_ok(dev->backend->run(dev, calls, n, ERR));
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cudaGraphGetNodes(graph, NULL, &kernels), 0);
    cudaGraphDestroy(graph);
    return kernels;
}

/* Opens a device that works on a new stream. */
static struct qv_device *
open_on_stream(cudaStream_t *stream)
{
    struct qv_device *dev = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), 0);
    assert_ok(qv_backend_cuda.open(&(struct qv_device_options){ .stream = *stream }, &dev, ERR));
    return dev;
}

enum { MOST_CHAINED = 3 };

/* Operations, each on the y of the one before: a gemm and its rope, for example. */
struct chain {
    int n;
    struct qv_op ops[MOST_CHAINED];
    struct qv_call calls[MOST_CHAINED];
    struct qv_view views[MOST_CHAINED][QV_MAX_OPERANDS];
    /* as uploaded; NULL for operands in the y before */
    void *values[MOST_CHAINED][QV_MAX_OPERANDS];
    struct qv_buffer y[MOST_CHAINED];
    size_t bytes[MOST_CHAINED]; /* of y */
    void *result;               /* the last y on the host */
};

/* Returns whether an operand is, or lies in, the y of the operation before. */
static bool
is_chained(const struct qv_op *op, int operand)
{
    return op->kind == QV_OP_rope        ? operand == 3
           : op->kind == QV_OP_gate      ? operand < 2
           : op->kind == QV_OP_attention ? operand >= 1 && operand <= 3
                                         : operand == 0;
}

static void
open_chain(struct qv_device *dev, const char *const *words, int n, bool exact, struct chain *c)
{
    const struct qv_backend *be = dev->backend;
    size_t most = 0;
    memset(c, 0, sizeof *c);
    c->n = n;
    for (int k = 0; k < n; k++) {
        struct qv_op *const op = &c->ops[k];
        size_t scratch = 0;
        assert_ok(qv_op_parse(words[k], op, ERR) || qv_op_check(op, ERR) ||
                  be->prepare(dev, op, 0, &c->calls[k].kernel, &scratch, ERR));
        assert_ok(scratch && be->alloc(dev, scratch, &c->calls[k].scratch.memory, ERR));
        const int operands = qv_op_views(op, c->views[k]), output = qv_op_output(op);
        for (int i = 0; i < operands; i++) {
            const struct qv_view *const v = &c->views[k][i];
            struct qv_buffer *const operand = &c->calls[k].operands[i];
            if (k > 0 && is_chained(op, i)) {
                *operand = c->y[k - 1];
                operand->offset +=
                    op->kind == QV_OP_gate && i == 1 ? (size_t)op->u.gate.cols * 2 : 0;
            } else if (v->bytes) {
                const struct qv_matrix w = qv_matrix_of(op, v);
                struct qv_layout layout = { v->bytes, 1 };
                void *const values = c->values[k][i] = malloc(v->bytes);
                assert_non_null(values);
                fill_values(v, (uint32_t)(8 * k + i), exact, values);
                if (v->role == QV_ROLE_WEIGHT)
                    assert_ok(be->layout(dev, &w, &layout, ERR));
                assert_ok(be->alloc(dev, layout.bytes, &operand->memory, ERR));
                assert_ok(v->role == QV_ROLE_WEIGHT
                              ? be->lay_out(dev, &w, 0, w.n, values, *operand, ERR)
                              : be->upload(dev, *operand, values, v->bytes, ERR));
            }
        }
        c->y[k] = c->calls[k].operands[output];
        /* rope turns some of the y before it */
        c->bytes[k] = op->kind == QV_OP_rope ? c->bytes[k - 1] : c->views[k][output].bytes;
        most = c->bytes[k] > most ? c->bytes[k] : most;
    }
    c->calls[0].transient = true;
    c->result = malloc(most);
    assert_non_null(c->result);
}

enum way { ONE_BY_ONE, LISTED, RECORDED };

/* Runs the operations and downloads the last y. Every y is NaNs before. */
static void
run_chain(struct qv_device *dev, struct chain *c, enum way way)
{
    const struct qv_backend *be = dev->backend;
    const size_t n = way == ONE_BY_ONE ? 1 : (size_t)c->n;
    struct qv_recording *recording = NULL;
    for (int k = 0; k < c->n; k++) {
        memset(c->result, 0xff, c->bytes[k]);
        assert_ok(be->upload(dev, c->y[k], c->result, c->bytes[k], ERR));
    }
    if (way == RECORDED)
        assert_ok(be->record(dev, c->calls, n, &recording, ERR) ||
                  be->replay(dev, recording, ERR) || be->sync(dev, ERR));
    for (int k = 0; k < c->n && way != RECORDED; k += (int)n)
        assert_ok(be->run(dev, &c->calls[k], n, ERR) || be->sync(dev, ERR));
    if (recording)
        be->forget(dev, recording);
    const int last = c->n - 1;
    assert_ok(
        be->download(dev, &(struct qv_download){ c->result, c->y[last], c->bytes[last] }, 1, ERR));
}

static void
close_chain(struct qv_device *dev, struct chain *c)
{
    const struct qv_backend *be = dev->backend;
    for (int k = 0; k < c->n; k++) {
        be->release(dev, c->calls[k].kernel);
        if (c->calls[k].scratch.memory)
            be->free(dev, c->calls[k].scratch.memory);
        for (int i = 0; i < QV_MAX_OPERANDS; i++) {
            if (c->values[k][i])
                be->free(dev, c->calls[k].operands[i].memory);
            free(c->values[k][i]);
        }
    }
    free(c->result);
}

/* Runs a chain in each way, which must give the same bits. */
static void
compare_chain(struct qv_device *dev, struct chain *c)
{
    const size_t bytes = c->bytes[c->n - 1];
    char *apart = malloc(bytes);
    assert_non_null(apart);
    run_chain(dev, c, ONE_BY_ONE);
    memcpy(apart, c->result, bytes);
    for (enum way way = LISTED; way <= RECORDED; way++) {
        run_chain(dev, c, way);
        assert_memory_equal(apart, c->result, bytes);
    }
    free(apart);
}

/* Compares a gemm and the rope or gate of its y, which are one kernel if `fused`. */
static void
check_pair(struct qv_device *dev, cudaStream_t stream, const char *const words[2], bool fused)
{
    struct chain c;
    open_chain(dev, words, 2, false, &c);
    printf("%s; %s\n", words[0], words[1]);
    compare_chain(dev, &c);

    const bool gates = c.ops[1].kind == QV_OP_gate;
    struct qv_call *const gemm = &c.calls[0], *const next = &c.calls[1];
    const struct qv_call right = *next;
    assert_int_equal(count_kernels(dev, stream, c.calls, 2) == 1, fused);
    next->waits = true; /* for the side stream, and the gemm does not */
    assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
    *next = right;
    next->side = true;
    assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
    *next = right;
    next->operands[gates ? 1 : 3].offset += 64; /* other columns of y */
    assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
    *next = right;
    if (gates) {
        next->operands[0].offset += 64;
        assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
        *next = right;
        next->operands[2] = gemm->operands[0]; /* would be overwritten while it is read */
        next->operands[2].offset += c.views[0][0].bytes - 1024;
        assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
        next->operands[2].offset += 1024; /* after x, as in a plan's arena; and before it */
        assert_int_equal(count_kernels(dev, stream, c.calls, 2) == 1, fused);
        next->operands[2].offset = 0;
        gemm->operands[0].offset = c.bytes[1];
        assert_int_equal(count_kernels(dev, stream, c.calls, 2) == 1, fused);
        gemm->operands[0].offset = c.bytes[1] - 1024;
        assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
        gemm->operands[0].offset = 0;
        *next = right;
        gemm->transient = false;
        assert_true(count_kernels(dev, stream, c.calls, 2) > 1);
    }
    close_chain(dev, &c);
}

/* Returns y[row, col] of a rope, or of a gate, of a row's sums. */
static double
right_value(const struct chain *c, const double *sums, int64_t row, int64_t col)
{
    const struct qv_op_rope *r = &c->ops[1].u.rope;
    if (c->ops[1].kind == QV_OP_gate)
        return sums[col] / (1 + exp(-sums[col])) * sums[c->ops[1].u.gate.cols + col];
    if (col >= r->heads * r->head_dim)
        return sums[col];
    const int64_t half = r->head_dim / 2, quarter = half / 2, d = col % half;
    const int32_t *at = (const int32_t *)c->values[1][2] + 4 * row;
    const int64_t angle = d < quarter ? at[2] * quarter + d : (at[3] - 1) * quarter + d;
    const double cosine = ((const float *)c->values[1][0])[angle];
    const double sine = ((const float *)c->values[1][1])[angle];
    return col % r->head_dim < half ? sums[col] * cosine - sums[col + half] * sine
                                    : sums[col] * cosine + sums[col - half] * sine;
}

/* Compares the kernel with sums on the host. No other library's kernels run here, because
 * compute-sanitizer fails on some of them. */
static void
check_pair_alone(struct qv_device *dev, cudaStream_t stream, const char *const words[2])
{
    struct chain c;
    open_chain(dev, words, 2, true, &c);
    const struct qv_op_gemm *g = &c.ops[0].u.gemm;
    const int64_t cols = c.ops[1].kind == QV_OP_gate ? g->n / 2 : g->n;
    double *sums = malloc((size_t)g->n * sizeof *sums);
    assert_non_null(sums);
    run_chain(dev, &c, LISTED);
    assert_int_equal(count_kernels(dev, stream, c.calls, 2), 1);
    for (int64_t row = g->m - 1; row >= 0; row -= 37) {
        for (int64_t j = 0; j < g->n; j++) {
            sums[j] = qv_load(c.values[0][2], QV_BF16, j);
            for (int64_t l = 0; l < g->k; l++)
                sums[j] += qv_load(c.values[0][0], QV_BF16, row * g->k + l) *
                           qv_load(c.values[0][1], QV_BF16, j * g->k + l);
        }
        for (int64_t j = 0; j < cols; j++) {
            const double right = right_value(&c, sums, row, j);
            const double got = qv_load(c.result, QV_BF16, row * cols + j);
            if (!(fabs(got - right) <= 0x1p-8 * fabs(right) + 1e-5))
                fail_msg("%s; %s: row %lld, column %lld is %g, not %g", words[0], words[1],
                         (long long)row, (long long)j, got, right);
        }
    }
    free(sums);
    close_chain(dev, &c);
}

#define BF16 " dtype=bf16"
#define ROPE_64 " heads=32 head_dim=64 positions=64 x_stride=3072" BF16
#define ROPE_72 " heads=32 head_dim=72 positions=64 x_stride=3456" BF16
#define ROPE_80 " heads=32 head_dim=80 positions=64 x_stride=3840" BF16
#define GATE(half, n) " cols=" #half " a_stride=" #n " b_stride=" #n BF16 " act="

TEST(a_pair_alone)
{
    static const char *const cases[][2] = {
        { "gemm m=1913 n=3072 k=72 alpha=1 bias=1" BF16, "rope rows=1913" ROPE_64 },
        { "gemm m=1275 n=3456 k=72 alpha=1 bias=1" BF16, "rope rows=1275" ROPE_72 },
        { "gemm m=1275 n=3840 k=72 alpha=1 bias=1" BF16, "rope rows=1275" ROPE_80 },
        { "gemm m=1275 n=4944 k=72 alpha=1 bias=1" BF16, "gate rows=1275" GATE(2472, 4944) "silu" },
        { "gemm m=250 n=3072 k=1096 alpha=1 bias=1" BF16, "rope rows=250" ROPE_64 },
        { "gemm m=830 n=3456 k=520 alpha=1 bias=1" BF16, "rope rows=830" ROPE_72 },
        { "gemm m=830 n=3840 k=72 alpha=1 bias=1" BF16, "rope rows=830" ROPE_80 },
    };
    struct cudaDeviceProp props;
    cudaStream_t stream;
    assert_int_equal(cudaGetDeviceProperties(&props, 0), 0);
    if (props.major != 9 || props.multiProcessorCount != 132)
        skip();
    struct qv_device *const dev = open_on_stream(&stream);
    EACH (words, cases)
        check_pair_alone(dev, stream, *words);
    dev->backend->close(dev);
    cudaStreamDestroy(stream);
}

/* On Hopper a large product is one kernel with the rotation of its heads, for every size of heads,
 * and with a gate; so is a smaller one that leaves few multiprocessors idle. The last rows and
 * columns are not a whole tile, nor is k a whole step, and some blocks have one or two tiles. The
 * other pairs stay two. */
TEST(a_pair_is_one_kernel)
{
    static const char *const one[][2] = {
        { "gemm m=5000 n=3072 k=1096 alpha=1 bias=1" BF16, "rope rows=5000" ROPE_64 },
        { "gemm m=7000 n=2304 k=768 alpha=1" BF16,
          "rope rows=7000 heads=36 head_dim=64 positions=64" BF16 },
        { "gemm m=5501 n=3456 k=1152 alpha=1 bias=1" BF16,
          "rope rows=5501 heads=31 head_dim=72 positions=64 x_stride=3456" BF16 },
        { "gemm m=5501 n=3840 k=1280 alpha=1 bias=1" BF16, "rope rows=5501" ROPE_80 },
        { "gemm m=1920 n=3072 k=8 alpha=1 bias=1" BF16, "rope rows=1920" ROPE_64 },
        { "gemm m=1280 n=3456 k=200 alpha=1 bias=1" BF16, "rope rows=1280" ROPE_72 },
        { "gemm m=1280 n=3840 k=1280 alpha=1" BF16, "rope rows=1280" ROPE_80 },
        { "gemm m=180 n=3072 k=8 alpha=1" BF16, "rope rows=180" ROPE_64 },
        { "gemm m=310 n=3456 k=1152 alpha=1 bias=1" BF16,
          "rope rows=310 heads=31 head_dim=72 positions=64 x_stride=3456" BF16 },
        { "gemm m=250 n=3840 k=1280 alpha=1 bias=1" BF16, "rope rows=250" ROPE_80 },
        { "gemm m=760 n=3072 k=1024 alpha=1 bias=1" BF16, "rope rows=760" ROPE_64 },
        { "gemm m=833 n=3456 k=200 alpha=1" BF16, "rope rows=833" ROPE_72 },
        { "gemm m=1001 n=3840 k=1096 alpha=1 bias=1" BF16,
          "rope rows=1001 heads=31 head_dim=80 positions=64 x_stride=3840" BF16 },
        { "gemm m=2816 n=6912 k=1280 alpha=1 bias=1" BF16,
          "gate rows=2816" GATE(3456, 6912) "silu" },
        { "gemm m=5501 n=6928 k=1288 alpha=1" BF16, "gate rows=5501" GATE(3464, 6928) "silu" },
    };
    static const char *const two[][2] = {
        { "gemm m=128 n=3072 k=1024 alpha=1 bias=1" BF16, "rope rows=128" ROPE_64 },
        { "gemm m=500 n=3072 k=1024 alpha=1 bias=1" BF16, "rope rows=500" ROPE_64 },
        { "gemm m=600 n=3072 k=1024 alpha=1 bias=1" BF16, "rope rows=600" ROPE_64 },
        { "gemm m=1100 n=3072 k=1024 alpha=1 bias=1" BF16, "rope rows=1100" ROPE_64 },
        { "gemm m=5000 n=3072 k=64 alpha=1 bias=1 act=gelu_tanh" BF16, "rope rows=5000" ROPE_64 },
        { "gemm m=5000 n=3072 k=64 alpha=1 residual_rows=5000" BF16, "rope rows=5000" ROPE_64 },
        { "gemm m=5000 n=3072 k=64 alpha=2 bias=1" BF16, "rope rows=5000" ROPE_64 },
        { "gemm m=5000 n=3072 k=64 alpha=1 bias=1" BF16, "rope rows=4999" ROPE_64 },
        { "gemm m=5000 n=3072 k=64 alpha=1 bias=1" BF16,
          "rope rows=2500 heads=32 head_dim=64 positions=64 x_stride=6144" BF16 },
        { "gemm m=5000 n=3072 k=64 alpha=1 bias=1" BF16,
          "rope rows=5000 heads=24 head_dim=96 positions=64 x_stride=3072" BF16 },
        { "gemm m=5000 n=3104 k=64 alpha=1 bias=1" BF16,
          "rope rows=5000 heads=32 head_dim=64 positions=64 x_stride=3104" BF16 },
        { "gemm m=5000 n=3072 k=64 alpha=1 bias=1" BF16,
          "rope rows=5000 heads=16 head_dim=64 positions=64 x_stride=1536 dtype=f32" },
        { "gemm m=256 n=6912 k=64 alpha=1 bias=1" BF16, "gate rows=256" GATE(3456, 6912) "silu" },
        { "gemm m=2816 n=6912 k=64 alpha=1" BF16, "gate rows=2816" GATE(3456, 6912) "gelu_quick" },
        { "gemm m=2816 n=6920 k=64 alpha=1" BF16, "gate rows=2816" GATE(3460, 6920) "silu" },
        { "gemm m=2816 n=6912 k=64 alpha=1" BF16, "gate rows=2815" GATE(3456, 6912) "silu" },
    };
    struct cudaDeviceProp props;
    cudaStream_t stream;
    assert_int_equal(cudaGetDeviceProperties(&props, 0), 0);
    if (props.major == 9 && props.multiProcessorCount != 132)
        skip(); /* which sizes fill the GPU depends on it */
    struct qv_device *const dev = open_on_stream(&stream);
    EACH (words, one)
        check_pair(dev, stream, *words, props.major == 9);
    EACH (words, two)
        check_pair(dev, stream, *words, false);
    dev->backend->close(dev);
    cudaStreamDestroy(stream);
}

/* ---- kernels that begin early ---------------------------------------------------------------- */

/* On Hopper each case follows an attention kernel that writes its input, runs longer than a launch
 * takes, lets the next kernel start and leaves multiprocessors free, so that a kernel that does not
 * wait reads NaNs. */
TEST(early_kernels_wait)
{
#define SLOW "attention rows=5000 segments=1 segment_rows=5000 heads=1 head_dim=64 scale=0.125" BF16
    static const char *const next[][2] = {
        { "norm rows=5000 cols=64 eps=1e-6" BF16 },
        { "norm rows=1250 cols=256 eps=1e-6" BF16 },
        { "norm rows=125 cols=2560 eps=1e-6 rms=1" BF16 },
        { "rope rows=5000 heads=1 head_dim=64 positions=64" BF16 },
        { SLOW },
        { "attention rows=5000 segments=125 segment_rows=40 longest=40 heads=1 head_dim=64 "
          "scale=0.125" BF16 },
        { "gemm_few m=50 n=128 k=6400 alpha=1 w_bits=4 w_group=64 w=bf16" BF16 },
        { "gemm m=5000 n=3072 k=64 alpha=1" BF16, "rope rows=5000" ROPE_64 },
        { "gemm m=800 n=3072 k=400 alpha=1" BF16, "rope rows=800" ROPE_64 },
        { "gemm m=250 n=3072 k=1280 alpha=1" BF16, "rope rows=250" ROPE_64 },
        { "gemm m=5000 n=6912 k=64 alpha=1" BF16, "gate rows=5000" GATE(3456, 6912) "silu" },
    };
    struct cudaDeviceProp props;
    cudaStream_t stream;
    assert_int_equal(cudaGetDeviceProperties(&props, 0), 0);
    struct qv_device *const dev = open_on_stream(&stream);
    EACH (words, next) {
        const char *const chained[] = { SLOW, (*words)[0], (*words)[1] };
        struct chain c;
        printf("%s\n", chained[1]);
        open_chain(dev, chained, chained[2] ? 3 : 2, false, &c);
        c.calls[1].transient = true;
        if (props.major == 9 && props.multiProcessorCount == 132)
            assert_int_equal(count_kernels(dev, stream, c.calls, (size_t)c.n), 2);
        compare_chain(dev, &c);
        close_chain(dev, &c);
    }
    dev->backend->close(dev);
    cudaStreamDestroy(stream);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t
memory_in_use(void)
{
    size_t left, total;
    assert_int_equal(cudaMemGetInfo(&left, &total), 0);
    return total - left;
}

/* Weights and arena of a tower of real size (QV_TEST_MODEL) take the memory that a described model
 * predicted. */
TEST(memory_is_as_foretold)
{
    const char *dir = getenv("QV_TEST_MODEL");
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    qv_plan_info info;
    qv_error err = { 0 };
    qv_plan_options o = { .capacity.patches = 32 * 20 * 38 };
    if (!dir)
        skip();
    assert_int_equal(qv_context_open(&(qv_context_options){ .backend = "cuda" }, &ctx, &err), 0);
    assert_ok(qv_model_load(ctx, dir, &(qv_model_options){ .describe = true }, &model, ERR) ||
              qv_plan_create(model, &o, &plan, ERR));
    qv_plan_get_info(plan, &info);
    double foretold = (double)info.weight_bytes + (double)info.arena_bytes;
    qv_plan_free(&plan);
    qv_model_free(&model);
    size_t before = memory_in_use();
    assert_ok(qv_model_load(ctx, dir, NULL, &model, ERR) || qv_plan_create(model, &o, &plan, ERR));
    double used = (double)(memory_in_use() - before);
    printf("foretold %.1f MB, used %.1f MB\n", foretold * 1e-6, used * 1e-6);
    assert_true(fabs(used - foretold) <= 0.05 * foretold);
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
}

/* Changes the last byte of every file. */
static void
damage_all(const char *folder)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(temp_path(e->d_name), "r+b");
        if (!f)
            continue;
        assert_int_equal(fseek(f, -1, SEEK_END), 0);
        const int last = getc(f) ^ 1;
        assert_int_equal(fseek(f, -1, SEEK_END), 0);
        assert_int_equal(putc(last, f), last);
        fclose(f);
    }
    closedir(dir);
}

/* A cuDNN plan that was kept on disk works like one that was compiled; one that was damaged is
 * compiled again. */
TEST(kept_kernels_give_the_same_bits)
{
    float *tokens[4];
    size_t bytes = 0;
    for (int i = 0; i < 4; i++) { /* In turn: without files, kept, found, damaged. */
        qv_context_info info;
        const qv_context_options o = { .backend = "cuda",
                                       .kernel_folder = i ? temp_path("") : NULL };
        if (i == 3)
            damage_all(temp_path(""));
        const qv_model_options bf16 = { .dtype = QV_BF16 };
        struct tiny t = tiny_open_on(&o, QV_GOLDEN "/qwen3_vl", &bf16);
        uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 8);
        const qv_item clip = clip_of(frames, FRAMES);
        tokens[i] = tiny_encode(&t, QV_INPUT_FRAMES, &clip, 1, NULL, &bytes);
        qv_context_get_info(t.ctx, &info);
        if (i < 3)
            assert_string_equal(info.warning, "");
        else
            assert_non_null(strstr(info.warning, "damaged"));
        if (i)
            assert_true(temp_count() > 0);
        assert_memory_equal(tokens[0], tokens[i], bytes);
        tiny_close(&t);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static qv_status
whole_job(float *tokens, const uint8_t *frames, int64_t capacity, qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_plan *plan = NULL;
    const qv_plan_options o = { .capacity.patches = FRAMES / 2 * PAIR_ROWS };
    const qv_item clip = clip_of(frames, FRAMES);
    qv_tokens out = { .tokens = tokens, .capacity = capacity };
    qv_status status = qv_context_open(&(qv_context_options){ .backend = "cuda" }, &ctx, err);
    if (!status)
        status = qv_model_load(ctx, QV_GOLDEN "/qwen3_vl", NULL, &model, err);
    if (!status)
        status = qv_plan_create(model, &o, &plan, err);
    if (!status)
        status = qv_plan_push(plan, &clip, 1, err);
    if (!status)
        status = qv_plan_pull(plan, &out, err);
    qv_plan_free(&plan);
    qv_model_free(&model);
    qv_context_close(&ctx);
    return status;
}

/* Each call that creates something fails once. The result is a status and an error that names the
 * call or memory; nothing leaks, and the next job is not affected. The libraries that a model opens
 * while it loads weights never open there, so that calls are made one at a time. */
TEST(every_failed_call_is_reported)
{
    enum { MOST = 1000, TOKENS = 4096 * 16 };
    static float tokens[TOKENS], expected[TOKENS];
    struct tiny t = open_on(NULL);
    uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 8);
    int64_t capacity = TOKENS / t.info.out_hidden, n = 0;
    qv_error err = { 0 };
    tiny_close(&t);
    int before = alive;
    assert_ok(whole_job(expected, frames, capacity, ERR));
    assert_int_equal(alive, before);
    others_fail = true;
    for (n = 1; n < MOST; n++) {
        fail_at = n;
        failed_call = NULL;
        qv_status status = whole_job(tokens, frames, capacity, &err);
        fail_at = 0;
        if (!failed_call) /* There are no more calls. */
            break;
        if (status != QV_ENOMEM)
            fail_msg("call %lld, %s: %s: %s", (long long)n, failed_call, qv_status_name(status),
                     err.text);
        if (!strstr(err.text, "memory") && !strstr(err.text, failed_call))
            fail_msg("%s failed: \"%s\"", failed_call, err.text);
        assert_int_equal(alive, before);
    }
    others_fail = false;
    assert_true(n > 20 && n < MOST);
    printf("%lld calls failed in turn\n", (long long)n - 1);
    assert_ok(whole_job(tokens, frames, capacity, ERR));
    assert_memory_equal(tokens, expected, sizeof tokens);
}

/* This test comes last, because the device cannot be used again in this process. */
TEST(a_lost_device_is_said_in_words)
{
    cudaStream_t stream;
    qv_error err = { 0 };
    qv_plan *plan = NULL;
    qv_context *again = NULL;
    static float tokens[4096 * 16];
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
    struct tiny t = open_on(stream);
    uint8_t *frames = tiny_frames(&t, FRAMES, GRID_H, GRID_W, 9);
    qv_plan_options o = dense(FRAMES / 2);
    const qv_item clip = clip_of(frames, FRAMES);
    qv_tokens out = { .tokens = tokens, .capacity = 4096 * 16 / t.info.out_hidden };
    assert_ok(qv_plan_create(t.model, &o, &plan, ERR));
    assert_int_equal(trap_device(stream), 0);
    qv_status status = qv_plan_push(plan, &clip, 1, &err);
    if (!status)
        status = qv_plan_pull(plan, &out, &err);
    if (status != QV_EBACKEND || !strstr(err.text, "lost"))
        fail_msg("%s: %s", qv_status_name(status), err.text);
    assert_int_equal(qv_plan_push(plan, &clip, 1, &err), QV_EBACKEND);
    assert_non_null(strstr(err.text, "close it"));
    qv_plan_free(&plan);
    o = dense(1); /* A capacity that is not remembered. */
    assert_int_equal(qv_plan_create(t.model, &o, &plan, &err), QV_EBACKEND);
    tiny_close(&t);
    assert_int_not_equal(qv_context_open(&(qv_context_options){ .backend = "cuda" }, &again, &err),
                         QV_OK);
    assert_true(strlen(err.text) > 10);
}

TEST_EACH(tempdir_make, tempdir_remove);

TEST_MAIN(argc, argv)
{
    is_test = true;
    if (getenv("QV_TEST_GPU"))
        return TEST_GO_ON;
    printf("QV_TEST_GPU is not set: no GPU to test\n");
    return 77;
}
