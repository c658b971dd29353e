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
rng_next(struct rng *rng) /* the generator xorshift64* */
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

double
rng_real(struct rng *rng)
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
random_patchify(struct qv_op_patchify *op, struct rng *rng)
{
    op->rows = PICK(rng, 1, 4, 7, 24, 60, 97, 130);
    op->items = PICK(rng, 1, 1, 2, 5, 12, 64);
    op->patch = PICK(rng, 1, 3, 4, 14, 16);
    op->temporal = PICK(rng, 1, 2, 2, 2, 3);
    op->channels = PICK(rng, 1, 2, 3, 3, 3);
    op->patches = rng_below(rng, 3) ? op->rows * op->temporal : 1 + rng_below(rng, 2 * op->rows);
}

/* Draws the fields that gemm, conv and epilogue share: alpha, bias, act, and residual_rows out of
 * `rows`. */
static void
random_epilogue(double *alpha, int64_t *bias, int64_t *act, int64_t *residual_rows, int64_t rows,
                struct rng *rng)
{
    static const double alphas[] = { 1, 1, 0.5, 1.0 / 255 };
    *alpha = alphas[rng_below(rng, 4)];
    *bias = rng_below(rng, 2);
    *act = rng_below(rng, 2) ? rng_below(rng, QV_ACT_COUNT) : QV_ACT_NONE;
    switch (rng_below(rng, 3)) {
    case 0: break;
    case 1: *residual_rows = rows; break;
    case 2: *residual_rows = random_divisor(rng, rows); break;
    }
}

static void
random_gemm(struct qv_op_gemm *op, struct rng *rng)
{
    op->m = PICK(rng, 1, 2, 3, 5, 7, 8, 12, 16, 17, 31, 33, 60, 64, 65, 100, 190);
    op->n = PICK(rng, 1, 2, 3, 5, 8, 12, 16, 17, 24, 33, 48, 64, 65, 72, 100, 130, 200);
    op->k = PICK(rng, 1, 2, 3, 7, 8, 15, 16, 24, 33, 48, 64, 65, 100, 127, 130, 200, 257);
    random_epilogue(&op->alpha, &op->bias, &op->act, &op->residual_rows, op->m, rng);
}

static void
random_gemm_few(struct qv_op_gemm_few *op, struct rng *rng)
{
    op->m = PICK(rng, 1, 2, 3, 5, 7, 8, 12, 16, 17, 31, 33, 60, 64);
    op->n = PICK(rng, 1, 2, 3, 5, 8, 12, 16, 17, 24, 33, 48, 64, 65, 72, 100, 130, 200);
    random_epilogue(&op->alpha, &op->bias, &op->act, &op->residual_rows, op->m, rng);
    op->w_bits = PICK(rng, 4, 8);
    op->w_group = QV_FEW_GROUP;
    op->w_dtype = PICK(rng, QV_F32, QV_F16, QV_BF16);
    op->k = op->w_group * PICK(rng, 1, 1, 2, 3, 5);
}

static void
random_im2col(struct qv_op_im2col *op, struct rng *rng)
{
    bool one = rng_below(rng, 3) == 0; /* a kernel of one; with channels first it transposes */
    op->n = 1 + rng_below(rng, 3);
    op->c = PICK(rng, 1, 2, 3, 5, 8, 17, 33, 65);
    op->kd = one ? 1 : 1 + rng_below(rng, 3);
    op->kh = one ? 1 : 1 + rng_below(rng, 4);
    op->kw = one ? 1 : 1 + rng_below(rng, 4);
    op->d = op->kd + rng_below(rng, 4);
    op->h = op->kh + rng_below(rng, 9);
    op->w = op->kw + rng_below(rng, 20);
    op->sd = PICK(rng, 1, 1, 2, 3);
    op->sh = op->sd == 1 ? PICK(rng, 1, 1, 2, 4) : 1 + rng_below(rng, 4);
    op->sw = op->sh == 1 ? PICK(rng, 1, 1, 2, 4) : 1 + rng_below(rng, 4);
    op->channels_first = rng_below(rng, 2);
}

static void
random_norm(struct qv_op_norm *op, struct rng *rng)
{
    op->rows = PICK(rng, 1, 2, 3, 8, 17, 65);
    op->cols = PICK(rng, 2, 5, 8, 16, 33, 64, 100, 257, 1152);
    op->eps = rng_below(rng, 2) ? 1e-6 : 1e-5;
    op->rms = rng_below(rng, 2);
}

/* Draws a stride: that of separate rows, of packed q, k and v, or of rows with any gap between
 * them. */
static int64_t
random_stride(int64_t width, struct rng *rng)
{
    return PICK(rng, 0, 3 * width, 3 * width, width + 8, width + 4, width + 1);
}

static void
random_rope(struct qv_op_rope *op, struct rng *rng)
{
    op->rows = PICK(rng, 1, 3, 4, 12, 35, 70);
    op->positions = PICK(rng, 1, 3, 24, 100);
    op->heads = PICK(rng, 1, 2, 4, 6, 10);
    op->head_dim = PICK(rng, 12, 16, 64, 72, 80);
    op->x_stride = random_stride(op->heads * op->head_dim, rng);
}

/* Draws an attention over equal segments, or over a list of any segments. */
static void
random_attention(struct qv_op_attention *op, struct rng *rng)
{
    bool equal = rng_below(rng, 3) == 0;
    if (equal) {
        op->segments = PICK(rng, 1, 1, 2, 3);
        op->segment_rows = PICK(rng, 1, 2, 3, 4, 7, 16, 33, 64, 100, 131);
        op->rows = op->segments * op->segment_rows;
    } else {
        op->segments = PICK(rng, 1, 2, 3, 5, 9, 40);
        op->rows = PICK(rng, 1, 4, 7, 16, 33, 64, 100, 131, 211);
    }
    int64_t most = equal ? op->segment_rows : op->rows;
    if (rng_below(rng, 2))
        op->longest = equal ? most : PICK(rng, 1, 7, 16, 24, 32, 48, 63, 64, 64, 65, 200);
    op->longest = op->longest < most ? op->longest : most;
    op->heads = PICK(rng, 1, 2, 3);
    op->head_dim = PICK(rng, 12, 16, 64, 72, 80, 80, 128);
    op->scale = 1 / sqrt((double)op->head_dim);
    op->q_stride = op->k_stride = op->v_stride = random_stride(op->heads * op->head_dim, rng);
    if (equal && rng_below(rng, 3) == 0)
        op->k_stride = random_stride(op->heads * op->head_dim, rng);
}

/* Draws one axis: a kernel, and an input just long enough that it fits between the paddings. */
static int64_t
random_axis(struct rng *rng, int64_t kernel, int64_t dilation, int64_t padding)
{
    int64_t least = (kernel - 1) * dilation + 1 - padding;
    return (least > 1 ? least : 1) + rng_below(rng, 6);
}

static void
random_conv(struct qv_op_conv *op, struct rng *rng)
{
    bool flat = rng_below(rng, 4) == 0, depthwise = rng_below(rng, 5) == 0;
    op->n = 1 + rng_below(rng, 3);
    op->groups = depthwise ? PICK(rng, 2, 3, 8, 16, 17, 33) : PICK(rng, 1, 1, 1, 2, 3);
    op->c = op->groups * (depthwise ? 1 : PICK(rng, 1, 2, 3, 5, 8, 16, 17));
    op->o = op->groups * (depthwise ? PICK(rng, 1, 1, 2) : PICK(rng, 1, 2, 3, 5, 8, 16, 17, 33));
    op->kd = flat ? 1 : 1 + rng_below(rng, 3);
    op->kh = 1 + rng_below(rng, 3);
    op->kw = PICK(rng, 1, 2, 3, 3, 4);
    op->sd = PICK(rng, 1, 1, 2);
    op->sh = PICK(rng, 1, 1, 2, 3);
    op->sw = PICK(rng, 1, 1, 2, 3);
    op->dd = PICK(rng, 1, 1, 2);
    op->dh = PICK(rng, 1, 1, 1, 2);
    op->dw = PICK(rng, 1, 1, 1, 3);
    op->top = rng_below(rng, 3);
    op->bottom = rng_below(rng, 3);
    op->left = rng_below(rng, 3);
    op->right = rng_below(rng, 2) ? op->left : rng_below(rng, 4);
    op->d = flat ? 1 : random_axis(rng, op->kd, op->dd, 0);
    op->h = random_axis(rng, op->kh, op->dh, op->top + op->bottom);
    op->w = random_axis(rng, op->kw, op->dw, op->left + op->right);
    op->x_depth = op->d + PICK(rng, 0, 0, 1, 3);
    op->alpha = 1;
    op->sums = PICK(rng, 0, 0, 1, 2);
    int64_t out[3];
    qv_op_conv_output(op, out);
    if (!op->sums)
        random_epilogue(&op->alpha, &op->bias, &op->act, &op->residual_rows,
                        op->n * out[0] * out[1] * out[2], rng);
}

static void
random_gate(struct qv_op_gate *op, struct rng *rng)
{
    op->rows = PICK(rng, 1, 2, 3, 8, 12, 60);
    op->cols = PICK(rng, 1, 5, 8, 16, 33, 64, 100, 257);
    op->act = rng_below(rng, QV_ACT_COUNT);
    op->a_stride = op->b_stride = PICK(rng, 0, 2 * op->cols, 2 * op->cols, op->cols + 8);
    if (rng_below(rng, 3) == 0)
        op->b_stride = op->cols + rng_below(rng, 9);
}

static void
random_epilogue_op(struct qv_op_epilogue *op, struct rng *rng)
{
    op->rows = PICK(rng, 1, 2, 3, 8, 12, 60);
    op->cols = PICK(rng, 1, 5, 8, 16, 33, 64, 100, 257);
    random_epilogue(&op->alpha, &op->bias, &op->act, &op->residual_rows, op->rows, rng);
}

/* Draws the dtype of the last operand, if kernels may mix dtypes. */
static int64_t
random_output_dtype(int64_t dtype, struct rng *rng)
{
    return rng_below(rng, 4) ? dtype : dtype == QV_F32 ? QV_BF16 : QV_F32;
}

struct qv_op
random_op(enum qv_op_kind kind, struct rng *rng)
{
    struct qv_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    int64_t dtype = rng_below(rng, 2) ? QV_BF16 : QV_F32;
    qv_op_set_dtype(&op, (qv_dtype)dtype);
    switch (kind) {
    case QV_OP_patchify: random_patchify(&op.u.patchify, rng); break;
    case QV_OP_convert:
        op.u.convert.n = PICK(rng, 1, 7, 8, 31, 64, 100, 1000, 4099);
        op.u.convert.x_dtype = rng_below(rng, 2) ? QV_BF16 : QV_F32;
        break;
    case QV_OP_gemm: random_gemm(&op.u.gemm, rng); break;
    case QV_OP_gemm_few: random_gemm_few(&op.u.gemm_few, rng); break;
    case QV_OP_norm:
        random_norm(&op.u.norm, rng);
        op.u.norm.y_dtype = random_output_dtype(dtype, rng);
        break;
    case QV_OP_rope: random_rope(&op.u.rope, rng); break;
    case QV_OP_attention: random_attention(&op.u.attention, rng); break;
    case QV_OP_gate:
        random_gate(&op.u.gate, rng);
        op.u.gate.y_dtype = random_output_dtype(dtype, rng);
        break;
    case QV_OP_gather:
        op.u.gather.rows = PICK(rng, 1, 3, 12, 35, 64);
        op.u.gather.cols = PICK(rng, 1, 7, 8, 16, 33, 72, 200, 1176);
        op.u.gather.x_rows = PICK(rng, 1, 4, 12, 35, 100);
        op.u.gather.y_dtype = rng_below(rng, 2) ? QV_BF16 : QV_F32;
        break;
    case QV_OP_interpolate:
        op.u.interpolate.rows = PICK(rng, 1, 3, 12, 35, 64);
        op.u.interpolate.cols = PICK(rng, 1, 7, 8, 16, 33, 72, 200);
        op.u.interpolate.taps = PICK(rng, 4, 4, 8, 16);
        op.u.interpolate.table_rows = PICK(rng, 1, 4, 49, 2304);
        op.u.interpolate.y_dtype = random_output_dtype(dtype, rng);
        break;
    case QV_OP_im2col: random_im2col(&op.u.im2col, rng); break;
    case QV_OP_conv:
        random_conv(&op.u.conv, rng);
        op.u.conv.y_dtype = op.u.conv.sums ? QV_F32 : dtype;
        break;
    case QV_OP_epilogue:
        random_epilogue_op(&op.u.epilogue, rng);
        op.u.epilogue.y_dtype = random_output_dtype(dtype, rng);
        break;
    case QV_OP_COUNT: break;
    }
    return op;
}

/* ---- quantised matrices ---------------------------------------------------------------------- */

static const char *
grouped_row(const struct qv_view *v, const void *bytes, int64_t row)
{
    return (const char *)bytes + (size_t)row * qv_grouped_row_bytes(&v->groups, v->cols);
}

double
value_at(const struct qv_view *v, const void *bytes, int64_t row, int64_t col)
{
    if (v->groups.bits)
        return qv_grouped_value(&v->groups, grouped_row(v, bytes, row), v->cols, col);
    return qv_load(bytes, v->dtype, element_at(v, row, col));
}

static void
put_code(const struct qv_groups *g, void *row, int64_t i, uint8_t code)
{
    uint8_t *codes = row;
    if (g->bits == 8)
        codes[i] = code;
    else
        codes[i / 2] =
            (uint8_t)(codes[i / 2] & (i % 2 ? 0x0f : 0xf0)) | (uint8_t)(code << i % 2 * 4);
}

static void
put_factors(const struct qv_groups *g, void *row, int64_t k, int64_t i, double scale, double offset)
{
    char *factors = (char *)row + (g->bits == 8 ? k : k / 2);
    qv_store(factors, g->dtype, i, scale);
    qv_store(factors, g->dtype, k / g->group + i, offset);
}

static const double exact_values[] = { -2, -1, 1, 2 };

/* Fills a quantised matrix. Exact: every value is one of a few, made by scales and offsets that
 * differ between groups and use the codes to their limits. */
static void
fill_grouped(struct data *data, int i, enum fill fill, struct rng *rng)
{
    static const double scales[] = { 1, -1, 0.5, -0.5 };
    const struct qv_view *v = &data->desc[i];
    const struct qv_groups *g = &v->groups;
    const int64_t codes = (int64_t)1 << g->bits;
    for (int64_t j = 0; j < v->rows * v->cols; j++) {
        char *row =
            (char *)data->bytes[i] + (size_t)(j / v->cols) * qv_grouped_row_bytes(g, v->cols);
        const int64_t col = j % v->cols, at = col / g->group;
        if (col % g->group == 0) {
            const double exact = scales[rng_below(rng, 4)];
            const int64_t middle = 4 + rng_below(rng, codes - 8);
            put_factors(g, row, v->cols, at,
                        fill == FILL_EXACT ? exact : rng_real(rng) / (double)codes,
                        fill == FILL_EXACT ? -exact * (double)middle : rng_real(rng) / 2);
        }
        const double scale = qv_grouped_factor(g, row, v->cols, 0, at);
        const double offset = qv_grouped_factor(g, row, v->cols, 1, at);
        const int64_t code = fill == FILL_EXACT
                                 ? lrint((exact_values[rng_below(rng, 4)] - offset) / scale)
                                 : rng_below(rng, codes);
        put_code(g, row, col, (uint8_t)code);
    }
}

/* ---- what can be exact, what ref must compute ------------------------------------------------ */

static bool
epilogue_is_exact(double alpha, int64_t act) /* sums below 256 in steps of alpha */
{
    return act == QV_ACT_NONE && (alpha == 1 || alpha == 0.5);
}

bool
fill_possible(const struct qv_op *op, enum fill fill)
{
    switch (op->kind) {
    case QV_OP_convert: /* rounds once, so the bits are always the same */
    case QV_OP_im2col: return fill == FILL_EXACT;
    case QV_OP_gemm:
    case QV_OP_gemm_few:
        return fill == FILL_REAL || epilogue_is_exact(op->u.gemm.alpha, op->u.gemm.act);
    case QV_OP_conv:
        return fill == FILL_REAL || epilogue_is_exact(op->u.conv.alpha, op->u.conv.act);
    case QV_OP_epilogue:
        return fill == FILL_REAL || epilogue_is_exact(op->u.epilogue.alpha, op->u.epilogue.act);
    case QV_OP_gate: return fill == FILL_REAL || op->u.gate.act == QV_ACT_NONE;
    case QV_OP_norm:
    case QV_OP_attention: return fill == FILL_REAL;
    case QV_OP_patchify:
    case QV_OP_rope:
    case QV_OP_gather:
    case QV_OP_interpolate: return true;
    case QV_OP_COUNT: break;
    }
    return false;
}

enum { REF_WORK = 1 << 27, REF_ROWS = 17 };

/* The number of rows after which x and residual repeat; 0: never. That number is a multiple of the
 * residual's rows, or divides them. */
static int64_t
gemm_period(const struct qv_op_gemm *op)
{
    int64_t rows = REF_WORK / op->n / op->k, residual = op->residual_rows;
    rows = rows < REF_ROWS ? REF_ROWS : rows;
    if (residual && residual < rows)
        rows += residual - 1 - (rows - 1) % residual;
    while (residual > rows && residual % rows)
        rows++;
    return rows < op->m ? rows : 0;
}

/* After how many output channels they repeat, if there are no groups; 0: never. It is odd, so
 * that a block of channels in a wrong place shows. */
static int64_t
conv_period(const struct qv_op *op)
{
    double one = qv_op_flops(op) / 2 / (double)op->u.conv.o, most = REF_WORK / one;
    int64_t channels = most < REF_ROWS ? REF_ROWS : most < (double)op->u.conv.o ? (int64_t)most : 0;
    channels |= channels != 0;
    return op->u.conv.groups == 1 && channels < op->u.conv.o ? channels : 0;
}

struct qv_op
reference_op(const struct qv_op *op)
{
    struct qv_op small = *op;
    if (op->kind == QV_OP_gemm_few) {
        small.kind = QV_OP_gemm;
        small.u.gemm = qv_op_few_as_gemm(&op->u.gemm_few);
    }
    int64_t rows = is_gemm(op) ? gemm_period(&op->u.gemm) : 0;
    if (rows) {
        small.u.gemm.m = rows;
        if (op->u.gemm.residual_rows > rows)
            small.u.gemm.residual_rows = rows;
    } else if (op->kind == QV_OP_conv && conv_period(op))
        small.u.conv.o = conv_period(op);
    else if (op->kind == QV_OP_attention && op->u.attention.segment_rows &&
             qv_op_flops(op) > REF_WORK) {
        small.u.attention.segments = 1;
        small.u.attention.rows = op->u.attention.segment_rows;
    }
    return small;
}

/* Returns how many rows of `operand` differ, the later ones being copies of them; 0: all do. */
static int64_t
period_of(const struct qv_op *op, int operand)
{
    struct qv_op small = reference_op(op);
    if ((is_gemm(op) && (operand == 0 || operand == 3)) ||
        (op->kind == QV_OP_attention && operand > 0 && operand < 4) ||
        (op->kind == QV_OP_conv && operand == 1)) {
        int64_t rows = qv_op_view(&small, operand).rows;
        return rows < qv_op_view(op, operand).rows ? rows : 0;
    }
    return 0;
}

/* ---- operands -------------------------------------------------------------------------------- */

void
data_alloc(struct data *data, const struct qv_op *op)
{
    *data = (struct data){ .op = *op, .n = qv_op_n_operands(op->kind) };
    for (int i = 0; i < data->n; i++) {
        data->desc[i] = qv_op_view(op, i);
        if (data->desc[i].bytes)
            data->bytes[i] = must_alloc(data->desc[i].bytes);
        if (data->desc[i].row_stride > data->desc[i].cols)
            memset(data->bytes[i], 0xff, data->desc[i].bytes);
    }
}

void
data_free(struct data *data)
{
    for (int i = 0; i < data->n; i++)
        free(data->bytes[i]);
    data->n = 0;
}

static void
copy_element(void *dst, qv_dtype to, int64_t i, const void *src, qv_dtype from, int64_t j)
{
    size_t bytes = qv_dtype_bytes(to);
    if (to == from)
        memcpy((char *)dst + (size_t)i * bytes, (const char *)src + (size_t)j * bytes, bytes);
    else
        qv_store(dst, to, i, qv_load(src, from, j));
}

void
data_convert(struct data *dst, const struct data *src)
{
    for (int i = 0; i < dst->n; i++) {
        const struct qv_view *d = &dst->desc[i], *s = &src->desc[i];
        for (int64_t row = 0; dst->bytes[i] && row < d->rows; row++)
            for (int64_t col = 0; col < d->cols; col++)
                if (s->groups.bits)
                    qv_store(dst->bytes[i], d->dtype, element_at(d, row, col),
                             value_at(s, src->bytes[i], row, col));
                else
                    copy_element(dst->bytes[i], d->dtype, element_at(d, row, col), src->bytes[i],
                                 s->dtype, element_at(s, row, col));
    }
}

static void
fill_integers(struct data *data, int i, int64_t most, struct rng *rng)
{
    const struct qv_view *d = &data->desc[i];
    for (int64_t at = 0; at < d->rows * d->cols; at++)
        qv_store(data->bytes[i], d->dtype, element_at(d, at / d->cols, at % d->cols),
                 (double)(rng_below(rng, 2 * most + 1) - most));
}

/* Fills with reals. One row in 8 is 16 times as large, in the columns before `large_cols`. */
static void
fill_reals(struct data *data, int i, int64_t large_cols, struct rng *rng)
{
    const struct qv_view *d = &data->desc[i];
    for (int64_t row = 0; row < d->rows; row++) {
        double large = rng_below(rng, 8) ? 1 : 16;
        for (int64_t col = 0; col < d->cols; col++)
            qv_store(data->bytes[i], d->dtype, element_at(d, row, col),
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

/* Fills with floats that round to bf16 in every way: ties, just below, just above, exact. */
static void
fill_convert(struct data *data, struct rng *rng)
{
    for (int64_t at = 0; at < data->desc[0].rows * data->desc[0].cols; at++) {
        uint64_t r = rng_next(rng);
        uint32_t tails[] = { 0x8000, 0x7fff, 0x8001, 0, (uint32_t)(r >> 40) & 0xffff };
        uint32_t u = (uint32_t)(r & 0x80ff0000) | (uint32_t)(110 + rng_below(rng, 32)) << 23 |
                     tails[rng_below(rng, 5)];
        float f;
        memcpy(&f, &u, 4);
        qv_store(data->bytes[0], data->desc[0].dtype, at, f);
    }
}

/* Fills rows with at most 40 of these values each, while the other factor is full of them, so
 * that |sum| is at most 160. */
static void
fill_sparse(struct data *data, int i, struct rng *rng)
{
    int64_t rows = data->desc[i].rows, cols = data->desc[i].cols;
    for (int64_t row = 0; row < rows; row++) {
        int used = 0;
        for (int64_t col = cols - 1; col >= 0 && used < 40; col--)
            if (rng_below(rng, cols) < 24 || (col == cols - 1 && row % 2)) {
                qv_store(data->bytes[i], data->desc[i].dtype, row * cols + col,
                         exact_values[rng_below(rng, 4)]);
                used++;
            }
    }
}

/* Fills x, w, bias and residual of gemm and conv. */
static void
fill_gemm(struct data *data, enum fill fill, int sparse, struct rng *rng)
{
    int dense = 1 - sparse;
    if (fill == FILL_EXACT) {
        fill_sparse(data, sparse, rng);
        for (int64_t at = 0;
             !data->desc[dense].groups.bits && at < data->desc[dense].rows * data->desc[dense].cols;
             at++)
            qv_store(data->bytes[dense], data->desc[dense].dtype, at,
                     exact_values[rng_below(rng, 4)]);
    } else {
        fill_reals(data, 0, is_gemm(&data->op) ? data->desc[0].cols : 0, rng);
        if (!data->desc[1].groups.bits)
            fill_reals(data, 1, 0, rng);
    }
    if (data->desc[1].groups.bits)
        fill_grouped(data, 1, fill, rng);
    for (int i = 2; i < 4; i++)
        if (data->bytes[i] && fill == FILL_EXACT)
            fill_integers(data, i, 8 * (i - 1), rng);
        else if (data->bytes[i])
            fill_reals(data, i, 0, rng);
}

/* Makes the channels of operand i repeat. */
static void
repeat_channels(struct data *data, int i)
{
    const struct qv_view *d = &data->desc[i];
    int64_t period = conv_period(&data->op);
    for (int64_t row = 0; period && data->bytes[i] && row < d->rows; row++)
        for (int64_t col = period; col < d->cols; col++)
            copy_element(data->bytes[i], d->dtype, row * d->cols + col, data->bytes[i], d->dtype,
                         row * d->cols + col - period);
}

/* Fills a conv: also y, if sums are added to it, and NaN in frames between samples, which must
 * not be read. */
static void
fill_conv(struct data *data, enum fill fill, struct rng *rng)
{
    const struct qv_op_conv *op = &data->op.u.conv;
    const struct qv_view *x = &data->desc[0];
    fill_gemm(data, fill, 1, rng);
    if (op->sums == 2 && fill == FILL_EXACT)
        fill_integers(data, 4, 16, rng);
    else if (op->sums == 2)
        fill_reals(data, 4, 0, rng);
    for (int i = 2; i < 5; i++)
        repeat_channels(data, i);
    for (int64_t frame = 0; frame < x->rows; frame++)
        for (int64_t at = frame * x->cols;
             frame % op->x_depth >= op->d && at < (frame + 1) * x->cols; at++)
            qv_store(data->bytes[0], x->dtype, at, NAN);
}

static void
fill_epilogue(struct data *data, enum fill fill, struct rng *rng)
{
    for (int i = 0; i < 3; i++)
        if (data->bytes[i] && fill == FILL_EXACT)
            fill_integers(data, i, i == 0 ? 160 : 8 * i, rng);
        else if (data->bytes[i])
            fill_reals(data, i, i == 0 ? data->desc[0].cols : 0, rng);
}

static void
fill_norm(struct data *data, struct rng *rng)
{
    int64_t cols = data->op.u.norm.cols;
    fill_reals(data, 0, cols, rng);
    for (int64_t i = 0; i < data->op.u.norm.rows; i++) {
        /* the norm must subtract a mean */
        double shift = rng_below(rng, 4) ? 0 : rng_real(rng) * 8;
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
    fill_positions(data, rng);
    if (fill == FILL_EXACT)
        fill_integers(data, 3, 100, rng);
    else
        fill_reals(data, 3, data->desc[3].cols, rng);
}

static void
fill_gate(struct data *data, enum fill fill, struct rng *rng)
{
    for (int i = 0; i < 2; i++)
        if (fill == FILL_EXACT)
            fill_integers(data, i, 15, rng);
        else
            fill_reals(data, i, data->desc[i].cols, rng);
}

/* Fills a gather. Rows without an index are NaN. */
static void
fill_gather(struct data *data, enum fill fill, struct rng *rng)
{
    const struct qv_op_gather *op = &data->op.u.gather;
    int32_t *index = data->bytes[1];
    bool *asked = must_alloc((size_t)op->x_rows * sizeof *asked);
    if (fill == FILL_EXACT)
        fill_convert(data, rng);
    else
        fill_reals(data, 0, op->cols, rng);
    for (int64_t i = 0; i < op->rows; i++) {
        index[i] = (int32_t)(i % 9 == 8 ? op->x_rows - 1 : rng_below(rng, op->x_rows));
        asked[index[i]] = true;
    }
    for (int64_t at = 0; at < op->x_rows * op->cols; at++)
        if (!asked[at / op->cols])
            qv_store(data->bytes[0], data->desc[0].dtype, at, NAN);
    free(asked);
}

static void
fill_interpolate(struct data *data, enum fill fill, struct rng *rng)
{
    static const float exact[] = { 0.5f, 0.25f, 0.125f, 0.125f };
    int32_t *index = data->bytes[1];
    float *weight = data->bytes[2];
    const int64_t taps = data->op.u.interpolate.taps, quads = taps / 4;
    int64_t last = data->op.u.interpolate.table_rows - 1;
    for (int64_t at = 0; at < data->op.u.interpolate.rows * taps; at++) {
        /* exact: only four weights of a row are not 0, as sums of more do not fit bf16 */
        const int64_t row = at / taps, tap = at % taps;
        const bool weighs = tap % quads == row % quads;
        index[at] = (int32_t)(at % 9 == 8 ? last : rng_below(rng, last + 1));
        weight[at] = fill != FILL_EXACT ? (float)fabs(rng_real(rng))
                     : weighs           ? exact[(row + tap / quads) % 4]
                                        : 0;
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
    case QV_OP_patchify:
        fill_bytes(data, 0, rng);
        fill_items(data, fill, rng);
        break;
    case QV_OP_convert: fill_convert(data, rng); break;
    case QV_OP_gemm:
    case QV_OP_gemm_few: fill_gemm(data, fill, 0, rng); break;
    case QV_OP_norm: fill_norm(data, rng); break;
    case QV_OP_rope: fill_rope(data, fill, rng); break;
    /* q and k are large, v is not, because its size bounds every row's tolerance */
    case QV_OP_attention:
        for (int i = 1; i < 4; i++)
            fill_reals(data, i, i < 3 ? data->desc[i].cols : 0, rng);
        fill_segments(data, rng);
        break;
    case QV_OP_gate: fill_gate(data, fill, rng); break;
    case QV_OP_gather: fill_gather(data, fill, rng); break;
    case QV_OP_interpolate: fill_interpolate(data, fill, rng); break;
    case QV_OP_im2col: fill_reals(data, 0, 0, rng); break;
    case QV_OP_conv: fill_conv(data, fill, rng); break;
    case QV_OP_epilogue: fill_epilogue(data, fill, rng); break;
    case QV_OP_COUNT: break;
    }
    for (int i = 0; i < data->n; i++) {
        const struct qv_view *d = &data->desc[i];
        int64_t period = data->bytes[i] ? period_of(&data->op, i) : 0;
        size_t element = qv_dtype_bytes(d->dtype);
        for (int64_t r = period; period && r < d->rows; r++)
            memcpy((char *)data->bytes[i] + (size_t)element_at(d, r, 0) * element,
                   (char *)data->bytes[i] + (size_t)element_at(d, r - period, 0) * element,
                   (size_t)d->cols * element);
    }
}
