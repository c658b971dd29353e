/* SPDX-License-Identifier: MIT */
/*
 * Warp-wide functions: copies to shared memory, loads of 8 x 8 blocks from there, and bf16 products
 * on the tensor cores, for compute capability 8.0 and later. In a block of 8 x 8 values lane i
 * holds two neighbours: row i / 4, columns i % 4 * 2 and the next, the first one in the lower half.
 */
#pragma once

#include "device.cuh"

/* Begins a copy of 16 bytes to shared memory; await_copies() waits for all copies of the thread. If
 * `there` is false, zeros are written and nothing is read. end_copies() groups the copies since the
 * last group. */
static __device__ __forceinline__ void
begin_copy(void *to, const void *from, bool there = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void
end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups but the last N. */
template <int N>
static __device__ __forceinline__ void
await_copies_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void
await_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Loads four blocks: lane i gives the address of row i % 8 of block i / 8, 16 bytes in shared
 * memory. */
static __device__ __forceinline__ void
load_blocks(uint32_t (&blocks)[4], const bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Loads four blocks, each transposed: lane i gets rows i % 4 * 2 and the next of column i / 4. */
static __device__ __forceinline__ void
load_blocks_transposed(uint32_t (&blocks)[4], const bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/*
 * Computes sums[16, 8] += a[16, 16] b[8, 16]^T. a has the blocks of rows 0 to 7 and 8 to 15 of
 * columns 0 to 7, then both of columns 8 to 15; b has columns 0 to 7 and columns 8 to 15. sums has
 * two neighbours of the block of rows 0 to 7, then two of rows 8 to 15.
 */
static __device__ __forceinline__ void
multiply_blocks(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
