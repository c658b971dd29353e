/* SPDX-License-Identifier: MIT */
/*
 * Sixteen values at once in the vector types of GCC and clang, which compile to whatever registers
 * there are. A function body that is always inlined is compiled once per instruction set, into a
 * function with that target; which of these runs depends on what oneDNN may use (qv_isa_cpu).
 */
#pragma once

#include <stdint.h>
#include <string.h>

typedef float floats_cpu __attribute__((vector_size(64)));
typedef uint32_t words_cpu __attribute__((vector_size(64)));
typedef uint16_t halves_cpu __attribute__((vector_size(32)));

#define INLINED_CPU static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define TARGET_AVX2_CPU __attribute__((target("avx2,fma")))
#define TARGET_AVX512_CPU __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define TARGET_BF16_CPU                                                                            \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#else
#define TARGET_AVX2_CPU
#define TARGET_AVX512_CPU
#endif

/* Extracts pair `pair` of each column from a line of codes (struct codes_cpu). Codes are converted
 * as signed words, because every instruction set can convert them. */
INLINED_CPU void
codes_cpu(floats_cpu *low, floats_cpu *high, const void *line, int64_t pair, int64_t bits)
{
    typedef int32_t signed_words __attribute__((vector_size(64)));
    const words_cpu mask = ((words_cpu){ 0 }) + ((1u << bits) - 1);
    words_cpu words;
    memcpy(&words, line, sizeof words);
    words >>= (uint32_t)(pair * bits);
    *low = __builtin_convertvector((signed_words)(words & mask), floats_cpu);
    *high = __builtin_convertvector((signed_words)(words >> 16 & mask), floats_cpu);
}
