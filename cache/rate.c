/* SPDX-License-Identifier: MIT */
/* Measures how fast a cache was filled, from the times at which its parts were sealed. */
#include <string.h>

#include "reader.h"

/* Returns the length of the prefix of a part's name that all parts of a run share, up to the count;
 * 0 if it has no count, or replaced another part. */
static size_t
run_bytes(const char *name)
{
    const char *dash = strrchr(name, '-');
    const size_t digits = dash ? strspn(dash + 1, "0123456789") : 0;
    return digits && !strcmp(dash + 1 + digits, ".safetensors") ? (size_t)(dash + 1 - name) : 0;
}

/* Measures one run, whose parts are [first, end). */
static bool
measure(const struct qv_index_part *first, const struct qv_index_part *end, qv_cache_rate *out,
        int64_t *last_ns)
{
    const struct qv_index_part *begin = first;
    *out = (qv_cache_rate){ .parts = end - first };
    *last_ns = first->head.sealed_ns;
    for (const struct qv_index_part *p = first; p < end; p++) {
        begin = p->head.sealed_ns < begin->head.sealed_ns ? p : begin;
        *last_ns = p->head.sealed_ns > *last_ns ? p->head.sealed_ns : *last_ns;
        out->clips += (int64_t)p->head.n_rows;
        out->tokens += (int64_t)p->rows;
    }
    out->clips -= (int64_t)begin->head.n_rows;
    out->tokens -= (int64_t)begin->rows;
    out->seconds = 1e-9 * (double)(*last_ns - begin->head.sealed_ns);
    return out->seconds > 0 && out->clips > 0;
}

bool
qv_cache_last_rate(const qv_cache *c, qv_cache_rate *out)
{
    if (!c || !out)
        return false;
    const struct qv_index_part *parts = c->index.parts;
    const size_t n = c->index.n_parts;
    int64_t latest = -1, last = 0;
    qv_cache_rate rate;
    for (size_t i = 0, next; i < n; i = next) { /* parts are sorted by name, so a run's parts are
                                                 * adjacent */
        const size_t bytes = run_bytes(parts[i].name);
        bool whole = bytes && !parts[i].damaged;
        for (next = i + 1; next < n && bytes && !strncmp(parts[i].name, parts[next].name, bytes);
             next++)
            whole = whole && run_bytes(parts[next].name) == bytes && !parts[next].damaged;
        if (whole && measure(parts + i, parts + next, &rate, &last) && last > latest) {
            latest = last;
            *out = rate;
        }
    }
    return latest >= 0;
}
