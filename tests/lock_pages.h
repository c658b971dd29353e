/* SPDX-License-Identifier: MIT */
/* The functions of a backend that locks pages, which makes a context keep blocks for all
 * threads. */
#pragma once

#include <stdlib.h>

#include "engine/backend.h"

static inline qv_status
lock_pages(struct qv_device *dev, size_t bytes, void **out, qv_error *err)
{
    return qv_host_alloc_pages(bytes, out, err);
}

static inline void
unlock_pages(struct qv_device *dev, void *p)
{
    free(p);
}
