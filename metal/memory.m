/* SPDX-License-Identifier: MIT */
/*
 * Memory shared by CPU and GPU. The CPU does the copying, and weights are laid out where the GPU
 * reads them.
 */
#include "metal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtype.h"

static char *
contents(struct qv_buffer b)
{
    return (char *)[(id<MTLBuffer>)b.memory->base contents] + b.offset;
}

qv_status
qv_alloc_metal(struct qv_device *device, size_t bytes, struct qv_memory **out, qv_error *err)
{
    struct qv_device_metal *dev = device_metal(device);
    size_t most = [dev->gpu maxBufferLength];
    if (bytes > most)
        return qv_fail(err, QV_ENOMEM, "%zu bytes: a buffer on %s can have at most %zu", bytes,
                       dev->name, most);
    struct qv_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return qv_fail(err, QV_ENOMEM, "no memory for a buffer");
    id<MTLBuffer> buffer = [dev->gpu newBufferWithLength:bytes ? bytes : 1
                                                 options:MTLResourceStorageModeShared];
    if (!buffer) {
        free(memory);
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes on %s", bytes, dev->name);
    }
    memset([buffer contents], 0, bytes);
    *memory = (struct qv_memory){ buffer, bytes };
    *out = memory;
    return QV_OK;
}

void
qv_free_metal(struct qv_device *device, struct qv_memory *memory)
{
    if (!memory)
        return;
    qv_unwrap_metal(device, memory);
    free(memory);
}

/* Wraps whole pages only. */
bool
qv_wrap_metal(struct qv_device *device, const void *p, size_t bytes, struct qv_memory *out)
{
    struct qv_device_metal *dev = device_metal(device);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)p % page || bytes % page || !bytes || bytes > [dev->gpu maxBufferLength])
        return false;
    id<MTLBuffer> buffer = [dev->gpu newBufferWithBytesNoCopy:(void *)p
                                                       length:bytes
                                                      options:MTLResourceStorageModeShared
                                                  deallocator:nil];
    *out = (struct qv_memory){ buffer, bytes };
    return buffer != nil;
}

void
qv_unwrap_metal(struct qv_device *device, struct qv_memory *memory)
{
    (void)device;
    [(id<MTLBuffer>)memory->base release];
    memory->base = NULL;
}

qv_status
qv_upload_metal(struct qv_device *device, struct qv_buffer dst, const void *src, size_t bytes,
                qv_error *err)
{
    (void)device;
    (void)err;
    memcpy(contents(dst), src, bytes);
    return QV_OK;
}

qv_status
qv_download_metal(struct qv_device *device, const struct qv_download *parts, size_t n,
                  qv_error *err)
{
    (void)device;
    (void)err;
    for (size_t i = 0; i < n; i++)
        memcpy(parts[i].dst, contents(parts[i].src), parts[i].bytes);
    return QV_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* A gemm's weights stay as they are. A convolution's become channels-last and are laid out as a
 * whole. */
qv_status
qv_layout_metal(struct qv_device *device, const struct qv_matrix *matrix, struct qv_layout *out,
                qv_error *err)
{
    (void)device;
    (void)err;
    *out = (struct qv_layout){ (size_t)matrix->n * qv_matrix_row_bytes(matrix),
                               matrix->conv ? matrix->n : 1 };
    return QV_OK;
}

qv_status
qv_lay_out_metal(struct qv_device *device, const struct qv_matrix *matrix, int64_t row0,
                 int64_t rows, const void *src, struct qv_buffer dst, qv_error *err)
{
    if (matrix->conv) {
        qv_channels_last(matrix, src, contents(dst));
        return QV_OK;
    }
    dst.offset += (size_t)row0 * qv_matrix_row_bytes(matrix);
    return qv_upload_metal(device, dst, src, (size_t)rows * qv_matrix_row_bytes(matrix), err);
}
