/* SPDX-License-Identifier: MIT */
/*
 * Metal as C++ for OpenCL, for clang to check and not to run. There device, threadgroup and the
 * like mean what they mean in Metal, and a pointer of one address space does not become one of
 * another.
 */
#pragma once

#define __METAL_VERSION__ 310
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define METAL_FUNC inline

/* A type that is built into clang, so that its values cross address spaces as numbers do. */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef half bfloat;
typedef half2 bfloat2;
typedef half3 bfloat3;
typedef half4 bfloat4;

namespace metal
{
template <class T, int N> struct vec_of {
    typedef T type __attribute__((ext_vector_type(N)));
};
template <class T, int N> using vec = typename vec_of<T, N>::type;
template <class V, class... A> V make_vector(A... parts);
template <class T, class F> T as_type(F from);

/* Whatever is not declared here is built into OpenCL. */
namespace precise
{
float tanh(float x);
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

template <class T> T simd_sum(T x);
template <class T> T simd_shuffle(T x, ushort lane);
template <class T> T simd_shuffle_xor(T x, ushort mask);

template <class T, int Rows, int Cols> struct simdgroup_matrix {
    vec<T, 2> elements;
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal);
    thread vec<T, 2> &thread_elements() thread;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T>
void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &d, const device T *p, ulong per_row = 8,
                    ulong2 origin = (ulong2)(0), bool transpose = false);
template <class T>
void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &d, const threadgroup T *p, ulong per_row = 8,
                    ulong2 origin = (ulong2)(0), bool transpose = false);
template <class A, class B>
void simdgroup_multiply_accumulate(thread simdgroup_float8x8 &d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_float8x8 c);
} // namespace metal
