/* SPDX-License-Identifier: MIT */
#ifndef QV_TOOLS_BENCH_TREE_H
#define QV_TOOLS_BENCH_TREE_H

#include <stdint.h>

/* Says what this process and its descendants have used. */
struct bench_tree {
    double cpu_s;       /* time of all cores, with that of descendants that were waited for */
    int64_t peak_bytes; /* sum of the most resident memory of each that is there */
};

/* Reads /proc. All is 0 on systems without it. */
struct bench_tree bench_tree_look(void);

#endif
