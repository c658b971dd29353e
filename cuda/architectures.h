/* SPDX-License-Identifier: MIT */
/* Finds which of a build's kernels a GPU runs. A pure function that does not need CUDA. */
#pragma once

/* The kernels that a GPU runs: */
enum code_cuda {
    CODE_RUNS,     /* machine code built for it, or for a lower minor version of the same major */
    CODE_COMPILED, /* PTX of the newest architecture, which the driver compiles at first use */
    CODE_UNSURE,   /* machine code for a lower minor version, without NVIDIA's promise that it
                    * runs */
    CODE_NONE      /* none */
};

/* Finds the kernels for a GPU. built: compute capabilities, 90 for 9.0, ended by 0; each has
 * machine code, and the last also has PTX. sm: the GPU's capability. *from: the entry of `built`
 * that it runs, or 0.
 *
 * Machine code for X.y runs on X.z where z >= y. NVIDIA does not promise this for its systems on a
 * chip (Tegra), neither among them nor between them and other GPUs. PTX runs on its architecture
 * and newer ones. */
enum code_cuda qv_find_code_cuda(const int *built, int sm, int *from);
