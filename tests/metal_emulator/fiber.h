/* SPDX-License-Identifier: MIT */
/* A thread of control that runs until it switches to another. */
#ifndef QV_METAL_FIBER_H
#define QV_METAL_FIBER_H

#include <stddef.h>

#ifdef __x86_64__
struct fiber {
    void *stack; /* where it stands while it waits */
};
#else
#include <ucontext.h>
struct fiber {
    ucontext_t context;
};
#endif

/* It starts in entry, which must not return, when first switched to. */
void fiber_prepare(struct fiber *f, char *stack, size_t bytes, void (*entry)(void));
/* Saves where it stands in from, and goes on where to was saved. */
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
