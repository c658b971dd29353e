/* SPDX-License-Identifier: MIT */
/* Stands in for `qwenvit cache` in a build that cannot have it. */
#include "cache_command.h"

int
tool_cache(const struct tool_options *o)
{
    (void)o;
    tool_complain("cache: this qwenvit was built without xxhash, which caches need "
                  "(cmake -DQV_XXHASH=ON)");
    return TOOL_DEVICE;
}

int
tool_cache_status(const struct tool_options *o)
{
    return tool_cache(o);
}

int
tool_cache_run_on(const struct tool_options *o, struct tool_devices *devices,
                  struct tool_cache_times *times)
{
    (void)devices;
    *times = (struct tool_cache_times){ 0 };
    return tool_cache(o);
}
