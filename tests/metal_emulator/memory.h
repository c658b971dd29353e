/* SPDX-License-Identifier: MIT */
/* Keeps which memory a thread may touch, and who touched threadgroup memory last. */
#pragma once

#include "runtime.h"

enum { MEMORY_STACK_BYTES = 65536, MEMORY_THREADS = 1024 };

/* The block of threadgroup memory, and the stack of a thread. NULL if there is no memory. */
char *memory_threadgroup(void);
char *memory_stack(uint32_t thread);

/* Takes the buffers of a dispatch, as its kernel uses them. `checks` says whether to look for
 * races. */
void memory_begin(const struct emulator_dispatch *dispatch, bool checks);
void memory_begin_group(void);
/* From here on accesses count as this thread's. */
void memory_thread(uint32_t thread);
/* A barrier: accesses before it are ordered before the accesses after it. */
void memory_order_group(void);
void memory_order_simdgroup(uint32_t simdgroup);

/* Defined in emulator.c. Ends the dispatch. `code` is where the kernel was; NULL stands for its
 * last call. */
void emulator_fault(const void *code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
