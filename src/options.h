/* SPDX-License-Identifier: MIT */
/* Of an options struct: what a later version may mean by `reserved` must not be asked for by chance. */
#ifndef QV_OPTIONS_H
#define QV_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool
qv_all_zero(const uint64_t *reserved, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (reserved[i])
            return false;
    return true;
}
#define QV_RESERVED_IS_ZERO(o)                                                                     \
    qv_all_zero((o)->reserved, sizeof(o)->reserved / sizeof *(o)->reserved)

#endif
