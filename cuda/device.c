/* SPDX-License-Identifier: MIT */
/* The CUDA backend's table: opens a device, prepares kernels, and lists the verbs. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#include "architectures.h"
#include "threads.h"

/* A thread that starts a library by preparing a kernel and discarding it. It works on a copy of the
 * device, and so shares nothing with the device's owner. */
struct warmer_cuda {
    pthread_t thread;
    struct qv_device_cuda dev;
    struct qv_op op;
};

/* Waits for a warmer, and takes ownership of the library that it started. */
static void
join_warmer(struct qv_device_cuda *dev, int library)
{
    struct warmer_cuda *warmer = dev->warmers[library];
    if (!warmer)
        return;
    dev->warmers[library] = NULL;
    pthread_join(warmer->thread, NULL);
    if (library == CUBLASLT)
        dev->lt = warmer->dev.lt;
    else
        dev->cudnn = warmer->dev.cudnn;
    free(warmer);
}

/* ---- opening --------------------------------------------------------------------------------- */

enum { SHARED_STREAMS = 3 }; /* streams of the work and its copies, which may all be the caller's */

/* After a device is lost these calls fail, which is harmless here. Streams are waited for one by
 * one, because waiting for the whole device would break a capture in another thread. */
static void
close_cuda(struct qv_device *device)
{
    struct qv_device_cuda *dev = device_cuda(device);
    const cudaStream_t streams[] = { dev->in.stream, dev->stream, dev->out.stream, dev->recorder,
                                     dev->side };
    const cudaEvent_t events[] = { dev->uploaded, dev->fork, dev->join };
    const struct entered_cuda entered = qv_enter_cuda(dev);
    for (int i = 0; i < LIBRARIES; i++)
        join_warmer(dev, i);
    for (int i = 0; i < COUNT_OF(streams); i++)
        if (streams[i])
            cudaStreamSynchronize(streams[i]);
    qv_staging_close_cuda(&dev->in);
    qv_staging_close_cuda(&dev->out);
    qv_copier_close(dev->copier);
    for (int i = 0; i < QV_MARKS; i++)
        if (dev->marks[i])
            cudaEventDestroy(dev->marks[i]);
    for (int i = 0; i < COUNT_OF(events); i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    if (dev->cudnn)
        cudnnDestroy(dev->cudnn);
    if (dev->lt)
        cublasLtDestroy(dev->lt);
    qv_frames_close_cuda(dev);
    for (int i = dev->own_stream ? 0 : SHARED_STREAMS; i < COUNT_OF(streams); i++)
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    cudaGetLastError();
    free(dev);
    qv_leave_cuda(entered);
}

/* Reports why cudaGetDeviceCount found no device. */
static qv_status
no_device(cudaError_t error, qv_error *err)
{
    int driver = 0, runtime = 0;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && !driver)
        return qv_fail(err, QV_ENODEVICE, "no NVIDIA GPU can be used: no driver is installed");
    if (error == cudaErrorInsufficientDriver)
        return qv_fail(err, QV_ENODEVICE,
                       "no NVIDIA GPU can be used: the driver supports CUDA %d.%d, but %d.%d or "
                       "newer is needed",
                       driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    return qv_fail(err, QV_ENODEVICE, "no NVIDIA GPU can be used: %s",
                   error ? cudaGetErrorString(error) : "none was found");
}

static qv_status
find_device(const struct qv_device_cuda *dev, qv_error *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e || n == 0)
        return no_device(e, err);
    if (dev->ordinal < 0 || dev->ordinal >= n)
        return qv_fail(err, QV_ENODEVICE, "device %d: the NVIDIA GPUs here are 0 to %d",
                       dev->ordinal, n - 1);
    return QV_OK;
}

/* Warns about a GPU whose kernels the driver must compile or may be unable to run, and rejects a
 * GPU without kernels. */
static qv_status
check_code(struct qv_device_cuda *dev, qv_error *err)
{
    static const int built[] = { QV_CUDA_ARCHITECTURES, 0 };
    switch (qv_find_code_cuda(built, dev->sm, &dev->code)) {
    case CODE_RUNS: return QV_OK;
    case CODE_COMPILED:
        snprintf(dev->warning, sizeof dev->warning,
                 "this build has no kernels for sm_%d: the driver compiles the sm_%d ones at first "
                 "use, and their speed has not been measured",
                 dev->sm, dev->code);
        return QV_OK;
    case CODE_UNSURE:
        snprintf(dev->warning, sizeof dev->warning,
                 "this build has no kernels for sm_%d, and NVIDIA does not promise that the sm_%d "
                 "ones run on it: build with -DQV_CUDA_ARCHITECTURES=%d",
                 dev->sm, dev->code, dev->sm);
        return QV_OK;
    case CODE_NONE: break;
    }
    return qv_fail(err, QV_ENODEVICE,
                   "%s has compute capability %d.%d, and none of this build's kernels run on it: "
                   "build with -DQV_CUDA_ARCHITECTURES=%d",
                   dev->name, dev->sm / 10, dev->sm % 10, dev->sm);
}

static qv_status
check_device(struct qv_device_cuda *dev, qv_error *err)
{
    struct cudaDeviceProp props;
    qv_status status = qv_check_cuda(dev, cudaGetDeviceProperties(&props, dev->ordinal),
                                     "cudaGetDeviceProperties", err);
    if (status)
        return status;
    dev->sm = 10 * props.major + props.minor;
    dev->multiprocessors = props.multiProcessorCount;
    dev->shared_bytes = props.sharedMemPerBlockOptin;
    snprintf(dev->name, sizeof dev->name, "%.63s", props.name);
    if (dev->sm < 80)
        return qv_fail(err, QV_ENODEVICE,
                       "%s has compute capability %d.%d; 8.0 (Ampere) or newer is needed",
                       dev->name, props.major, props.minor);
    return check_code(dev, err);
}

/* The cuDNN library that was found may be older than the headers. Its interface is stable within a
 * major version (the suffix of its file name), and we use nothing newer than the oldest allowed
 * version. */
enum { CUDNN_OLDEST = 91500 };

static qv_status
check_cudnn(qv_error *err)
{
    size_t loaded = cudnnGetVersion();
    if (loaded >= CUDNN_OLDEST)
        return QV_OK;
    return qv_fail(err, QV_ENODEVICE,
                   "cuDNN %zu.%zu.%zu was found, but 9.15 or newer is needed (9.8 to 9.14 compute "
                   "bf16 Conv3d wrongly): put a newer libcudnn.so.9 on the library path",
                   loaded / 10000, loaded / 100 % 100, loaded % 100);
}

static qv_status
open_parts(struct qv_device_cuda *dev, int threads, qv_error *err)
{
    cudaStream_t *const streams[] = { &dev->in.stream, &dev->stream, &dev->out.stream,
                                      &dev->recorder, &dev->side };
    qv_status status = QV_OK;
    for (int i = dev->own_stream ? 0 : SHARED_STREAMS; i < COUNT_OF(streams) && !status; i++)
        status = qv_check_cuda(dev, cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking),
                               "cudaStreamCreate", err);
    if (!status)
        status = qv_staging_open_cuda(dev, &dev->in, err);
    if (!status)
        status = qv_staging_open_cuda(dev, &dev->out, err);
    if (!status)
        status = qv_frames_open_cuda(dev, err);
    if (!status)
        status = qv_copier_open(threads, &dev->copier, err);
    for (int i = 0; i < QV_MARKS && !status; i++)
        status = qv_check_cuda(dev, cudaEventCreateWithFlags(&dev->marks[i], cudaEventBlockingSync),
                               "cudaEventCreate", err);
    cudaEvent_t *const events[] = { &dev->uploaded, &dev->fork, &dev->join };
    for (int i = 0; i < COUNT_OF(events) && !status; i++)
        status = qv_check_cuda(dev, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                               "cudaEventCreate", err);
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
    dev->stream = dev->in.stream = dev->out.stream = options->stream;
    dev->own_stream = !options->stream;
    dev->plan_cache = options->plan_cache;
    qv_status status = find_device(dev, err);
    if (!status)
        status = check_cudnn(err);
    if (!status)
        status = check_device(dev, err);
    if (!status)
        status = qv_open_context_cuda(dev, err);
    if (status) {
        free(dev);
        return status;
    }
    const struct entered_cuda entered = qv_enter_cuda(dev);
    status = qv_check_cuda(dev, entered.error, "cuCtxPushCurrent", err);
    if (!status)
        status = open_parts(dev, options->threads, err);
    if (status)
        close_cuda(&dev->base);
    else
        *out = &dev->base;
    qv_leave_cuda(entered);
    return status;
}

/* conv3d's thresholds stay 0: on an H200 cuDNN's 3D convolution is 1.2 to 2.8 times as fast as by
 * depth for dense layers (1.4 at 1024 channels). In depthwise layers by depth is up to 1.2 times as
 * fast from a depth of 7 on, and slower at 3. */
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
                             .pack_rows = 12288, /* 4% faster there, for 64 images and tower M */
                             .bucket_rows = 128,
                             .least_rows = 128,
                             .chunks = 2,
                             /* measured on an H200 at the sizes of towers; f32 attention is our own
                              * kernel */
                             .same_f32 = { .gemm_rows = QV_NOT_SEEN },
                             .same_bf16 = { .head_dims = { 64, dev->sm == 90 ? 80 : 64 } },
                             .free_segments = dev->sm == 90,
                             /* of 2 x 3456 columns of bf16 the cache holds 3072 rows; on Hopper fc1
                              * and the gate are one kernel, and an H200 computes 2816 rows in six
                              * full waves of its tiles */
                             .gated_rows = dev->sm == 90 ? 3 * 2816 : 3072,
                             .side = true,
                             .width_multiple = 128, /* whole cache lines save 2% of a tower L */
                             .residual_apart = true,
                             .tanh_error = 0x1p-11 }; /* from the PTX ISA, tanh.approx.f32 */
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
    (void)device, (void)err;
    *out = matrix->conv
               ? (struct qv_layout){ (size_t)matrix->n * qv_matrix_row_bytes(matrix), matrix->n }
           : matrix->groups.bits ? qv_codes_layout_cuda(matrix)
                                 : qv_gemm_layout_cuda(matrix);
    return QV_OK;
}

static qv_status
lay_out_cuda(struct qv_device *device, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
             const void *src, struct qv_buffer dst, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    return matrix->conv          ? qv_conv_lay_out_cuda(dev, matrix, src, dst, err)
           : matrix->groups.bits ? qv_codes_lay_out_cuda(dev, matrix, row0, rows, src, dst, err)
                                 : qv_gemm_lay_out_cuda(dev, matrix, row0, rows, src, dst, err);
}

/* The table of verbs: linking fails for an operation without verbs. */
static const struct verbs_cuda *const verbs[] = {
#define QV_OP(name, fields, operands, flops) &qv_##name##_verbs_cuda,
#include "engine/ops.inc"
};

static void
release_cuda(struct qv_device *device, struct qv_kernel *kernel)
{
    (void)device;
    if (!kernel)
        return;
    if (kernel->verbs->release)
        kernel->verbs->release(kernel);
    free(kernel);
}

static qv_status
open_cudnn(struct qv_device_cuda *dev, qv_error *err)
{
    if (dev->cudnn)
        return QV_OK;
    cudnnHandle_t handle = NULL;
    qv_status status = qv_check_cudnn(dev, cudnnCreate(&handle), "cudnnCreate", err);
    if (status)
        return status;
    status = qv_check_cudnn(dev, cudnnSetStream(handle, dev->stream), "cudnnSetStream", err);
    if (status)
        cudnnDestroy(handle);
    else
        dev->cudnn = handle;
    return status;
}

/* The libraries take long to start, and a program that only lists devices does not need them. A
 * library is opened for the first kernel that uses it, or earlier by a warmer, in the
 * background. */
static qv_status
open_library(struct qv_device_cuda *dev, enum library_cuda library, qv_error *err)
{
    join_warmer(dev, library);
    if (library == CUDNN)
        return open_cudnn(dev, err);
    return dev->lt ? QV_OK : qv_check_cublas(dev, cublasLtCreate(&dev->lt), "cublasLtCreate", err);
}

static enum library_cuda
library_of(const struct qv_device_cuda *dev, const struct qv_op *op)
{
    if (op->kind == QV_OP_attention && qv_attention_way_cuda(dev, &op->u.attention))
        return LIBRARIES;
    return verbs[op->kind]->library;
}

/* Opens the libraries that an operation needs; a GEMM may need cuDNN as well. */
static qv_status
open_libraries(struct qv_device_cuda *dev, const struct qv_op *op, qv_error *err)
{
    const enum library_cuda library = library_of(dev, op);
    qv_status status = library == LIBRARIES ? QV_OK : open_library(dev, library, err);
    if (!status && op->kind == QV_OP_gemm && qv_gemm_is_graph_cuda(&op->u.gemm))
        status = open_library(dev, CUDNN, err);
    return status;
}

static qv_status
prepare_cuda(struct qv_device *device, const struct qv_op *op, int choice, struct qv_kernel **out,
             size_t *scratch_bytes, qv_error *err)
{
    (void)choice;
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = qv_op_takes_one(op, 1 << QV_F32 | 1 << QV_BF16, err);
    if (status)
        return status;
    struct qv_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    kernel->verbs = verbs[op->kind];
    *scratch_bytes = 0;
    status = open_libraries(dev, op, err);
    if (!status && kernel->verbs->prepare)
        status = kernel->verbs->prepare(dev, kernel, scratch_bytes, err);
    if (status)
        release_cuda(device, kernel);
    else
        *out = kernel;
    return status;
}

static void *
start_library(void *p)
{
    struct warmer_cuda *warmer = p;
    struct qv_kernel *kernel = NULL;
    size_t scratch;
    const struct entered_cuda entered = qv_enter_cuda(&warmer->dev);
    if (!entered.error && !prepare_cuda(&warmer->dev.base, &warmer->op, 0, &kernel, &scratch, NULL))
        release_cuda(&warmer->dev.base, kernel);
    qv_leave_cuda(entered);
    return NULL;
}

static void
warm_cuda(struct qv_device *device, const struct qv_op *op)
{
    struct qv_device_cuda *dev = device_cuda(device);
    const enum library_cuda library = library_of(dev, op);
    const void *const started[LIBRARIES] = { dev->lt, dev->cudnn };
    if (library == LIBRARIES || started[library] || dev->warmers[library])
        return;
    struct warmer_cuda *warmer = malloc(sizeof *warmer);
    if (!warmer)
        return;
    *warmer = (struct warmer_cuda){ .dev = *dev, .op = *op };
    memset(warmer->dev.warmers, 0, sizeof warmer->dev.warmers);
    if (qv_thread_start(&warmer->thread, start_library, warmer))
        free(warmer);
    else
        dev->warmers[library] = warmer;
}

static void
describe_cuda(const struct qv_kernel *kernel, char *text, size_t size)
{
    kernel->verbs->describe(kernel, text, size);
}

/* ---- the table: each verb runs in the device's context -------------------------------------- */

/* ANY: any thread may call the verb while another uses the device, so it neither checks nor records
 * whether the device was lost. The other verbs fail immediately on a lost device. */
enum caller { OWNER, ANY };

/* Begins a verb. qv_leave_cuda() must follow, even if this fails. */
static qv_status
enter(struct qv_device_cuda *dev, enum caller caller, struct entered_cuda *entered, qv_error *err)
{
    *entered = qv_enter_cuda(dev);
    qv_status status = caller == OWNER ? qv_check_device_cuda(dev, err) : QV_OK;
    if (!status)
        status =
            qv_check_cuda(caller == OWNER ? dev : NULL, entered->error, "cuCtxPushCurrent", err);
    return status;
}

/* Verbs that return a status: X(caller, name, function, parameters after the device, arguments) */
#define STATUS_VERBS(X)                                                                            \
    X(OWNER, alloc, qv_alloc_cuda, (size_t bytes, struct qv_memory * *out, qv_error * err),        \
      (bytes, out, err))                                                                           \
    X(OWNER, upload, qv_upload_cuda,                                                               \
      (struct qv_buffer dst, const void *src, size_t bytes, qv_error *err),                        \
      (dst, src, bytes, err))                                                                      \
    X(OWNER, download, qv_download_cuda,                                                           \
      (const struct qv_download *parts, size_t n, qv_error *err), (parts, n, err))                 \
    X(OWNER, layout, layout_cuda,                                                                  \
      (const struct qv_matrix *matrix, struct qv_layout *out, qv_error *err), (matrix, out, err))  \
    X(OWNER, lay_out, lay_out_cuda,                                                                \
      (const struct qv_matrix *matrix, int64_t row0, int64_t rows, const void *src,                \
       struct qv_buffer dst, qv_error *err),                                                       \
      (matrix, row0, rows, src, dst, err))                                                         \
    X(OWNER, prepare, prepare_cuda,                                                                \
      (const struct qv_op *op, int choice, struct qv_kernel **out, size_t *scratch_bytes,          \
       qv_error *err),                                                                             \
      (op, choice, out, scratch_bytes, err))                                                       \
    X(OWNER, run, qv_run_cuda, (const struct qv_call *calls, size_t n, qv_error *err),             \
      (calls, n, err))                                                                             \
    X(OWNER, record, qv_record_cuda,                                                               \
      (const struct qv_call *calls, size_t n, struct qv_recording **out, qv_error *err),           \
      (calls, n, out, err))                                                                        \
    X(OWNER, replay, qv_replay_cuda, (struct qv_recording * recording, qv_error * err),            \
      (recording, err))                                                                            \
    X(OWNER, wait_side, qv_wait_side_cuda, (struct qv_recording * recording, qv_error * err),      \
      (recording, err))                                                                            \
    X(OWNER, mark, qv_mark_cuda, (int mark, qv_error *err), (mark, err))                           \
    X(OWNER, wait, qv_wait_cuda, (int mark, qv_error *err), (mark, err))                           \
    X(OWNER, elapsed, qv_elapsed_cuda, (int begin, int end, double *ms, qv_error *err),            \
      (begin, end, ms, err))                                                                       \
    X(OWNER, sync, qv_sync_cuda, (qv_error * err), (err))                                          \
    X(ANY, lock_pages, qv_lock_pages_cuda, (size_t bytes, void **out, qv_error *err),              \
      (bytes, out, err))                                                                           \
    X(ANY, resize, qv_resize_cuda, (const struct qv_resize *r, void **out, qv_error *err),         \
      (r, out, err))                                                                               \
    X(ANY, read_frames, qv_read_frames_cuda,                                                       \
      (void *to, const void *frames, size_t bytes, qv_error *err), (to, frames, bytes, err))

#define LIST(...) __VA_ARGS__
#define STATUS_VERB(caller, name, function, parameters, arguments)                                 \
    static qv_status name##_in_context(struct qv_device *device, LIST parameters)                  \
    {                                                                                              \
        struct entered_cuda entered;                                                               \
        qv_status status = enter(device_cuda(device), caller, &entered, err);                      \
        if (!status)                                                                               \
            status = function(device, LIST arguments);                                             \
        qv_leave_cuda(entered);                                                                    \
        return status;                                                                             \
    }
STATUS_VERBS(STATUS_VERB)

/* Verbs that free. After a device is lost their calls fail, which is harmless. */
#define FREEING_VERBS(X)                                                                           \
    X(free, qv_free_cuda, struct qv_memory *)                                                      \
    X(free_frames, qv_free_frames_cuda, void *)                                                    \
    X(unlock_pages, qv_unlock_pages_cuda, void *)                                                  \
    X(release, release_cuda, struct qv_kernel *)                                                   \
    X(forget, qv_forget_cuda, struct qv_recording *)

#define FREEING_VERB(name, function, type)                                                         \
    static void name##_in_context(struct qv_device *device, type freed)                            \
    {                                                                                              \
        const struct entered_cuda entered = qv_enter_cuda(device_cuda(device));                    \
        function(device, freed);                                                                   \
        qv_leave_cuda(entered);                                                                    \
    }
FREEING_VERBS(FREEING_VERB)

static bool
wrap_in_context(struct qv_device *device, const void *p, size_t bytes, struct qv_memory *out)
{
    const struct entered_cuda entered = qv_enter_cuda(device_cuda(device));
    const bool wraps =
        !entered.error && !device_cuda(device)->lost[0] && qv_wrap_cuda(device, p, bytes, out);
    qv_leave_cuda(entered);
    return wraps;
}

const struct qv_backend qv_backend_cuda = { .name = "cuda",
                                            .open = open_cuda,
                                            .close = close_cuda,
                                            .caps = caps_cuda,
                                            .wrap = wrap_in_context,
                                            .frames_stream = qv_frames_stream_cuda,
                                            .describe = describe_cuda,
                                            .warm = warm_cuda,
#define STATUS_ENTRY(caller, name, ...) .name = name##_in_context,
#define FREEING_ENTRY(name, ...) .name = name##_in_context,
                                            STATUS_VERBS(STATUS_ENTRY)
                                                FREEING_VERBS(FREEING_ENTRY) };

const struct qv_backend *
qv_backend_entry(const char *build_id, const char **own)
{
    *own = QV_BUILD_ID;
    return strcmp(build_id, QV_BUILD_ID) ? NULL : &qv_backend_cuda;
}
