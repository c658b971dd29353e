/* SPDX-License-Identifier: MIT */
/* Seeded numbers, random operations, and operands filled so that mistakes show. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "dtype.h"

void *
must_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "checkop: no memory for %zu bytes\n", bytes);
        exit(4);
    }
    return p;
}

struct rng
rng_make(uint64_t seed, const char *text)
{
    uint64_t h = 0xcbf29ce484222325 ^ (seed * 0x9e3779b97f4a7c15);
    for (const char *c = text; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3;
    struct rng rng = { h ? h : 1 };
    for (int i = 0; i < 8; i++)
        rng_next(&rng);
    return rng;
}

uint64_t
rng_next(struct rng *rng) /* xorshift64* */
{
    rng->state ^= rng->state >> 12;
    rng->state ^= rng->state << 25;
    rng->state ^= rng->state >> 27;
    return rng->state * 0x2545f4914f6cdd1d;
}

int64_t
rng_below(struct rng *rng, int64_t n)
{
    return (int64_t)((rng_next(rng) >> 11) % (uint64_t)n);
}

static double
rng_real(struct rng *rng) /* -1..1 */
{
    return (double)(rng_next(rng) >> 11) * 0x1p-52 - 1;
}

/* ---- random operations ----------------------------------------------------------------------- */

#define PICK(rng, ...)                                                                             \
    ((const int64_t[]){                                                                            \
        __VA_ARGS__ })[rng_below(rng, sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))]

static int64_t
random_divisor(struct rng *rng, int64_t n) /* smaller than n, unless n is 1 */
{
    int64_t d = 1 + rng_below(rng, n > 1 ? n - 1 : 1);
    while (n % d)
        d--;
    return d;
}

static void
random_rows(struct qv_op_rows *op, struct rng *rng)
{
    static const double norms[][6] = {
        { 2, 2, 2, -255, -255, -255 },
        { 1, 2, 0.5, -128, -255, 0 },
        { 1 / 127.5, 1 / 127.5, 1 / 127.5, -1, -1, -1 },
        { 0.014598426619242919, 0.015007768493717056, 0.01422007017362118, -1.7922625, -1.7520971,
          -1.4802198 }, /* CLIP's */
    };
    op->pairs = 1 + rng_below(rng, 3);
    op->merge = PICK(rng, 1, 2, 2, 2, 3);
    op->grid_h = op->merge * (1 + rng_below(rng, 4));
    op->grid_w = op->merge * (1 + rng_below(rng, 5)); /* odd numbers of merged rows too */
    op->patch = PICK(rng, 1, 3, 4, 14, 16);
    op->temporal = PICK(rng, 1, 2, 2, 2, 3);
    op->channels = PICK(rng, 1, 2, 3, 3, 3);
    op->still = rng_below(rng, 3) == 0;
    const double *norm = norms[rng_below(rng, 4)];
    memcpy(&op->scale0, norm, sizeof norms[0]);
}

static void
random_gemm(struct qv_op_gemm *op, struct rng *rng)
{
    static const double alphas[] = { 1, 1, 0.5, 1.0 / 255 };
    op->m = PICK(rng, 1, 2, 3, 5, 7, 8, 12, 16, 17, 31, 33, 60, 64, 65, 100, 190);
    op->n = PICK(rng, 1, 2, 3, 5, 8, 12, 16, 17, 24, 33, 48, 64, 65, 72, 100, 130, 200);
    op->k = PICK(rng, 1, 2, 3, 7, 8, 15, 16, 24, 33, 48, 64, 65, 100, 127, 130, 200, 257);
    op->alpha = alphas[rng_below(rng, 4)];
    op->bias = rng_below(rng, 2);
    op->act = rng_below(rng, 2) ? rng_below(rng, QV_ACT_COUNT) : QV_ACT_NONE;
    switch (rng_below(rng, 3)) {
    case 0: break;
    case 1: op->addend_rows = op->m; break;
    case 2: op->addend_rows = random_divisor(rng, op->m); break;
    }
}

struct qv_op
random_op(enum qv_op_kind kind, struct rng *rng)
{
    struct qv_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    int64_t dtype = rng_below(rng, 2) ? QV_BF16 : QV_F32;
    switch (kind) {
    case QV_OP_rows:
        random_rows(&op.u.rows, rng);
        op.u.rows.dtype = dtype;
        break;
    case QV_OP_convert:
        op.u.convert = (struct qv_op_convert){ PICK(rng, 1, 7, 8, 31, 64, 100, 1000, 4099),
                                               rng_below(rng, 2) ? QV_BF16 : QV_F32, dtype };
        break;
    case QV_OP_gemm:
        random_gemm(&op.u.gemm, rng);
        op.u.gemm.dtype = dtype;
        break;
    case QV_OP_norm:
        op.u.norm =
            (struct qv_op_norm){ PICK(rng, 1, 2, 3, 8, 17, 65),
                                 PICK(rng, 2, 5, 8, 16, 33, 64, 100, 257, 1152),
                                 rng_below(rng, 2) ? 1e-6 : 1e-5, rng_below(rng, 2), dtype };
        break;
    case QV_OP_rope: {
        int64_t period = PICK(rng, 1, 3, 4, 12, 35);
        int64_t rows = period * (1 + rng_below(rng, 3)) - (rng_below(rng, 4) == 0);
        op.u.rope = (struct qv_op_rope){ rows ? rows : 1, PICK(rng, 1, 2, 3, 5),
                                         PICK(rng, 12, 16, 64, 72, 80), period, dtype };
        break;
    }
    case QV_OP_attention: {
        int64_t head_dim = PICK(rng, 12, 16, 64, 72, 80);
        op.u.attention = (struct qv_op_attention){
            PICK(rng, 1, 1, 2, 3),      PICK(rng, 1, 2, 3, 4, 7, 16, 33, 64, 100, 131),
            PICK(rng, 1, 2, 3),         head_dim,
            1 / sqrt((double)head_dim), dtype
        };
        break;
    }
    case QV_OP_taps:
        op.u.taps =
            (struct qv_op_taps){ PICK(rng, 1, 3, 12, 35, 64), PICK(rng, 1, 7, 8, 16, 33, 72, 200),
                                 PICK(rng, 1, 4, 49, 2304), dtype };
        break;
    case QV_OP_COUNT: break;
    }
    return op;
}

/* ---- what can be exact, what ref must compute ------------------------------------------------ */

static bool
rows_are_exact(const struct qv_op_rows *op)
{
    double scale[3] = { op->scale0, op->scale1, op->scale2 };
    double shift[3] = { op->shift0, op->shift1, op->shift2 };
    for (int c = 0; c < 3; c++)
        for (int u = 0; u < 256; u++) {
            float stored = 0;
            double product = u * scale[c], sum = product + shift[c];
            qv_store(&stored, op->dtype, 0, sum);
            if (qv_load(&stored, op->dtype, 0) != sum || (double)(float)product != product ||
                (double)(float)scale[c] != scale[c] || (double)(float)shift[c] != shift[c])
                return false;
        }
    return true;
}

bool
fill_possible(const struct qv_op *op, enum fill fill)
{
    switch (op->kind) {
    case QV_OP_rows: return (fill == FILL_EXACT) == rows_are_exact(&op->u.rows);
    case QV_OP_convert: return fill == FILL_EXACT; /* one rounding: always the same bits */
    case QV_OP_gemm:                               /* sums below 256 in steps of alpha */
        return fill == FILL_REAL || (op->u.gemm.act == QV_ACT_NONE &&
                                     (op->u.gemm.alpha == 1 || op->u.gemm.alpha == 0.5));
    case QV_OP_norm:
    case QV_OP_attention: return fill == FILL_REAL;
    case QV_OP_rope:
    case QV_OP_taps: return true;
    case QV_OP_COUNT: break;
    }
    return false;
}

enum { REF_WORK = 1 << 27, REF_ROWS = 17 };

/* Rows of x and addend repeat after so many; 0: they don't. They hold whole rounds of the addend,
 * or divide it. */
static int64_t
gemm_period(const struct qv_op_gemm *op)
{
    int64_t rows = REF_WORK / op->n / op->k, addend = op->addend_rows;
    rows = rows < REF_ROWS ? REF_ROWS : rows;
    if (addend && addend < rows)
        rows += addend - 1 - (rows - 1) % addend;
    while (addend > rows && addend % rows)
        rows++;
    return rows < op->m ? rows : 0;
}

struct qv_op
reference_op(const struct qv_op *op)
{
    struct qv_op small = *op;
    int64_t rows = op->kind == QV_OP_gemm ? gemm_period(&op->u.gemm) : 0;
    if (rows) {
        small.u.gemm.m = rows;
        if (op->u.gemm.addend_rows > rows)
            small.u.gemm.addend_rows = rows;
    } else if (op->kind == QV_OP_attention && qv_op_flops(op) > REF_WORK)
        small.u.attention.batch = 1;
    return small;
}

/* Rows of `operand` of which the later ones are copies; 0: none. */
static int64_t
period_of(const struct qv_op *op, int operand)
{
    struct qv_op small = reference_op(op);
    if ((op->kind == QV_OP_gemm && (operand == 0 || operand == 3)) ||
        (op->kind == QV_OP_attention && operand == 0)) {
        int64_t rows = qv_op_operand(&small, operand).rows;
        return rows < qv_op_operand(op, operand).rows ? rows : 0;
    }
    return 0;
}

/* ---- operands -------------------------------------------------------------------------------- */

void
data_alloc(struct data *data, const struct qv_op *op)
{
    *data = (struct data){ .op = *op, .n = qv_op_n_operands(op->kind) };
    for (int i = 0; i < data->n; i++) {
        data->desc[i] = qv_op_operand(op, i);
        if (data->desc[i].bytes)
            data->bytes[i] = must_alloc(data->desc[i].bytes);
    }
}

void
data_free(struct data *data)
{
    for (int i = 0; i < data->n; i++)
        free(data->bytes[i]);
    data->n = 0;
}

void
data_convert(struct data *dst, const struct data *src)
{
    for (int i = 0; i < dst->n; i++) {
        int64_t n = dst->desc[i].rows * dst->desc[i].cols;
        if (!dst->bytes[i])
            continue;
        if (dst->desc[i].dtype == src->desc[i].dtype)
            memcpy(dst->bytes[i], src->bytes[i], dst->desc[i].bytes);
        else
            for (int64_t at = 0; at < n; at++)
                qv_store(dst->bytes[i], dst->desc[i].dtype, at,
                         qv_load(src->bytes[i], src->desc[i].dtype, at));
    }
}

static void
fill_integers(struct data *data, int i, int64_t most, struct rng *rng)
{
    for (int64_t at = 0; at < data->desc[i].rows * data->desc[i].cols; at++)
        qv_store(data->bytes[i], data->desc[i].dtype, at,
                 (double)(rng_below(rng, 2 * most + 1) - most));
}

/* One row in 8 is 16 times as large, in the columns before `large_cols`. */
static void
fill_reals(struct data *data, int i, int64_t large_cols, struct rng *rng)
{
    const struct qv_operand *d = &data->desc[i];
    for (int64_t row = 0; row < d->rows; row++) {
        double large = rng_below(rng, 8) ? 1 : 16;
        for (int64_t col = 0; col < d->cols; col++)
            qv_store(data->bytes[i], d->dtype, row * d->cols + col,
                     rng_real(rng) * (col < large_cols ? large : 1));
    }
}

static void
fill_bytes(struct data *data, int i, struct rng *rng)
{
    uint8_t *p = data->bytes[i];
    for (size_t at = 0; at < data->desc[i].bytes; at++)
        p[at] = (uint8_t)(rng_next(rng) >> 40);
}

/* Floats of every kind of rounding to bf16: ties, just below, just above, exact. */
static void
fill_convert(struct data *data, struct rng *rng)
{
    for (int64_t at = 0; at < data->desc[0].cols; at++) {
        uint64_t r = rng_next(rng);
        uint32_t tails[] = { 0x8000, 0x7fff, 0x8001, 0, (uint32_t)(r >> 40) & 0xffff };
        uint32_t u = (uint32_t)(r & 0x80ff0000) | (uint32_t)(110 + rng_below(rng, 32)) << 23 |
                     tails[rng_below(rng, 5)];
        float f;
        memcpy(&f, &u, 4);
        qv_store(data->bytes[0], data->desc[0].dtype, at, f);
    }
}

/* x has at most 40 values +-1, +-2 in a row, w has them everywhere: |sum| <= 160. */
static void
fill_gemm_exact(struct data *data, struct rng *rng)
{
    static const double values[] = { -2, -1, 1, 2 };
    int64_t m = data->op.u.gemm.m, n = data->op.u.gemm.n, k = data->op.u.gemm.k;
    for (int64_t i = 0; i < m; i++) {
        int used = 0;
        for (int64_t l = k - 1; l >= 0 && used < 40; l--)
            if (rng_below(rng, k) < 24 || (l == k - 1 && i % 2)) {
                qv_store(data->bytes[0], data->desc[0].dtype, i * k + l, values[rng_below(rng, 4)]);
                used++;
            }
    }
    for (int64_t at = 0; at < n * k; at++)
        qv_store(data->bytes[1], data->desc[1].dtype, at, values[rng_below(rng, 4)]);
    if (data->bytes[2])
        fill_integers(data, 2, 8, rng);
    if (data->bytes[3])
        fill_integers(data, 3, 16, rng);
}

static void
fill_gemm_real(struct data *data, struct rng *rng)
{
    fill_reals(data, 0, data->desc[0].cols, rng);
    for (int i = 1; i < 4; i++)
        if (data->bytes[i])
            fill_reals(data, i, 0, rng);
}

static void
fill_norm(struct data *data, struct rng *rng)
{
    int64_t cols = data->op.u.norm.cols;
    fill_reals(data, 0, cols, rng);
    for (int64_t i = 0; i < data->op.u.norm.rows; i++) {
        double shift = rng_below(rng, 4) ? 0 : rng_real(rng) * 8; /* a mean to take off */
        for (int64_t at = i * cols; at < (i + 1) * cols; at++)
            qv_store(data->bytes[0], data->desc[0].dtype, at,
                     qv_load(data->bytes[0], data->desc[0].dtype, at) + shift);
    }
    for (int i = 1; i < 3; i++)
        if (data->bytes[i])
            fill_reals(data, i, 0, rng);
}

static void
fill_rope(struct data *data, enum fill fill, struct rng *rng)
{
    float *cosines = data->bytes[0], *sines = data->bytes[1];
    for (int64_t at = 0; at < data->desc[0].rows * data->desc[0].cols; at++) {
        double angle = fill == FILL_EXACT ? 0 : rng_real(rng) * 4;
        int64_t quarter = rng_below(rng, 4);
        cosines[at] =
            fill == FILL_EXACT ? (float)(quarter & 1 ? 0 : 1 - quarter) : (float)cos(angle);
        sines[at] = fill == FILL_EXACT ? (float)(quarter & 1 ? 2 - quarter : 0) : (float)sin(angle);
    }
    if (fill == FILL_EXACT)
        fill_integers(data, 2, 100, rng);
    else
        fill_reals(data, 2, data->desc[2].cols, rng);
}

static void
fill_taps(struct data *data, enum fill fill, struct rng *rng)
{
    static const float exact[] = { 0.5f, 0.25f, 0.125f, 0.125f };
    int32_t *index = data->bytes[1];
    float *weight = data->bytes[2];
    int64_t last = data->op.u.taps.table_rows - 1;
    for (int64_t at = 0; at < data->op.u.taps.rows * 4; at++) {
        index[at] = (int32_t)(at % 9 == 8 ? last : rng_below(rng, last + 1));
        weight[at] = fill == FILL_EXACT ? exact[(at + at / 4) % 4] : (float)fabs(rng_real(rng));
    }
    if (fill == FILL_EXACT)
        fill_integers(data, 0, 16, rng);
    else
        fill_reals(data, 0, data->desc[0].cols, rng);
}

void
data_fill(struct data *data, enum fill fill, struct rng *rng)
{
    switch (data->op.kind) {
    case QV_OP_rows: fill_bytes(data, 0, rng); break;
    case QV_OP_convert: fill_convert(data, rng); break;
    case QV_OP_gemm:
        if (fill == FILL_EXACT)
            fill_gemm_exact(data, rng);
        else
            fill_gemm_real(data, rng);
        break;
    case QV_OP_norm: fill_norm(data, rng); break;
    case QV_OP_rope: fill_rope(data, fill, rng); break;
    case QV_OP_attention: /* large q and k, not v: its size bounds every row's tolerance */
        fill_reals(data, 0, data->desc[0].cols / 3 * 2, rng);
        break;
    case QV_OP_taps: fill_taps(data, fill, rng); break;
    case QV_OP_COUNT: break;
    }
    for (int i = 0; i < data->n; i++) {
        int64_t period = data->bytes[i] ? period_of(&data->op, i) : 0;
        size_t row = period ? data->desc[i].bytes / (size_t)data->desc[i].rows : 0;
        for (int64_t r = period; period && r < data->desc[i].rows; r++)
            memcpy((char *)data->bytes[i] + (size_t)r * row,
                   (char *)data->bytes[i] + (size_t)(r - period) * row, row);
    }
}
