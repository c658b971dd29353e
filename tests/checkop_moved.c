/* SPDX-License-Identifier: MIT */
/*
 * A row's result must depend neither on its place nor on its neighbours. So rows are put in reverse
 * order and some become NaN or infinity; the other rows must have the same bits as before.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"

/* The operands that have a row for each row of the output (a residual repeats), and the one
 * whose rows may be spoilt. */
struct movable {
    int n, operands[3], spoilt; /* spoilt -1: none */
};

static struct movable
movable_of(enum qv_op_kind kind)
{
    switch (kind) {
    case QV_OP_patchify: return (struct movable){ 1, { 3 }, -1 };
    case QV_OP_gemm:
    case QV_OP_gemm_few: return (struct movable){ 2, { 0, 3 }, 0 };
    case QV_OP_norm: return (struct movable){ 1, { 0 }, 0 };
    case QV_OP_rope: return (struct movable){ 2, { 2, 3 }, 3 };
    case QV_OP_attention: return (struct movable){ 3, { 1, 2, 3 }, -1 };
    case QV_OP_gate: return (struct movable){ 2, { 0, 1 }, 0 };
    case QV_OP_gather: return (struct movable){ 1, { 1 }, -1 };
    case QV_OP_interpolate: return (struct movable){ 2, { 1, 2 }, 2 };
    case QV_OP_epilogue: return (struct movable){ 2, { 0, 2 }, 0 };
    case QV_OP_convert:
    case QV_OP_im2col:
    case QV_OP_conv:
    case QV_OP_COUNT: break;
    }
    return (struct movable){ 0 };
}

static void
spoil_row(struct data *data, int operand, int64_t row, double value)
{
    const struct qv_view *v = &data->desc[operand];
    for (int64_t col = 0; col < v->cols; col++)
        qv_store(data->bytes[operand], v->dtype, element_at(v, row, col), value);
}

static double
random_poison(struct rng *rng)
{
    static const double values[] = { NAN, INFINITY, -INFINITY };
    return values[rng_below(rng, 3)];
}

/* Copies an operand, so that rows can be taken from the copy. */
static void *
copy_of(const struct data *data, int operand)
{
    void *copy = must_alloc(data->desc[operand].bytes);
    memcpy(copy, data->bytes[operand], data->desc[operand].bytes);
    return copy;
}

static void
put_row(struct data *data, int operand, int64_t to, const void *copy, int64_t from)
{
    const struct qv_view *v = &data->desc[operand];
    size_t element = qv_dtype_bytes(v->dtype);
    memcpy((char *)data->bytes[operand] + (size_t)element_at(v, to, 0) * element,
           (const char *)copy + (size_t)element_at(v, from, 0) * element,
           (size_t)v->cols * element);
}

/* Puts rows in reverse order. A residual that repeats still does. */
static void
reverse(struct data *data, int operand)
{
    int64_t rows = data->desc[operand].rows;
    if (!data->bytes[operand])
        return;
    void *copy = copy_of(data, operand);
    for (int64_t row = 0; row < rows; row++)
        put_row(data, operand, rows - 1 - row, copy, row);
    free(copy);
}

static void
move_single_rows(struct data *data, const struct movable *m, int64_t *to, int64_t rows,
                 struct rng *rng)
{
    for (int i = 0; i < m->n; i++)
        reverse(data, m->operands[i]);
    for (int64_t row = 0; row < rows; row++) {
        bool spoilt = m->spoilt >= 0 && row > 0 && rng_below(rng, 3) == 0;
        to[row] = spoilt ? -1 : rows - 1 - row;
        if (spoilt)
            spoil_row(data, m->spoilt, rows - 1 - row, random_poison(rng));
    }
}

/* Puts segments in reverse order with new gaps. Rows of gaps, and of some whole segments, are
 * spoilt. */
static void
move_segments(struct data *data, int64_t *to, struct rng *rng)
{
    const struct qv_op_attention *op = &data->op.u.attention;
    struct segment *before = must_alloc((size_t)op->segments * sizeof *before);
    void *copies[4] = { NULL, copy_of(data, 1), copy_of(data, 2), copy_of(data, 3) };
    int64_t at = 0, gaps = op->rows;
    for (int64_t i = 0; i < op->segments; i++) {
        before[i] = segment_get(data, i);
        gaps -= before[i].n;
    }
    for (int64_t row = 0; row < op->rows; row++) {
        to[row] = -1;
        for (int i = 1; i < 4; i++)
            spoil_row(data, i, row, random_poison(rng));
    }
    for (int64_t i = op->segments; i-- > 0;) {
        struct segment s = before[i];
        int64_t gap = gaps && rng_below(rng, 2) ? rng_below(rng, gaps + 1) : 0;
        bool spoilt = i > 0 && rng_below(rng, 3) == 0;
        at += gap;
        gaps -= gap;
        for (int64_t row = 0; row < s.n && !spoilt; row++) {
            to[s.first + row] = at + row;
            for (int j = 1; j < 4; j++)
                put_row(data, j, at + row, copies[j], s.first + row);
        }
        if (!op->segment_rows)
            segment_put(data, op->segments - 1 - i, (struct segment){ at, s.n });
        at += s.n;
    }
    if (!op->segment_rows)
        segment_put(data, op->segments, (struct segment){ at, 0 });
    for (int i = 1; i < 4; i++)
        free(copies[i]);
    free(before);
}

int64_t *
move_rows(struct data *data, struct rng *rng)
{
    const struct movable m = movable_of(data->op.kind);
    int64_t rows = data->desc[qv_op_output(&data->op)].rows;
    if (!m.n)
        return NULL;
    int64_t *to = must_alloc((size_t)rows * sizeof *to);
    if (data->op.kind == QV_OP_attention)
        move_segments(data, to, rng);
    else
        move_single_rows(data, &m, to, rows, rng);
    return to;
}
