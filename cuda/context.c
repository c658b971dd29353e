/* SPDX-License-Identifier: MIT */
/*
 * Makes the device current while a verb runs. The caller's thread may be using another device, or
 * its own context made with the driver, so the previous context is restored afterwards. The runtime
 * cannot do that: cudaGetDevice does not report non-primary contexts or the absence of a context,
 * and cudaSetDevice would make a primary context, of hundreds of MB, on an unused device.
 */
#include <cuda.h>
#include <pthread.h>

#include "cuda.h"

/* Driver functions, looked up through the runtime so that this library loads without a driver. */
static struct {
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*get)(CUcontext *context);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    qv_error missing; /* status QV_OK: all were found */
} driver;

static void
find(const char *name, void *function)
{
    enum { VERSION = 12000 }; /* of the declarations above */
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, VERSION, cudaEnableDefault, &result);
    if (error || !found)
        qv_fail(&driver.missing, QV_ENODEVICE,
                "no NVIDIA GPU can be used: the driver here has no %s (%s)", name,
                cudaGetErrorString(error ? error : cudaErrorSymbolNotFound));
    memcpy(function, &found, sizeof found);
}

static void
find_all(void)
{
    find("cuDevicePrimaryCtxRetain", &driver.retain);
    find("cuCtxGetCurrent", &driver.get);
    find("cuCtxPushCurrent", &driver.push);
    find("cuCtxPopCurrent", &driver.pop);
}

/* The context stays until the process exits, like the runtime's own contexts. */
qv_status
qv_open_context_cuda(struct qv_device_cuda *dev, qv_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_all);
    if (driver.missing.status)
        return qv_fail(err, driver.missing.status, "%s", driver.missing.text);
    /* driver and runtime use the same device and error numbers */
    return qv_check_cuda(NULL, (cudaError_t)driver.retain(&dev->context, dev->ordinal),
                         "cuDevicePrimaryCtxRetain", err);
}

struct entered_cuda
qv_enter_cuda(const struct qv_device_cuda *dev)
{
    CUcontext now = NULL;
    struct entered_cuda entered = { cudaSuccess, false };
    if (driver.get(&now) || now != dev->context) {
        entered.error = (cudaError_t)driver.push(dev->context);
        entered.pushed = !entered.error;
    }
    return entered;
}

void
qv_leave_cuda(struct entered_cuda entered)
{
    CUcontext ours;
    if (entered.pushed)
        driver.pop(&ours);
}
