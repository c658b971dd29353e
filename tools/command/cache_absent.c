/* SPDX-License-Identifier: MIT */
/* In place of `qwenvit cache` in a build that cannot have it. */
#include "tool.h"

int
tool_cache(const struct tool_options *o)
{
    (void)o;
    tool_complain("cache: this qwenvit was built without xxhash, which caches need "
                  "(cmake -DQV_XXHASH=ON)");
    return TOOL_DEVICE;
}
