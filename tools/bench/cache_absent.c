/* SPDX-License-Identifier: MIT */
/* In place of `qwenvit bench cache` in a build that has no caches. */
#include "bench.h"

const struct bench_parts *const bench_parts = NULL;

int
bench_cache(const struct tool_options *o)
{
    return tool_cache(o); /* which says so */
}
