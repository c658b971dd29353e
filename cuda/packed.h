/* SPDX-License-Identifier: MIT */
/*
 * How a quantised matrix [n,k] lies on the device: codes row by row, then [n, k/group] pairs of a scale and
 * an offset. Of a row, chunks of 128 codes, zeros behind its end: four lanes of a warp (mma.cuh) load 16
 * bytes of a chunk each (of 8 bits, twice), and have 8 neighbours of each quarter of 32, so that one product
 * is of one group. Of 4 bits the even ones of these 8 are the lower half of a word, the odd ones its upper,
 * so that one mask gives two.
 */
#ifndef QV_CUDA_PACKED_H
#define QV_CUDA_PACKED_H

#include "engine/grouped.h"

#ifdef __CUDACC__
#define QV_BOTH_CUDA __host__ __device__
#else
#define QV_BOTH_CUDA
#endif

enum { QV_PACKED_CHUNK_CUDA = 128 };

struct qv_packed_cuda {
    int64_t code_row, code_bytes; /* of a row's codes; of all, as factors begin behind them */
    size_t bytes;
};

static inline struct qv_packed_cuda
qv_packed_cuda(int64_t n, int64_t k, const struct qv_groups *groups)
{
    struct qv_packed_cuda p;
    const int64_t chunk = QV_PACKED_CHUNK_CUDA, alignment = 256;
    p.code_row = (k + chunk - 1) / chunk * chunk * groups->bits / 8;
    p.code_bytes = (n * p.code_row + alignment - 1) / alignment * alignment;
    p.bytes = (size_t)p.code_bytes +
              2 * (size_t)(n * (k / groups->group)) * qv_dtype_bytes(groups->dtype);
    return p;
}

/* Where code k of a row lies. */
struct qv_code_at_cuda {
    int64_t byte;
    int shift;
};

static inline QV_BOTH_CUDA struct qv_code_at_cuda
qv_code_at_cuda(int64_t bits, int64_t k)
{
    const int in = (int)(k % QV_PACKED_CHUNK_CUDA), quarter = in / 32, lane = in % 32 / 8;
    const int e = in % 8, nibble = e % 2 * 4 + e / 2;
    struct qv_code_at_cuda at;
    at.byte = k / QV_PACKED_CHUNK_CUDA * (QV_PACKED_CHUNK_CUDA / 8) * bits + 16 * lane;
    at.byte += bits == 4 ? 4 * quarter + nibble / 2 : quarter / 2 * 64 + quarter % 2 * 8 + e;
    at.shift = bits == 4 ? nibble % 2 * 4 : 0;
    return at;
}

#endif
