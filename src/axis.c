/* SPDX-License-Identifier: MIT */
#include "axis.h"

#include <math.h>
#include <stdlib.h>

static double
cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    return 0.0;
}

/* Allocates room for the weights of any output. */
static double *
open_weights(const struct qv_axis *axis)
{
    const double scale = (double)axis->in / axis->out;
    return malloc(((size_t)ceil(scale >= 1.0 ? 2.0 * scale : 2.0) * 2 + 1) * sizeof(double));
}

/* Computes the weights of one output. Returns their number; *first is the first input. */
static int
weigh(const struct qv_axis *axis, int i, int64_t *first, double *w)
{
    const double scale = (double)axis->in / axis->out;
    const double support = scale >= 1.0 ? 2.0 * scale : 2.0;
    const double center = scale * (i + 0.5);
    const double inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    int64_t begin = (int64_t)(center - support + 0.5);
    int64_t end = (int64_t)(center + support + 0.5);
    if (begin < 0)
        begin = 0;
    if (end > axis->in)
        end = axis->in;
    const int n = (int)(end - begin);

    double total = 0.0;
    for (int k = 0; k < n; k++) {
        w[k] = cubic(((double)(k + begin) - center + 0.5) * inverse);
        total += w[k];
    }
    for (int k = 0; k < n && total != 0.0; k++)
        w[k] /= total;
    *first = begin;
    return n;
}

static int
choose_precision(double largest)
{
    int p = 0;
    while (p < 22 && (int)(0.5 + largest * (double)(1 << (p + 1))) < (1 << 15))
        p++;
    return p;
}

/* Stores n weights that begin at input `first` as the row of output i. Their window is inside the
 * input if the input is long enough. */
static void
store_weights(struct qv_axis *axis, int i, int64_t first, const double *w, int n)
{
    int64_t start = first;
    if (start + axis->taps > axis->in)
        start = axis->in - axis->taps;
    if (start < 0)
        start = 0;
    int16_t *row = axis->weights + (size_t)i * (size_t)axis->taps + (first - start);
    const double unit = (double)(1 << axis->precision);
    for (int k = 0; k < n; k++) {
        const double v = w[k] * unit;
        row[k] = (int16_t)(v < 0 ? (int)(v - 0.5) : (int)(v + 0.5));
    }
    axis->start[i] = (int32_t)start;
}

int
qv_axis_measure(struct qv_axis *axis, int in, int out)
{
    axis->in = in;
    axis->out = out;
    double *w = open_weights(axis);
    if (!w)
        return 0;
    int most = 1;
    double largest = 0.0;
    for (int i = 0; i < out; i++) {
        int64_t first;
        const int n = weigh(axis, i, &first, w);
        most = n > most ? n : most;
        for (int k = 0; k < n; k++)
            largest = w[k] > largest ? w[k] : largest;
    }
    free(w);
    axis->precision = choose_precision(largest);
    return most;
}

bool
qv_axis_fill(struct qv_axis *axis, int taps)
{
    const size_t n_out = ((size_t)axis->out + 3) / 4 * 4;
    double *w = open_weights(axis);
    axis->taps = taps;
    axis->start = malloc(n_out * sizeof *axis->start);
    axis->weights = calloc(n_out * (size_t)taps, sizeof *axis->weights);
    const bool done = w && axis->start && axis->weights;
    for (int i = 0; done && i < axis->out; i++) {
        int64_t first;
        const int n = weigh(axis, i, &first, w);
        store_weights(axis, i, first, w, n);
    }
    for (size_t i = (size_t)axis->out; done && i < n_out; i++)
        axis->start[i] = axis->start[axis->out - 1];
    free(w);
    return done;
}

bool
qv_axis_make(struct qv_axis *axis, int in, int out)
{
    const int taps = qv_axis_measure(axis, in, out);
    return taps && qv_axis_fill(axis, taps);
}

void
qv_axis_free(struct qv_axis *axis)
{
    free(axis->start);
    free(axis->weights);
}
