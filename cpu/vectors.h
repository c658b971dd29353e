/* SPDX-License-Identifier: MIT */
/*
 * Sixteen values at once in the vector types of GCC and clang, which compile to any registers there
 * are. A function body that is always inlined is compiled once for each instruction set, into a
 * function with that target; which of these runs depends on what oneDNN may use (qv_isa_cpu).
 */
#ifndef QV_CPU_VECTORS_H
#define QV_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

typedef float floats_cpu __attribute__((vector_size(64)));
typedef uint32_t words_cpu __attribute__((vector_size(64)));
typedef uint16_t halves_cpu __attribute__((vector_size(32)));
typedef uint8_t bytes_cpu __attribute__((vector_size(16)));

#define INLINED_CPU static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define TARGET_AVX2_CPU __attribute__((target("avx2,fma")))
#define TARGET_AVX512_CPU __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define TARGET_AVX2_CPU
#define TARGET_AVX512_CPU
#endif

/* Loads a pair of codes for each column into its word: 4 bits each from a byte, or 8 bits each
 * from two. */
INLINED_CPU void
load_pair_cpu(words_cpu *out, const void *at, int64_t bits)
{
    bytes_cpu bytes;
    halves_cpu halves;
    if (bits == 4) {
        memcpy(&bytes, at, sizeof bytes);
        *out = __builtin_convertvector(bytes, words_cpu);
    } else {
        memcpy(&halves, at, sizeof halves);
        *out = __builtin_convertvector(halves, words_cpu);
    }
}

/* Converts through signed words, because every instruction set converts those. */
INLINED_CPU void
codes_cpu(floats_cpu *low, floats_cpu *high, const words_cpu *pair, int64_t bits)
{
    typedef int32_t signed_words __attribute__((vector_size(64)));
    const words_cpu mask = ((words_cpu){ 0 }) + ((1u << bits) - 1);
    const words_cpu first = *pair & mask, second = *pair >> (uint32_t)bits;
    *low = __builtin_convertvector((signed_words)first, floats_cpu);
    *high = __builtin_convertvector((signed_words)second, floats_cpu);
}

#endif
