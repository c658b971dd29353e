/* SPDX-License-Identifier: MIT */
/*
 * Functions for Hopper alone (sm_90a): mbarriers, copies by the tensor memory accelerator, barriers
 * of some of a block's threads, and bf16 products of warpgroups (wgmma).
 */
#pragma once

#include "device.cuh"

#include <cudaTypedefs.h>

enum {
    SWIZZLE_128 = 1, /* of a matrix descriptor: rows of 128 bytes */
    SWIZZLE_32 = 3
};

static __device__ __forceinline__ void
open_signal(uint64_t *signal, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(signal)), "r"(arrivals));
}

/* Arrives, and makes the signal wait for this many bytes of copies. */
static __device__ __forceinline__ void
expect(uint64_t *signal, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(signal)),
                 "r"(bytes)
                 : "memory");
}

/* A warp arrives once, after all of its threads. */
static __device__ __forceinline__ void
arrive(uint64_t *signal)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(signal))
                     : "memory");
}

/* Waits until the phase of this parity is complete. */
static __device__ __forceinline__ void
await(uint64_t *signal, int parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_address(signal)), "r"(parity)
                     : "memory");
}

/* Copies a box of a head's rows: columns from `col` on. */
static __device__ __forceinline__ void
copy_box(char *to, const CUtensorMap *map, uint64_t *signal, int col, int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(signal)), "r"(col), "r"(head), "r"(row)
                 : "memory");
}

static __device__ __forceinline__ void
begin_products(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
commit_products(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all but the last LEFT groups of products are complete; sums are theirs. */
template <int LEFT, int N>
static __device__ __forceinline__ void
await_products(float (&sums)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(sums[i])::"memory"); /* not read before */
}

static __device__ __forceinline__ void
sync_threads(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Arrives at a barrier at which other threads sync. */
static __device__ __forceinline__ void
arrive_threads(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Describes a matrix in shared memory. next_8: bytes from 8 rows to the next; next_columns: from a
 * panel of columns to the next. */
static __device__ __forceinline__ uint64_t
matrix_at(uint32_t address, int next_columns, int next_8, int swizzle)
{
    return (uint64_t)(address >> 4) | (uint64_t)(next_columns >> 4) << 16 |
           (uint64_t)(next_8 >> 4) << 32 | (uint64_t)swizzle << 62;
}

#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32 SUMS_16(0), SUMS_16(16)
#define SUMS_64 SUMS_32, SUMS_16(32), SUMS_16(48)
#define NAMES_32                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
#define NAMES_64                                                                                   \
    NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
             "%56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_72 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96                                                                                   \
    NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_108 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107"
#define NAMES_120                                                                                  \
    NAMES_108 ", %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119"

/* sums[64, 128] = q[64, 16] k[128, 16]^T, added to sums if `add`. For each i in turn, thread t has
 * columns 8 i + t % 4 * 2 and the next, of row 16 * (t / 32) + t % 32 / 4 and of the row 8
 * below. */
static __device__ __forceinline__ void
multiply_keys(float (&sums)[64], uint64_t q, uint64_t k, int add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, %64, %65, add, 1, 1, 0, 0;\n\t}"
                 : SUMS_64
                 : "l"(q), "l"(k), "r"(add));
}

/* sums[64, n] += weights[64, 16] v[16, n] */
#define MULTIPLY_VALUES(n, names, a0, a1, a2, a3, v_name, ...)                                     \
    static __device__ __forceinline__ void multiply_values(float(&sums)[n / 2], const uint32_t *w, \
                                                           uint64_t v)                             \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, {" a0  \
                     ", " a1 ", " a2 ", " a3 "}, " v_name ", 1, 1, 1, 1;"                          \
                     : __VA_ARGS__                                                                 \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));                        \
    }
MULTIPLY_VALUES(64, NAMES_32, "%32", "%33", "%34", "%35", "%36", SUMS_32)
MULTIPLY_VALUES(72, NAMES_36, "%36", "%37", "%38", "%39", "%40", SUMS_32, SUMS_4(32))
MULTIPLY_VALUES(80, NAMES_40, "%40", "%41", "%42", "%43", "%44", SUMS_32, SUMS_4(32), SUMS_4(36))

/* sums[64, n] += x[64, 16] w[n, 16]^T */
#define MULTIPLY_ROWS(n, names, x_name, w_name, ...)                                               \
    static __device__ __forceinline__ void multiply_rows(float(&sums)[n / 2], uint64_t x,          \
                                                         uint64_t w)                               \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names            \
                     "}, " x_name ", " w_name ", 1, 1, 1, 0, 0;"                                   \
                     : __VA_ARGS__                                                                 \
                     : "l"(x), "l"(w));                                                            \
    }
MULTIPLY_ROWS(128, NAMES_64, "%64", "%65", SUMS_64)
MULTIPLY_ROWS(144, NAMES_72, "%72", "%73", SUMS_64, SUMS_4(64), SUMS_4(68))
MULTIPLY_ROWS(160, NAMES_80, "%80", "%81", SUMS_64, SUMS_16(64))
MULTIPLY_ROWS(192, NAMES_96, "%96", "%97", SUMS_64, SUMS_16(64), SUMS_16(80))
MULTIPLY_ROWS(216, NAMES_108, "%108", "%109", SUMS_64, SUMS_16(64), SUMS_16(80), SUMS_4(96),
              SUMS_4(100), SUMS_4(104))
MULTIPLY_ROWS(240, NAMES_120, "%120", "%121", SUMS_64, SUMS_16(64), SUMS_16(80), SUMS_16(96),
              SUMS_4(112), SUMS_4(116))

/* Volatile, so that what depends on it is computed where it is used and takes no registers before
 * that. */
static __device__ __forceinline__ int
lane_here(void)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

static __device__ __forceinline__ float
power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns cuTensorMapEncodeTiled, a function of the driver, or NULL. */
static inline PFN_cuTensorMapEncodeTiled_v12000
find_encoder(void)
{
    enum { VERSION = 12000 };
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, VERSION,
                                         cudaEnableDefault, &result))
        (void)cudaGetLastError();
    return (PFN_cuTensorMapEncodeTiled_v12000)found;
}

/* x[rows, heads, cols], whose rows begin `stride` values apart, and the size of boxes of a head. */
struct boxes {
    int64_t rows, heads, cols, stride;
    int box_rows, box_cols;
};

/* Describes boxes for copy_box. What a box has beyond x becomes zeros. */
static inline bool
describe_boxes(CUtensorMap *map, const void *x, const struct boxes &b)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
    const bool wide = b.box_cols * sizeof(bf16) == 128;
    const cuuint64_t dims[] = { (cuuint64_t)b.cols, (cuuint64_t)b.heads, (cuuint64_t)b.rows };
    const cuuint64_t strides[] = { b.cols * sizeof(bf16), b.stride * sizeof(bf16) };
    const cuuint32_t box[] = { (cuuint32_t)b.box_cols, 1, (cuuint32_t)b.box_rows };
    const cuuint32_t every[] = { 1, 1, 1 };
    return encode && !encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)x, dims, strides,
                             box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
