/* SPDX-License-Identifier: MIT */
/* Runs lists of calls as command buffers, one or several per list; sets marks in the work and waits
 * for them. */
#include "metal.h"

#include <string.h>

/* ---- waiting --------------------------------------------------------------------------------- */

/* Keeps the GPU's times for marks next to command buffer number `sequence`, which counts from 1. */
static void
note_times(struct qv_device_metal *dev, id<MTLCommandBuffer> done, uint64_t sequence)
{
    dev->last_end_s = [done GPUEndTime];
    for (int i = 0; i < QV_MARKS; i++) {
        struct mark_metal *m = &dev->marks[i];
        if (m->sequence == sequence)
            m->end_s = [done GPUEndTime];
        if (m->sequence + 1 == sequence)
            m->next_start_s = [done GPUStartTime];
    }
}

/* Waits for the oldest command buffers until `sequence` of them have ended. The first failed buffer
 * determines the error. */
static qv_status
wait_until(struct qv_device_metal *dev, uint64_t sequence, qv_error *err)
{
    qv_status status = QV_OK;
    while (dev->n_pending && dev->committed - dev->n_pending < sequence) {
        id<MTLCommandBuffer> oldest = dev->pending[0];
        [oldest waitUntilCompleted];
        note_times(dev, oldest, dev->committed - dev->n_pending + 1);
        if ([oldest status] == MTLCommandBufferStatusError && !status) {
            NSError *error = [oldest error];
            status = qv_fail(err, QV_EBACKEND, "the work on %s failed: Metal reported \"%.300s\"",
                             dev->name,
                             error ? [[error localizedDescription] UTF8String] : "no reason given");
        }
        [oldest release];
        dev->n_pending--;
        memmove(dev->pending, dev->pending + 1, dev->n_pending * sizeof *dev->pending);
    }
    return status;
}

qv_status
qv_mark_metal(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    (void)err;
    dev->marks[mark] = (struct mark_metal){ dev->committed, dev->last_end_s, 0 };
    return QV_OK;
}

qv_status
qv_wait_metal(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    qv_status status;
    @autoreleasepool {
        status = wait_until(dev, dev->marks[mark].sequence, err);
    }
    return status;
}

/* Counts from the start of the first work after `begin`, so that the GPU's idle time before it is
 * left out. */
qv_status
qv_elapsed_metal(struct qv_device *device, int begin, int end, double *ms, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    const struct mark_metal *b = &dev->marks[begin], *e = &dev->marks[end];
    (void)err;
    *ms = b->sequence == e->sequence ? 0 : (e->end_s - b->next_start_s) * 1e3;
    return QV_OK;
}

qv_status
qv_sync_metal(struct qv_device *device, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    qv_status status;
    @autoreleasepool {
        status = wait_until(dev, dev->committed, err);
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* A command buffer that is being filled; buffer nil: there is none. */
struct filling {
    id<MTLCommandBuffer> buffer;
    id<MTLComputeCommandEncoder> encoder;
    struct batch_metal batch;
};

static void
encode(struct qv_device_metal *dev, id<MTLComputeCommandEncoder> encoder,
       const struct qv_call *call, const struct launch_metal *launch)
{
    const uint32_t *groups = launch->groups;
    [encoder setComputePipelineState:call->kernel->pipeline];
    [encoder setBytes:&launch->args length:sizeof launch->args atIndex:0];
    for (int i = 0; i < qv_op_n_operands(call->kernel->op.kind); i++) {
        struct qv_buffer b = call->operands[i];
        [encoder setBuffer:b.memory ? (id<MTLBuffer>)b.memory->base : dev->nothing
                    offset:b.memory ? b.offset : 0
                   atIndex:(NSUInteger)i + 1];
    }
    if (launch->threadgroup_bytes)
        [encoder setThreadgroupMemoryLength:launch->threadgroup_bytes atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(groups[0], groups[1], groups[2])
            threadsPerThreadgroup:MTLSizeMake(launch->threads, 1, 1)];
}

static void
commit(struct qv_device_metal *dev, struct filling *f)
{
    if (!f->buffer)
        return;
    [f->encoder endEncoding];
    [f->buffer commit];
    dev->pending[dev->n_pending++] = [f->buffer retain];
    dev->committed++;
    *f = (struct filling){ 0 };
}

/* One encoder runs its dispatches in order, and the queue its buffers; each dispatch sees what
 * earlier ones wrote. */
static qv_status
begin(struct qv_device_metal *dev, struct filling *f, qv_error *err)
{
    qv_status status = QV_OK;
    if (dev->n_pending == MOST_PENDING)
        status = wait_until(dev, dev->committed - MOST_PENDING + 1, err);
    if (status)
        return status;
    id<MTLCommandBuffer> buffer = [dev->queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
    if (!encoder)
        return qv_fail(err, QV_EBACKEND, "%s cannot make a command buffer", dev->name);
    *f = (struct filling){ .buffer = buffer, .encoder = encoder };
    return QV_OK;
}

/* Adds a call, in as many pieces as it has, each to a buffer that has room for it. */
static qv_status
add(struct qv_device_metal *dev, struct filling *f, const struct qv_call *call, qv_error *err)
{
    const struct launch_metal *launch = &call->kernel->launch;
    const uint32_t pieces = qv_launch_pieces_metal(launch);
    for (uint32_t i = 0; i < pieces; i++) {
        struct launch_metal piece;
        qv_launch_piece_metal(launch, i, &piece);
        if (f->buffer && !qv_batch_add_metal(&f->batch, piece.seconds))
            commit(dev, f);
        if (!f->buffer) {
            qv_status status = begin(dev, f, err);
            if (status)
                return status;
            qv_batch_add_metal(&f->batch, piece.seconds);
        }
        encode(dev, f->encoder, call, &piece);
    }
    return QV_OK;
}

/* If a call fails, earlier calls are still run, because some may already be running. */
static qv_status
run_all(struct qv_device_metal *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    struct filling f = { 0 };
    qv_status status = QV_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = add(dev, &f, &calls[i], err);
    commit(dev, &f);
    return status;
}

qv_status
qv_run_metal(struct qv_device *device, const struct qv_call *calls, size_t n, qv_error *err)
{
    qv_status status;
    @autoreleasepool {
        status = run_all(device_metal(device), calls, n, err);
    }
    return status;
}
