/* SPDX-License-Identifier: MIT */
/* The CUDA backend's table: device, memory, copies that overlap with work, lists as graphs. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"

static struct qv_device_cuda *
cuda(const struct qv_device *dev)
{
    return (struct qv_device_cuda *)dev;
}

/* Before every verb: which device is current belongs to the thread, and that may have changed. */
static qv_status
enter(struct qv_device_cuda *dev, qv_error *err)
{
    qv_status status = check_device_cuda(dev, err);
    return status ? status : check_cuda(dev, cudaSetDevice(dev->ordinal), "cudaSetDevice", err);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void
close_staging(struct qv_device_cuda *dev, struct staging_cuda *s)
{
    for (int i = 0; i < STAGING_BLOCKS; i++) {
        if (s->done[i])
            cudaEventDestroy(s->done[i]);
        if (s->blocks[i])
            cudaFreeHost(s->blocks[i]);
    }
    if (s->stream && s->stream != dev->stream)
        cudaStreamDestroy(s->stream);
}

/* After a loss the calls below fail and are not asked. */
static void
close_cuda(struct qv_device *device)
{
    struct qv_device_cuda *dev = cuda(device);
    cudaSetDevice(dev->ordinal);
    cudaDeviceSynchronize();
    close_staging(dev, &dev->in);
    close_staging(dev, &dev->out);
    for (int i = 0; i < QV_MARKS; i++)
        if (dev->marks[i])
            cudaEventDestroy(dev->marks[i]);
    if (dev->uploaded)
        cudaEventDestroy(dev->uploaded);
    if (dev->cudnn)
        cudnnDestroy(dev->cudnn);
    if (dev->lt)
        cublasLtDestroy(dev->lt);
    if (dev->fork)
        cudaEventDestroy(dev->fork);
    if (dev->join)
        cudaEventDestroy(dev->join);
    if (dev->recorder)
        cudaStreamDestroy(dev->recorder);
    if (dev->beside)
        cudaStreamDestroy(dev->beside);
    if (dev->own_stream && dev->stream)
        cudaStreamDestroy(dev->stream);
    cudaGetLastError();
    free(dev);
}

static qv_status
find_device(struct qv_device_cuda *dev, qv_error *err)
{
    int n = 0, major = 0, minor = 0;
    struct cudaDeviceProp props;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e || n == 0) {
        cudaGetLastError();
        return qv_fail(err, QV_ENODEVICE, "no NVIDIA GPU can be used: cudaGetDeviceCount: %s",
                       e ? cudaGetErrorString(e) : "there is none");
    }
    if (dev->ordinal < 0 || dev->ordinal >= n)
        return qv_fail(err, QV_ENODEVICE, "device %d: the NVIDIA GPUs here are 0 to %d",
                       dev->ordinal, n - 1);
    qv_status status = check_cuda(dev, cudaSetDevice(dev->ordinal), "cudaSetDevice", err);
    if (!status)
        status = check_cuda(dev, cudaGetDeviceProperties(&props, dev->ordinal),
                            "cudaGetDeviceProperties", err);
    if (status)
        return status;
    major = props.major;
    minor = props.minor;
    dev->sm = 10 * major + minor;
    snprintf(dev->name, sizeof dev->name, "%.63s", props.name);
    if (dev->sm < 80)
        return qv_fail(err, QV_ENODEVICE,
                       "%s has compute capability %d.%d; 8.0 (Ampere) or newer is needed",
                       dev->name, major, minor);
    return QV_OK;
}

static void
warn(struct qv_device_cuda *dev, const char *text)
{
    size_t used = strlen(dev->warning);
    snprintf(dev->warning + used, sizeof dev->warning - used, "%s%s", used ? "; " : "", text);
}

enum { CUDNN_FIRST_WRONG = 90800, CUDNN_FIRST_RIGHT = 91500 };

static bool
cudnn_is_wrong(void)
{
    return cudnnGetVersion() >= CUDNN_FIRST_WRONG && cudnnGetVersion() < CUDNN_FIRST_RIGHT;
}

/* cuDNN keeps its interface within a major version, for libraries newer than the header. */
static qv_status
check_versions(struct qv_device_cuda *dev, qv_error *err)
{
    static const int built_for[] = { QV_CUDA_ARCHITECTURES, 0 };
    size_t header = CUDNN_VERSION, loaded = cudnnGetVersion();
    char text[160];
    if (loaded < header || loaded / 10000 != header / 10000)
        return qv_fail(err, QV_EBACKEND,
                       "cuDNN %zu.%zu.%zu is loaded, but this build is for %zu.%zu.%zu or a newer "
                       "%zu.x: put the right one on the library path",
                       loaded / 10000, loaded / 100 % 100, loaded % 100, header / 10000,
                       header / 100 % 100, header % 100, header / 10000);
    if (loaded < CUDNN_FIRST_RIGHT) {
        snprintf(text, sizeof text, "cuDNN %zu.%zu is older than 9.15: %s", loaded / 10000,
                 loaded / 100 % 100,
                 cudnn_is_wrong() ? "its bf16 Conv3d is wrong and is not used"
                                  : "attention was not tried with it");
        warn(dev, text);
    }
    const int *sm = built_for;
    while (*sm && *sm != dev->sm)
        sm++;
    if (!*sm) {
        snprintf(text, sizeof text,
                 "no kernels were built for sm_%d: the driver compiles them at first use, and "
                 "nothing was measured on it",
                 dev->sm);
        warn(dev, text);
    }
    return QV_OK;
}

static qv_status
open_staging(struct qv_device_cuda *dev, struct staging_cuda *s, qv_error *err)
{
    s->stream = dev->stream;
    qv_status status = QV_OK;
    if (dev->own_stream) {
        s->stream = NULL;
        status = check_cuda(dev, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
                            "cudaStreamCreate", err);
    }
    for (int i = 0; i < STAGING_BLOCKS && !status; i++) {
        status =
            check_cuda(dev, cudaMallocHost(&s->blocks[i], STAGING_BYTES), "cudaMallocHost", err);
        if (!status)
            status = check_cuda(dev, cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming),
                                "cudaEventCreate", err);
    }
    return status;
}

static qv_status
open_parts(struct qv_device_cuda *dev, qv_error *err)
{
    qv_status status = QV_OK;
    if (dev->own_stream)
        status = check_cuda(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking),
                            "cudaStreamCreate", err);
    if (!status)
        status = check_cuda(dev, cudaStreamCreateWithFlags(&dev->recorder, cudaStreamNonBlocking),
                            "cudaStreamCreate", err);
    if (!status)
        status = check_cuda(dev, cudaStreamCreateWithFlags(&dev->beside, cudaStreamNonBlocking),
                            "cudaStreamCreate", err);
    if (!status)
        status = open_staging(dev, &dev->in, err);
    if (!status)
        status = open_staging(dev, &dev->out, err);
    for (int i = 0; i < QV_MARKS && !status; i++)
        status = check_cuda(dev, cudaEventCreate(&dev->marks[i]), "cudaEventCreate", err);
    cudaEvent_t *const events[] = { &dev->uploaded, &dev->fork, &dev->join };
    for (size_t i = 0; i < sizeof events / sizeof *events && !status; i++)
        status = check_cuda(dev, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                            "cudaEventCreate", err);
    if (!status)
        status = check_cublas(dev, cublasLtCreate(&dev->lt), "cublasLtCreate", err);
    if (!status)
        status = check_cudnn(dev, cudnnCreate(&dev->cudnn), "cudnnCreate", err);
    if (!status)
        status = check_cudnn(dev, cudnnSetStream(dev->cudnn, dev->stream), "cudnnSetStream", err);
    return status;
}

static qv_status
open_cuda(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    struct qv_device_cuda *dev = calloc(1, sizeof *dev);
    if (!dev)
        return qv_fail(err, QV_ENOMEM, "no memory for a device");
    dev->base.backend = &qv_backend_cuda;
    dev->ordinal = options->ordinal;
    dev->tf32 = options->tf32;
    dev->stream = options->stream;
    dev->own_stream = !options->stream;
    qv_status status = find_device(dev, err);
    if (status) {
        free(dev);
        return status;
    }
    status = check_versions(dev, err);
    if (!status)
        status = open_parts(dev, err);
    if (status)
        close_cuda(&dev->base);
    else
        *out = &dev->base;
    return status;
}

static void
caps_cuda(const struct qv_device *device, struct qv_caps *out)
{
    const struct qv_device_cuda *dev = cuda(device);
    unsigned lt = (unsigned)cublasLtGetVersion(), dnn = (unsigned)cudnnGetVersion();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    *out = (struct qv_caps){ .alignment = 256,
                             .dtype = QV_BF16,
                             .dtype_reason = "this GPU multiplies bf16 natively",
                             .chunk_rows = 6144,
                             .wrong_conv3d_bf16 = cudnn_is_wrong(),
                             .chunks = 2,
                             .has_choices = true,
                             .beside = true,
                             .width_multiple = 128, /* whole cache lines: 2% of a tower L */
                             .addend_apart = true,
                             .tanh_error = 0x1p-11 }; /* PTX ISA, tanh.approx.f32 */
    snprintf(out->device, sizeof out->device,
             "%.40s, sm_%d, CUDA %u.%u, cuBLASLt %u.%u.%u, cuDNN %u.%u.%u%s", dev->name, dev->sm,
             (unsigned)driver / 1000 % 100, (unsigned)driver / 10 % 100, lt / 10000 % 100,
             lt / 100 % 100, lt % 100, dnn / 10000 % 100, dnn / 100 % 100, dnn % 100,
             dev->tf32 ? ", TF32" : "");
    memcpy(out->warning, dev->warning, sizeof out->warning);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void
free_cuda(struct qv_device *device, struct qv_memory *memory)
{
    if (!memory)
        return;
    cudaSetDevice(cuda(device)->ordinal);
    cudaFree(memory->base); /* waits for the device */
    free(memory);
}

static qv_status
no_memory(const struct qv_device_cuda *dev, size_t bytes, qv_error *err)
{
    size_t left = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&left, &total);
    return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes on %s (%zu of %zu are free)", bytes,
                   dev->name, left, total);
}

static qv_status
alloc_cuda(struct qv_device *device, size_t bytes, struct qv_memory **out, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (status)
        return status;
    struct qv_memory *memory = malloc(sizeof *memory);
    if (!memory)
        return qv_fail(err, QV_ENOMEM, "no memory to remember an allocation");
    *memory = (struct qv_memory){ NULL, bytes };
    cudaError_t e = cudaMalloc(&memory->base, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation)
        status = no_memory(dev, bytes, err);
    else
        status = check_cuda(dev, e, "cudaMalloc", err);
    if (!status)
        status = check_cuda(dev, cudaMemsetAsync(memory->base, 0, bytes, dev->stream), "cudaMemset",
                            err);
    if (!status) /* copies into it go on streams of their own */
        status = check_cuda(dev, cudaStreamSynchronize(dev->stream), "cudaMemset", err);
    if (status)
        free_cuda(device, memory);
    else
        *out = memory;
    return status;
}

/* Where a caller's pointer points to. */
enum place { PAGEABLE, PINNED, ON_DEVICE, ELSEWHERE };

static enum place
place_of(const struct qv_device_cuda *dev, const void *p)
{
    struct cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, p)) {
        cudaGetLastError();
        return PAGEABLE;
    }
    switch (a.type) {
    case cudaMemoryTypeHost: return PINNED;
    case cudaMemoryTypeManaged: return ON_DEVICE;
    case cudaMemoryTypeDevice: return a.device == dev->ordinal ? ON_DEVICE : ELSEWHERE;
    default: return PAGEABLE;
    }
}

enum { WRAP_ALIGNMENT = 16 }; /* what kernels, cuBLASLt and cuDNN are prepared for */

static bool
wrap_cuda(struct qv_device *device, const void *p, size_t bytes, struct qv_memory *out)
{
    struct qv_device_cuda *dev = cuda(device);
    if ((uintptr_t)p % WRAP_ALIGNMENT || enter(dev, NULL) || place_of(dev, p) != ON_DEVICE)
        return false;
    *out = (struct qv_memory){ (void *)p, bytes };
    return true;
}

static void *
address(struct qv_buffer b)
{
    return b.memory ? (char *)b.memory->base + b.offset : NULL;
}

/* A copy by the device alone; on streams of ours it is waited for, as its ends are the caller's. */
static qv_status
copy_directly(struct qv_device_cuda *dev, struct staging_cuda *s, void *dst, const void *src,
              size_t bytes, bool wait, qv_error *err)
{
    qv_status status =
        check_cuda(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream),
                   "cudaMemcpy", err);
    if (!status && wait)
        status = check_cuda(dev, cudaStreamSynchronize(s->stream), "cudaMemcpy", err);
    return status;
}

static qv_status
upload_staged(struct qv_device_cuda *dev, char *dst, const char *src, size_t bytes, qv_error *err)
{
    struct staging_cuda *s = &dev->in;
    qv_status status = QV_OK;
    for (size_t at = 0; at < bytes && !status; at += STAGING_BYTES) {
        unsigned i = s->next++ % STAGING_BLOCKS;
        size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        status = check_cuda(dev, cudaEventSynchronize(s->done[i]), "cudaMemcpy", err);
        if (status)
            break;
        memcpy(s->blocks[i], src + at, n);
        status = copy_directly(dev, s, dst + at, s->blocks[i], n, false, err);
        if (!status)
            status =
                check_cuda(dev, cudaEventRecord(s->done[i], s->stream), "cudaEventRecord", err);
    }
    return status;
}

static qv_status
upload_cuda(struct qv_device *device, struct qv_buffer dst, const void *src, size_t bytes,
            qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (status)
        return status;
    enum place place = place_of(dev, src);
    bool staged = place == PAGEABLE || (place == PINNED && !dev->own_stream);
    status = staged ? upload_staged(dev, address(dst), src, bytes, err)
                    : copy_directly(dev, &dev->in, address(dst), src, bytes, dev->own_stream, err);
    if (!status && dev->own_stream) {
        status =
            check_cuda(dev, cudaEventRecord(dev->uploaded, dev->in.stream), "cudaEventRecord", err);
        dev->uploads = true;
    }
    return status;
}

/* Some pieces are on their way while one is copied out of its block. */
static qv_status
download_staged(struct qv_device_cuda *dev, char *dst, const char *src, size_t bytes, qv_error *err)
{
    enum { AHEAD = STAGING_BLOCKS - 1 };
    struct staging_cuda *s = &dev->out;
    size_t pieces = (bytes + STAGING_BYTES - 1) / STAGING_BYTES;
    qv_status status = QV_OK;
    for (size_t i = 0; i < pieces + AHEAD && !status; i++) {
        size_t at = i * STAGING_BYTES, block = i % STAGING_BLOCKS;
        if (i < pieces) {
            size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
            status = copy_directly(dev, s, s->blocks[block], src + at, n, false, err);
            if (!status)
                status = check_cuda(dev, cudaEventRecord(s->done[block], s->stream),
                                    "cudaEventRecord", err);
        }
        if (i < AHEAD || status)
            continue;
        at = (i - AHEAD) * STAGING_BYTES;
        block = (i - AHEAD) % STAGING_BLOCKS;
        status = check_cuda(dev, cudaEventSynchronize(s->done[block]), "cudaMemcpy", err);
        if (!status)
            memcpy(dst + at, s->blocks[block],
                   bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES);
    }
    return status;
}

static qv_status
download_cuda(struct qv_device *device, void *dst, struct qv_buffer src, size_t bytes,
              qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (status)
        return status;
    if (dev->own_stream) /* what was put there last may still be on its way */
        status = check_cuda(dev, cudaStreamWaitEvent(dev->out.stream, dev->uploaded, 0),
                            "cudaStreamWaitEvent", err);
    if (status)
        return status;
    enum place place = place_of(dev, dst);
    if (place == PAGEABLE)
        return download_staged(dev, dst, address(src), bytes, err);
    return copy_directly(dev, &dev->out, dst, address(src), bytes,
                         dev->own_stream || place == PINNED, err);
}

/* ---- weights and kernels --------------------------------------------------------------------- */

static qv_status
layout_cuda(struct qv_device *device, const struct qv_matrix *matrix, struct qv_layout *out,
            qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    return matrix->conv ? conv_layout_cuda(dev, matrix, out, err)
                        : gemm_layout_cuda(dev, matrix, out, err);
}

static qv_status
pack_cuda(struct qv_device *device, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
          const void *src, struct qv_buffer dst, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (status)
        return status;
    return matrix->conv ? conv_pack_cuda(dev, matrix, src, dst, err)
                        : gemm_pack_cuda(dev, matrix, row0, rows, src, dst, err);
}

static void
release_cuda(struct qv_device *device, struct qv_kernel *kernel)
{
    if (!kernel)
        return;
    cudaSetDevice(cuda(device)->ordinal);
    if (kernel->op.kind == QV_OP_gemm)
        gemm_release_cuda(kernel);
    if (kernel->op.kind == QV_OP_attention)
        attention_release_cuda(kernel);
    if (kernel->op.kind == QV_OP_conv)
        conv_release_cuda(kernel);
    free(kernel);
}

static qv_status
prepare_cuda(struct qv_device *device, const struct qv_op *op, int choice, struct qv_kernel **out,
             size_t *scratch_bytes, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (status)
        return status;
    struct qv_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    *scratch_bytes = 0;
    if (op->kind == QV_OP_gemm)
        status = gemm_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (op->kind == QV_OP_attention)
        status = attention_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (op->kind == QV_OP_conv)
        status = conv_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (choice)
        status = qv_fail(err, QV_EUNSUPPORTED, "%s runs in one way", qv_op_name(op->kind));
    if (status)
        release_cuda(device, kernel);
    else
        *out = kernel;
    return status;
}

/* ---- work ------------------------------------------------------------------------------------ */

static cudaError_t
run_own(struct qv_device_cuda *dev, const struct qv_op *op, void *const *p)
{
    cudaStream_t s = dev->stream;
    switch (op->kind) {
    case QV_OP_rows: return rows_cuda(s, &op->u.rows, p[0], p[1]);
    case QV_OP_convert: return convert_cuda(s, &op->u.convert, p[0], p[1]);
    case QV_OP_norm: return norm_cuda(s, &op->u.norm, p[0], p[1], p[2], p[3]);
    case QV_OP_rope: return rope_cuda(s, &op->u.rope, p[0], p[1], p[2]);
    case QV_OP_taps: return taps_cuda(s, &op->u.taps, p[0], p[1], p[2], p[3]);
    case QV_OP_unfold: return unfold_cuda(s, &op->u.unfold, p[0], p[1]);
    case QV_OP_finish: return finish_cuda(s, &op->u.finish, p[0], p[1], p[2], p[3]);
    case QV_OP_gemm:
    case QV_OP_attention:
    case QV_OP_conv:
    case QV_OP_COUNT: break;
    }
    return cudaErrorNotSupported;
}

/* On dev->stream. */
static qv_status
run_call(struct qv_device_cuda *dev, const struct qv_call *call, qv_error *err)
{
    const struct qv_kernel *kernel = call->kernel;
    void *p[QV_MAX_OPERANDS], *scratch = address(call->scratch);
    for (int i = 0; i < QV_MAX_OPERANDS; i++)
        p[i] = address(call->operands[i]);
    if (kernel->op.kind == QV_OP_gemm)
        return gemm_run_cuda(dev, kernel, p, scratch, err);
    if (kernel->op.kind == QV_OP_attention)
        return attention_run_cuda(dev, kernel, p, scratch, err);
    if (kernel->op.kind == QV_OP_conv)
        return conv_run_cuda(dev, kernel, p, scratch, err);
    return check_cuda(dev, run_own(dev, &kernel->op, p), qv_op_name(kernel->op.kind), err);
}

static qv_status
run_list(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = run_call(dev, &calls[i], err);
    return status;
}

/* What is enqueued on `after` from now on waits for what is on `before`. */
static qv_status
order(struct qv_device_cuda *dev, cudaStream_t before, cudaEvent_t event, cudaStream_t after,
      qv_error *err)
{
    qv_status status = check_cuda(dev, cudaEventRecord(event, before), "cudaEventRecord", err);
    if (!status)
        status = check_cuda(dev, cudaStreamWaitEvent(after, event, 0), "cudaStreamWaitEvent", err);
    return status;
}

/* The list with a branch of the graph for calls beside the others. */
static qv_status
branch_list(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    qv_status status = QV_OK;
    bool forked = false;
    for (size_t i = 0; i < n && !status; i++) {
        bool beside = calls[i].beside, fork = beside && (i == 0 || !calls[i - 1].beside);
        if (fork)
            status = order(dev, dev->recorder, dev->fork, dev->beside, err);
        else if (forked && calls[i].waits)
            status = order(dev, dev->beside, dev->join, dev->recorder, err);
        forked = forked || fork;
        dev->stream = beside ? dev->beside : dev->recorder;
        if (!status)
            status =
                check_cudnn(dev, cudnnSetStream(dev->cudnn, dev->stream), "cudnnSetStream", err);
        if (!status)
            status = run_call(dev, &calls[i], err);
    }
    if (forked && !status)
        status = order(dev, dev->beside, dev->join, dev->recorder, err);
    return status;
}

static qv_status
wait_for_uploads(struct qv_device_cuda *dev, qv_error *err)
{
    if (!dev->uploads)
        return QV_OK;
    dev->uploads = false;
    return check_cuda(dev, cudaStreamWaitEvent(dev->stream, dev->uploaded, 0),
                      "cudaStreamWaitEvent", err);
}

static qv_status
run_cuda(struct qv_device *device, const struct qv_call *calls, size_t n, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (!status)
        status = wait_for_uploads(dev, err);
    return status ? status : run_list(dev, calls, n, err);
}

/* The list captured on a stream that nobody else uses; the work's may be one that cannot be. */
static qv_status
capture(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n, cudaGraph_t *graph,
        qv_error *err)
{
    cudaStream_t work = dev->stream;
    qv_status status =
        check_cuda(dev, cudaStreamBeginCapture(dev->recorder, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture", err);
    if (status)
        return status;
    status = branch_list(dev, calls, n, err);
    dev->stream = work;
    cudaError_t e = cudaStreamEndCapture(dev->recorder, graph); /* also after a failure */
    if (!status)
        status = check_cuda(dev, e, "cudaStreamEndCapture", err);
    cudnnSetStream(dev->cudnn, work);
    cudaGetLastError();
    return status;
}

static void
forget_cuda(struct qv_device *device, struct qv_recording *recording)
{
    cudaSetDevice(cuda(device)->ordinal);
    cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

/* A recording is an instantiated graph. */
static qv_status
record_cuda(struct qv_device *device, const struct qv_call *calls, size_t n,
            struct qv_recording **out, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    qv_status status = enter(dev, err);
    if (!status)
        status = capture(dev, calls, n, &graph, err);
    if (!status)
        status =
            check_cuda(dev, cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate", err);
    if (graph)
        cudaGraphDestroy(graph);
    if (!status)
        status = check_cuda(dev, cudaGraphUpload(exec, dev->stream), "cudaGraphUpload", err);
    if (!status)
        *out = (struct qv_recording *)exec;
    else if (exec)
        cudaGraphExecDestroy(exec);
    return status;
}

static qv_status
replay_cuda(struct qv_device *device, struct qv_recording *recording, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (!status)
        status = wait_for_uploads(dev, err);
    if (!status)
        status = check_cuda(dev, cudaGraphLaunch((cudaGraphExec_t)recording, dev->stream),
                            "cudaGraphLaunch", err);
    return status;
}

static qv_status
mark_cuda(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (!status)
        status =
            check_cuda(dev, cudaEventRecord(dev->marks[mark], dev->stream), "cudaEventRecord", err);
    return status;
}

static qv_status
wait_cuda(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    qv_status status = enter(dev, err);
    if (!status)
        status =
            check_cuda(dev, cudaEventSynchronize(dev->marks[mark]), "the work on the device", err);
    return status;
}

static qv_status
elapsed_cuda(struct qv_device *device, int begin, int end, double *ms, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    float between = 0;
    qv_status status =
        check_cuda(dev, cudaEventElapsedTime(&between, dev->marks[begin], dev->marks[end]),
                   "cudaEventElapsedTime", err);
    *ms = between;
    return status;
}

static qv_status
sync_cuda(struct qv_device *device, qv_error *err)
{
    struct qv_device_cuda *dev = cuda(device);
    const cudaStream_t streams[] = { dev->in.stream, dev->stream, dev->out.stream };
    qv_status status = enter(dev, err);
    for (size_t i = 0; i < sizeof streams / sizeof *streams && !status; i++)
        status = check_cuda(dev, cudaStreamSynchronize(streams[i]), "the work on the device", err);
    return status;
}

const struct qv_backend qv_backend_cuda = {
    .name = "cuda",
    .open = open_cuda,
    .close = close_cuda,
    .caps = caps_cuda,
    .alloc = alloc_cuda,
    .free = free_cuda,
    .wrap = wrap_cuda,
    .upload = upload_cuda,
    .download = download_cuda,
    .layout = layout_cuda,
    .pack = pack_cuda,
    .prepare = prepare_cuda,
    .release = release_cuda,
    .run = run_cuda,
    .record = record_cuda,
    .replay = replay_cuda,
    .forget = forget_cuda,
    .mark = mark_cuda,
    .wait = wait_cuda,
    .elapsed = elapsed_cuda,
    .sync = sync_cuda,
};
