/* SPDX-License-Identifier: MIT */
/*
 * AMX's instructions on tiles: 1 to 16 rows of 64 bytes, in eight registers. They are written in
 * assembly because gcc 12's intrinsics do not declare that they read memory, so it may move a
 * vector's store past the load of the tile that needs it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TILE_ROW = 64, TILE_BYTES = 16 * TILE_ROW };

/* The operand of ldtilecfg, of 64 bytes. */
struct tile_shapes {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifndef QV_TILES_EMULATED /* tests/emulated_tiles.h has the rest in plain C */
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu.h"
#endif

/* Returns whether this CPU has AMX and Linux lets this process use tiles, which it must ask for. */
static inline bool
tiles_allowed(void)
{
#if defined(__x86_64__) && defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* of Linux's asm/prctl.h */
    const unsigned amx = dnnl_cpu_isa_avx512_core_amx;
    return ((unsigned)dnnl_get_effective_cpu_isa() & amx) == amx &&
           !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    return false;
#endif
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Tiles belong to a thread. Code that uses them sets their shapes first and releases them at its
 * end, so that the system need not save them. */
static inline void
tiles_begin(const struct tile_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*shapes));
}

static inline void
tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

/* Registers are literal digits from 0 to 7. Rows are contiguous in memory. */
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
#define TILE_LOAD(tile, from)                                                                      \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)TILE_ROW)        \
                     : "memory")
#define TILE_STORE(tile, to)                                                                       \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)TILE_ROW)      \
                     : "memory")
/* sums[i][n] += x[i][k] * w[k / 2][n][k % 2], of bf16 with sums in f32 */
#define TILE_MULTIPLY(sums, x, w)                                                                  \
    __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sums ::)

#endif
#endif
