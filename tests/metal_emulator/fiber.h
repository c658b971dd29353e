/* SPDX-License-Identifier: MIT */
/* A thread of control that runs until it switches to another one. */
#pragma once

#include <stddef.h>

#ifdef __x86_64__
struct fiber {
    void *stack; /* The place where it stands while it waits. */
};
#else
#include <ucontext.h>
struct fiber {
    ucontext_t context;
};
#endif

/* Prepares a fiber that starts in `entry` when it is first switched to. `entry` must not return. */
void fiber_prepare(struct fiber *f, char *stack, size_t bytes, void (*entry)(void));
/* Saves the current place in `from`, and goes on at the place that `to` has saved. */
void fiber_switch(struct fiber *from, struct fiber *to);
