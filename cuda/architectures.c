/* SPDX-License-Identifier: MIT */
#include "architectures.h"

#include <stdbool.h>
#include <stddef.h>

static bool
is_tegra(int sm)
{
    static const int orin = 87, thor[] = { 101, 110 }; /* CUDA 13 renamed 10.1 to 11.0 */
    return sm == orin || sm == thor[0] || sm == thor[1];
}

enum code_cuda
qv_find_code_cuda(const int *built, int sm, int *from)
{
    int lower = 0, doubtful = 0, last = 0; /* the highest architectures of each kind */
    for (; *built; built++) {
        const bool promised = *built == sm || (!is_tegra(sm) && !is_tegra(*built));
        int *best = promised ? &lower : &doubtful;
        if (*built / 10 == sm / 10 && *built <= sm && *built > *best)
            *best = *built;
        last = *built;
    }
    const int ptx = last <= sm ? last : 0;
    *from = lower ? lower : ptx ? ptx : doubtful;
    return lower ? CODE_RUNS : ptx ? CODE_COMPILED : doubtful ? CODE_UNSURE : CODE_NONE;
}
