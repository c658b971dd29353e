/* SPDX-License-Identifier: MIT */
/* Which memory a thread may touch, and who touched threadgroup memory last. */
#ifndef QV_METAL_MEMORY_H
#define QV_METAL_MEMORY_H

#include "runtime.h"

enum { MEMORY_STACK_BYTES = 65536, MEMORY_THREADS = 1024 };

/* The block of threadgroup memory, and the stack of a thread; NULL: there is no memory. */
char *memory_threadgroup(void);
char *memory_stack(uint32_t thread);

/* A dispatch's buffers, as its kernel uses them. checks: whether races are looked for. */
void memory_begin(const struct emulator_dispatch *dispatch, bool checks);
void memory_begin_group(void);
/* From here on accesses are this thread's. */
void memory_thread(uint32_t thread);
/* A barrier: what was touched before lies before what is touched after. */
void memory_order_group(void);
void memory_order_simdgroup(uint32_t simdgroup);

/* emulator.c: ends the dispatch; code: where the kernel was, NULL: where it made its last call */
void emulator_fault(const void *code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
