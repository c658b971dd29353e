/* SPDX-License-Identifier: MIT */
/* Kernels for selftest.c. If WRONG is set, each does something that a GPU would not report;
 * otherwise it is the correct twin. The kernels after them show that functions of Metal give the
 * right results. */
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
write_outside(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
              uint i [[thread_position_in_grid]])
{
    y[i + WRONG] = x[i];
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
    simdgroup_float8x8 m, square;
    m.thread_elements() = float2(x[row * 8 + col], x[row * 8 + col + 1]);
    simdgroup_multiply(square, m, m);
    simdgroup_store(square, y);
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

/* ---- values ---------------------------------------------------------------------------------- */

/* Row r of y has one function's result for each lane. */
kernel void
simd_functions(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
               uint lane [[thread_index_in_simdgroup]])
{
    float v = x[lane];
    y[lane] = simd_sum(v);
    y[32 + lane] = simd_max(v);
    y[64 + lane] = simd_min(v);
    y[96 + lane] = simd_shuffle(v, ushort(lane * 5 % 32));
    y[128 + lane] = simd_shuffle_xor(v, 9);
    float down = simd_shuffle_down(v, 3), up = simd_shuffle_up(v, 3);
    y[160 + lane] = lane < 29 ? down : 0;
    y[192 + lane] = lane < 3 ? 0 : up;
    y[224 + lane] = simd_broadcast(v, 17);
    y[256 + lane] = simd_sum(lane);
}

kernel void
places(device uint *y [[buffer(1)]], uint3 at [[thread_position_in_grid]],
       uint3 group [[threadgroup_position_in_grid]],
       uint3 inside [[thread_position_in_threadgroup]], uint3 size [[threads_per_threadgroup]],
       uint3 groups [[threadgroups_per_grid]], uint3 grid [[threads_per_grid]],
       uint index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
       ushort simd [[simdgroup_index_in_threadgroup]])
{
    bool right = index == (inside.z * size.y + inside.y) * size.x + inside.x &&
                 lane == index % 32 && simd == index / 32 && all(int4(1));
    right = right && at.x == group.x * size.x + inside.x && at.y == group.y * size.y + inside.y &&
            at.z == group.z * size.z + inside.z && grid.z == groups.z * size.z;
    y[(at.z * grid.y + at.y) * grid.x + at.x] = right;
}

/* Stores the 8 x 8 at (4, 3) of x[16,16] as it is, transposed when loaded, and transposed when
 * stored. */
kernel void
matrix_memory(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
              threadgroup float *t [[threadgroup(0)]])
{
    simdgroup_float8x8 m;
    simdgroup_load(m, x, 16, ulong2(3, 4));
    simdgroup_store(m, y);
    simdgroup_load(m, x + 4 * 16 + 3, 16, ulong2(0), true);
    simdgroup_store(m, y + 64);
    simdgroup_load(m, x + 4 * 16 + 3, 16);
    simdgroup_store(m, y + 128, 8, ulong2(0), true);
    simdgroup_store(m, t, 12);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(m, t, 12);
    simdgroup_store(m, y + 192, 8);
}

/* y = a b + c with every operand that may be bfloat or float; then 2 a, by a matrix with 2 on its
 * diagonal. */
kernel void
matrix_product(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
               device const bfloat *b [[buffer(2)]])
{
    simdgroup_matrix<float, 8, 8> f, c = make_filled_simdgroup_matrix<float, 8, 8>(0.5), sum;
    simdgroup_matrix<bfloat, 8, 8> h, g;
    simdgroup_load(f, x, 8);
    simdgroup_load(h, b, 8);
    simdgroup_load(g, b + 64, 8);
    simdgroup_multiply_accumulate(sum, f, f, c);
    simdgroup_store(sum, y);
    simdgroup_multiply_accumulate(sum, h, g, c);
    simdgroup_store(sum, y + 64);
    simdgroup_multiply_accumulate(sum, h, f, c);
    simdgroup_multiply_accumulate(sum, h, f, sum);
    simdgroup_store(sum, y + 128);
    simdgroup_multiply(sum, simdgroup_float8x8(2), f);
    simdgroup_store(sum, y + 192);
    simdgroup_matrix<bfloat, 8, 8> both;
    both.thread_elements()[0] = bfloat(sum.thread_elements()[0]);
    both.thread_elements()[1] = bfloat(sum.thread_elements()[1]);
    simdgroup_multiply(sum, both, simdgroup_bfloat8x8(bfloat(1.)));
    simdgroup_store(sum, y + 256);
}

kernel void
to_bfloat(device const float *x [[buffer(0)]], device bfloat *y [[buffer(1)]],
          uint i [[thread_position_in_grid]])
{
    float4 v = *(device const float4 *)(x + i * 4);
    *(device bfloat4 *)(y + i * 4) = bfloat4(v.x, bfloat(v.y), v.zw);
}

kernel void
from_bfloat(device const bfloat *x [[buffer(0)]], device float *y [[buffer(1)]],
            uint i [[thread_position_in_grid]])
{
    bfloat4 v = *(device const bfloat4 *)(x + i * 4);
    bfloat last = v.w, first = v[0];
    *(device float4 *)(y + i * 4) = float4(first, v.y, float2(v.z, last));
}

/* Each thread computes one row of 16 values. */
kernel void
arithmetic(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
           uint i [[thread_position_in_grid]])
{
    float v = x[i];
    device float *to = y + i * 16;
    to[0] = fabs(v);
    to[1] = fma(v, v, -1.0);
    to[2] = exp(v);
    to[3] = precise::exp2(v);
    to[4] = log(fabs(v) + 1);
    to[5] = rsqrt(v * v + 1);
    to[6] = fast::tanh(v);
    to[7] = max(v, 0.25) + min(v, 0.5) + clamp(v, -1., 1.);
    to[8] = copysign(2.0, v) + floor(v);
    to[9] = select(v, 3.0f, v < 0);
    to[10] = dot(float4(v), float4(1, float2(2), 3));
    to[11] = as_type<float>(as_type<uint>(v) ^ 0x80000000);
    to[12] = isnan(v / 0 * 0) ? 0.1 + 0.2 : 0;
    to[13] = float(bfloat(v) * bfloat(1.5) + bfloat(0.3));
    to[14] = dot(max(float4(v), float4(0)).xyz, float3(1, 2, 3));
    to[15] = float(int(v)) + float(uint(7) / 2) + mulhi(1u << 31, 6u);
}
