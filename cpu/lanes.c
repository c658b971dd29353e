/* SPDX-License-Identifier: MIT */
/*
 * Row kernels in plain C that compilers vectorise well. They are compiled once per instruction set,
 * and selected when the library is loaded. Sums have a fixed order, so results on one machine are
 * always bit-identical.
 */
#include <math.h>

#include "clones.h"
#include "cpu.h"

/* Rounds to nearest even without a branch. The select, which keeps NaN, becomes a blend. */
static inline qv_bf16
round_bf16(float f)
{
    uint32_t u = qv_float_bits(f);
    uint32_t rounded = u + 0x7fff + ((u >> 16) & 1);
    return (qv_bf16)((f != f ? u | 0x400000 : rounded) >> 16);
}

/*
 * exp for x < 88 within 2 ulp: 2^n * e^r with n = round(x / ln 2), |r| <= ln(2)/2, by the Taylor
 * polynomial of degree 6 (remainder 1e-7 relative). NaN stays NaN because the scale is multiplied,
 * not added to the exponent.
 */
static inline float
exp_below_88(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * qv_bits_float((qv_float_bits(shifted) + 127) << 23);
}

QV_CLONES static void
load_bf16(float *dst, const qv_bf16 *src, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dst[i] = qv_bits_float((uint32_t)src[i] << 16);
}

QV_CLONES static void
store_bf16(qv_bf16 *dst, const float *src, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dst[i] = round_bf16(src[i]);
}

void
qv_lanes_load_cpu(float *dst, const void *src, int64_t dtype, int64_t n)
{
    if (dtype == QV_F32)
        memcpy(dst, src, (size_t)n * 4);
    else
        load_bf16(dst, src, n);
}

void
qv_lanes_store_cpu(void *dst, const float *src, int64_t dtype, int64_t n)
{
    if (dtype == QV_F32)
        memcpy(dst, src, (size_t)n * 4);
    else
        store_bf16(dst, src, n);
}

QV_CLONES void
qv_lanes_norm_cpu(float *y, const float *x, const float *weight, const float *bias, int64_t n,
                  float eps, bool rms)
{
    float sum = 0, squares = 0;
    if (!rms) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += x[i];
    }
    float mean = sum / (float)n;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(squares / (float)n + eps);
    if (rms) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * scale * weight[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}

QV_CLONES void
qv_lanes_rotate_cpu(float *a, float *b, const float *cosines, const float *sines, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = a[i], y = b[i];
        a[i] = x * cosines[i] - y * sines[i];
        b[i] = y * cosines[i] + x * sines[i];
    }
}

/* Ignores NaN in x. */
QV_CLONES float
qv_lanes_max_cpu(const float *x, int64_t n, float least)
{
    float max = least;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/*
 * e^x as 2^n * 2^r with n = round(x / ln 2), by the Taylor polynomial of 2^r of degree 6. r is not
 * exact as in exp_below_88, which costs less: the relative error is 3e-7 near 0 and 4e-6 at -87,
 * where an exponential hardly adds to a sum. Below -87 it is 0; too large an x gives 2^127, and a
 * sum with that is infinite or nearly so. NaN stays NaN. Clamping x would be simpler, but GCC turns
 * that into twice the instructions.
 */
static inline float
exp_any(float x)
{
    const float magic = 12582912.0f, log2e = 1.44269504f;
    float shifted = x * log2e + magic, r = x * log2e - (shifted - magic);
    float p = 1.54035304e-4f;
    p = p * r + 1.33335581e-3f;
    p = p * r + 9.61812911e-3f;
    p = p * r + 5.55041087e-2f;
    p = p * r + 2.40226507e-1f;
    p = p * r + 6.93147181e-1f;
    p = p * r + 1.0f;
    p *= qv_bits_float((qv_float_bits(shifted) + 127) << 23);
    p = x < -87.0f ? 0.0f : p;
    return x > 88.0f ? 0x1p127f : p;
}

QV_CLONES static float
exps_f32(const float *x, float *y, int64_t n, int64_t padded, float scale, float max)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = exp_any((x[i] - max) * scale);
        y[i] = e;
        sum += e;
    }
    memset(y + n, 0, (size_t)(padded - n) * sizeof *y);
    return sum;
}

QV_CLONES static float
exps_bf16(const float *x, qv_bf16 *y, int64_t n, int64_t padded, float scale, float max)
{
    float sum = 0;
    for (int64_t first = 0; first < n; first += 64) {
        float e[64];
        int64_t count = n - first < 64 ? n - first : 64;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            e[i] = exp_any((x[first + i] - max) * scale);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            qv_bf16 r = round_bf16(e[i]);
            y[first + i] = r;
            sum += qv_bits_float((uint32_t)r << 16);
        }
    }
    memset(y + n, 0, (size_t)(padded - n) * sizeof *y);
    return sum;
}

float
qv_lanes_exps_cpu(const float *x, void *y, int64_t dtype, int64_t n, int64_t padded, float scale,
                  float max)
{
    return dtype == QV_F32 ? exps_f32(x, y, n, padded, scale, max)
                           : exps_bf16(x, y, n, padded, scale, max);
}

QV_CLONES void
qv_lanes_scale_cpu(float *x, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

QV_CLONES void
qv_lanes_add_scaled_cpu(float *y, const float *x, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += scale * x[i];
}

/* The usual step of 3 has a separate loop, which the compiler turns into shuffles. */
QV_CLONES static void
bytes_f32(float *y, const uint8_t *src, int64_t step, float scale, float shift, int64_t n)
{
    if (step == 3)
        for (int64_t i = 0; i < n; i++)
            y[i] = (float)src[3 * i] * scale + shift;
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = (float)src[i * step] * scale + shift;
}

QV_CLONES static void
bytes_bf16(qv_bf16 *y, const uint8_t *src, int64_t step, float scale, float shift, int64_t n)
{
    if (step == 3)
        for (int64_t i = 0; i < n; i++)
            y[i] = round_bf16((float)src[3 * i] * scale + shift);
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = round_bf16((float)src[i * step] * scale + shift);
}

void
qv_lanes_bytes_cpu(void *y, int64_t dtype, const uint8_t *src, int64_t step, float scale,
                   float shift, int64_t n)
{
    if (dtype == QV_F32)
        bytes_f32(y, src, step, scale, shift, n);
    else
        bytes_bf16(y, src, step, scale, shift, n);
}

/* Returns x / (1 + e^-s) for t = -|s|, where s has x's sign, so that the exponent is never
 * positive. If the exponential is 0 in f32, so is the result for any negative x. */
static inline float
by_sigmoid(float x, float t)
{
    float e = t < -87.0f ? 0.0f : exp_below_88(t);
    return x * ((x < 0 ? e : 1.0f) / (1.0f + e));
}

/* The result x / (1 + e^-2u) is x/2 (1 + tanh u). */
static inline float
gelu_tanh(float x)
{
    return by_sigmoid(x, -1.59576912f * fabsf(x + 0.044715f * x * x * x)); /* -2 sqrt(2/pi) */
}

/* Uses erfc to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
static inline float
gelu_erf(float x)
{
    float z = 0.707106781f * fabsf(x), t = 1.0f / (1.0f + 0.3275911f * z), p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float e = z > 9.3f ? 0.0f : 0.5f * p * t * exp_below_88(-z * z);
    return x * (x < 0 ? e : 1.0f - e);
}

QV_CLONES void
qv_lanes_epilogue_cpu(float *y, const float *x, const float *bias, float alpha, int64_t act,
                      int64_t n)
{
    if (bias) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = alpha * x[i] + bias[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = alpha * x[i];
    }
    if (act == QV_ACT_GELU_TANH) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = gelu_tanh(y[i]);
    } else if (act == QV_ACT_GELU_ERF) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = gelu_erf(y[i]);
    } else if (act == QV_ACT_SILU || act == QV_ACT_GELU_QUICK) {
        const float by = act == QV_ACT_SILU ? -1.0f : -1.702f;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = by_sigmoid(y[i], by * fabsf(y[i]));
    }
}

QV_CLONES void
qv_lanes_multiply_cpu(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] *= x[i];
}

/* Transposes in square blocks, whose lines stay in the cache while they are read and written. */
#define TRANSPOSE(type, y, x)                                                                      \
    do {                                                                                           \
        type *to = (y);                                                                            \
        const type *from = (x);                                                                    \
        for (int64_t row = 0; row < rows; row += BLOCK)                                            \
            for (int64_t col = 0; col < cols; col += BLOCK)                                        \
                for (int64_t j = col; j < cols && j < col + BLOCK; j++)                            \
                    for (int64_t i = row; i < rows && i < row + BLOCK; i++)                        \
                        to[j * y_stride + i] = from[i * x_stride + j * x_step];                    \
    } while (0)

void
qv_lanes_transpose_cpu(void *y, int64_t y_stride, const void *x, int64_t x_stride, int64_t x_step,
                       int64_t dtype, int64_t rows, int64_t cols)
{
    enum { BLOCK = 32 };
    switch (qv_dtype_bytes(dtype)) {
    case 4: TRANSPOSE(uint32_t, y, x); break;
    case 2: TRANSPOSE(uint16_t, y, x); break;
    case 1: TRANSPOSE(uint8_t, y, x); break;
    }
}

QV_CLONES void
qv_lanes_pair_cpu(void *y, const void *x, int64_t x_stride, int64_t n)
{
    uint32_t *to = y;
    const uint16_t *a = x, *b = a + x_stride;
    uint32_t mask = x_stride ? UINT32_MAX : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = a[i] | ((uint32_t)b[i] << 16 & mask);
}
