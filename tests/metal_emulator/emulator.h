/* SPDX-License-Identifier: MIT */
/*
 * Runs Metal kernels on the CPU, thread by thread, and reports an error where a GPU would silently
 * go wrong. translate.c turns the .metal source into C++: kernels and their tables. emulator.c runs
 * threadgroups of fibers. Kernels include metal_stdlib. Metal/Metal.h and metal.m stand in for the
 * framework.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMULATOR_BUFFERS = 31,
    EMULATOR_CONSTANTS = 32,
    EMULATOR_THREADGROUP_BYTES = 32768,
    EMULATOR_SET_BYTES = 4096,     /* the most that setBytes takes */
    EMULATOR_MOST_DISPATCHES = 512 /* of a command buffer */
};

/* The most FLOPs of products of matrices in a command buffer: a second of an M1, as macOS ends
 * buffers that run for some seconds. */
#define EMULATOR_MOST_FLOPS 1e12

/* The memory that a dispatch may touch through one argument. */
struct emulator_buffer {
    char *base;    /* Where the MTLBuffer begins; NULL: nothing is bound. */
    size_t bytes;  /* The size of the MTLBuffer. */
    size_t offset; /* The offset at which it is bound. */
    bool is_set;   /* By setBytes. */
};

struct emulator_dispatch {
    const struct emulator_kernel *kernel;
    uint32_t constants[EMULATOR_CONSTANTS]; /* The values of the function constants, by index. */
    bool has_constant[EMULATOR_CONSTANTS];
    struct emulator_buffer buffers[EMULATOR_BUFFERS]; /* Both setBuffer and setBytes set these. */
    size_t threadgroup_bytes;                         /* The size of threadgroup(0). */
    uint32_t groups[3], threads[3];
};

/* Finds a kernel of a library by name; NULL if there is none. A library is named after the type
 * that REAL stands for: "bfloat" or "float". The selftest's own library is "faults". */
const struct emulator_kernel *emulator_find(const char *library, const char *name);

/* Runs all threads of all threadgroups; a process runs one dispatch at a time. Returns false if a
 * check failed, with an error text that names the kernel, the thread and what it did; what the
 * kernel has written stays. The order of threads and threadgroups follows the seed (emulator_seed;
 * 1 at first). */
bool emulator_run(const struct emulator_dispatch *dispatch, char *error, size_t error_size);
void emulator_seed(uint64_t seed);

/* A command buffer, with counts of its dispatches and of the matrix products that their threads
 * compute. */
struct emulator_commands {
    uint32_t dispatches;
    double flops;
};
/* Runs the next dispatch of a command buffer. Refuses it if it exceeds the buffer's limits. */
bool emulator_run_in(struct emulator_commands *commands, const struct emulator_dispatch *dispatch,
                     char *error, size_t error_size);
/* Runs only one threadgroup of each dispatch, and counts it for all of them. */
extern bool emulator_samples;

/* How many more of the Metal stand-in's calls that create an object or run a command buffer
 * succeed. The next call fails in the way in which Metal reports failures. With -1, the initial
 * value, no call fails. */
extern long emulator_calls_left;

#ifdef __cplusplus
}
#endif
