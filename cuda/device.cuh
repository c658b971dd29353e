/* SPDX-License-Identifier: MIT */
/* Code shared by our device kernels: vectors of f32 or bf16, divisions, activations, launches. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdint.h>
#include <string.h>
#include <type_traits>

#include "launch.h"

enum { WARP = 32, THREADS = 256 };       /* threads of a block, unless a kernel says otherwise */
#define BLOCK __launch_bounds__(THREADS) /* a macro, because clang-format trips over the brackets */

/* ---- launches -------------------------------------------------------------------------------- */

static inline int64_t
ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Launches a kernel. most_shared: the most dynamic shared memory of any of its launches on the
 * device. It must be the same for all, because other threads' launches set it too. */
template <typename... Parameters, typename... Arguments>
static cudaError_t
launch_as(const cudaLaunchConfig_t &config, size_t most_shared, void (*kernel)(Parameters...),
          Arguments... arguments)
{
    cudaError_t error = cudaSuccess;
    if (most_shared > 0)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)most_shared);
    if (!error)
        error = cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
    if (error)
        (void)cudaGetLastError(); /* returned here, so the next caller must not find it again */
    return error;
}

/* Launches a kernel. A grid has at most 2^31 - 1 blocks; kernels that could need more compute
 * further tiles in a loop. shared_bytes is dynamic shared memory, in addition to what the kernel
 * declares, and constant for each kernel. early: the kernel may start before the previous one has
 * finished (programmatic dependent launch). It must be compiled for compute capability 9.0 or
 * later, and all of its threads must call await_launch(). */
template <typename... Parameters, typename... Arguments>
static cudaError_t
launch_shared(cudaStream_t stream, int64_t blocks, dim3 threads, size_t shared_bytes, bool early,
              void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    if (blocks <= 0)
        return cudaSuccess;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = early;
    config.gridDim = dim3((unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX));
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return launch_as(config, shared_bytes, kernel, arguments...);
}

template <typename... Parameters, typename... Arguments>
static cudaError_t
launch(cudaStream_t stream, int64_t blocks, dim3 threads, void (*kernel)(Parameters...),
       Arguments... arguments)
{
    return launch_shared(stream, blocks, threads, 0, false, kernel, arguments...);
}

/* Lets the next kernel start where there is room, then waits until the previous kernel, and so all
 * earlier ones, have finished. Before it a kernel may read weights, but nothing else in global
 * memory, and write nothing there. */
static __device__ __forceinline__ void
await_launch(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
#endif
}

/* ---- division -------------------------------------------------------------------------------- */

/* Division that is exact for all n >= 0: by multiplication below 2^32 (Granlund and Montgomery,
 * PLDI 1994), so that only huge operations pay for 64-bit divisions. */
struct divisor {
    int64_t by;
    uint32_t magic, shift;
};

static inline struct divisor
divisor_of(int64_t by)
{
    struct divisor d = { by, 0, 32 }; /* from 2^32 on the quotient of a small n is 0 */
    if (by <= UINT32_MAX) {
        for (d.shift = 0; (uint64_t)1 << d.shift < (uint64_t)by;)
            d.shift++;
        uint64_t above = ((uint64_t)1 << d.shift) - (uint64_t)by;
        d.magic = (uint32_t)((above << 32) / (uint64_t)by + 1);
    }
    return d;
}

static __device__ __forceinline__ int64_t
divide(int64_t n, const struct divisor &d, int64_t *rest)
{
    int64_t quotient;
    if ((uint64_t)n >> 32)
        quotient = n / d.by;
    else
        quotient = (int64_t)(((uint64_t)__umulhi((uint32_t)n, d.magic) + (uint32_t)n) >> d.shift);
    *rest = n - quotient * d.by;
    return quotient;
}

/* ---- vectors --------------------------------------------------------------------------------- */

typedef __nv_bfloat16 bf16;

template <int BYTES> struct word_of;
template <> struct word_of<1> {
    typedef uint8_t type;
};
template <> struct word_of<2> {
    typedef uint16_t type;
};
template <> struct word_of<4> {
    typedef uint32_t type;
};
template <> struct word_of<8> {
    typedef uint2 type;
};
template <> struct word_of<16> {
    typedef uint4 type;
};

/* N elements as in memory, copied in chunks of up to 16 bytes, to which they must be aligned. */
template <typename T, int N> struct raw {
    static constexpr int BYTES = N * (int)sizeof(T), WIDTH = BYTES < 16 ? BYTES : 16;
    typedef typename word_of<WIDTH>::type word;
    word words[BYTES / WIDTH];
};

/* Two values rounded to bf16 in a word, the first one in its lower half. */
static __device__ __forceinline__ uint32_t
pair(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &both, sizeof word);
    return word;
}

/* Number of elements in a 16-byte word. */
template <typename T> constexpr int LANES = 16 / (int)sizeof(T);

template <int N, typename T>
static __device__ __forceinline__ raw<T, N>
fetch(const T *p)
{
    raw<T, N> r;
#pragma unroll
    for (int i = 0; i < r.BYTES / r.WIDTH; i++)
        r.words[i] = reinterpret_cast<const typename raw<T, N>::word *>(p)[i];
    return r;
}

static __device__ __forceinline__ uint32_t
shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Writes a word to global memory with one store. nvcc 13.0 may split a plain assignment of 8 or 16
 * bytes into smaller stores, depending on the code around it. */
template <typename W>
static __device__ __forceinline__ void
put_word(W *p, const W &word)
{
    *p = word;
}

#ifdef __CUDA_ARCH__
static __device__ __forceinline__ void
put_word(uint2 *p, const uint2 &w)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(w.x), "r"(w.y) : "memory");
}

static __device__ __forceinline__ void
put_word(uint4 *p, const uint4 &w)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w.x), "r"(w.y), "r"(w.z),
                 "r"(w.w)
                 : "memory");
}
#endif

template <int N, typename T>
static __device__ __forceinline__ void
put(T *p, const raw<T, N> &r)
{
#pragma unroll
    for (int i = 0; i < r.BYTES / r.WIDTH; i++)
        put_word(reinterpret_cast<typename raw<T, N>::word *>(p) + i, r.words[i]);
}

template <int N>
static __device__ __forceinline__ void
unpack(float (&f)[N], const raw<float, N> &r)
{
    memcpy(f, &r, sizeof f);
}

template <int N>
static __device__ __forceinline__ void
unpack(float (&f)[N], const raw<bf16, N> &r)
{
    uint16_t h[N];
    memcpy(h, &r, sizeof h);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t u = (uint32_t)h[i] << 16;
        memcpy(&f[i], &u, sizeof u);
    }
}

template <int N, typename T>
static __device__ __forceinline__ void
load(float (&f)[N], const T *p)
{
    unpack(f, fetch<N>(p));
}

template <int N>
static __device__ __forceinline__ void
store(float *p, const float (&f)[N])
{
    raw<float, N> r;
    memcpy(&r, f, sizeof r);
    put(p, r);
}

template <int N>
static __device__ __forceinline__ void
store(bf16 *p, const float (&f)[N])
{
    raw<bf16, N> r;
    if constexpr (N == 1) {
        bf16 h = __float2bfloat16_rn(f[0]);
        memcpy(&r, &h, sizeof r);
    } else {
        __nv_bfloat162 pairs[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            pairs[i] = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
        memcpy(&r, pairs, sizeof r);
    }
    put(p, r);
}

/* Calls f with a value of a dtype's type; prepare rejects all other dtypes. */
template <typename F>
static inline cudaError_t
typed(int64_t dtype, F f)
{
    return dtype == QV_F32 ? f(float()) : dtype == QV_BF16 ? f(bf16()) : cudaErrorNotSupported;
}

/* The same, and passes the number of elements in a vector as a constant: LANES, or 1 if they do not
 * divide each of some sizes. sizes: their bitwise or. */
template <typename F>
static inline cudaError_t
typed_vectors(int64_t dtype, int64_t sizes, F f)
{
    return typed(dtype, [&](auto t) {
        constexpr int N = LANES<decltype(t)>;
        return sizes % N ? f(t, std::integral_constant<int, 1>())
                         : f(t, std::integral_constant<int, N>());
    });
}

/* value reads one element, set writes one. */
template <typename T>
static __device__ __forceinline__ float
value(const T *p)
{
    float f[1];
    load(f, p);
    return f[0];
}

template <typename T>
static __device__ __forceinline__ void
set(T *p, float v)
{
    const float f[1] = { v };
    store(p, f);
}

/* ---- activations ----------------------------------------------------------------------------- */

static __device__ __forceinline__ float
gelu_erf(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
}

static __device__ __forceinline__ float
gelu_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

/* Returns x / (1 + exp(-by x)), which is SiLU for by = 1. If the exponential is infinite, the
 * result is 0. For a result rounded to bf16 the device's fast exponential and division suffice:
 * their error is about 2^-21. */
template <typename T>
static __device__ __forceinline__ float
swish(float x, float by)
{
    if constexpr (sizeof(T) < sizeof(float))
        return __fdividef(x, 1 + __expf(-by * x));
    else
        return x / (1 + expf(-by * x));
}

/* T is the type that the result is rounded to. */
template <typename T>
static __device__ __forceinline__ float
activate(int act, float x)
{
    switch (act) {
    case QV_ACT_GELU_TANH: return gelu_tanh(x);
    case QV_ACT_GELU_ERF: return gelu_erf(x);
    case QV_ACT_SILU: return swish<T>(x, 1);
    case QV_ACT_GELU_QUICK: return swish<T>(x, 1.702f);
    }
    return x;
}
