/* SPDX-License-Identifier: MIT */
/* The CUDA backend's table: opening a device, and which file does what. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"

qv_status
qv_enter_cuda(struct qv_device_cuda *dev, qv_error *err)
{
    qv_status status = qv_check_device_cuda(dev, err);
    return status ? status : qv_check_cuda(dev, cudaSetDevice(dev->ordinal), "cudaSetDevice", err);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* After a loss the calls below fail and are not asked. The whole device is not waited for: that
 * would break what another thread is capturing. */
static void
close_cuda(struct qv_device *device)
{
    struct qv_device_cuda *dev = device_cuda(device);
    const cudaStream_t streams[] = { dev->in.stream, dev->stream, dev->out.stream };
    cudaSetDevice(dev->ordinal);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i])
            cudaStreamSynchronize(streams[i]);
    qv_staging_close_cuda(dev, &dev->in);
    qv_staging_close_cuda(dev, &dev->out);
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
    qv_status status = qv_check_cuda(dev, cudaSetDevice(dev->ordinal), "cudaSetDevice", err);
    if (!status)
        status = qv_check_cuda(dev, cudaGetDeviceProperties(&props, dev->ordinal),
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
open_parts(struct qv_device_cuda *dev, qv_error *err)
{
    qv_status status = QV_OK;
    if (dev->own_stream)
        status = qv_check_cuda(dev, cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking),
                               "cudaStreamCreate", err);
    if (!status)
        status =
            qv_check_cuda(dev, cudaStreamCreateWithFlags(&dev->recorder, cudaStreamNonBlocking),
                          "cudaStreamCreate", err);
    if (!status)
        status = qv_check_cuda(dev, cudaStreamCreateWithFlags(&dev->beside, cudaStreamNonBlocking),
                               "cudaStreamCreate", err);
    if (!status)
        status = qv_staging_open_cuda(dev, &dev->in, err);
    if (!status)
        status = qv_staging_open_cuda(dev, &dev->out, err);
    for (int i = 0; i < QV_MARKS && !status; i++)
        status = qv_check_cuda(dev, cudaEventCreate(&dev->marks[i]), "cudaEventCreate", err);
    cudaEvent_t *const events[] = { &dev->uploaded, &dev->fork, &dev->join };
    for (size_t i = 0; i < sizeof events / sizeof *events && !status; i++)
        status = qv_check_cuda(dev, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                               "cudaEventCreate", err);
    if (!status)
        status = qv_check_cublas(dev, cublasLtCreate(&dev->lt), "cublasLtCreate", err);
    if (!status)
        status = qv_check_cudnn(dev, cudnnCreate(&dev->cudnn), "cudnnCreate", err);
    if (!status)
        status =
            qv_check_cudnn(dev, cudnnSetStream(dev->cudnn, dev->stream), "cudnnSetStream", err);
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
    const struct qv_device_cuda *dev = device_cuda(device);
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

/* ---- weights and kernels --------------------------------------------------------------------- */

static qv_status
layout_cuda(struct qv_device *device, const struct qv_matrix *matrix, struct qv_layout *out,
            qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    return matrix->conv ? qv_conv_layout_cuda(dev, matrix, out, err)
                        : qv_gemm_layout_cuda(dev, matrix, out, err);
}

static qv_status
pack_cuda(struct qv_device *device, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
          const void *src, struct qv_buffer dst, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = qv_enter_cuda(dev, err);
    if (status)
        return status;
    return matrix->conv ? qv_conv_pack_cuda(dev, matrix, src, dst, err)
                        : qv_gemm_pack_cuda(dev, matrix, row0, rows, src, dst, err);
}

static void
release_cuda(struct qv_device *device, struct qv_kernel *kernel)
{
    if (!kernel)
        return;
    cudaSetDevice(device_cuda(device)->ordinal);
    if (kernel->op.kind == QV_OP_gemm)
        qv_gemm_release_cuda(kernel);
    if (kernel->op.kind == QV_OP_attention)
        qv_attention_release_cuda(kernel);
    if (kernel->op.kind == QV_OP_conv)
        qv_conv_release_cuda(kernel);
    free(kernel);
}

static qv_status
prepare_cuda(struct qv_device *device, const struct qv_op *op, int choice, struct qv_kernel **out,
             size_t *scratch_bytes, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = qv_enter_cuda(dev, err);
    if (status)
        return status;
    struct qv_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    *scratch_bytes = 0;
    if (op->kind == QV_OP_gemm)
        status = qv_gemm_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (op->kind == QV_OP_attention)
        status = qv_attention_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (op->kind == QV_OP_conv)
        status = qv_conv_prepare_cuda(dev, kernel, choice, scratch_bytes, err);
    else if (choice)
        status = qv_fail(err, QV_EUNSUPPORTED, "%s runs in one way", qv_op_name(op->kind));
    if (status)
        release_cuda(device, kernel);
    else
        *out = kernel;
    return status;
}

const struct qv_backend qv_backend_cuda = {
    .name = "cuda",
    .open = open_cuda,
    .close = close_cuda,
    .caps = caps_cuda,
    .alloc = qv_alloc_cuda,
    .free = qv_free_cuda,
    .wrap = qv_wrap_cuda,
    .upload = qv_upload_cuda,
    .download = qv_download_cuda,
    .layout = layout_cuda,
    .pack = pack_cuda,
    .prepare = prepare_cuda,
    .release = release_cuda,
    .run = qv_run_cuda,
    .record = qv_record_cuda,
    .replay = qv_replay_cuda,
    .forget = qv_forget_cuda,
    .mark = qv_mark_cuda,
    .wait = qv_wait_cuda,
    .elapsed = qv_elapsed_cuda,
    .sync = qv_sync_cuda,
};
