/* SPDX-License-Identifier: MIT */
/*
 * cuda_plans LIBCUDA SHAPES...: makes the backend's cuDNN plans for GPUs that this machine does not
 * have, each up to the loading of its kernel. LIBCUDA is the toolkit's stub of the driver's
 * library, which cuDNN asks for. The stub refuses to load anything, with a recognisable error: if
 * that error appears, all of cuDNN's earlier decisions and compilation succeeded. SHAPES are lists
 * of convolutions in the format of `bench conv3d`. --gpu N tries only one GPU of the list.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "conv3d/legal.h"
#include "conv3d/lower.h"
#include "cudnn_graph.h"
#include "op_parse.h"

/* The properties that differ between GPUs and on which plans may depend. */
static const struct gpu {
    const char *name;
    int version, processors, threads, blocks, shared_bytes;
    long long l2_bytes, memory_bytes;
    bool refused; /* The GPU is too old for every plan here. */
} gpus[] = {
    { "V100", 700, 80, 2048, 32, 98304, 6 << 20, 16LL << 30, true },
    { "H200", 900, 132, 2048, 32, 232448, 60 << 20, 141LL << 30, false },
    { "B200", 1000, 148, 2048, 32, 232448, 126 << 20, 180LL << 30, false },
    { "RTX 5090", 1200, 170, 1536, 24, 101376, 96 << 20, 32LL << 30, false },
};
enum { N_GPUS = sizeof gpus / sizeof *gpus };

enum { MOST_OPERATIONS = 256 };
struct check {
    const struct gpu *gpu;
    struct target_cuda target;
    struct qv_op *tried; /* [MOST_OPERATIONS] */
    int n_tried;
    int right, wrong;             /* Numbers of plans. */
    int surprises;                /* Configurations that failed, but not at loading. */
    char kernel[QV_KERNEL_BYTES]; /* The kernel that runs the operation tried last. */
};

/* ---- a GPU that this machine does not have --------------------------------------------------- */

static void
print_properties(const struct gpu *gpu, char *text, size_t size)
{
    snprintf(text, size,
             "{\"deviceVer\":%d,\"deviceName\":\"%s\",\"driverVer\":13000,\"cudaDeviceId\":0,"
             "\"multiProcessorCount\":%d,\"maxThreadsPerSM\":%d,\"maxCtasPerSM\":%d,"
             "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
             "\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":%lld,\"totalGlobalMem\":%lld,"
             "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
             "\"maxThreadsPerBlock\":1024,\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,"
             "\"warpSize\":32,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
             "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3000000}",
             gpu->version, gpu->name, gpu->processors, gpu->threads, gpu->blocks, gpu->shared_bytes,
             gpu->l2_bytes, gpu->memory_bytes);
}

/* The stub's error is CUDA_ERROR_STUB_LIBRARY, 34. */
static bool
is_stub_speaking(void *user, cudnnStatus_t status, const char *words)
{
    struct check *check = user;
    bool stub = status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER &&
                strstr(words, "cuLibraryLoadData returned error") && strstr(words, "(34)");
    if (!stub) {
        check->surprises++;
        printf("FAIL  %-8s  a configuration: %s\n", check->gpu->name, words);
    }
    return stub;
}

static void
open_check(struct check *check, struct sketch_cuda *sketch, const struct gpu *gpu,
           struct qv_op *tried)
{
    char text[1200];
    print_properties(gpu, text, sizeof text);
    const struct attribute_cuda json = { CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                         (int64_t)strlen(text), text };
    *check = (struct check){ .gpu = gpu, .tried = tried };
    check->target = (struct target_cuda){
        .properties = qv_describe_cuda(sketch, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &json, 1),
        .excuses = is_stub_speaking,
        .user = check,
    };
}

/* ---- plans ------------------------------------------------------------------------------------*/

/* Makes the plan of one operation and writes the kernel that would run it to `text`, like
 * `info`. */
static qv_status
make_plan(struct check *check, const struct qv_op *op, char *text, size_t size, qv_error *err)
{
    struct qv_kernel kernel = { .op = *op };
    struct graph_cuda *graph = &kernel.u.gemm.graph;
    qv_status status;
    if (op->kind == QV_OP_attention) {
        graph = &kernel.u.attention.graph;
        status = qv_attention_plan_cuda(&check->target, &op->u.attention, graph, err);
    } else if (op->kind == QV_OP_conv) {
        graph = &kernel.u.conv.graph;
        status = qv_conv_plan_cuda(&check->target, &op->u.conv, &kernel.u.conv, err);
    } else {
        status = qv_gemm_plan_cuda(&check->target, &op->u.gemm, graph, err);
    }
    if (status)
        snprintf(kernel.naive, sizeof kernel.naive, "%.199s", err->text);
    if (op->kind == QV_OP_conv)
        qv_conv_verbs_cuda.describe(&kernel, text, size);
    else
        qv_graph_describe_cuda(graph, kernel.naive, text, size);
    qv_graph_close_cuda(graph);
    return status;
}

/* Returns whether `text` names an engine by its number, or the naive kernel with cuDNN's reason. */
static bool
is_said(const char *text, qv_status status, const char *why)
{
    static const char engine[] = "cuDNN engine ", naive[] = "naive kernel: ";
    if (!status)
        return !strncmp(text, engine, strlen(engine)) && isdigit(text[strlen(engine)]);
    return !strncmp(text, naive, strlen(naive)) && strlen(text) > strlen(naive) + 20 &&
           !strncmp(text + strlen(naive), why, 20);
}

/* cuDNN has no plans with f32 sums of bf16 values for some convolutions: depthwise ones and those
 * with odd numbers of channels. */
static bool
may_lack_plan(const struct qv_op *op)
{
    const struct qv_op_conv *c = &op->u.conv;
    return op->kind == QV_OP_conv && c->sums && (c->groups > 1 || c->c % 8 || c->o % 8);
}

static void
try_operation(struct check *check, const struct qv_op *op)
{
    char line[400];
    qv_op_print(op, line, sizeof line);
    for (int i = 0; i < check->n_tried; i++)
        if (qv_op_equal(&check->tried[i], op))
            return;
    if (check->n_tried < MOST_OPERATIONS)
        check->tried[check->n_tried++] = *op;
    qv_error err = { 0 };
    double began = qv_seconds();
    qv_status status = make_plan(check, op, check->kernel, sizeof check->kernel, &err);
    bool none = status == QV_EUNSUPPORTED;
    bool right = check->gpu->refused ? none : !status || (none && may_lack_plan(op));
    right = right && is_said(check->kernel, status, err.text);
    check->right += right;
    check->wrong += !right;
    printf("%s  %-8s  %s: %s  (%.2f s)\n", right ? "ok  " : "FAIL", check->gpu->name, line,
           check->kernel, qv_seconds() - began);
    fflush(stdout);
}

/* segment_rows 0 stands for segments of any length. */
static void
try_segments(struct check *check, int64_t head_dim, int64_t rows, int64_t segments,
             int64_t segment_rows)
{
    int64_t stride = 3 * 16 * head_dim;
    struct qv_op op = { QV_OP_attention,
                        { .attention = { .rows = rows,
                                         .segments = segments,
                                         .segment_rows = segment_rows,
                                         .heads = 16,
                                         .head_dim = head_dim,
                                         .scale = 0.125,
                                         .q_stride = stride,
                                         .k_stride = stride,
                                         .v_stride = stride } } };
    qv_op_set_dtype(&op, QV_BF16);
    try_operation(check, &op);
}

/* Tries packs from the smallest bucket to many images. One engine must serve all of them; otherwise
 * a segment's bits would depend on the plan that computes it. */
static void
try_packs(struct check *check, int64_t head_dim)
{
    static const struct {
        int64_t rows, segments;
    } packs[] = { { 512, 8 }, { 6144, 64 }, { 131072, 512 } };
    char first[QV_KERNEL_BYTES] = "";
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++) {
        try_segments(check, head_dim, packs[i].rows, packs[i].segments, 0);
        if (i == 0)
            snprintf(first, sizeof first, "%s", check->kernel);
        if (strcmp(check->kernel, first) != 0) {
            check->wrong++;
            printf("FAIL  %-8s  a pack of %lld rows: %s; one of %lld: %s\n", check->gpu->name,
                   (long long)packs[i].rows, check->kernel, (long long)packs[0].rows, first);
        }
    }
}

/* Tries the attention of the Qwen-VL towers: one frame, from a thumbnail to a large image, eight at
 * once, and packs. */
static void
try_attention(struct check *check)
{
    static const struct {
        int64_t segments, rows;
    } equal[] = { { 1, 64 }, { 8, 760 }, { 1, 4096 } };
    for (int64_t head_dim = 64; head_dim <= 80; head_dim += 8) {
        for (size_t i = 0; i < sizeof equal / sizeof *equal; i++)
            try_segments(check, head_dim, equal[i].segments * equal[i].rows, equal[i].segments,
                         equal[i].rows);
        try_packs(check, head_dim);
    }
}

/* Tries GEMMs with an activation that cuBLASLt lacks: fc1 of Qwen2-VL, from few rows to many. */
static void
try_activated(struct check *check)
{
    static const int64_t rows[] = { 128, 760, 6144 };
    for (int i = 0; i < 3; i++) {
        struct qv_op op = { QV_OP_gemm,
                            { .gemm = { .m = rows[i],
                                        .n = 5120,
                                        .k = 1280,
                                        .alpha = 1,
                                        .bias = !(i % 2),
                                        .act = i % 2 ? QV_ACT_SILU : QV_ACT_GELU_QUICK } } };
        qv_op_set_dtype(&op, QV_BF16);
        try_operation(check, &op);
    }
}

/* Tries the convolutions to which a lowering comes down. */
static void
try_lowering(struct check *check, const qv_conv3d_desc *desc, qv_lowering lowering)
{
    const struct qv_caps caps = { 0 };
    struct qv_conv3d_list list;
    char why[QV_REASON_BYTES];
    if (!qv_conv3d_legal(desc, &caps, lowering, why, sizeof why))
        return;
    qv_conv3d_lower(desc, lowering, &list);
    for (int i = 0; i < list.n; i++)
        if (list.steps[i].op.kind == QV_OP_conv)
            try_operation(check, &list.steps[i].op);
}

static qv_status
try_line(struct check *check, const char *line, qv_error *err)
{
    static const qv_lowering lowerings[] = { QV_LOWERING_DIRECT, QV_LOWERING_BY_DEPTH };
    const char *colon = strchr(line, ':');
    qv_conv3d_desc desc;
    qv_status status = qv_conv3d_parse(colon ? colon + 1 : line, &desc, err);
    if (status)
        return status;
    desc = qv_conv3d_defaults(&desc, QV_BF16);
    /* In depth, the caller of the convolution pads with frames. */
    desc.d += desc.pad_front[0] + desc.pad_back[0];
    desc.pad_front[0] = desc.pad_back[0] = 0;
    desc.causal = QV_CAUSAL_NONE;
    desc.layout = QV_LAYOUT_CHANNELS_LAST;
    desc.frames_equal = false;
    for (size_t i = 0; i < sizeof lowerings / sizeof *lowerings; i++)
        try_lowering(check, &desc, lowerings[i]);
    return QV_OK;
}

static bool
try_list(struct check *check, const char *path)
{
    char line[1024];
    qv_error err = { 0 };
    qv_status status = QV_OK;
    FILE *f = fopen(path, "r");
    if (!f) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return false;
    }
    while (!status && fgets(line, sizeof line, f)) {
        line[strcspn(line, "#\r\n")] = 0;
        if (line[strspn(line, " \t")])
            status = try_line(check, line, &err);
    }
    bool read = !ferror(f);
    fclose(f);
    if (status || !read)
        fprintf(stderr, "%s: %s\n", path, status ? err.text : "cannot be read");
    return !status && read;
}

/* Checks the operations for which cuDNN is not used. No device is used either. */
static bool
check_cublas(void)
{
    static const struct {
        struct qv_op_gemm op;
        qv_dtype dtype;
        bool is_graph;
    } cases[] = {
        { { .m = 7, .n = 8, .k = 16, .alpha = 1, .act = QV_ACT_SILU }, QV_BF16, true },
        { { .m = 7, .n = 8, .k = 16, .alpha = 1, .act = QV_ACT_GELU_QUICK }, QV_F32, false },
        { { .m = 7, .n = 8, .k = 16, .alpha = 1, .act = QV_ACT_GELU_TANH }, QV_BF16, false },
        { { .m = 7, .n = 8, .k = 16, .alpha = 1 }, QV_BF16, false },
        { { .m = 7, .n = 8, .k = 16, .alpha = 2, .act = QV_ACT_SILU }, QV_BF16, false },
        { { .m = 7, .n = 9, .k = 16, .alpha = 1, .act = QV_ACT_SILU }, QV_BF16, false },
        { { .m = 7, .n = 8, .k = 12, .alpha = 1, .act = QV_ACT_SILU }, QV_BF16, false },
        { { .m = 8, .n = 8, .k = 16, .alpha = 1, .residual_rows = 8, .act = QV_ACT_SILU },
          QV_BF16,
          false },
        { { .m = 1 << 20, .n = 4096, .k = 16, .alpha = 1, .act = QV_ACT_SILU }, QV_BF16, false },
    };
    bool right = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct qv_op op = { QV_OP_gemm, { .gemm = cases[i].op } };
        char line[400];
        qv_op_set_dtype(&op, cases[i].dtype);
        qv_op_print(&op, line, sizeof line);
        bool good = qv_gemm_is_graph_cuda(&op.u.gemm) == cases[i].is_graph;
        right = right && good;
        printf("%s  %s: %s\n", good ? "ok  " : "FAIL", line,
               cases[i].is_graph ? "cuDNN" : "cuBLASLt");
    }
    return right;
}

/* Checks that an operation that no version of cuDNN supports runs on our kernel, and that this is
 * reported. No device is used. */
static bool
check_naive(void)
{
    struct qv_device_cuda dev = { 0 };
    struct qv_kernel kernel = { .op = { QV_OP_attention,
                                        { .attention = { .rows = 64,
                                                         .segments = 3,
                                                         .heads = 2,
                                                         .head_dim = 20,
                                                         .scale = 1 } } } };
    char text[QV_KERNEL_BYTES];
    size_t scratch;
    qv_error err = { 0 };
    qv_op_set_dtype(&kernel.op, QV_BF16);
    if (qv_attention_verbs_cuda.prepare(&dev, &kernel, &scratch, &err))
        snprintf(text, sizeof text, "%.200s", err.text);
    else
        qv_attention_verbs_cuda.describe(&kernel, text, sizeof text);
    bool right =
        !strcmp(text, "naive kernel: attention: cuDNN does not support it: head_dim is not a "
                      "multiple of 8 up to 256");
    printf("%s  heads of 20: %s\n", right ? "ok  " : "FAIL", text);
    return right;
}

/* Checks that short segments run on our kernel in bf16, and equal segments too if they are declared
 * short. No device is used. */
static bool
check_short(void)
{
    static const struct {
        const char *op;
        bool is_short;
    } cases[] = {
        { "rows=6080 segments=400 longest=64 heads=16 head_dim=80 q_stride=3840", true },
        { "rows=640 segments=10 segment_rows=64 longest=64 heads=16 head_dim=72", true },
        { "rows=640 segments=10 longest=1 heads=16 head_dim=64", true },
        { "rows=640 segments=10 longest=64 heads=12 head_dim=128", true },
        { "rows=640 segments=10 longest=65 heads=16 head_dim=80", false },
        { "rows=640 segments=10 heads=16 head_dim=80", false },
        { "rows=640 segments=10 segment_rows=64 heads=16 head_dim=80", false },
        { "rows=640 segments=10 longest=64 heads=16 head_dim=88", false },
        { "rows=640 segments=10 longest=64 heads=2 head_dim=80 v_stride=484", false },
    };
    bool right = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct qv_kernel kernel = { .u.attention.way = ATTENTION_HOPPER };
        bool good = true;
        char line[200], text[QV_KERNEL_BYTES] = "";
        qv_error err = { 0 };
        size_t scratch = 1;
        for (int f32 = 0; f32 < 2; f32++) {
            snprintf(line, sizeof line, "attention %s scale=1 dtype=%s", cases[i].op,
                     f32 ? "f32" : "bf16");
            bool parsed = !qv_op_parse(line, &kernel.op, &err);
            bool is_short = parsed && qv_attention_is_short_cuda(&kernel.op.u.attention);
            good = good && parsed && is_short == (cases[i].is_short && !f32);
            if (is_short && !qv_attention_verbs_cuda.prepare(&(struct qv_device_cuda){ 0 }, &kernel,
                                                             &scratch, &err))
                qv_attention_verbs_cuda.describe(&kernel, text, sizeof text);
            good = good && (!is_short || (!scratch && strstr(text, "short segments")));
        }
        right = right && good;
        printf("%s  %s: %s\n", good ? "ok  " : "FAIL", cases[i].op,
               *text ? text : "not on the kernel for short segments");
    }
    return right;
}

static bool
check_gpu(const struct gpu *gpu, char **lists, int n)
{
    struct sketch_cuda sketch = { 0 };
    struct qv_op tried[MOST_OPERATIONS];
    struct check check;
    double began = qv_seconds();
    open_check(&check, &sketch, gpu, tried);
    bool good = check.target.properties;
    if (!good)
        fprintf(stderr, "%s: %s\n", gpu->name, sketch.message);
    if (good) {
        try_attention(&check);
        try_activated(&check);
    }
    for (int i = 0; i < n && good; i++)
        good = try_list(&check, lists[i]);
    printf("%s: %d as they must be, %d not, %d failures before loading, in %.1f s\n", gpu->name,
           check.right, check.wrong, check.surprises, qv_seconds() - began);
    qv_sketch_close_cuda(&sketch);
    return good && check.right && !check.wrong && !check.surprises;
}

int
main(int argc, char **argv)
{
    const bool one = argc > 2 && !strcmp(argv[1], "--gpu");
    const int gpu = one ? atoi(argv[2]) : 0;
    argc -= 2 * one;
    argv += 2 * one;
    if (argc < 2 || gpu < 0 || gpu >= N_GPUS) {
        fprintf(stderr, "usage: cuda_plans [--gpu 0..%d] LIBCUDA SHAPES...\n", N_GPUS - 1);
        return 2;
    }
    /* cuDNN looks for the driver by its soname, and finds this library. */
    if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    printf("cuDNN %zu\n", cudnnGetVersion());
    bool good = check_naive();
    good = check_short() && good;
    good = check_cublas() && good;
    for (int i = gpu; i < (one ? gpu + 1 : N_GPUS); i++)
        good = check_gpu(&gpus[i], argv + 2, argc - 2) && good;
    return good ? 0 : 1;
}
