/* SPDX-License-Identifier: MIT */
/* In place of `qwenvit bench cache` in a build that has no caches. */
#include "bench.h"

const bool bench_has_cache = false;

int
bench_cache(const struct tool_options *o)
{
    return tool_cache(o); /* which says so */
}
