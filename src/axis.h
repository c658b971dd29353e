/* SPDX-License-Identifier: MIT */
/* The weights of a bicubic resize along one axis, in torch's arithmetic for bytes: 16-bit weights
 * with one precision per axis. */
#ifndef QV_AXIS_H
#define QV_AXIS_H

#include <stdbool.h>
#include <stdint.h>

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
void qv_axis_free(struct qv_axis *axis);

#endif
