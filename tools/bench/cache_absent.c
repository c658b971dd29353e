/* SPDX-License-Identifier: MIT */
/* Stands in for `qwenvit bench cache` in a build without caches. */
#include "bench.h"
#include "error.h"

const struct bench_parts *const bench_parts = NULL;

qv_status
bench_cache(const struct tool_options *o, qv_error *err)
{
    (void)o;
    return qv_fail(err, QV_EBACKEND,
                   "cache: this qwenvit was built without xxhash, which caches need "
                   "(cmake -DQV_XXHASH=ON)");
}
