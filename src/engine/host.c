/* SPDX-License-Identifier: MIT */
/* Host memory for the backends that compute on the host, and a reordering of weights that is needed
 * for their layout. */
#include "backend.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "clock.h"
#include "dtype.h"
#include "error.h"

void
qv_channels_last(const struct qv_matrix *matrix, const void *src, void *dst)
{
    const struct qv_op_conv *op = &matrix->conv->u.conv;
    size_t element = qv_dtype_bytes(matrix->dtype);
    int64_t c = op->c / op->groups, taps = matrix->k / c;
    const char *from = src;
    char *to = dst;
    for (int64_t o = 0; o < matrix->n; o++, from += (size_t)matrix->k * element)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < c; i++, to += element)
                memcpy(to, from + (size_t)(i * taps + t) * element, element);
}

/* Large buffers get huge pages: weights are read from end to end for every chunk, and each small
 * page costs a page-table walk. PAGE_ALIGNMENT is the page size of Apple's systems; few systems
 * have larger pages. */
enum { HOST_ALIGNMENT = 64, PAGE_ALIGNMENT = 16 << 10, HUGE_PAGE = 2 << 20 };

/* Allocates at least one byte more than requested. */
static void *
host_memory(size_t bytes, size_t least_alignment, size_t *rounded)
{
    size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : least_alignment;
    *rounded = (bytes + alignment) & ~(alignment - 1);
    void *base = *rounded > bytes ? aligned_alloc(alignment, *rounded) : NULL;
#ifdef MADV_HUGEPAGE
    if (base && alignment == HUGE_PAGE)
        madvise(base, *rounded, MADV_HUGEPAGE); /* a hint: nothing depends on it */
#endif
    return base;
}

qv_status
qv_host_alloc_pages(size_t bytes, void **out, qv_error *err)
{
    size_t rounded;
    void *base = host_memory(bytes, PAGE_ALIGNMENT, &rounded);
    if (!base)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes on the host", bytes);
    *out = base;
    return QV_OK;
}

qv_status
qv_host_alloc_memory(struct qv_device *dev, size_t bytes, struct qv_memory **out, qv_error *err)
{
    (void)dev;
    struct qv_memory *memory = malloc(sizeof *memory);
    size_t rounded;
    void *base = host_memory(bytes, HOST_ALIGNMENT, &rounded);
    if (!memory || !base) {
        free(memory);
        free(base);
        return qv_fail(err, QV_ENOMEM, "no memory for %zu bytes on the host", bytes);
    }
    memset(base, 0, rounded); /* this also takes the page faults here rather than while encoding */
    *memory = (struct qv_memory){ base, bytes };
    *out = memory;
    return QV_OK;
}

void
qv_host_free_memory(struct qv_device *dev, struct qv_memory *memory)
{
    (void)dev;
    if (memory)
        free(memory->base);
    free(memory);
}

qv_status
qv_host_upload(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
               qv_error *err)
{
    (void)dev;
    (void)err;
    memcpy(qv_host_pointer(dst), src, bytes);
    return QV_OK;
}

qv_status
qv_host_download(struct qv_device *dev, const struct qv_download *parts, size_t n, qv_error *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < n; i++)
        memcpy(parts[i].dst, qv_host_pointer(parts[i].src), parts[i].bytes);
    return QV_OK;
}

bool
qv_host_wrap(struct qv_device *dev, const void *p, size_t bytes, struct qv_memory *out)
{
    (void)dev;
    if ((uintptr_t)p % HOST_ALIGNMENT)
        return false;
    *out = (struct qv_memory){ (void *)p, bytes };
    return true;
}

qv_status
qv_host_mark(struct qv_device *dev, int mark, qv_error *err)
{
    (void)err;
    dev->marks_s[mark] = qv_seconds();
    return QV_OK;
}

qv_status
qv_host_wait(struct qv_device *dev, int mark, qv_error *err)
{
    (void)dev;
    (void)mark;
    (void)err;
    return QV_OK;
}

qv_status
qv_host_elapsed(struct qv_device *dev, int begin, int end, double *ms, qv_error *err)
{
    (void)err;
    *ms = (dev->marks_s[end] - dev->marks_s[begin]) * 1e3;
    return QV_OK;
}

qv_status
qv_host_sync(struct qv_device *dev, qv_error *err)
{
    (void)dev;
    (void)err;
    return QV_OK;
}
