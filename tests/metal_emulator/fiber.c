/* SPDX-License-Identifier: MIT */
#include "fiber.h"

#include <stdint.h>

#ifdef __x86_64__

/* Saves the registers that a call preserves, except for the floating point modes, which never
 * change. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq (%rsi), %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    popq %rcx\n"
        "    jmpq *%rcx\n" /* A ret would be predicted to return to where this fiber was called
                            * from. */
        ".size fiber_switch, .-fiber_switch\n");

void
fiber_prepare(struct fiber *f, char *stack, size_t bytes, void (*entry)(void))
{
    /* The stack is as it is after a call: 8 above a multiple of 16. */
    uintptr_t *top = (uintptr_t *)((uintptr_t)(stack + bytes) & ~(uintptr_t)15) - 1;
    *top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    f->stack = top;
}

#else

void
fiber_prepare(struct fiber *f, char *stack, size_t bytes, void (*entry)(void))
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

void
fiber_switch(struct fiber *from, struct fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#endif
