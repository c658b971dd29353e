/* SPDX-License-Identifier: MIT */
/* The Metal backend's table: opens a device and prepares kernels. */
#include "metal.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static void
close_metal(struct qv_device *device)
{
    struct qv_device_metal *dev = device_metal(device);
    if (dev->queue)
        qv_sync_metal(device, NULL);
    [dev->nothing release];
    [dev->queue release];
    [dev->gpu release];
    free(dev);
}

/* Returns the GPU with that ordinal, retained. */
static id<MTLDevice>
find_gpu(int ordinal, qv_error *err)
{
    NSArray<id<MTLDevice>> *gpus = MTLCopyAllDevices();
    NSUInteger n = [gpus count];
    id<MTLDevice> gpu = nil;
    if (ordinal >= 0 && (NSUInteger)ordinal < n)
        gpu = [[gpus objectAtIndex:(NSUInteger)ordinal] retain];
    [gpus release];
    if (!gpu && n)
        qv_fail(err, QV_ENODEVICE, "device %d: Metal has %d GPU%s", ordinal, (int)n,
                n == 1 ? "" : "s");
    else if (!gpu)
        qv_fail(err, QV_ENODEVICE, "Metal found no GPU");
    return gpu;
}

static qv_status
open_metal(const struct qv_device_options *options, struct qv_device **out, qv_error *err)
{
    if (options->stream)
        return qv_fail(err, QV_EUNSUPPORTED, "stream: the metal backend does not support streams");
    struct qv_device_metal *dev = calloc(1, sizeof *dev);
    if (!dev)
        return qv_fail(err, QV_ENOMEM, "no memory for a device");
    dev->base.backend = &qv_backend_metal;
    dev->naive = options->naive;
    @autoreleasepool {
        dev->gpu = find_gpu(options->ordinal, err);
        if (!dev->gpu) {
            free(dev);
            return QV_ENODEVICE;
        }
        if (![dev->gpu supportsFamily:MTLGPUFamilyApple7]) {
            /* Apple7 is the first family of Mac GPUs with simdgroup matrices */
            qv_status status =
                qv_fail(err, QV_ENODEVICE, "%s: M1 (GPU family Apple7) or newer is needed",
                        [[dev->gpu name] UTF8String]);
            close_metal(&dev->base);
            return status;
        }
        snprintf(dev->name, sizeof dev->name, "%s", [[dev->gpu name] UTF8String]);
        dev->has_bfloat = [dev->gpu supportsFamily:MTLGPUFamilyMetal3];
        dev->queue = [dev->gpu newCommandQueue];
        dev->nothing = [dev->gpu newBufferWithLength:ALIGNMENT
                                             options:MTLResourceStorageModeShared];
    }
    if (!dev->queue || !dev->nothing) {
        close_metal(&dev->base);
        return qv_fail(err, QV_EBACKEND, "Metal cannot make a command queue");
    }
    *out = &dev->base;
    return QV_OK;
}

/* Metal does not report a GPU's number of cores, but GPUs with more cores come with more memory (M1
 * to M4: 8 to 10 cores with 8 to 24 GB, 40 with 36 to 128). 1400 rows keep small GPUs busy, 4096
 * rows all of them. */
static int64_t
chunk_rows(id<MTLDevice> gpu)
{
    enum { LEAST = 64, MOST = 4096, OF_A_GB = 128 };
    int64_t rows = (int64_t)([gpu recommendedMaxWorkingSetSize] >> 20) * OF_A_GB >> 10;
    return rows < LEAST ? LEAST : rows > MOST ? MOST : rows;
}

/* conv3d's thresholds stay 0, so convolutions are run directly, with one sum over all taps.
 * Alternatives were not timed. */
static void
caps_metal(const struct qv_device *device, struct qv_caps *out)
{
    const struct qv_device_metal *dev = device_metal(device);
    *out = (struct qv_caps){ .alignment = ALIGNMENT,
                             .dtype = dev->has_bfloat ? QV_BF16 : QV_F32,
                             .chunk_rows = chunk_rows(dev->gpu),
                             .bucket_rows = 32,
                             .least_rows = 32,
                             .chunks = 2,
                             .same_f32.gemm_rows = MOST_FEW_ROWS + 1,
                             .same_bf16.gemm_rows = MOST_FEW_ROWS + 1,
                             .has_naive = true };
    snprintf(out->device, sizeof out->device, "%s, Metal", dev->name);
    snprintf(out->dtype_reason, sizeof out->dtype_reason, "%s",
             dev->has_bfloat ? "this GPU has bfloat (Metal 3)"
                             : "this GPU has no bfloat (it is older than Metal 3)");
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void
release_metal(struct qv_device *device, struct qv_kernel *kernel)
{
    (void)device;
    free(kernel);
}

static qv_status
prepare_metal(struct qv_device *device, const struct qv_op *op, int choice, struct qv_kernel **out,
              size_t *scratch_bytes, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    struct qv_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return qv_fail(err, QV_ENOMEM, "no memory for a kernel");
    kernel->op = *op;
    *scratch_bytes = 0;
    kernel->naive = dev->naive >> op->kind & 1;
    qv_status status = qv_launch_metal(op, choice, kernel->naive, &kernel->launch, err);
    if (!status && kernel->launch.real == QV_BF16 && !dev->has_bfloat)
        status = qv_fail(err, QV_EUNSUPPORTED, "%s: %s has no bfloat: use f32",
                         qv_op_name(op->kind), dev->name);
    if (!status)
        status = qv_pipeline_metal(dev, &kernel->launch, &kernel->pipeline, err);
    if (status)
        free(kernel);
    else
        *out = kernel;
    return status;
}

static void
describe_metal(const struct qv_kernel *kernel, char *text, size_t size)
{
    qv_describe_metal(&kernel->launch, kernel->naive, text, size);
}

const struct qv_backend qv_backend_metal = {
    .name = "metal",
    .open = open_metal,
    .close = close_metal,
    .caps = caps_metal,
    .alloc = qv_alloc_metal,
    .free = qv_free_metal,
    .wrap = qv_wrap_metal,
    .unwrap = qv_unwrap_metal,
    .upload = qv_upload_metal,
    .download = qv_download_metal,
    .layout = qv_layout_metal,
    .lay_out = qv_lay_out_metal,
    .prepare = prepare_metal,
    .release = release_metal,
    .describe = describe_metal,
    .run = qv_run_metal,
    .mark = qv_mark_metal,
    .wait = qv_wait_metal,
    .elapsed = qv_elapsed_metal,
    .sync = qv_sync_metal,
};
