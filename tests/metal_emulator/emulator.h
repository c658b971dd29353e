/* SPDX-License-Identifier: MIT */
/*
 * Runs Metal kernels on the CPU, thread by thread, and says no where a GPU would be wrong in
 * silence. translate.c makes C++ of the .metal source: kernels and their tables; emulator.c runs
 * threadgroups of fibers; metal_stdlib is what kernels include; Metal/Metal.h and metal.m stand in
 * for the framework.
 */
#ifndef QV_METAL_EMULATOR_H
#define QV_METAL_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATOR_BUFFERS = 31, EMULATOR_CONSTANTS = 32, EMULATOR_THREADGROUP_BYTES = 32768 };

/* Memory that a dispatch may touch through one argument. */
struct emulator_buffer {
    char *base;    /* where the MTLBuffer begins; NULL: nothing is bound */
    size_t bytes;  /* of the MTLBuffer */
    size_t offset; /* at which it is bound */
};

struct emulator_dispatch {
    const struct emulator_kernel *kernel;
    uint32_t constants[EMULATOR_CONSTANTS]; /* values of function constants by index */
    bool has_constant[EMULATOR_CONSTANTS];
    struct emulator_buffer buffers[EMULATOR_BUFFERS]; /* set by setBuffer and setBytes alike */
    size_t threadgroup_bytes;                         /* of threadgroup(0) */
    uint32_t groups[3], threads[3];
};

/* A kernel of a library by name; NULL: there is none. Libraries are told apart by what REAL
 * stands for: "bfloat" or "float"; the selftest's own is "faults". */
const struct emulator_kernel *emulator_find(const char *library, const char *name);

/* Runs all threads of all threadgroups, one dispatch at a time in the process. False, with words
 * that name kernel, thread and what it did, if a check failed; what it wrote stays. Order of
 * threads and threadgroups follows the seed (emulator_seed; 1 at first). */
bool emulator_run(const struct emulator_dispatch *dispatch, char *error, size_t error_size);
void emulator_seed(uint64_t seed);

/* Calls of the stand-in for Metal that make something or run a command buffer, and succeed; the one
 * behind them fails, as Metal would say it. -1, as at first: none fails. */
extern long emulator_calls_left;

#ifdef __cplusplus
}
#endif

#endif
