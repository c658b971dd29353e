/* SPDX-License-Identifier: MIT */
/* Resizes pixels as in transformers and as in qwen-vl-utils. Pure functions. */
#pragma once

#include <stddef.h>

#include "axis.h"
#include "error.h"

#define QVM_MAX_SIDE                                                                               \
    QV_AXIS_MOST /* the most pixels on a side of any frame that is resized or
                                   * written */
#define QVM_MAX_PIXELS (16384 * 16384)

#if defined(__x86_64__) && defined(__GNUC__)
#define QVM_X86 1
#endif

/* ---- resize.c: as transformers resizes ------------------------------------------------------- */

#define QVM_ROWS 4 /* source rows that one call of `across` resizes */

/* The kernels of a resize. `across` resizes QVM_ROWS rows of RGB; it may read 4 bytes past a row of
 * src and write 16 past one of dst. `down` writes n bytes (a multiple of 64), which are the
 * weighted sum of `taps` rows (an even number). */
typedef struct qvm_resize_ops {
    int multiple; /* `across` needs a multiple of this number of taps */
    bool packed;  /* `across` needs packed weights */
    void (*across)(const struct qv_axis *axis, const uint8_t *const *src, uint8_t *const *dst);
    void (*down)(const uint8_t *const *rows, const int16_t *weights, int taps, int precision,
                 uint8_t *dst, size_t n);
} qvm_resize_ops;

typedef struct qvm_resizer qvm_resizer;

typedef enum qvm_level { QVM_PORTABLE, QVM_AVX2, QVM_AVX512, QVM_BEST } qvm_level;

/* Makes tables and scratch for one pair of sizes, with kernels up to `level`. Returns QV_ENOMEM. */
qv_status qvm_resizer_create(int src_h, int src_w, int dst_h, int dst_w, qvm_level level,
                             qvm_resizer **out, qv_error *err);
void qvm_resizer_free(qvm_resizer **resizer);
/* Resizes src[src_h, src_w, 3], whose rows are src_stride bytes apart, to dst[dst_h, dst_w, 3].
 * Allocates nothing. */
void qvm_resizer_run(qvm_resizer *resizer, const uint8_t *src, int64_t src_stride, uint8_t *dst);

/* Sets `ops` (resize_x86.c) to the kernels, up to `level`, that this CPU supports and that are
 * faster for rows of `in` pixels resized to `out`, with `taps` each. */
void qvm_resize_x86(qvm_resize_ops *ops, qvm_level level, int in, int out, int taps);

/* ---- resample.c: as qwen-vl-utils resizes ---------------------------------------------------- */

typedef enum qvm_arithmetic { QVM_TORCH_FLOAT, QVM_PIL } qvm_arithmetic;

typedef struct qvm_resampler qvm_resampler;

/* Makes tables and scratch for one pair of sizes. Returns QV_ENOMEM. */
qv_status qvm_resampler_create(int src_h, int src_w, int dst_h, int dst_w,
                               qvm_arithmetic arithmetic, qvm_resampler **out, qv_error *err);
void qvm_resampler_free(qvm_resampler **resampler);
/* Resizes src[src_h, src_w, 3], whose rows are src_stride bytes apart, to dst[dst_h, dst_w, 3].
 * Allocates nothing. */
void qvm_resampler_run(qvm_resampler *resampler, const uint8_t *src, int64_t src_stride,
                       uint8_t *dst);
