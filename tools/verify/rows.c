/* SPDX-License-Identifier: MIT */
/* qwenvit verify: computes distances, and fills the rows of the table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grow.h"
#include "verify.h"

/* ---- distances ------------------------------------------------------------------------------- */

qv_status
verify_sums_begin(struct verify_sums *s, int64_t cols, qv_error *err)
{
    *s = (struct verify_sums){ .cols = cols, .d = { .worst_cosine = 1 }, .finite = true };
    s->pooled = calloc((size_t)cols * 2, sizeof *s->pooled);
    return s->pooled
               ? QV_OK
               : qv_fail(err, QV_ENOMEM, "no memory to compare %lld columns", (long long)cols);
}

/* Returns the cosine of two vectors: 1 if both are zero, 0 if one is. */
static double
cosine(double xx, double tt, double xt)
{
    if (xx == 0 || tt == 0)
        return xx == tt ? 1 : 0;
    return xt / sqrt(xx) / sqrt(tt);
}

void
verify_sums_row(struct verify_sums *s, const float *x, const double *truth)
{
    double off = 0, xx = 0, tt = 0, xt = 0;
    for (int64_t i = 0; i < s->cols; i++) {
        double v = x[i], t = truth[i], d = v - t;
        off += d * d;
        xx += v * v;
        tt += t * t;
        xt += v * t;
        s->pooled[i] += v;
        s->pooled[s->cols + i] += t;
        if (fabs(d) > s->d.max_abs)
            s->d.max_abs = fabs(d);
    }
    s->rows++;
    s->finite = s->finite && isfinite(xx) && isfinite(tt);
    double distance = off == 0 ? 0 : sqrt(off) / sqrt(tt); /* infinite if the truth is zero and the
                                                            * row is not */
    double cos = cosine(xx, tt, xt);
    s->d.mean += distance;
    s->squares += distance * distance;
    if (distance > s->d.worst)
        s->d.worst = distance;
    if (cos < s->d.worst_cosine)
        s->d.worst_cosine = cos;
}

struct verify_distance
verify_sums_end(struct verify_sums *s)
{
    double xx = 0, tt = 0, xt = 0;
    for (int64_t i = 0; i < s->cols; i++) {
        double v = s->pooled[i], t = s->pooled[s->cols + i];
        xx += v * v;
        tt += t * t;
        xt += v * t;
    }
    s->d.alike = s->squares > 0 ? s->d.mean * s->d.mean / s->squares : (double)s->rows;
    s->d.mean /= (double)s->rows;
    s->d.pooled_cosine = cosine(xx, tt, xt);
    if (!s->finite || !s->rows)
        s->d = (struct verify_distance){ NAN, NAN, NAN, NAN, NAN, NAN };
    free(s->pooled);
    s->pooled = NULL;
    return s->d;
}

qv_status
verify_compare(const float *x, const float *truth, int64_t rows, int64_t cols,
               struct verify_distance *out, qv_error *err)
{
    struct verify_sums s;
    double *row = malloc((size_t)cols * sizeof *row);
    qv_status status =
        row ? verify_sums_begin(&s, cols, err) : qv_fail(err, QV_ENOMEM, "no memory for a row");
    for (int64_t i = 0; i < rows && !status; i++) {
        for (int64_t j = 0; j < cols; j++)
            row[j] = truth[i * cols + j];
        verify_sums_row(&s, x + i * cols, row);
    }
    if (!status)
        *out = verify_sums_end(&s);
    free(row);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */

void
verify_table_free(struct verify_table *t)
{
    free(t->rows);
    memset(t, 0, sizeof *t);
}

const struct verify_row *
verify_first_failure(const struct verify_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (!t->rows[i].ok)
            return &t->rows[i];
    return NULL;
}

bool
verify_is_judged(const struct verify_row *row)
{
    return row->bits || !isinf(row->bar_worst) || !isinf(row->bar_mean) || !isinf(row->bar_abs) ||
           !isinf(row->bar_cosine);
}

struct verify_row *
verify_add(struct verify_table *t, const char *check, const char *name, qv_dtype dtype,
           qv_error *err)
{
    struct verify_row *grown = qv_grown(t->rows, t->n, &t->capacity, sizeof *grown);
    if (!grown) {
        qv_fail(err, QV_ENOMEM, "no memory for a row of the table");
        return NULL;
    }
    t->rows = grown;
    struct verify_row *row = &t->rows[t->n++];
    *row = (struct verify_row){ .dtype = dtype,
                                .yardstick_worst = NAN,
                                .yardstick_mean = NAN,
                                .bar_worst = INFINITY,
                                .bar_mean = INFINITY,
                                .bar_abs = INFINITY,
                                .bar_cosine = -INFINITY };
    snprintf(row->check, sizeof row->check, "%s", check);
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

void
verify_judge(struct verify_row *row)
{
    const struct verify_distance *d = &row->is;
    const struct {
        const char *what;
        double value, most;
    } bars[] = { { "worst distance", d->worst, row->bar_worst },
                 { "mean distance", d->mean, row->bar_mean },
                 { "largest difference", d->max_abs, row->bar_abs },
                 { "1 - worst cosine", 1 - d->worst_cosine, 1 - row->bar_cosine },
                 { "1 - pooled cosine", 1 - d->pooled_cosine, 1 - row->bar_cosine } };
    row->ok = true;
    for (size_t i = 0; i < sizeof bars / sizeof *bars && row->ok; i++) {
        row->ok = bars[i].value <= bars[i].most; /* NaN fails */
        if (!row->ok && isnan(bars[i].value))
            snprintf(row->why, sizeof row->why, "values are not finite");
        else if (!row->ok)
            snprintf(row->why, sizeof row->why, "%s is %.3g; it must be at most %.3g", bars[i].what,
                     bars[i].value, bars[i].most);
    }
}
