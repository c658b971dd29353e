/* SPDX-License-Identifier: MIT */
/* The clock by which everything is timed. */
#ifndef QV_CLOCK_H
#define QV_CLOCK_H

#include <time.h>

/* Seconds of CLOCK_MONOTONIC. Whoever includes this asks for POSIX first. */
static inline double
qv_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
