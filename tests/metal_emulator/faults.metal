/* SPDX-License-Identifier: MIT */
/* Kernels for selftest.c. If WRONG is set, each does something that a GPU would not report;
 * otherwise it is the correct twin. */
#include <metal_stdlib>
using namespace metal;

enum { CONSTANT_WRONG, CONSTANT_FACTOR };
constant uint WRONG [[function_constant(CONSTANT_WRONG)]];
constant float FACTOR [[function_constant(CONSTANT_FACTOR)]];

constant float TABLE[4] = { 1, 2, 4, 8 };

struct count_args {
    uint n;
};

kernel void
read_outside(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
             uint i [[thread_position_in_grid]])
{
    y[i] = x[i + WRONG];
}

kernel void
read_in_front(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
              uint i [[thread_position_in_grid]])
{
    y[i] = (x - WRONG)[i];
}

kernel void
write_constant(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
               uint i [[thread_position_in_grid]])
{
    if (WRONG)
        ((device float *)x)[i] = 1;
    y[i] = x[i];
}

kernel void
read_unbound(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
             device const float *z [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    y[i] = x[i] + (WRONG ? z[i] : 0);
}

kernel void
misaligned(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
           uint i [[thread_position_in_grid]])
{
    float4 v = *(device const float4 *)(x + (i & 4) + WRONG);
    y[i] = v.x + v.y + v.z + v.w;
}

kernel void
nothing_written(device float *y [[buffer(1)]], threadgroup float *t [[threadgroup(0)]],
                uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]])
{
    if (i || !WRONG)
        t[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = t[n - 1 - i];
}

kernel void
no_barrier(device float *y [[buffer(1)]], threadgroup float *t [[threadgroup(0)]],
           uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]])
{
    t[i] = i;
    if (!WRONG)
        threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = t[n - 1 - i];
}

kernel void
barrier_of_none(device float *y [[buffer(1)]], threadgroup float *t [[threadgroup(0)]],
                uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]])
{
    t[i] = i;
    threadgroup_barrier(WRONG ? mem_flags::mem_none : mem_flags::mem_threadgroup);
    y[i] = t[n - 1 - i];
}

/* Writes again what others still read. */
kernel void
no_second_barrier(device float *y [[buffer(1)]], threadgroup float *t [[threadgroup(0)]],
                  uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]])
{
    t[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = t[n - 1 - i] + t[n / 2];
    if (!WRONG)
        threadgroup_barrier(mem_flags::mem_threadgroup);
    t[i] = sum;
    y[i] = t[i];
}

kernel void
beyond_threadgroup(device float *y [[buffer(1)]], threadgroup float *t [[threadgroup(0)]],
                   uint i [[thread_position_in_threadgroup]])
{
    t[i + WRONG] = i;
    y[i] = i;
}

/* No check watches this memory, so the order of threads shows in the values. */
kernel void
no_order(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
         uint n [[threads_per_threadgroup]])
{
    y[i] = i;
    if (!WRONG)
        threadgroup_barrier(mem_flags::mem_device);
    y[n + i] = y[n - 1 - i];
}

kernel void
group_order(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
            uint group [[threadgroup_position_in_grid]])
{
    if (!i)
        y[0] = y[0] * 2 + group;
}

kernel void
barrier_not_by_all(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]])
{
    y[i] = i;
    if (WRONG && i == 5)
        return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void
two_barriers(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]])
{
    y[i] = i;
    if (WRONG && i < 32)
        threadgroup_barrier(mem_flags::mem_threadgroup);
    else
        threadgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void
sum_not_by_all(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]])
{
    y[i] = i;
    if (!WRONG || i % 32 != 7)
        y[i] = simd_sum(float(i));
}

kernel void
lane_outside(device float *y [[buffer(1)]], uint i [[thread_position_in_threadgroup]])
{
    y[i] = simd_shuffle(float(i), ushort(i % 32 + WRONG));
}

/* Has N values on the stack, and is not inlined, so that the kernel has not. */
template <uint N>
__attribute__((noinline)) static float
values(uint n)
{
    float here[N];
    for (uint i = 0; i < N; i++)
        here[i] = float(i * n);
    return here[n % N] + here[n * 7 % N];
}

kernel void
deep(device float *y [[buffer(1)]], uint i [[thread_position_in_grid]])
{
    y[i] = WRONG ? values<13000>(i) : values<64>(i);
}

kernel void
index_outside(device const uint *at [[buffer(0)]], device float *y [[buffer(1)]],
              uint i [[thread_position_in_grid]])
{
    float few[4] = { 1, 2, 3, 4 };
    few[at[i] % 4] += 1;
    y[i] = few[at[i] % 4 + (WRONG ? 4 : 0)];
}

/* y = x x for 8 x 8 matrices, by elements in place: lane l has (row, col) and (row, col + 1). */
kernel void
square(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
       uint lane [[thread_index_in_simdgroup]])
{
    uint row = (lane / 4 & 4) + lane / 2 % 4, col = (lane / 4 & 2) * 2 + lane % 2 * 2;
    if (WRONG) {
        row = lane / 4;
        col = lane % 4 * 2;
    }
    simdgroup_float8x8 m, square = simdgroup_float8x8(0);
    m.thread_elements() = float2(x[row * 8 + col], x[row * 8 + col + 1]);
    simdgroup_multiply_accumulate(square, m, m, square);
    y[row * 8 + col] = square.thread_elements()[0];
    y[row * 8 + col + 1] = square.thread_elements()[1];
}

/* Every thread writes its own element, so that a grid that is too small leaves elements out that
 * are seen. */
[[max_total_threads_per_threadgroup(256)]] kernel void
fill(constant count_args &a [[buffer(0)]], device float *y [[buffer(1)]],
     uint3 i [[thread_position_in_grid]], uint3 n [[threads_per_grid]])
{
    uint at = (i.z * n.y + i.y) * n.x + i.x;
    if (at < a.n)
        y[at] = FACTOR * TABLE[at % 4];
}
