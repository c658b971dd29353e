/* SPDX-License-Identifier: MIT */
/*
 * Shared by all kernels. The build joins arguments.h, this file and the other .metal files into one
 * source. REAL is bfloat or float, the dtype of activations and weights; sums are float. Metal
 * gives each buffer and each place in the grid a parameter of its own, so kernels, and the
 * functions that do their work, have more than seven parameters.
 */
#include <metal_stdlib>
using namespace metal;

typedef REAL real;
typedef vec<REAL, 4> real4;

constant uint HAS_BIAS [[function_constant(CONSTANT_BIAS)]];
constant uint ACT [[function_constant(CONSTANT_ACT)]];
constant uint HAS_RESIDUAL [[function_constant(CONSTANT_RESIDUAL)]];
constant uint ALIGNED [[function_constant(CONSTANT_ALIGNED)]];
constant uint A [[function_constant(CONSTANT_A)]];
constant uint B [[function_constant(CONSTANT_B)]];
constant uint C [[function_constant(CONSTANT_C)]];
constant uint D [[function_constant(CONSTANT_D)]];
constant uint GROUPED [[function_constant(CONSTANT_GROUPED)]];

/* Loads four values, whose address is a multiple of four elements. */
static inline float4
load4(device const real *p)
{
    return float4(*(device const real4 *)p);
}

static inline void
store4(device real *p, float4 v)
{
    *(device real4 *)p = real4(v);
}

/* Returns 1 + erf(x), as Metal has no erf. It uses Chebyshev fits of erf(x)/x in x^2 up to 1,
 * and of erfc(x) exp(x^2) in t = 1/(1 + x) above; the relative error of each is 3e-7. */
static inline float
one_plus_erf(float x)
{
    float a = fabs(x), u = x * x;
    if (a <= 1) {
        float p = -9.67359028e-6f;
        p = fma(p, u, 1.12682537e-4f);
        p = fma(p, u, -8.48439639e-4f);
        p = fma(p, u, 5.22105349e-3f);
        p = fma(p, u, -2.68654376e-2f);
        p = fma(p, u, 0.112837829f);
        p = fma(p, u, -0.376126379f);
        return 1 + x * fma(p, u, 1.12837923f);
    }
    float t = 1 / (1 + a), q = 0.161017701f;
    q = fma(q, t, -1.38827133f);
    q = fma(q, t, 2.63190818f);
    q = fma(q, t, -1.76179755f);
    q = fma(q, t, -0.0596323162f);
    q = fma(q, t, 0.255276829f);
    q = fma(q, t, 0.565913916f);
    q = t * fma(q, t, 0.564144015f) * exp(-u);
    return x > 0 ? 2 - q : q;
}

static inline float
gelu_erf(float x)
{
    return 0.5f * x * one_plus_erf(x * 0.70710678f);
}

static inline float
gelu_tanh(float x)
{
    return 0.5f * x * (1 + precise::tanh(0.79788456f * fma(0.044715f * x * x, x, x)));
}

/* Returns x / (1 + exp(-by x)), which is SiLU for by = 1. It calls exp() only for negative values,
 * so nothing overflows. */
static inline float
swish(float x, float by)
{
    float e = exp(-by * fabs(x));
    return x * ((x < 0 ? e : 1) / (1 + e));
}

static inline float
activate(float x)
{
    return ACT == 1   ? gelu_tanh(x)
           : ACT == 2 ? gelu_erf(x)
           : ACT == 3 ? swish(x, 1)
           : ACT == 4 ? swish(x, 1.702f)
                      : x;
}

/* Returns the value of y[row, col] for a sum; bias[n], residual[residual_rows, n]. */
static inline float
epilogue_value(constant epilogue_args &e, float sum, uint row, uint col, uint n,
               device const real *bias, device const real *residual)
{
    float v = e.alpha * sum;
    if (HAS_BIAS)
        v += float(bias[col]);
    v = activate(v);
    if (HAS_RESIDUAL)
        v += float(residual[long(row % e.residual_rows) * n + col]);
    return v;
}
