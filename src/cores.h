/* SPDX-License-Identifier: MIT */
/* How many threads are worth starting. */
#pragma once

#include <sched.h>
#include <unistd.h>

/* Returns how many cores this process may use, at least 1. */
static inline int
qv_usable_cores(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return CPU_COUNT(&set);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
