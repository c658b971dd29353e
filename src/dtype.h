/* SPDX-License-Identifier: MIT */
/* Number formats: sizes and conversions. Rounding is to nearest even and keeps NaN a NaN. */
#pragma once

#include <string.h>

#include "qwenvit.h"

typedef uint16_t qv_bf16;

/* Finds the dtype with that name; returns false if it is unknown. */
bool qv_dtype_parse(const char *text, qv_dtype *out);

/* Returns the name of a dtype in safetensors files: "F32", "BF16", "F16", "U8"; NULL for dtypes
 * that are neither written nor loaded. */
const char *qv_dtype_file_name(qv_dtype dtype);
/* Finds the dtype with that name in files; returns false if it is unknown. */
bool qv_dtype_parse_file(const char *name, qv_dtype *out);

static inline size_t
qv_dtype_bytes(int64_t dtype)
{
    switch ((qv_dtype)dtype) {
    case QV_F32:
    case QV_I32: return 4;
    case QV_BF16:
    case QV_F16: return 2;
    case QV_U8:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break; /* never 0 bytes, because callers divide by it */
    }
    return 1;
}

static inline float
qv_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t
qv_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float
qv_bf16_to_f32(qv_bf16 h)
{
    return qv_bits_float((uint32_t)h << 16);
}

static inline qv_bf16
qv_f32_to_bf16(float f)
{
    const uint32_t u = qv_float_bits(f), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (qv_bf16)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

/* Uses masks instead of conditions, because compilers vectorise loops with masks but not with
 * conditions. */
static inline float
qv_f16_to_f32(uint16_t h)
{
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, exponent = magnitude & 0x0f800000;
    const uint32_t is_normal = 0u - (exponent != 0), is_beyond = 0u - (exponent == 0x0f800000);
    const float small = (float)(int32_t)(h & 0x3ff) * 0x1p-24f; /* subnormal: exact in f32 */
    const uint32_t rebias = (uint32_t)112 << 23;
    uint32_t u = (qv_float_bits(small) & ~is_normal) |
                 ((magnitude + rebias + (rebias & is_beyond)) & is_normal);
    u |= (uint32_t)(h & 0x8000) << 16;
    return qv_bits_float(u);
}

static inline uint16_t
qv_f32_to_f16(float f)
{
    const uint32_t u = qv_float_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14 values are multiples of 2^-24, and adding 1/2 rounds
                                 * to a multiple */
        return (uint16_t)(sign | (qv_float_bits(qv_bits_float(magnitude) + 0.5f) - 0x3f000000));
    /* the subtraction multiplies by 2^-112 */
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
    return (uint16_t)(sign | rounded >> 13);
}

/* qv_load returns element i of an array of any dtype; qv_store writes it with one rounding. */
static inline double
qv_load(const void *p, int64_t dtype, int64_t i)
{
    switch ((qv_dtype)dtype) {
    case QV_F32: return ((const float *)p)[i];
    case QV_BF16: return qv_bf16_to_f32(((const qv_bf16 *)p)[i]);
    case QV_F16: return qv_f16_to_f32(((const uint16_t *)p)[i]);
    case QV_U8: return ((const uint8_t *)p)[i];
    case QV_I32: return ((const int32_t *)p)[i];
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    return 0;
}

/* Returns a double as f32, rounded to odd, so that rounding it to fewer bits gives the same result
 * as rounding the double directly. Rounding to nearest twice would not. */
static inline float
qv_round_to_odd(double v)
{
    float f = (float)v;
    const uint32_t u = qv_float_bits(f);
    if ((double)f != v && v == v && (u & 0x7fffffff) < 0x7f800000) {
        double mag = v < 0 ? -v : v, fmag = f < 0 ? -(double)f : (double)f;
        return qv_bits_float((fmag > mag ? u - 1 : u) | 1);
    }
    return f;
}

/* An integer dtype must be able to hold v. */
static inline void
qv_store(void *p, int64_t dtype, int64_t i, double v)
{
    switch ((qv_dtype)dtype) {
    case QV_F32: ((float *)p)[i] = (float)v; break;
    case QV_BF16: ((qv_bf16 *)p)[i] = qv_f32_to_bf16(qv_round_to_odd(v)); break;
    case QV_F16: ((uint16_t *)p)[i] = qv_f32_to_f16(qv_round_to_odd(v)); break;
    case QV_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case QV_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
}
