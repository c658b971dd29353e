/* SPDX-License-Identifier: MIT */
/* The CPU backend's table: opens the device, sets its threads, and dispatches operations. */
#include "cpu.h"

#include <omp.h>
#include <stdlib.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include "cores.h"

static void
close_cpu(struct qv_device *device)
{
    struct qv_device_cpu *dev = (struct qv_device_cpu *)device;
    if (dev->stream)
        dnnl_stream_destroy(dev->stream);
    if (dev->engine)
        dnnl_engine_destroy(dev->engine);
    free(dev);
}

static qv_status
open_cpu(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    enum { MOST_THREADS = 1024 };
    if (options->ordinal != 0)
        return qv_fail(err, QV_ENODEVICE, "device %d: the cpu backend has device 0 only",
                       options->ordinal);
    if (options->threads < 0 || options->threads > MOST_THREADS)
        return qv_fail(err, QV_EINVAL, "threads is %d; it must be from 0 (every core) to %d",
                       options->threads, MOST_THREADS);
    struct qv_device_cpu *dev = calloc(1, sizeof *dev);
    if (!dev)
        return qv_fail(err, QV_ENOMEM, "no memory for a device");
    dev->base.backend = &qv_backend_cpu;
    dev->threads = options->threads ? options->threads : qv_usable_cores();
    dnnl_status_t s = dnnl_engine_create(&dev->engine, dnnl_cpu, 0);
    if (!s)
        s = dnnl_stream_create(&dev->stream, dev->engine, dnnl_stream_default_flags);
    if (s) {
        close_cpu(&dev->base);
        return qv_dnnl_check_cpu(s, "opening the CPU engine", err);
    }
    /* On AMX, oneDNN overruns a buffer if a stride exceeds its kernel (until 3.13, see its pull
     * request 5494), and 3.2 crashes if a position of the kernel sees only padding. tests/checkconv
     * found both. Remove this once that test passes without it. */
    dev->wrong_sparse_bf16 = qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_amx);
    qv_blas_open_cpu();
    *out = &dev->base;
    return QV_OK;
}

/* The instruction sets that oneDNN may use, best first. Its header has the numbers for x86; Arm
 * reuses the same numbers with different meanings, defined only in oneDNN's sources. */
static const struct isa {
    unsigned bits;
    const char *name;
} isas[] = {
#ifdef __aarch64__
    { 0x27, "SVE-512" },           { 0x07, "SVE-256" }, { 0x03, "SVE-128" }, { 0x01, "NEON" },
#elif defined(__x86_64__)
    { dnnl_cpu_isa_avx512_core_amx, "AMX" },
    { dnnl_cpu_isa_avx512_core_bf16, "AVX-512 BF16" },
    { dnnl_cpu_isa_avx512_core, "AVX-512" },
    { dnnl_cpu_isa_avx2, "AVX2" },
    { 0, "SSE4.1" },
#endif
    { 0, "another architecture" },
};

static const char *
isa_name(void)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const struct isa *of = isas;
    while ((isa & of->bits) != of->bits)
        of++;
    return of->name;
}

/* Writes the CPU's name, such as "AMD EPYC 9B45", to text[49], because measurements must name their
 * machine. */
static void
cpu_name(char *text)
{
#ifdef __aarch64__
    snprintf(text, 49, "Arm CPU");
#else
    snprintf(text, 49, "CPU");
#endif
#if defined(__x86_64__) && defined(__GNUC__)
    unsigned words[12] = { 0 };
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            return;
    char brand[49] = "";
    memcpy(brand, words, 48);
    size_t n = 0;
    /* the CPU pads its name with blanks, inside and at both ends */
    for (const char *c = brand; *c; c++)
        if (*c != ' ' || (n && text[n - 1] != ' '))
            text[n++] = *c;
    text[n && text[n - 1] == ' ' ? n - 1 : n] = 0;
#endif
}

/* On these CPUs oneDNN has only reference code for matrix products and convolutions. */
static bool
is_slow_isa(void)
{
    return !strcmp(isa_name(), "NEON") || !strcmp(isa_name(), "SVE-128");
}

/* Measured by `qwenvit bench conv3d` with tools/shapes/channels.txt.
 * - Dense layers: with AVX-512 alone, direct and by depth are within 10% of each other, and
 *   direct needs no scratch. On a Xeon with AMX direct gets worse as channels grow: it is faster
 *   up to 96, equal at 128, and from 192 to 1024 by depth is 1.1 to 1.5 times faster.
 * - Depthwise layers: oneDNN's 2D kernel is 5 to 17 times faster than its 3D kernel, for depths
 *   of 3 to 15. This does not hold for 2 outputs per channel, or for groups of several channels.
 * - Copying patches into rows for a GEMM is faster from 256 outputs on, within 10%. On Arm without
 *   SVE-256 it is always faster, because oneDNN has only reference code for convolutions there. */
static struct qv_conv3d_thresholds
thresholds(void)
{
    const bool amx = qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_amx);
    return (struct qv_conv3d_thresholds){ .by_depth_max_kd = 16,
                                          .by_depth_min_c = amx ? 192 : INT64_MAX,
                                          .rows_min_o = is_slow_isa() ? 0 : 256 };
}

/* Some Arm CPUs multiply bf16, but oneDNN 3.7 uses reference code for it. */
#ifdef __aarch64__
#define NO_BF16 "oneDNN does not multiply bf16 natively on Arm (%s)"
#else
#define NO_BF16 "this CPU does not multiply bf16 natively (%s)"
#endif

static void
caps_cpu(const struct qv_device *device, struct qv_caps *out)
{
    const char *const name = isa_name();
    char cpu[49];
    cpu_name(cpu);
    const bool bf16 = qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_bf16),
               amx = qv_x86_has_cpu(dnnl_cpu_isa_avx512_core_amx);
    const dnnl_version_t *v = dnnl_version();
    *out = (struct qv_caps){ .alignment = 64,
                             .threads = ((const struct qv_device_cpu *)device)->threads,
                             .dtype = bf16 ? QV_BF16 : QV_F32,
                             .chunk_rows = 640,
                             .bucket_rows = 16,
                             .least_rows = 16,
                             .free_segments = true, /* empty segments are skipped */
                             .quick_plans = true,
                             .chunks = 1,
                             .attention_of_gemms = true,
                             .same_f32.gemm_rows = 0,
                             .same_bf16.gemm_rows = amx ? QV_NOT_SEEN : 0,
                             .wrong_sparse_bf16 =
                                 ((const struct qv_device_cpu *)device)->wrong_sparse_bf16,
                             .conv3d = thresholds() };
    snprintf(out->device, sizeof out->device, "%s, oneDNN %d.%d.%d, %s", cpu, v->major, v->minor,
             v->patch, name);
    snprintf(out->dtype_reason, sizeof out->dtype_reason,
             bf16 ? "this CPU multiplies bf16 natively (%s)" : NO_BF16, name);
    if (is_slow_isa() && !qv_has_blas_cpu)
        snprintf(out->warning, sizeof out->warning,
                 "this build has no OpenBLAS, and oneDNN %d.%d.%d has only reference code for "
                 "matrix products on this CPU, which is many times slower than the CPU could be",
                 v->major, v->minor, v->patch);
}

/* oneDNN plans for OpenMP's number of threads at that time, so it is set around each call. */
static qv_status
layout_cpu(struct qv_device *device, const struct qv_matrix *matrix, struct qv_layout *out,
           qv_error *err)
{
    struct qv_device_cpu *dev = (struct qv_device_cpu *)device;
    int before = omp_get_max_threads();
    omp_set_num_threads(dev->threads);
    qv_status status = QV_OK;
    if (matrix->groups.bits)
        *out = (struct qv_layout){ (size_t)matrix->n * qv_matrix_row_bytes(matrix), 1 };
    else
        status = matrix->conv ? qv_conv_layout_cpu(dev, matrix, out, err)
                              : qv_gemm_layout_cpu(dev, matrix, out, err);
    omp_set_num_threads(before);
    return status;
}

static qv_status
lay_out_cpu(struct qv_device *device, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
            const void *src, struct qv_buffer dst, qv_error *err)
{
    struct qv_device_cpu *dev = (struct qv_device_cpu *)device;
    void *const to = qv_host_pointer(dst);
    int before = omp_get_max_threads();
    omp_set_num_threads(dev->threads);
    qv_status status = QV_OK;
    if (matrix->groups.bits)
        memcpy((char *)to + (size_t)row0 * qv_matrix_row_bytes(matrix), src,
               (size_t)rows * qv_matrix_row_bytes(matrix));
    else
        status = matrix->conv ? qv_conv_lay_out_cpu(dev, matrix, src, to, err)
                              : qv_gemm_lay_out_cpu(dev, matrix, row0, rows, src, to, err);
    omp_set_num_threads(before);
    return status;
}

/* Linking fails for an operation without verbs. */
static const struct verbs_cpu *const verbs[] = {
#define QV_OP(name, fields, operands, flops) &qv_##name##_verbs_cpu,
#include "engine/ops.inc"
};

static void
release_cpu(struct qv_device *dev, struct qv_kernel *kernel)
{
    (void)dev;
    if (!kernel)
        return;
    if (kernel->verbs->release)
        kernel->verbs->release(kernel);
    free(kernel);
}

static qv_status
prepare_cpu(struct qv_device *device, const struct qv_op *op, int choice, struct qv_kernel **out,
            size_t *scratch_bytes, qv_error *err)
{
    (void)choice;
    const uint32_t takes = 1 << QV_F32 | 1 << QV_BF16;
    struct qv_device_cpu *dev = (struct qv_device_cpu *)device;
    qv_status status = qv_op_takes(op, takes, err);
    if (!status && !verbs[op->kind]->mixes)
        status = qv_op_takes_one(op, takes, err);
    if (status)
        return status;
    struct qv_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    kernel->verbs = verbs[op->kind];
    *scratch_bytes = 0;
    int before = omp_get_max_threads();
    omp_set_num_threads(dev->threads);
    status = kernel->verbs->prepare(dev, kernel, scratch_bytes, err);
    omp_set_num_threads(before);
    if (status) {
        release_cpu(device, kernel);
        return status;
    }
    *out = kernel;
    return QV_OK;
}

static void
describe_cpu(const struct qv_kernel *kernel, char *text, size_t size)
{
    *text = 0;
    kernel->verbs->describe(kernel, text, size);
}

static qv_status
run_call(struct qv_device_cpu *dev, const struct qv_call *call, qv_error *err)
{
    void *p[QV_MAX_OPERANDS];
    for (int i = 0; i < QV_MAX_OPERANDS; i++)
        p[i] = qv_host_pointer(call->operands[i]);
    return call->kernel->verbs->run(dev, call->kernel, p, qv_host_pointer(call->scratch), err);
}

static qv_status
run_cpu(struct qv_device *device, const struct qv_call *calls, size_t n, qv_error *err)
{
    struct qv_device_cpu *dev = (struct qv_device_cpu *)device;
    qv_status status = QV_OK;
    int before = omp_get_max_threads();
    omp_set_num_threads(dev->threads);
    for (const struct qv_call *call = calls; call < calls + n && !status; call++)
        status = run_call(dev, call, err);
    omp_set_num_threads(before);
    return status;
}

const struct qv_backend qv_backend_cpu = {
    .name = "cpu",
    .open = open_cpu,
    .close = close_cpu,
    .caps = caps_cpu,
    .alloc = qv_host_alloc_memory,
    .free = qv_host_free_memory,
    .wrap = qv_host_wrap,
    .upload = qv_host_upload,
    .download = qv_host_download,
    .layout = layout_cpu,
    .lay_out = lay_out_cpu,
    .prepare = prepare_cpu,
    .release = release_cpu,
    .describe = describe_cpu,
    .run = run_cpu,
    .mark = qv_host_mark,
    .wait = qv_host_wait,
    .elapsed = qv_host_elapsed,
    .sync = qv_host_sync,
};
