/* SPDX-License-Identifier: MIT */
/* Tests which kernels of a build a GPU is said to run, by NVIDIA's rules. Needs neither a GPU nor
 * CUDA. */

#include "test.h"

#include "architectures.h"

#define ALL 80, 86, 89, 90, 100, 103, 120

TEST(every_gpu_by_the_rules)
{
    static const struct {
        int built[8], sm;
        enum code_cuda code;
        int from;
    } cases[] = {
        { { ALL }, 80, CODE_RUNS, 80 },
        { { ALL }, 86, CODE_RUNS, 86 },
        { { ALL }, 90, CODE_RUNS, 90 },
        { { ALL }, 120, CODE_RUNS, 120 },
        { { ALL }, 121, CODE_RUNS, 120 },     /* DGX Spark */
        { { 80, 90 }, 89, CODE_RUNS, 80 },    /* a lower minor of the same major */
        { { 80, 100 }, 103, CODE_RUNS, 100 }, /* B300 */
        { { ALL }, 130, CODE_COMPILED, 120 }, /* another major: PTX alone */
        { { 80, 90 }, 100, CODE_COMPILED, 90 },
        { { 80 }, 90, CODE_COMPILED, 80 },
        { { 90 }, 80, CODE_NONE, 0 }, /* neither machine code nor PTX runs on older ones */
        { { 86, 90 }, 80, CODE_NONE, 0 },
        { { 89 }, 86, CODE_NONE, 0 },
        { { 120 }, 100, CODE_NONE, 0 },
        { { 80, 120 }, 90, CODE_NONE, 0 }, /* PTX is the last one's alone */
        { { 80, 87 }, 87, CODE_RUNS, 87 }, /* Tegra: its own, or PTX */
        { { ALL }, 87, CODE_UNSURE, 86 },
        { { 80 }, 87, CODE_COMPILED, 80 },
        { { 87 }, 89, CODE_COMPILED, 87 },
        { { 87, 90 }, 89, CODE_UNSURE, 87 },
        { { ALL }, 110, CODE_NONE, 0 },
        { { 80, 90, 110 }, 110, CODE_RUNS, 110 },
        { { 0 }, 90, CODE_NONE, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int from = -1;
        const enum code_cuda code = qv_find_code_cuda(cases[i].built, cases[i].sm, &from);
        if (code != cases[i].code || from != cases[i].from)
            fail_msg("case %zu, sm_%d: code %d from %d, not %d from %d", i, cases[i].sm, (int)code,
                     from, (int)cases[i].code, cases[i].from);
    }
}
