/* SPDX-License-Identifier: MIT */
/*
 * A quantised matrix [n,k] is stored on the device in tiles of 16 rows. A tile consists of its
 * slices of 128 columns in order. A slice consists of its codes, then its [8, 128/group, 2] pairs
 * of a scale and an offset: for rows 0 and 8, then for 1 and 9. The last tile and slice are padded
 * with zeros. So a warp streams a tile in order, and each of its loads of codes is 512 contiguous
 * bytes, 16 per lane.
 *
 * A lane has the codes of its part of a tensor core's operand (mma.cuh): of rows lane / 4 and lane
 * / 4 + 8, 8 neighbours from each quarter of 32 columns, so that a product stays in one group. A
 * word has 8 codes of 4 bits or 4 of 8 bits, the even ones in its lower half and the odd ones in
 * its upper, so that one mask extracts two.
 */
#pragma once

#include "engine/grouped.h"

#ifdef __CUDACC__
#define QV_BOTH_CUDA __host__ __device__
#else
#define QV_BOTH_CUDA
#endif

enum { QV_CODES_ROWS_CUDA = 16, QV_CODES_SLICE_CUDA = 128 };

struct qv_codes_cuda {
    int64_t tiles, slices; /* tiles of 16 rows in the matrix, slices in a tile */
    /* size of a slice's codes, and of the slice with scales and offsets */
    int64_t code_bytes, per_slice;
    size_t bytes;
};

static inline struct qv_codes_cuda
qv_codes_cuda(int64_t n, int64_t k, const struct qv_groups *groups)
{
    struct qv_codes_cuda p;
    const int64_t rows = QV_CODES_ROWS_CUDA, slice = QV_CODES_SLICE_CUDA;
    p.tiles = (n + rows - 1) / rows;
    p.slices = (k + slice - 1) / slice;
    p.code_bytes = rows * slice * groups->bits / 8;
    p.per_slice =
        p.code_bytes + 2 * rows * (slice / groups->group) * (int64_t)qv_dtype_bytes(groups->dtype);
    p.bytes = (size_t)(p.tiles * p.slices * p.per_slice);
    return p;
}

/* The place of a code in its slice: its word's first byte, and its lowest bit in the word. */
struct qv_code_at_cuda {
    int word, shift;
};

static inline QV_BOTH_CUDA struct qv_code_at_cuda
qv_code_at_cuda(int64_t bits, int row, int col)
{
    const int lane = row % 8 * 4 + col % 32 / 8, quarter = col / 32, e = col % 8;
    struct qv_code_at_cuda at;
    at.word =
        16 * lane + (bits == 4 ? row / 8 * 512 + 4 * quarter
                               : row / 8 * 1024 + quarter / 2 * 512 + quarter % 2 * 8 + e / 4 * 4);
    at.shift = e % 2 * 16 + (bits == 4 ? e / 2 * 4 : e % 4 / 2 * 8);
    return at;
}

/* Returns the index of a code's pair among its slice's scales and offsets. */
static inline QV_BOTH_CUDA int
qv_pair_at_cuda(uint32_t group, uint32_t row, uint32_t col)
{
    const uint32_t groups = QV_CODES_SLICE_CUDA / group;
    return (int)((row % 8 * groups + col / group) * 2 + row / 8);
}
