/* SPDX-License-Identifier: MIT */
#include "packer.h"

size_t
qv_packer_choose(const struct qv_capacity *capacity, const struct qv_waiting *waiting, size_t n,
                 size_t chosen[QV_LOOK_AHEAD])
{
    int64_t rows = capacity->rows, segments = capacity->segments, windows = capacity->windows;
    bool taken[QV_LOOK_AHEAD] = { false };
    size_t best = 0, used = 0;
    n = n < QV_LOOK_AHEAD ? n : QV_LOOK_AHEAD;
    while (best < n) {
        taken[best] = true;
        rows -= waiting[best].rows;
        segments -= waiting[best].segments;
        windows -= waiting[best].windows;
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && waiting[i].rows <= rows && waiting[i].segments <= segments &&
                waiting[i].windows <= windows &&
                (best == n || waiting[i].rows > waiting[best].rows))
                best = i;
    }
    for (size_t i = 0; i < n; i++)
        if (taken[i])
            chosen[used++] = i;
    return used;
}
