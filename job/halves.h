/* SPDX-License-Identifier: MIT */
/* Puts computed tokens, f32 or bf16, into a cache that may be of f16. */
#pragma once

#include "cache/writer.h"

/* Writes rows, bf16 for a cache of bf16, else f32, each value rounded once for an f16 one. Returns
 * QV_EUNSUPPORTED, the clip's failure, for a value that f16 cannot hold; the rest are the
 * cache's. */
qv_status qv_cache_put_rounded(const qv_cache_layout *layout, qv_cache_entry *entry,
                               const qv_tokens *rows, qv_error *err);
