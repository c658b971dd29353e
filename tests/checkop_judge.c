/* SPDX-License-Identifier: MIT */
/*
 * Judges whether a result is right. Exact fills are compared with ref itself. Reals are compared
 * with ref computing in f32 from the same operands, which are already rounded: that is as near to
 * the exact value as can be, so that one rounding to the output's dtype costs half a unit and not a
 * whole one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"
#include "engine/block_order.h"

bool
can_alias(const struct side *side, const struct qv_op *op)
{
    return !side->caps.residual_apart && is_gemm(op) && op->u.gemm.residual_rows == op->u.gemm.m;
}

/* ---- what the tolerance is derived from ------------------------------------------------------ */

static double
most(const struct data *data, int i, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    double max = 0;
    const struct qv_view *d = &data->desc[i];
    for (int64_t r = row; data->bytes[i] && r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++)
            max = fmax(max, fabs(value_at(d, data->bytes[i], r, c)));
    return max;
}

static double
most_of(const struct data *data, int i)
{
    return most(data, i, 0, data->desc[i].rows, 0, data->desc[i].cols);
}

/* Returns the largest magnitude of code * scale and of offset together, in a quantised matrix. */
static double
most_apart(const struct data *data, int i)
{
    double max = 0;
    const struct qv_view *d = &data->desc[i];
    const size_t row_bytes = qv_grouped_row_bytes(&d->groups, d->cols);
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t j = 0; j < d->cols / d->groups.group; j++) {
            const char *at = (const char *)data->bytes[i] + (size_t)row * row_bytes;
            const double scale = qv_grouped_factor(&d->groups, at, d->cols, 0, j);
            const double offset = qv_grouped_factor(&d->groups, at, d->cols, 1, j);
            max = fmax(max, fabs(scale) * (double)((1 << d->groups.bits) - 1) + fabs(offset));
        }
    return max;
}

struct scale {
    struct qv_op op; /* the operation as a row sees it: an attention has only the row's segment */
    double x, w;     /* op_tolerance's max_x and max_w for a row */
    double fixed_x, fixed_w; /* their share from operands that all rows use */
};

static void
scale_begin(struct scale *s, const struct data *data)
{
    *s = (struct scale){ .op = data->op };
    switch (data->op.kind) {
    case QV_OP_gemm:
    case QV_OP_gemm_few:
        s->fixed_x = most_of(data, 2);
        s->fixed_w = data->op.kind == QV_OP_gemm_few ? most_apart(data, 1) : most_of(data, 1);
        break;
    case QV_OP_norm: s->fixed_w = fmax(most_of(data, 1), most_of(data, 2)); break;
    case QV_OP_rope: s->fixed_w = fmax(most_of(data, 0), most_of(data, 1)); break;
    case QV_OP_interpolate: s->fixed_x = most_of(data, 0); break;
    case QV_OP_conv:
        s->fixed_x = fmax(most_of(data, 0), fmax(most_of(data, 2), most_of(data, 3)));
        /* y counts if sums are added to it; else this is 0 */
        s->fixed_x = fmax(s->fixed_x, most_of(data, 4));
        s->fixed_w = most_of(data, 1);
        break;
    case QV_OP_epilogue:
        s->fixed_x = most_of(data, 1);
        s->fixed_w = 1;
        break;
    case QV_OP_im2col:
    case QV_OP_patchify:
    case QV_OP_convert:
    case QV_OP_attention:
    case QV_OP_gate:
    case QV_OP_gather:
    case QV_OP_COUNT: break;
    }
    s->x = s->fixed_x;
    s->w = s->fixed_w;
}

static double
norm_scale(const struct data *data, int64_t row)
{
    const struct qv_op_norm *op = &data->op.u.norm;
    double mean = 0, var = 0, cols = (double)op->cols;
    for (int64_t c = 0; c < op->cols && !op->rms; c++)
        mean += qv_load(data->bytes[0], op->x_dtype, row * op->cols + c) / cols;
    for (int64_t c = 0; c < op->cols; c++)
        var += pow(qv_load(data->bytes[0], op->x_dtype, row * op->cols + c) - mean, 2) / cols;
    return most(data, 0, row, 1, 0, op->cols) / sqrt(var + op->eps);
}

/* Reads k and v of the row's segment, unless it is the previous row's segment. */
static void
scale_segment(struct scale *s, const struct data *data, int64_t row)
{
    struct segment segment = segment_of(data, row);
    if (row != segment.first)
        return;
    s->op.u.attention.segment_rows = segment.n;
    s->fixed_x = most(data, 2, segment.first, segment.n, 0, data->desc[2].cols);
    s->w = most(data, 3, segment.first, segment.n, 0, data->desc[3].cols);
}

static void
scale_row(struct scale *s, const struct data *data, int64_t row)
{
    const struct qv_view *first = &data->desc[0];
    switch (data->op.kind) {
    case QV_OP_gemm:
    case QV_OP_gemm_few:
        s->x = fmax(s->fixed_x, most(data, 0, row, 1, 0, first->cols));
        if (data->bytes[3])
            s->x = fmax(s->x, most(data, 3, row % data->desc[3].rows, 1, 0, data->desc[3].cols));
        break;
    case QV_OP_norm: s->x = norm_scale(data, row); break;
    case QV_OP_rope: s->x = most(data, 3, row, 1, 0, data->desc[3].cols); break;
    case QV_OP_patchify: {
        int64_t item = ((const struct qv_coords *)data->bytes[3])[row].item;
        s->w = most(data, 2, item, 1, 0, 3);
        s->x = most(data, 2, item, 1, 3, 3);
        break;
    }
    case QV_OP_attention:
        scale_segment(s, data, row);
        s->x = sqrt(s->fixed_x * most(data, 1, row, 1, 0, data->desc[1].cols));
        break;
    case QV_OP_gate:
        s->x = most(data, 0, row, 1, 0, first->cols);
        s->w = most(data, 1, row, 1, 0, data->desc[1].cols);
        break;
    case QV_OP_interpolate: s->w = most(data, 2, row, 1, 0, data->desc[2].cols); break;
    case QV_OP_epilogue:
        s->x = fmax(s->fixed_x, most(data, 0, row, 1, 0, first->cols));
        if (data->bytes[2])
            s->x = fmax(s->x, most(data, 2, row % data->desc[2].rows, 1, 0, first->cols));
        break;
    case QV_OP_im2col:
    case QV_OP_conv:
    case QV_OP_convert:
    case QV_OP_gather:
    case QV_OP_COUNT: break;
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

struct expected {
    struct data data; /* ref's operands */
    void *result;
    void *inner; /* the input of a GELU whose tanh is less exact than f32; else NULL */
    double tanh_error;
    struct qv_view y;
};

/* Returns the exact value. If rows or columns repeat, ref has computed only the first ones. */
static double
expected_at(const struct expected *expected, int64_t row, int64_t col)
{
    const struct qv_view *y = &expected->y;
    return qv_load(expected->result, y->dtype, element_at(y, row % y->rows, col % y->cols));
}

/* Returns how far x/2 (1 + tanh ..) may be off, by what the device says of its tanh. */
static double
tanh_slack(const struct expected *expected, int64_t row, int64_t col)
{
    if (!expected->inner)
        return 0;
    const struct qv_view *y = &expected->y;
    int64_t at = element_at(y, row % y->rows, col % y->cols);
    return 0.5 * fabs(qv_load(expected->inner, y->dtype, at)) * expected->tanh_error;
}

struct tally {
    int64_t bad, weak, n; /* weak: elements for which 0 would have passed too */
    double worst_ratio, low, high;
    int64_t first_row, first_col;
    bool first_nan, first_unwritten, first_others;
};

static bool
is_unwritten(const void *p, size_t element, int64_t at)
{
    const unsigned char *b = (const unsigned char *)p + (size_t)at * element;
    for (size_t i = 0; i < element; i++)
        if (b[i] != 0xff)
            return false;
    return true;
}

static void
compare_row(const struct data *data, enum fill fill, const struct expected *expected,
            const void *result, int64_t row, const struct scale *s, struct tally *t,
            struct outcome *outcome)
{
    const struct qv_view *y = &data->desc[qv_op_output(&data->op)];
    double error2 = 0, expected2 = 0;
    for (int64_t col = 0; col < y->cols; col++) {
        int64_t at = element_at(y, row, col);
        double e = expected_at(expected, row, col);
        double g = qv_load(result, y->dtype, at), error = g == e ? 0 : fabs(g - e), tol = 0;
        if (fill == FILL_REAL)
            tol = op_tolerance(&s->op, e, s->x, s->w) + tanh_slack(expected, row, col);
        if (!(error <= tol)) {
            if (t->bad++ == 0) {
                t->first_row = row;
                t->first_col = col;
                t->first_nan = !isfinite(g);
                t->first_unwritten = is_unwritten(result, qv_dtype_bytes(y->dtype), at);
            }
        }
        t->n++;
        t->weak += fabs(e) <= tol;
        t->low = fmin(t->low, e);
        t->high = fmax(t->high, e);
        double ratio = error == 0 ? 0 : tol > 0 ? error / tol : INFINITY;
        if (ratio >= t->worst_ratio) {
            t->worst_ratio = ratio;
            outcome->error = error;
            outcome->tolerance = tol;
        }
        error2 += error * error;
        expected2 += e * e;
    }
    double nmse = error2 == 0 ? 0 : expected2 > 0 ? error2 / expected2 : INFINITY;
    if (!isnan(outcome->nmse) && !(nmse <= outcome->nmse)) /* a NaN must not be overwritten */
        outcome->nmse = nmse;
}

/* Checks that a row of no segment is unchanged. */
static void
compare_untouched(const struct qv_view *y, const void *result, int64_t row, struct tally *t)
{
    for (int64_t col = 0; col < y->cols; col++)
        if (!is_unwritten(result, qv_dtype_bytes(y->dtype), element_at(y, row, col)) &&
            t->bad++ == 0) {
            t->first_row = row;
            t->first_col = col;
            t->first_others = true;
        }
    t->n += y->cols;
}

static void
compare(const struct data *data, enum fill fill, const struct expected *expected,
        const void *result, struct outcome *outcome)
{
    struct scale s;
    const struct qv_view *y = &data->desc[qv_op_output(&data->op)];
    struct tally t = { .low = INFINITY, .high = -INFINITY };
    scale_begin(&s, data);
    for (int64_t row = 0; row < y->rows; row++) {
        if (data->op.kind == QV_OP_attention && !segment_of(data, row).n) {
            compare_untouched(y, result, row, &t);
            continue;
        }
        if (fill == FILL_REAL)
            scale_row(&s, data, row);
        compare_row(data, fill, expected, result, row, &s, &t, outcome);
    }
    outcome->mistrusted = t.low == t.high || t.weak > t.n * 9 / 10;
    if (!t.bad)
        return;
    int64_t row = t.first_row, col = t.first_col;
    double e = expected_at(expected, row, col);
    enum check check = t.first_others       ? CHECK_OTHERS
                       : t.first_unwritten  ? CHECK_UNWRITTEN
                       : t.first_nan        ? CHECK_NAN
                       : fill == FILL_EXACT ? CHECK_EXACT
                                            : CHECK_TOLERANCE;
    fail_case(outcome, check,
              "first at row %lld of %lld, column %lld of %lld: %.9g, expected %.9g; "
              "%lld of %lld elements; worst error %.3g for a tolerance of %.3g; "
              "worst row's NMSE %.3g",
              (long long)row, (long long)y->rows, (long long)col, (long long)y->cols,
              qv_load(result, y->dtype, element_at(y, row, col)), e, (long long)t.bad,
              (long long)t.n, outcome->error, outcome->tolerance, outcome->nmse);
}

/* Lets ref compute from data that are already its own. */
static bool
run_ref(const struct side *ref, const struct data *data, void *result, struct outcome *outcome)
{
    struct job *job = job_open(ref, data, false, outcome);
    bool ok = job && job_run(job, false, result, outcome);
    job_close(job);
    return ok;
}

static bool
expect(const struct side *ref, const struct side *side, const struct data *data, enum fill fill,
       struct expected *out, struct outcome *outcome)
{
    struct qv_op op = reference_op(&data->op);
    if (fill == FILL_REAL)
        qv_op_set_dtype(&op, QV_F32);
    data_alloc(&out->data, &op);
    data_convert(&out->data, data);
    const struct qv_view *y = &out->data.desc[qv_op_output(&op)];
    out->result = must_alloc(y->bytes);
    out->y = *y;
    out->tanh_error = side->caps.tanh_error;
    bool ok = run_ref(ref, &out->data, out->result, outcome);
    if (ok && out->tanh_error > 0 && is_gemm(&data->op) && data->op.u.gemm.x_dtype == QV_BF16 &&
        data->op.u.gemm.act == QV_ACT_GELU_TANH) {
        struct data inner = out->data;
        inner.op.u.gemm.act = QV_ACT_NONE;
        inner.op.u.gemm.residual_rows = 0;
        inner.desc[3] = qv_op_view(&inner.op, 3);
        out->inner = must_alloc(y->bytes);
        ok = run_ref(ref, &inner, out->inner, outcome);
    }
    if (!ok) { /* even if it is skipped: without a reference there is no result */
        char text[sizeof outcome->text];
        memcpy(text, outcome->text, sizeof text);
        outcome->skipped = false;
        fail_case(outcome, CHECK_STATUS, "the reference: %.500s", text);
    }
    return ok;
}

/* Checks that rows at other places and with other neighbours have the same bits as in `first`. */
static void
run_moved(struct data *data, struct job *job, const unsigned char *first, struct rng *rng,
          struct outcome *outcome)
{
    const struct qv_view *y = &data->desc[qv_op_output(&data->op)];
    size_t element = qv_dtype_bytes(y->dtype), row_bytes = (size_t)y->cols * element;
    unsigned char *moved = must_alloc(y->bytes);
    int64_t *to = move_rows(data, rng);
    bool ok = to && job_run(job, false, moved, outcome);
    for (int64_t row = 0; ok && row < y->rows; row++) {
        if (to[row] < 0)
            continue;
        size_t from = (size_t)element_at(y, row, 0) * element;
        size_t at = (size_t)element_at(y, to[row], 0) * element;
        if (memcmp(first + from, moved + at, row_bytes))
            ok = fail_case(outcome, CHECK_MOVED, "row %lld of %lld has other bits as row %lld",
                           (long long)row, (long long)y->rows, (long long)to[row]);
    }
    free(to);
    free(moved);
}

static void
run_case(const struct check_case *one, struct data *data, const struct expected *expected,
         struct job *job, struct rng *rng, struct outcome *outcome)
{
    const struct qv_view *y = &data->desc[qv_op_output(&data->op)];
    unsigned char *first = must_alloc(y->bytes), *second = must_alloc(y->bytes);
    bool ok = job_run(job, false, first, outcome);
    if (ok)
        compare(data, one->fill, expected, first, outcome);
    if (ok && !outcome->check && job_run(job, true, second, outcome) &&
        memcmp(first, second, y->bytes)) {
        size_t at = 0;
        while (first[at] == second[at])
            at++;
        fail_case(outcome, CHECK_REPEAT,
                  "the same operands again: byte %zu of %zu is 0x%02x, "
                  "was 0x%02x",
                  at, y->bytes, second[at], first[at]);
    }
    if (ok && !outcome->check && one->fill == FILL_REAL && !one->alias)
        run_moved(data, job, first, rng, outcome);
    free(first);
    free(second);
}

struct outcome
judge(const struct side *ref, const struct side *side, const struct check_case *one)
{
    struct outcome outcome = { .check = CHECK_NOTHING };
    struct expected expected = { 0 };
    struct data data;
    char text[OP_TEXT];
    struct rng rng =
        rng_make(one->seed + (uint64_t)one->fill, qv_op_print(&one->op, text, sizeof text));
    data_alloc(&data, &one->op);
    data_fill(&data, one->fill, &rng);
    struct job *job = job_open(side, &data, one->alias, &outcome);
    if (job && expect(ref, side, &data, one->fill, &expected, &outcome))
        run_case(one, &data, &expected, job, &rng, &outcome);
    job_close(job);
    if (expected.data.n)
        data_free(&expected.data);
    free(expected.result);
    free(expected.inner);
    data_free(&data);
    return outcome;
}

void
family_add(struct family *family, const struct outcome *outcome)
{
    if (outcome->check)
        family->failed++;
    else if (outcome->skipped)
        family->skipped++;
    else if (outcome->mistrusted)
        family->mistrusted++;
    else
        family->passed++;
}

bool
family_ok(const struct family *family)
{
    return !family->failed && (family->passed || !family->mistrusted);
}
