/* SPDX-License-Identifier: MIT */
/* Puts computed tokens, f32 or bf16, into a cache that may be of f16. */
#ifndef QV_CACHE_HALVES_H
#define QV_CACHE_HALVES_H

#include "qwenvit_cache.h"

/* Writes rows: of bf16 for a cache of bf16, else of f32, and for an f16 cache with each value
 * rounded once. Returns QV_EUNSUPPORTED for a value that f16 cannot hold, which is the clip's
 * failure; all other failures are the cache's. */
qv_status qv_cache_put_rounded(const qv_cache_layout *layout, qv_cache_entry *entry,
                               const qv_tokens *rows, qv_error *err);

#endif
