/* SPDX-License-Identifier: MIT */
/* Arrays that grow. */
#pragma once

#include <stdlib.h>

/* Returns the array of n items with room for one more, or NULL if out of memory; the old array then
 * stays valid. */
static inline void *
qv_grown(void *items, size_t n, size_t *room, size_t item_bytes)
{
    const size_t more = n < *room ? *room : 2 * *room + 32;
    void *grown = n < *room ? items : realloc(items, more * item_bytes);
    *room = grown ? more : *room;
    return grown;
}
