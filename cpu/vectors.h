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

/* The cases of a switch over the rows that are multiplied at once. Loops over rows and `chains`
 * have constant ends, so that sums stay in registers. */
#define FEW_CASE(m, chains)                                                                        \
    case m:                                                                                        \
        if (f->w.groups.bits == 4)                                                                 \
            panel_sums(f, codes, panels, sums, 4, m, chains(m));                                   \
        else                                                                                       \
            panel_sums(f, codes, panels, sums, 8, m, chains(m));                                   \
        break;
#define FEW_CASES(chains)                                                                          \
    FEW_CASE(1, chains)                                                                            \
    FEW_CASE(2, chains)                                                                            \
    FEW_CASE(3, chains)                                                                            \
    FEW_CASE(4, chains)                                                                            \
    FEW_CASE(5, chains)                                                                            \
    FEW_CASE(6, chains)                                                                            \
    FEW_CASE(7, chains)                                                                            \
    FEW_CASE(8, chains)                                                                            \
    FEW_CASE(9, chains)                                                                            \
    FEW_CASE(10, chains)                                                                           \
    FEW_CASE(11, chains)                                                                           \
    FEW_CASE(12, chains)                                                                           \
    FEW_CASE(13, chains)                                                                           \
    FEW_CASE(14, chains)                                                                           \
    FEW_CASE(15, chains)                                                                           \
    FEW_CASE(16, chains)

/* Prefetches AHEAD bytes past a line of codes: the hardware's prefetcher alone reaches two thirds
 * of the memory's rate (16 cores of a Xeon). The address need not be valid. */
INLINED_CPU void
fetch_ahead_cpu(const void *line)
{
    enum { AHEAD = 4096 };
    __builtin_prefetch((const void *)((uintptr_t)line + AHEAD));
}

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
