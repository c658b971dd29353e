/* SPDX-License-Identifier: MIT */
/*
 * Is the result right? Exact fills are compared with ref as it is. Reals are compared with ref
 * computing in f32 from the same (already rounded) operands: the exact value as good as it can be
 * had, so that one rounding to the output's dtype costs half a unit and not a whole one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"

bool
can_alias(const struct side *side, const struct qv_op *op)
{
    return !side->caps.addend_apart && op->kind == QV_OP_gemm &&
           op->u.gemm.addend_rows == op->u.gemm.m;
}

static int64_t *
dtype_of(struct qv_op *op)
{
    switch (op->kind) {
    case QV_OP_rows: return &op->u.rows.dtype;
    case QV_OP_convert: return &op->u.convert.dtype;
    case QV_OP_gemm: return &op->u.gemm.dtype;
    case QV_OP_norm: return &op->u.norm.dtype;
    case QV_OP_rope: return &op->u.rope.dtype;
    case QV_OP_attention: return &op->u.attention.dtype;
    case QV_OP_taps: return &op->u.taps.dtype;
    case QV_OP_unfold: return &op->u.unfold.dtype;
    case QV_OP_conv: return &op->u.conv.dtype;
    case QV_OP_finish: return &op->u.finish.dtype;
    case QV_OP_COUNT: break;
    }
    return NULL;
}

/* ---- what the tolerance is derived from ------------------------------------------------------ */

static double
most(const struct data *data, int i, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    double max = 0;
    const struct qv_operand *d = &data->desc[i];
    for (int64_t r = row; data->bytes[i] && r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++)
            max = fmax(max, fabs(qv_load(data->bytes[i], d->dtype, r * d->cols + c)));
    return max;
}

static double
most_of(const struct data *data, int i)
{
    return most(data, i, 0, data->desc[i].rows, 0, data->desc[i].cols);
}

struct scale {
    double x, w;             /* max_x and max_w of qv_op_tolerance for a row */
    double fixed_x, fixed_w; /* of operands that all rows share */
};

static void
scale_begin(struct scale *s, const struct data *data)
{
    *s = (struct scale){ 0 };
    switch (data->op.kind) {
    case QV_OP_gemm:
        s->fixed_x = most_of(data, 2);
        s->fixed_w = most_of(data, 1);
        break;
    case QV_OP_norm: s->fixed_w = fmax(most_of(data, 1), most_of(data, 2)); break;
    case QV_OP_rope: s->fixed_w = fmax(most_of(data, 0), most_of(data, 1)); break;
    case QV_OP_taps: s->fixed_x = most_of(data, 0); break;
    case QV_OP_conv:
        s->fixed_x = fmax(most_of(data, 0), fmax(most_of(data, 2), most_of(data, 3)));
        s->fixed_x = fmax(s->fixed_x, most_of(data, 4)); /* of y, where it is added to; else 0 */
        s->fixed_w = most_of(data, 1);
        break;
    case QV_OP_finish:
        s->fixed_x = most_of(data, 1);
        s->fixed_w = 1;
        break;
    case QV_OP_unfold:
    case QV_OP_rows:
    case QV_OP_convert:
    case QV_OP_attention:
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
        mean += qv_load(data->bytes[0], op->dtype, row * op->cols + c) / cols;
    for (int64_t c = 0; c < op->cols; c++)
        var += pow(qv_load(data->bytes[0], op->dtype, row * op->cols + c) - mean, 2) / cols;
    return most(data, 0, row, 1, 0, op->cols) / sqrt(var + op->eps);
}

static void
scale_row(struct scale *s, const struct data *data, int64_t row)
{
    const struct qv_operand *first = &data->desc[0];
    switch (data->op.kind) {
    case QV_OP_gemm:
        s->x = fmax(s->fixed_x, most(data, 0, row, 1, 0, first->cols));
        if (data->bytes[3])
            s->x = fmax(s->x, most(data, 3, row % data->desc[3].rows, 1, 0, data->desc[3].cols));
        break;
    case QV_OP_norm: s->x = norm_scale(data, row); break;
    case QV_OP_rope: s->x = most(data, 2, row, 1, 0, data->desc[2].cols / 3 * 2); break;
    case QV_OP_attention: {
        int64_t seq = data->op.u.attention.seq, third = first->cols / 3;
        if (row % seq == 0) {
            s->fixed_x = most(data, 0, row, seq, third, third);
            s->w = most(data, 0, row, seq, 2 * third, third);
        }
        s->x = sqrt(s->fixed_x * most(data, 0, row, 1, 0, third));
        break;
    }
    case QV_OP_taps: s->w = most(data, 2, row, 1, 0, 4); break;
    case QV_OP_finish:
        s->x = fmax(s->fixed_x, most(data, 0, row, 1, 0, first->cols));
        if (data->bytes[2])
            s->x = fmax(s->x, most(data, 2, row % data->desc[2].rows, 1, 0, first->cols));
        break;
    case QV_OP_unfold:
    case QV_OP_conv:
    case QV_OP_rows:
    case QV_OP_convert:
    case QV_OP_COUNT: break;
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

struct expected {
    struct data data; /* ref's operands */
    void *result;
    void *inner; /* what goes into a GELU whose tanh is not as good as f32; else NULL */
    double tanh_error;
    int64_t rows, cols, dtype;
};

/* Of rows and columns that repeat ref has computed the first ones. */
static double
expected_at(const struct expected *expected, int64_t row, int64_t col)
{
    int64_t at = row % expected->rows * expected->cols + col % expected->cols;
    return qv_load(expected->result, expected->dtype, at);
}

/* x/2 (1 + tanh ..): what the device says of its tanh. */
static double
tanh_slack(const struct expected *expected, int64_t row, int64_t col)
{
    if (!expected->inner)
        return 0;
    int64_t at = row % expected->rows * expected->cols + col % expected->cols;
    return 0.5 * fabs(qv_load(expected->inner, expected->dtype, at)) * expected->tanh_error;
}

struct tally {
    int64_t bad, weak, n; /* weak: 0 would have passed too */
    double worst_ratio, low, high;
    int64_t first_bad;
    bool first_nan, first_unwritten;
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

/* v goes through rope untouched. */
static bool
is_copied(const struct qv_op *op, int64_t col, int64_t cols)
{
    return op->kind == QV_OP_rope && col >= cols / 3 * 2;
}

static void
compare_row(const struct data *data, enum fill fill, const struct expected *expected,
            const void *result, int64_t row, const struct scale *s, struct tally *t,
            struct outcome *outcome)
{
    const struct qv_operand *y = &data->desc[output_of(&data->op)];
    double error2 = 0, expected2 = 0;
    for (int64_t col = 0; col < y->cols; col++) {
        int64_t at = row * y->cols + col;
        double e = expected_at(expected, row, col);
        double g = qv_load(result, y->dtype, at), error = g == e ? 0 : fabs(g - e), tol = 0;
        if (fill == FILL_REAL && !is_copied(&data->op, col, y->cols))
            tol = qv_op_tolerance(&data->op, e, s->x, s->w) + tanh_slack(expected, row, col);
        if (!(error <= tol)) {
            if (t->bad++ == 0) {
                t->first_bad = at;
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
    if (!(nmse <= outcome->nmse))
        outcome->nmse = nmse;
}

static void
compare(const struct data *data, enum fill fill, const struct expected *expected,
        const void *result, struct outcome *outcome)
{
    struct scale s;
    const struct qv_operand *y = &data->desc[output_of(&data->op)];
    struct tally t = { .low = INFINITY, .high = -INFINITY };
    scale_begin(&s, data);
    for (int64_t row = 0; row < y->rows; row++) {
        if (fill == FILL_REAL)
            scale_row(&s, data, row);
        compare_row(data, fill, expected, result, row, &s, &t, outcome);
    }
    outcome->mistrusted = t.low == t.high || t.weak > t.n * 9 / 10;
    if (!t.bad)
        return;
    int64_t row = t.first_bad / y->cols, col = t.first_bad % y->cols;
    double e = expected_at(expected, row, col);
    enum check check = t.first_unwritten    ? CHECK_UNWRITTEN
                       : t.first_nan        ? CHECK_NAN
                       : fill == FILL_EXACT ? CHECK_EXACT
                                            : CHECK_TOLERANCE;
    fail_case(outcome, check,
              "first at row %lld of %lld, column %lld of %lld: %.9g, expected %.9g; "
              "%lld of %lld elements; worst error %.3g for a tolerance of %.3g; "
              "worst row's NMSE %.3g",
              (long long)row, (long long)y->rows, (long long)col, (long long)y->cols,
              qv_load(result, y->dtype, t.first_bad), e, (long long)t.bad, (long long)t.n,
              outcome->error, outcome->tolerance, outcome->nmse);
}

/* What ref makes of data that are already its own. */
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
        *dtype_of(&op) = QV_F32;
    data_alloc(&out->data, &op);
    data_convert(&out->data, data);
    const struct qv_operand *y = &out->data.desc[output_of(&op)];
    out->result = must_alloc(y->bytes);
    out->rows = y->rows;
    out->cols = y->cols;
    out->dtype = y->dtype;
    out->tanh_error = side->caps.tanh_error;
    bool ok = run_ref(ref, &out->data, out->result, outcome);
    if (ok && out->tanh_error > 0 && data->op.kind == QV_OP_gemm &&
        data->op.u.gemm.dtype == QV_BF16 && data->op.u.gemm.act == QV_ACT_GELU_TANH) {
        struct data inner = out->data;
        inner.op.u.gemm.act = QV_ACT_NONE;
        inner.op.u.gemm.addend_rows = 0;
        inner.desc[3] = qv_op_operand(&inner.op, 3);
        out->inner = must_alloc(y->bytes);
        ok = run_ref(ref, &inner, out->inner, outcome);
    }
    if (!ok) { /* also where it says skipped: without a reference nothing is known */
        char text[sizeof outcome->text];
        memcpy(text, outcome->text, sizeof text);
        outcome->skipped = false;
        fail_case(outcome, CHECK_STATUS, "the reference: %.500s", text);
    }
    return ok;
}

static void
run_twice(const struct check_case *one, const struct data *data, const struct expected *expected,
          struct job *job, struct outcome *outcome)
{
    const struct qv_operand *y = &data->desc[output_of(&data->op)];
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
        run_twice(one, &data, &expected, job, &outcome);
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
