/* SPDX-License-Identifier: MIT */
/*
 * Translated kernels are compiled with -fsanitize=thread, which puts calls before every access to
 * memory. The calls end here, in functions of this file, so that the sanitizer's own library may be
 * in the program too.
 */
#pragma once

#include <metal_stdlib>

extern "C" {
#define HOOK __attribute__((used)) EMULATOR_BARE static
#define HOOK_ACCESS(n)                                                                             \
    HOOK void __tsan_read##n(void *p)                                                              \
    {                                                                                              \
        emulator_read##n(p);                                                                       \
    }                                                                                              \
    HOOK void __tsan_write##n(void *p)                                                             \
    {                                                                                              \
        emulator_write##n(p);                                                                      \
    }                                                                                              \
    HOOK void __tsan_volatile_read##n(void *p)                                                     \
    {                                                                                              \
        emulator_read##n(p);                                                                       \
    }                                                                                              \
    HOOK void __tsan_volatile_write##n(void *p)                                                    \
    {                                                                                              \
        emulator_write##n(p);                                                                      \
    }                                                                                              \
    HOOK void __tsan_unaligned_read##n(void *p)                                                    \
    {                                                                                              \
        emulator_reads(p, n);                                                                      \
    }                                                                                              \
    HOOK void __tsan_unaligned_write##n(void *p)                                                   \
    {                                                                                              \
        emulator_writes(p, n);                                                                     \
    }
HOOK_ACCESS(1)
HOOK_ACCESS(2)
HOOK_ACCESS(4)
HOOK_ACCESS(8)
HOOK_ACCESS(16)
#undef HOOK_ACCESS

HOOK void
__tsan_init()
{
}
HOOK void
__tsan_func_entry(void *)
{
    if ((char *)__builtin_frame_address(0) < emulator_now.stack)
        emulator_overflow();
}
HOOK void
__tsan_func_exit()
{
}

HOOK void *
memcpy(void *to, const void *from, size_t n)
{
    return emulator_copy(to, from, n);
}
HOOK void *
memmove(void *to, const void *from, size_t n)
{
    return emulator_copy(to, from, n);
}
HOOK void *
memset(void *to, int c, size_t n)
{
    return emulator_fill(to, c, n);
}
HOOK void *
__tsan_memcpy(void *to, const void *from, size_t n)
{
    return emulator_copy(to, from, n);
}
HOOK void *
__tsan_memmove(void *to, const void *from, size_t n)
{
    return emulator_copy(to, from, n);
}
HOOK void *
__tsan_memset(void *to, int c, size_t n)
{
    return emulator_fill(to, c, n);
}

/* Called by -fsanitize=array-bounds. */
struct emulator_source {
    const char *file;
    unsigned line, column;
};
HOOK void out_of_bounds(emulator_source *source,
                        unsigned long index) __asm__("__ubsan_handle_out_of_bounds");
HOOK void
out_of_bounds(emulator_source *source, unsigned long index)
{
    emulator_index(source->file, source->line, index);
}
#undef HOOK
}
