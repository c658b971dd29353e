/* SPDX-License-Identifier: MIT */
/* Declares what metal_stdlib, the output of translate.c, and emulator.c share. */
#pragma once

#include "emulator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATOR_LANES = 32 };

/* The place of a thread, from which a kernel's thunk makes the arguments. */
struct emulator_place {
    void *buffers[EMULATOR_BUFFERS], *shared;
    uint32_t position_in_grid[3], position_in_threadgroup[3], threadgroup_position[3];
    uint32_t threads_per_threadgroup[3], threadgroups[3], threads[3];
    uint32_t index, lane, simdgroup, simdgroups;
};

enum { EMULATOR_UNUSED, EMULATOR_READ, EMULATOR_WRITTEN };

struct emulator_kernel {
    const char *name;
    void (*thunk)(const struct emulator_place *place);
    uint32_t max_threads; /* 0: the most that are possible. */
    unsigned char buffers[EMULATOR_BUFFERS];
    const struct emulator_library *library;
};

struct emulator_constant {
    const char *name;
    uint32_t index;
    size_t bytes;
    void *value;
};

struct emulator_library {
    const char *name;
    const struct emulator_kernel *kernels;
    size_t n_kernels;
    const struct emulator_constant *constants;
    size_t n_constants;
    const char *data[2]; /* The start and the end of its variables. */
};

/* All libraries that are linked, then NULL (libraries.c). */
extern const struct emulator_library *const emulator_libraries[];

/* Says what the lanes of a simdgroup hand each other. Lanes that go on may fill the next set while
 * others still read this one. */
struct emulator_simdgroup {
    float a[64], b[64], c[64], d[64]; /* The matrices of a product, by rows. */
    uint64_t lanes[2][EMULATOR_LANES];
    uint64_t all[2];
    uint32_t turn; /* Which of the two sets is in use. */
};

struct emulator_now {
    struct emulator_simdgroup *simdgroup;
    uint32_t lane;
    int line;       /* The line of the last call; 0: there was none. */
    uint64_t trace; /* A hash of the calls since the lanes last met; all lanes have to make them
                     * alike. */
    char *stack;    /* The lowest address that a thread's stack may reach. */
};
extern struct emulator_now emulator_now;

/* Returns when all lanes have called it with the same what, flags and line. The last lane to come
 * calls combine first. */
void emulator_meet(const char *what, void (*combine)(struct emulator_simdgroup *), int line);
void emulator_multiply(struct emulator_simdgroup *s);
enum { EMULATOR_MEM_DEVICE = 1, EMULATOR_MEM_THREADGROUP = 2 };
void emulator_simdgroup_barrier(unsigned flags, int line);
void emulator_threadgroup_barrier(unsigned flags, int line);

/* Called before an access of the given number of bytes. Does not return if the access is
 * illegal. */
void emulator_read1(const void *p), emulator_read2(const void *p), emulator_read4(const void *p);
void emulator_read8(const void *p), emulator_read16(const void *p);
void emulator_write1(const void *p), emulator_write2(const void *p), emulator_write4(const void *p);
void emulator_write8(const void *p), emulator_write16(const void *p);
void emulator_reads(const void *p, size_t n), emulator_writes(const void *p, size_t n);
void emulator_aligned(const void *p, size_t n);
void *emulator_copy(void *to, const void *from, size_t n); /* These do what memmove and memset
                                                            * do. */
void *emulator_fill(void *to, int c, size_t n);
void emulator_overflow(void); /* Called when the stack overflows. */
/* Called when an index lies outside its array; `source` and `line` say where. */
void emulator_index(const char *source, unsigned line, uint64_t index);
void emulator_wrong(const char *what, int line);

#ifdef __cplusplus
}
#endif
