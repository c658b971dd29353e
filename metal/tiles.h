/* SPDX-License-Identifier: MIT */
/* The tiles that GEMMs and convolutions are cut into (gemm.metal), and how one is chosen. */
#pragma once

#include "dtype.h"
#include "launch.h"
#include "numbers.h"

enum {
    TILE_THREADS = 128,
    TILE_STEP_BYTES = 64,  /* bytes of a row that are staged at once, along k */
    TILE_PITCH_BYTES = 96, /* from row to row in threadgroup memory */
    TILE_GROUPS = 96,      /* most GPUs need this many threadgroups to be busy */
    TILES = 5
};

struct tile_metal {
    const char *gemm, *conv;
    int64_t rows, cols;
    double speed; /* of a fully used GPU, relative to 64 x 64, judged by loads per product */
};

static const struct tile_metal tiles_metal[TILES] = {
    { "gemm_64x64", "conv_64x64", 64, 64, 1 },    { "gemm_64x32", "conv_64x32", 64, 32, 0.9 },
    { "gemm_32x64", "conv_32x64", 32, 64, 0.9 },  { "gemm_128x16", "conv_128x16", 128, 16, 0.8 },
    { "gemm_32x32", "conv_32x32", 32, 32, 0.75 },
};

/* The estimated time for m x n. Ragged edges cost as much as full tiles, and so do missing
 * threadgroups. */
static inline double
tile_cost(const struct tile_metal *tile, int64_t m, int64_t n)
{
    double groups = (double)qv_ceil_div(m, tile->rows) * (double)qv_ceil_div(n, tile->cols);
    return (groups < TILE_GROUPS ? TILE_GROUPS : groups) * (double)(tile->rows * tile->cols) /
           tile->speed;
}

/* Returns the best tile for m x n for choice 0, and worse ones after it; NULL beyond the last. */
static inline const struct tile_metal *
tile_choose(int64_t m, int64_t n, int choice)
{
    for (int i = 0; i < TILES; i++) {
        int better = 0;
        double cost = tile_cost(&tiles_metal[i], m, n);
        for (int j = 0; j < TILES; j++) {
            double other = tile_cost(&tiles_metal[j], m, n);
            better += other < cost || (other == cost && j < i);
        }
        if (better == choice)
            return &tiles_metal[i];
    }
    return NULL;
}

/* Sets grid, memory and constants of a tile (gemm.metal) for y[m,n] over k. vectors: constant A.
 * Up to four tiles share a band. */
static inline void
tile_launch(const struct tile_metal *tile, int64_t m, int64_t n, int64_t k, uint32_t vectors,
            struct launch_metal *out)
{
    int64_t down = qv_ceil_div(m, tile->rows), across = qv_ceil_div(n, tile->cols);
    int64_t step = TILE_STEP_BYTES / (int64_t)qv_dtype_bytes(out->real);
    uint32_t band = down >= 4 ? 2 : down >= 2 ? 1 : 0;
    out->constants[CONSTANT_ALIGNED] = vectors == 2 && k % step == 0;
    out->constants[CONSTANT_A] = vectors;
    out->constants[CONSTANT_B] = n % 4 == 0;
    out->constants[CONSTANT_C] = band;
    out->threads = TILE_THREADS;
    out->groups[0] = (uint32_t)(across << band);
    out->groups[1] = (uint32_t)qv_ceil_div(down, (int64_t)1 << band);
    out->groups[2] = 1;
    out->threadgroup_bytes = (uint32_t)(tile->rows + tile->cols) * TILE_PITCH_BYTES;
}

/* Launches one thread per output. */
static inline void
naive_launch(const char *function, int64_t outputs, struct launch_metal *out)
{
    out->function = function;
    out->threads = TILE_THREADS;
    out->groups[0] = (uint32_t)qv_ceil_div(outputs, TILE_THREADS);
    out->groups[1] = out->groups[2] = 1;
}
