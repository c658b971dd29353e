/* SPDX-License-Identifier: MIT */
/* Number formats: sizes and conversions. bf16 rounds to nearest even and keeps NaN a NaN. */
#ifndef QV_SRC_DTYPE_H
#define QV_SRC_DTYPE_H

#include <string.h>

#include "qwenvit.h"

typedef uint16_t qv_bf16;

static inline size_t
qv_dtype_bytes(int64_t dtype)
{
    return dtype == QV_F32 ? 4 : dtype == QV_U8 ? 1 : 2;
}

static inline float
qv_bf16_to_f32(qv_bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline qv_bf16
qv_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (qv_bf16)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

static inline float
qv_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff, u;
    if (e == 31)
        u = sign | 0x7f800000 | m << 13;
    else if (e)
        u = sign | (e + 112) << 23 | m << 13;
    else { /* subnormal: m * 2^-24 is exact in f32 */
        float f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Element i of an array of any dtype, and back with one rounding. */
static inline double
qv_load(const void *p, int64_t dtype, int64_t i)
{
    switch (dtype) {
    case QV_F32: return ((const float *)p)[i];
    case QV_BF16: return qv_bf16_to_f32(((const qv_bf16 *)p)[i]);
    case QV_F16: return qv_f16_to_f32(((const uint16_t *)p)[i]);
    default: return ((const uint8_t *)p)[i];
    }
}

/* bf16 goes through f32 rounded to odd: to nearest twice would round twice. */
static inline void
qv_store(void *p, int64_t dtype, int64_t i, double v)
{
    float f = (float)v;
    if (dtype == QV_F32) {
        ((float *)p)[i] = f;
        return;
    }
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((double)f != v && v == v && (u & 0x7fffffff) < 0x7f800000) {
        double mag = v < 0 ? -v : v, fmag = f < 0 ? -(double)f : (double)f;
        if (fmag > mag)
            u -= 1;
        u |= 1;
        memcpy(&f, &u, 4);
    }
    ((qv_bf16 *)p)[i] = qv_f32_to_bf16(f);
}

#endif
