/* SPDX-License-Identifier: MIT */
/* Turns errors from CUDA, cuBLAS and cuDNN into our statuses with a message, and records whether a
 * device is lost. */
#include "cuda.h"

#include <string.h>

qv_status
qv_check_device_cuda(const struct qv_device_cuda *dev, qv_error *err)
{
    if (!dev->lost[0])
        return QV_OK;
    return qv_fail(err, QV_EBACKEND, "the CUDA context was lost when %s: close it and open another",
                   dev->lost);
}

/* Returns whether every further call in the driver's context will fail until the process exits. */
static bool
is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsRpcFailure:
    case cudaErrorExternalDevice:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
    }
}

/* Appends a call's error to a text of `size` bytes. */
static void
append_failure(char *text, size_t size, const char *before, const char *call, cudaError_t error)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s%s reported \"%s\" (%s)", used ? "; " : "", before,
             call, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* Returns whether the error means that the device is lost, and records it. cuBLAS and cuDNN hide
 * such errors behind their own statuses, so for them `error` is the runtime's last error. */
static bool
note_loss(struct qv_device_cuda *dev, cudaError_t error, const char *call)
{
    if (!is_sticky(error))
        return false;
    if (dev && !dev->lost[0])
        append_failure(dev->lost, sizeof dev->lost, "", call, error);
    return true;
}

qv_status
qv_check_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call, qv_error *err)
{
    if (error == cudaSuccess)
        return QV_OK;
    cudaGetLastError(); /* clears the error, unless it is sticky */
    if (note_loss(dev, error, call) && dev)
        return qv_check_device_cuda(dev, err);
    qv_status status = error == cudaErrorMemoryAllocation ? QV_ENOMEM
                       : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                               error == cudaErrorInvalidDevice
                           ? QV_ENODEVICE
                       : error == cudaErrorNotSupported || error == cudaErrorNoKernelImageForDevice
                           ? QV_EUNSUPPORTED
                           : QV_EBACKEND;
    return qv_fail(err, status, "%s: CUDA reported \"%s\" (%s)", call, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

void
qv_note_free_cuda(struct qv_device_cuda *dev, cudaError_t error, const char *call)
{
    if (error == cudaSuccess || dev->lost[0] || strstr(dev->warning, call))
        return;
    cudaGetLastError();
    const bool lost = note_loss(dev, error, call);
    append_failure(dev->warning, sizeof dev->warning,
                   lost ? "the CUDA context was lost when " : "memory was not freed: ", call,
                   error);
}

qv_status
qv_check_cublas(struct qv_device_cuda *dev, cublasStatus_t status, const char *call, qv_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return QV_OK;
    if (note_loss(dev, cudaPeekAtLastError(), call) && dev)
        return qv_check_device_cuda(dev, err);
    return qv_fail(err,
                   status == CUBLAS_STATUS_ALLOC_FAILED    ? QV_ENOMEM
                   : status == CUBLAS_STATUS_NOT_SUPPORTED ? QV_EUNSUPPORTED
                                                           : QV_EBACKEND,
                   "%s: cuBLASLt reported \"%s\"", call, cublasLtGetStatusString(status));
}

qv_status
qv_check_cudnn(struct qv_device_cuda *dev, cudnnStatus_t status, const char *call, qv_error *err)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return QV_OK;
    if (note_loss(dev, cudaPeekAtLastError(), call) && dev)
        return qv_check_device_cuda(dev, err);
    char more[200] = "";
    cudnnGetLastErrorString(more, sizeof more);
    /* a status divided by 1000 is its class */
    enum { CLASS = 1000 };
    return qv_fail(err,
                   status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                           status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                       ? QV_ENOMEM
                   : status / CLASS == CUDNN_STATUS_NOT_SUPPORTED / CLASS ? QV_EUNSUPPORTED
                                                                          : QV_EBACKEND,
                   "%s: cuDNN reported \"%s\"%s%.150s", call, cudnnGetErrorString(status),
                   *more ? ": " : "", more);
}
