/* SPDX-License-Identifier: MIT */
/* The table of backends, best first. */
#include "backend.h"

#include <string.h>

/* `auto` uses the first backend that opens. The emulated Metal device is for tests and comes last,
 * so that only callers who name it get it. */
const struct qv_backend *const qv_backends[] = {
#ifdef QV_CUDA_STATIC
    &qv_backend_cuda,
#elif !defined(__APPLE__)
    &qv_backend_library_cuda,
#endif
#if defined(QV_WITH_METAL) && defined(__APPLE__)
    &qv_backend_metal,
#endif
#ifdef QV_WITH_CPU
    &qv_backend_cpu,
#endif
    &qv_backend_ref,
#if defined(QV_WITH_METAL) && !defined(__APPLE__)
    &qv_backend_metal,
#endif
    NULL,
};

const struct qv_backend *
qv_backend_find(const char *name)
{
    for (const struct qv_backend *const *b = qv_backends; *b; b++)
        if (!strcmp((*b)->name, name))
            return *b;
    return NULL;
}

void
qv_unwrap(struct qv_device *dev, struct qv_memory *memory)
{
    if (dev->backend->unwrap)
        dev->backend->unwrap(dev, memory);
}
