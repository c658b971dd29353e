/* SPDX-License-Identifier: MIT */
/* What the files of the media library share: the prepared resizer and the frame reader. */
#ifndef QV_MEDIA_MEDIA_H
#define QV_MEDIA_MEDIA_H

#include "../src/error.h"
#include "qwenvit_media.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define QVM_X86 1
#endif

#define QVM_MAX_SIDE 65536          /* of any frame that is resized or written */
#define QVM_MAX_PIXELS (16384 * 16384)
#define QVM_MAX_SAMPLED 1048576     /* frames sampled from one clip */

/* ---- resize.c ------------------------------------------------------------------------------- */

/* One axis, prepared: output i is the sum of weights[i][k] * input[start[i] + k], k < taps. */
typedef struct qvm_axis {
    int in, out;
    int taps;         /* per output, padded with zero weights as the kernel wants it */
    int precision;    /* weights are scaled by 2^precision */
    int32_t *start;   /* [out, and up to 3 copies of the last]; start + taps <= in if in >= taps */
    int16_t *weights; /* [out, taps], or packed: [out / 4 rounded up][taps / 2][4][2] */
} qvm_axis;

#define QVM_ROWS 4 /* source rows that one call resizes */

/* Horizontal: QVM_ROWS rows of RGB, src[r] -> dst[r]; dst rows have 16 spare bytes, src rows
 * have 4. Vertical: n bytes (a multiple of 64) of the weighted sum of `taps` rows, an even number.
 */
typedef struct qvm_resize_ops {
    int multiple; /* of horizontal taps */
    bool packed;  /* horizontal weights */
    void (*across)(const qvm_axis *axis, const uint8_t *const *src, uint8_t *const *dst);
    void (*down)(const uint8_t *const *rows, const int16_t *weights, int taps, int precision,
                 uint8_t *dst, size_t n);
} qvm_resize_ops;

typedef struct qvm_resizer qvm_resizer;

typedef enum qvm_level { QVM_PLAIN, QVM_AVX2, QVM_AVX512, QVM_BEST } qvm_level;

/* Tables and scratch for one pair of sizes, for up to `parts` threads at a time. */
qv_status qvm_resizer_create(int src_h, int src_w, int dst_h, int dst_w, int parts,
                             qvm_level level, qvm_resizer **out, qv_error *err);
void qvm_resizer_free(qvm_resizer **resizer);

/* Output rows y0 .. y1-1 with the scratch of `part`. Allocates nothing. */
void qvm_resizer_run(qvm_resizer *resizer, int part, const uint8_t *src, int64_t src_stride,
                     uint8_t *dst, int y0, int y1);

/* resize_x86.c: takes over what this machine does better for this many horizontal taps. */
void qvm_resize_x86(qvm_resize_ops *ops, qvm_level level, int in, int out, int taps);

/* ---- sampling.c ----------------------------------------------------------------------------- */

int64_t qvm_round_half_even(double x);

#endif
