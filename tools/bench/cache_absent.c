/* SPDX-License-Identifier: MIT */
/* Stands in for `qwenvit bench cache` in a build without caches. */
#include "bench.h"

const struct bench_parts *const bench_parts = NULL;

int
bench_cache(const struct tool_options *o)
{
    return tool_cache(o); /* reports that this build has no caches */
}
