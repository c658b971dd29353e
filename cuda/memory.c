/* SPDX-License-Identifier: MIT */
/* Device memory, and copies through pinned blocks on separate streams. */
#include <stdlib.h>

#include "cuda.h"

void
qv_free_cuda(struct qv_device *device, struct qv_memory *memory)
{
    if (!memory)
        return;
    /* waits for the device */
    qv_note_free_cuda(device_cuda(device), cudaFree(memory->base), "cudaFree");
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

qv_status
qv_alloc_cuda(struct qv_device *device, size_t bytes, struct qv_memory **out, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = QV_OK;
    struct qv_memory *memory = malloc(sizeof *memory);
    if (!memory)
        return qv_fail(err, QV_ENOMEM, "no memory to remember an allocation");
    *memory = (struct qv_memory){ NULL, bytes };
    cudaError_t e = cudaMalloc(&memory->base, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation)
        status = no_memory(dev, bytes, err);
    else
        status = qv_check_cuda(dev, e, "cudaMalloc", err);
    if (!status)
        status = qv_check_cuda(dev, cudaMemsetAsync(memory->base, 0, bytes, dev->stream),
                               "cudaMemset", err);
    if (!status) /* copies into it run on other streams */
        status = qv_check_cuda(dev, cudaStreamSynchronize(dev->stream), "cudaMemset", err);
    if (status)
        qv_free_cuda(device, memory);
    else
        *out = memory;
    return status;
}

/* Allocates pinned memory. Another thread may be using the device, so this does not write to dev or
 * record a loss. */
qv_status
qv_lock_pages_cuda(struct qv_device *device, size_t bytes, void **out, qv_error *err)
{
    void *p = NULL;
    (void)device;
    qv_status status =
        qv_check_cuda(NULL, cudaHostAlloc(&p, bytes, cudaHostAllocPortable), "cudaHostAlloc", err);
    if (!status)
        *out = p;
    return status;
}

void
qv_unlock_pages_cuda(struct qv_device *device, void *p)
{
    (void)device;
    cudaFreeHost(p);
}

/* ---- where a caller's pointer points --------------------------------------------------------- */

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

enum { WRAP_ALIGNMENT = 16 }; /* the alignment that kernels, cuBLASLt and cuDNN were prepared for */

bool
qv_wrap_cuda(struct qv_device *device, const void *p, size_t bytes, struct qv_memory *out)
{
    struct qv_device_cuda *dev = device_cuda(device);
    if ((uintptr_t)p % WRAP_ALIGNMENT || place_of(dev, p) != ON_DEVICE)
        return false;
    *out = (struct qv_memory){ (void *)p, bytes };
    return true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

qv_status
qv_staging_open_cuda(struct qv_device_cuda *dev, struct staging_cuda *s, qv_error *err)
{
    qv_status status = QV_OK;
    for (int i = 0; i < STAGING_BLOCKS && !status; i++) {
        status =
            qv_check_cuda(dev, cudaMallocHost(&s->blocks[i], STAGING_BYTES), "cudaMallocHost", err);
        if (!status)
            status =
                qv_check_cuda(dev, cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming),
                              "cudaEventCreate", err);
    }
    return status;
}

void
qv_staging_close_cuda(struct staging_cuda *s)
{
    for (int i = 0; i < STAGING_BLOCKS; i++) {
        if (s->done[i])
            cudaEventDestroy(s->done[i]);
        if (s->blocks[i])
            cudaFreeHost(s->blocks[i]);
    }
}

/* Lets the device copy without a block. wait: until the copy is done, because src or dst belongs to
 * the caller and the stream does not. */
static qv_status
copy_directly(struct qv_device_cuda *dev, struct staging_cuda *s, void *dst, const void *src,
              size_t bytes, bool wait, qv_error *err)
{
    qv_status status =
        qv_check_cuda(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream),
                      "cudaMemcpy", err);
    if (!status && wait)
        status = qv_check_cuda(dev, cudaStreamSynchronize(s->stream), "cudaMemcpy", err);
    return status;
}

/* Finds room for n bytes, after the last copy in its block or in the next block. */
static qv_status
make_room(struct qv_device_cuda *dev, struct staging_cuda *s, size_t n, qv_error *err)
{
    if (s->used + n <= STAGING_BYTES)
        return QV_OK;
    s->at = (s->at + 1) % STAGING_BLOCKS;
    s->used = 0;
    return qv_check_cuda(dev, cudaEventSynchronize(s->done[s->at]), "cudaMemcpy", err);
}

static qv_status
upload_staged(struct qv_device_cuda *dev, char *dst, const char *src, size_t bytes, qv_error *err)
{
    struct staging_cuda *s = &dev->in;
    qv_status status = QV_OK;
    for (size_t at = 0; at < bytes && !status; at += STAGING_BYTES) {
        size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        status = make_room(dev, s, n, err);
        if (status)
            break;
        char *room = (char *)s->blocks[s->at] + s->used;
        s->used += qv_aligned(n);
        qv_copier_copy(dev->copier, room, src + at, n);
        status = copy_directly(dev, s, dst + at, room, n, false, err);
        if (!status)
            status = qv_check_cuda(dev, cudaEventRecord(s->done[s->at], s->stream),
                                   "cudaEventRecord", err);
    }
    return status;
}

qv_status
qv_upload_cuda(struct qv_device *device, struct qv_buffer dst, const void *src, size_t bytes,
               qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    enum place place = place_of(dev, src);
    bool staged = place == PAGEABLE || (place == PINNED && !dev->own_stream);
    qv_status status =
        staged ? upload_staged(dev, address_cuda(dst), src, bytes, err)
               : copy_directly(dev, &dev->in, address_cuda(dst), src, bytes, dev->own_stream, err);
    if (!status && dev->own_stream) {
        status = qv_check_cuda(dev, cudaEventRecord(dev->uploaded, dev->in.stream),
                               "cudaEventRecord", err);
        dev->uploads = true;
    }
    return status;
}

enum { DOWNLOADS = 64 }; /* parts that share blocks and a wait */

/* A place in a list of parts. Parts in pageable memory go through the blocks. */
struct cursor {
    const struct qv_download *parts;
    size_t n, part, at;
    bool *pageable;
};

/* Iterates over the next block's parts: the device fills it (out false), or the host empties it. */
static qv_status
pass_block(struct qv_device_cuda *dev, struct cursor *c, char *block, bool out, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t used = 0; c->part < c->n && used < STAGING_BYTES && !status;) {
        const struct qv_download *p = &c->parts[c->part];
        const size_t room = STAGING_BYTES - used, left = p->bytes - c->at;
        const size_t n = !c->pageable[c->part] ? 0 : left < room ? left : room;
        if (n && out)
            qv_copier_copy(dev->copier, (char *)p->dst + c->at, block + used, n);
        else if (n)
            status = copy_directly(dev, &dev->out, block + used,
                                   (char *)address_cuda(p->src) + c->at, n, false, err);
        used += qv_aligned(n);
        c->at += n;
        if (n == left || !c->pageable[c->part]) {
            c->at = 0;
            c->part++;
        }
    }
    return status;
}

/* Downloads through the blocks: the device fills up to AHEAD blocks while the host empties one. */
static qv_status
download_staged(struct qv_device_cuda *dev, struct cursor from, qv_error *err)
{
    enum { AHEAD = STAGING_BLOCKS - 1 };
    struct staging_cuda *s = &dev->out;
    struct cursor to = from;
    qv_status status = QV_OK;
    for (size_t i = 0; to.part < to.n && !status; i++) {
        if (from.part < from.n) {
            status = pass_block(dev, &from, s->blocks[i % STAGING_BLOCKS], false, err);
            if (!status)
                status = qv_check_cuda(dev, cudaEventRecord(s->done[i % STAGING_BLOCKS], s->stream),
                                       "cudaEventRecord", err);
        }
        if (i < AHEAD || status)
            continue;
        const size_t block = (i - AHEAD) % STAGING_BLOCKS;
        status = qv_check_cuda(dev, cudaEventSynchronize(s->done[block]), "cudaMemcpy", err);
        if (!status)
            status = pass_block(dev, &to, s->blocks[block], true, err);
    }
    return status;
}

static qv_status
download_some(struct qv_device_cuda *dev, const struct qv_download *parts, size_t n, qv_error *err)
{
    bool pageable[DOWNLOADS], wait = false, staged = false;
    qv_status status = QV_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const enum place place = place_of(dev, parts[i].dst);
        pageable[i] = place == PAGEABLE;
        staged = staged || pageable[i];
        if (pageable[i])
            continue;
        status = copy_directly(dev, &dev->out, parts[i].dst, address_cuda(parts[i].src),
                               parts[i].bytes, false, err);
        wait = wait || dev->own_stream || place == PINNED;
    }
    if (!status && staged)
        status = download_staged(dev, (struct cursor){ parts, n, .pageable = pageable }, err);
    if (!status && wait)
        status = qv_check_cuda(dev, cudaStreamSynchronize(dev->out.stream), "cudaMemcpy", err);
    return status;
}

qv_status
qv_download_cuda(struct qv_device *device, const struct qv_download *parts, size_t n, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = QV_OK;
    if (dev->own_stream) /* the last upload may still be on its way */
        status = qv_check_cuda(dev, cudaStreamWaitEvent(dev->out.stream, dev->uploaded, 0),
                               "cudaStreamWaitEvent", err);
    for (size_t i = 0; i < n && !status; i += DOWNLOADS)
        status = download_some(dev, parts + i, n - i < DOWNLOADS ? n - i : DOWNLOADS, err);
    return status;
}
