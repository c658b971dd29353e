/* SPDX-License-Identifier: MIT */
/* `reserved` fields of options must be 0: a later version may give them a meaning, which no caller
 * may ask for by accident. */
#pragma once

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
