/* SPDX-License-Identifier: MIT */
/* The weights of a bicubic resize along one axis, in torch's arithmetic for bytes: 16-bit weights
 * with one precision per axis. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QV_AXIS_MOST = 65536 }; /* the most pixels of a side of any frame that is resized */

/* Output i is the sum of weights[i][k] * input[start[i] + k], k < taps. */
struct qv_axis {
    int in, out;
    int taps;         /* inputs of each output, padded with zero weights as the kernel wants it */
    int precision;    /* weights are scaled by 2^precision */
    int32_t *start;   /* [out, and up to 3 copies of the last]; start + taps <= in if in >= taps */
    int16_t *weights; /* [out, taps], or packed: [out / 4 rounded up][taps / 2][4][2] */
};

/* Sets sizes and precision, and returns the most inputs of any output; 0 if out of memory. */
int qv_axis_measure(struct qv_axis *axis, int in, int out);
/* Makes the tables of an axis that was measured, with at least so many taps. Returns false if out
 * of memory. */
bool qv_axis_fill(struct qv_axis *axis, int taps);
/* Does both, with as many taps as the outputs have. */
bool qv_axis_make(struct qv_axis *axis, int in, int out);
void qv_axis_free(struct qv_axis *axis);

/* The bytes of the tables of an axis that was made. */
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
