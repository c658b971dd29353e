/* SPDX-License-Identifier: MIT */
/* Weights for a bicubic resize along one axis, in torch's arithmetic for bytes: 16-bit weights with
 * one precision per axis. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QV_AXIS_MOST = 65536 }; /* the most pixels on a side of a resized frame */

/* Output i is the sum of weights[i][k] * input[start[i] + k], k < taps. */
struct qv_axis {
    int in, out;
    int taps;         /* inputs per output, padded with zero weights as the kernel needs */
    int precision;    /* weights are scaled by 2^precision */
    int32_t *start;   /* [out, and up to 3 copies of the last]; start + taps <= in if in >= taps */
    int16_t *weights; /* [out, taps], or packed: [out / 4 rounded up][taps / 2][4][2] */
};

/* Sets sizes and precision. Returns the maximum number of inputs per output, or 0 if out of
 * memory. */
int qv_axis_measure(struct qv_axis *axis, int in, int out);
/* Makes the tables of a measured axis. taps must be at least what qv_axis_measure returned. Returns
 * false if out of memory. */
bool qv_axis_fill(struct qv_axis *axis, int taps);
/* Measures and fills, with as many taps as needed. */
bool qv_axis_make(struct qv_axis *axis, int in, int out);
void qv_axis_free(struct qv_axis *axis);

/* Returns the size in bytes of a finished axis's tables. */
static inline size_t
qv_axis_start_bytes(const struct qv_axis *axis)
{
    return (size_t)axis->out * sizeof *axis->start;
}
static inline size_t
qv_axis_weight_bytes(const struct qv_axis *axis)
{
    return (size_t)axis->out * (size_t)axis->taps * sizeof *axis->weights;
}
