/* SPDX-License-Identifier: MIT */
/* Verbs of the backend's table for frames in the device's memory. Several threads may run them
 * concurrently, even while another thread uses the device, so they do not write to dev or record a
 * loss. */
#include "cuda.h"

/* Bytes between the two passes of a resize: few enough to stay in the GPU's cache. */
enum { BETWEEN_BYTES = 32 << 20 };

qv_status
qv_frames_open_cuda(struct qv_device_cuda *dev, qv_error *err)
{
    /* kept for reuse, because the driver is slow to map the device's memory */
    uint64_t kept = (uint64_t)256 << 20;
    const struct cudaMemPoolProps props = { .allocType = cudaMemAllocationTypePinned,
                                            .location = { cudaMemLocationTypeDevice,
                                                          dev->ordinal } };
    cudaError_t e = cudaMemPoolCreate(&dev->frames_pool, &props);
    if (e == cudaErrorNotSupported) { /* by some virtual GPUs: frames come from the host there */
        cudaGetLastError();
        return QV_OK;
    }
    qv_status status = qv_check_cuda(dev, e, "cudaMemPoolCreate", err);
    if (!status)
        status = qv_check_cuda(dev,
                               cudaMemPoolSetAttribute(dev->frames_pool,
                                                       cudaMemPoolAttrReleaseThreshold, &kept),
                               "cudaMemPoolSetAttribute", err);
    if (!status)
        status =
            qv_check_cuda(dev,
                          cudaStreamCreateWithFlags(&dev->frames_stream, cudaStreamNonBlocking),
                          "cudaStreamCreate", err);
    return status;
}

void
qv_frames_close_cuda(struct qv_device_cuda *dev)
{
    if (dev->frames_stream)
        cudaStreamDestroy(dev->frames_stream);
    if (dev->frames_pool)
        cudaMemPoolDestroy(dev->frames_pool);
}

static qv_status
take(const struct qv_device_cuda *dev, cudaStream_t stream, size_t bytes, void *out, qv_error *err)
{
    cudaError_t e = cudaMallocFromPoolAsync(out, bytes ? bytes : 1, dev->frames_pool, stream);
    if (e != cudaErrorMemoryAllocation)
        return qv_check_cuda(NULL, e, "cudaMallocFromPoolAsync", err);
    cudaGetLastError();
    return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of frames on %s", bytes, dev->name);
}

/* Uploads an axis's tables to *at, and moves it past them. */
static qv_status
upload(cudaStream_t stream, const struct qv_axis *axis, char **at, struct qv_axis *out,
       qv_error *err)
{
    const size_t starts = qv_axis_start_bytes(axis), weights = qv_axis_weight_bytes(axis);
    *out = *axis;
    out->start = (int32_t *)(void *)*at;
    out->weights = (int16_t *)(void *)(*at + starts);
    *at += qv_aligned(starts + weights);
    cudaError_t e =
        cudaMemcpyAsync(out->start, axis->start, starts, cudaMemcpyHostToDevice, stream);
    if (!e)
        e = cudaMemcpyAsync(out->weights, axis->weights, weights, cudaMemcpyHostToDevice, stream);
    return qv_check_cuda(NULL, e, "cudaMemcpy", err);
}

static size_t
tables_bytes(const struct qv_axis *axis)
{
    return qv_aligned(qv_axis_start_bytes(axis) + qv_axis_weight_bytes(axis));
}

/* Resizes the frames of a view; tables and `between`, for `most` frames, are in the device's
 * memory. */
static qv_status
run_view(cudaStream_t stream, const struct qv_axis *down, const struct qv_axis *across,
         struct qv_frames_view view, void *between, int64_t most, uint8_t *dst, qv_error *err)
{
    const int64_t row = 3 * (int64_t)across->out, frames = view.n;
    cudaError_t e = cudaSuccess;
    for (int64_t done = 0; done < frames && !e; done += view.n) {
        view.n = frames - done < most ? frames - done : most;
        uint8_t *to = dst + done * down->out * row;
        e = qv_resize_across_cuda(stream, across, &view, down->in, between ? between : to);
        if (!e && between)
            e = qv_resize_down_cuda(stream, down, view.n, row, between, to);
        view.data += view.n * view.step[0];
    }
    return qv_check_cuda(NULL, e, "resize", err);
}

qv_status
qv_enqueue_resize_cuda(const struct qv_device_cuda *dev, cudaStream_t stream,
                       const struct qv_resize *r, void *dst, qv_error *err)
{
    const int64_t row = 3 * (int64_t)r->across.out, frame = r->down.in * row;
    const int64_t most = frame < BETWEEN_BYTES ? BETWEEN_BYTES / frame : 1;
    const bool high = r->down.in != r->down.out; /* else the second pass is left out */
    const size_t tables = tables_bytes(&r->down) + tables_bytes(&r->across);
    struct qv_axis down, across;
    char *scratch = NULL;
    uint8_t *to = dst;
    qv_status status =
        take(dev, stream, tables + (high ? (size_t)(most * frame) : 0), &scratch, err);
    if (status)
        return status;
    char *at = scratch;
    status = upload(stream, &r->down, &at, &down, err);
    if (!status)
        status = upload(stream, &r->across, &at, &across, err);
    for (size_t i = 0; i < r->n_views && !status; i++) {
        status = run_view(stream, &down, &across, r->views[i], high ? at : NULL, most, to, err);
        to += r->views[i].n * r->down.out * row;
    }
    cudaFreeAsync(scratch, stream);
    return status;
}

void *
qv_frames_stream_cuda(const struct qv_device *device)
{
    return device_cuda(device)->frames_stream;
}

qv_status
qv_resize_cuda(struct qv_device *device, const struct qv_resize *r, void **out, qv_error *err)
{
    const struct qv_device_cuda *dev = device_cuda(device);
    int64_t frames = 0;
    void *made = NULL;
    for (size_t i = 0; i < r->n_views; i++)
        frames += r->views[i].n;
    qv_status status = take(dev, dev->frames_stream,
                            (size_t)(frames * r->down.out * r->across.out * 3), &made, err);
    if (status)
        return status;
    status = qv_enqueue_resize_cuda(dev, dev->frames_stream, r, made, err);
    if (!status)
        status = qv_check_cuda(NULL, cudaStreamSynchronize(dev->frames_stream), "resize", err);
    if (status)
        cudaFreeAsync(made, dev->frames_stream);
    else
        *out = made;
    return status;
}

qv_status
qv_read_frames_cuda(struct qv_device *device, void *to, const void *frames, size_t bytes,
                    qv_error *err)
{
    const struct qv_device_cuda *dev = device_cuda(device);
    cudaError_t e = cudaMemcpyAsync(to, frames, bytes, cudaMemcpyDeviceToHost, dev->frames_stream);
    if (!e)
        e = cudaStreamSynchronize(dev->frames_stream);
    return qv_check_cuda(NULL, e, "cudaMemcpy", err);
}

void
qv_free_frames_cuda(struct qv_device *device, void *frames)
{
    cudaFreeAsync(frames, device_cuda(device)->frames_stream);
}
