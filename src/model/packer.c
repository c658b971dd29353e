/* SPDX-License-Identifier: MIT */
#include "packer.h"

#include <string.h>

size_t
qv_pack_choose(const qv_capacity *chunk, const struct qv_pack_run *waiting, size_t n,
               int64_t taken[QV_FEEDER_PIECES])
{
    qv_capacity left = *chunk;
    size_t used = 0;
    n = n < QV_FEEDER_PIECES ? n : QV_FEEDER_PIECES;
    memset(taken, 0, QV_FEEDER_PIECES * sizeof *taken);
    for (size_t best = 0; best < n; used++) {
        const struct qv_pack_run *run = &waiting[best];
        const int64_t fit = qv_capacity_fits(&left, &run->pair);
        taken[best] = fit < run->pairs ? fit : run->pairs;
        qv_capacity_count(&left, -taken[best], &run->pair);
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && qv_capacity_fits(&left, &waiting[i].pair) &&
                (best == n || waiting[i].pair.patches > waiting[best].pair.patches))
                best = i;
    }
    return used;
}
