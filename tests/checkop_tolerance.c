/* SPDX-License-Identifier: MIT */
/* Computes how far a right result may be from the exact one, derived from dtypes and lengths and
 * never tuned. */
#include <float.h>
#include <math.h>

#include "checkop.h"

static int
significant_bits(qv_dtype dtype)
{
    switch (dtype) {
    case QV_F32: return 24;
    case QV_F16: return 11;
    case QV_BF16: return 8;
    case QV_U8:
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    return DBL_MANT_DIG; /* nothing is rounded to this dtype, so it gets no slack */
}

/* Half the distance between neighbouring values at `value` in the output's dtype. Below the
 * least normal number nothing is promised, as devices may flush it to zero. */
static double
half_unit(qv_dtype dtype, double value)
{
    int exponent;
    frexp(value, &exponent); /* |value| in [2^(exponent-1), 2^exponent) */
    return fmax(ldexp(1, exponent - 1 - significant_bits(dtype)), FLT_MIN);
}

/* The error of an activation in the units below. tanh, erf and a sigmoid are taken to have 4
 * units of error, of 1, times half their argument. If the argument is positive, it is near the
 * result; if negative, they have saturated below -8, or their error is relative to themselves. */
static double
act_error(double result)
{
    return 2 * (result + 8);
}

/*
 * Errors of f32 arithmetic, in units of FLT_EPSILON = 2^-23 (twice the error of one rounding).
 * A sum of k products up to max_x * max_w counts (k + 1) * max_x * max_w, as in XNNPACK's ynnpack:
 * a device may add in any order and grouping. Meanings of max_x and max_w by kind:
 *   rows       max_x: of the shifts of this row's item; max_w: of its scales
 *   gemm       max_x: of x in this row, of the bias and of the residual; max_w: of w
 *   gemm_few   as gemm, but max_w: of code * scale and of offset together: they are summed apart
 *   norm       max_x: of x in this row, over sqrt(var + eps); max_w: of weight and bias
 *   rope       max_x: of q and k in this row; max_w: of cos and sin
 *   attention  max_x: root of (max of q in this row * max of k in its segment); max_w: of
 *              v in its segment; segment_rows: rows of that, 0 takes all
 *   interpolate  max_x: of the table; max_w: of this row's weights
 *   gate       max_x: of a in this row; max_w: of b
 *   conv       as gemm, max_x of all x; with sums = 2 also of y before
 *   epilogue  as gemm with k = 1: max_x: of x, bias and residual; max_w: 1
 */
static double
gemm_error(int64_t k, const struct qv_op_epilogue *op, double expected, double max_x, double max_w)
{
    double bias = op->bias ? max_x : 0, residual = op->residual_rows ? max_x : 0;
    double sum = fabs(op->alpha) * (double)(k + 1) * max_x * max_w + bias;
    if (op->act == QV_ACT_NONE)
        return sum + residual + fabs(expected);
    /* both |gelu'| and |silu'| are below 1.13 */
    return 1.13 * sum + act_error(fabs(expected) + residual) + residual + fabs(expected);
}

/* Sums of values of one sign need another rule than above: added one after another, c terms are
 * wrong by up to c/2 relative. So the mean is wrong by c/4 of max_x; then (in two passes; one
 * pass loses more and counts as wrong) the variance by c/2 and its root by c/4. Differences,
 * root, quotient and two products add 4. */
static double
norm_error(const struct qv_op_norm *op, double expected, double max_x, double max_w)
{
    double quarter = (double)(op->cols + 1) / 4, mean = op->rms ? 0 : (quarter + 1) * max_x * max_w;
    return mean + (quarter + 4) * (fabs(expected) + max_w);
}

/* Scores as a gemm's; a score's absolute error is its exponential's relative error, on top of 4 for
 * the function and one for each time its argument is scaled or shifted (that is, up to twice the
 * largest score); the same again in the divisor. The sum of exponentials and that of weighted
 * values are wrong by up to half the segment's rows each, relative to the first. A device may round
 * probabilities to v's dtype before the second product. */
static double
attention_error(const struct qv_op_attention *op, double max_x, double max_w)
{
    double score = fabs(op->scale) * (double)op->head_dim * max_x * max_x;
    double scores = fabs(op->scale) * (double)(op->head_dim + 1) * max_x * max_x;
    double exponentials = 2 * (scores + 4 + 2 * fmin(score, 88)); /* exp(-88) is 0 in f32 */
    int bits = significant_bits((qv_dtype)op->v_dtype);
    double rounded = bits < FLT_MANT_DIG ? ldexp(1, -bits) / FLT_EPSILON : 0;
    int64_t keys = op->segment_rows ? op->segment_rows : op->rows;
    return (exponentials + (double)(keys + 1) + rounded) * max_w;
}

double
op_tolerance(const struct qv_op *op, double expected, double max_x, double max_w)
{
    struct qv_op_gemm gemm;
    struct qv_op_epilogue epilogue;
    double units = 0;
    switch (op->kind) {
    case QV_OP_patchify: /* half a unit each for a product and a sum */
        units = 255 * max_w + max_x;
        break;
    case QV_OP_convert: break;
    case QV_OP_gemm:
    case QV_OP_gemm_few:
        gemm = op->kind == QV_OP_gemm ? op->u.gemm : qv_op_few_as_gemm(&op->u.gemm_few);
        epilogue = qv_op_gemm_epilogue(&gemm);
        units = gemm_error(gemm.k, &epilogue, expected, max_x, max_w);
        break;
    case QV_OP_norm: units = norm_error(&op->u.norm, expected, max_x, max_w); break;
    case QV_OP_rope: /* half a unit each for two products and a sum */
        units = 2 * max_x * max_w;
        break;
    case QV_OP_attention: units = attention_error(&op->u.attention, max_x, max_w); break;
    case QV_OP_gate:
        units = fabs(expected) + (op->u.gate.act ? max_w * act_error(max_x) : 0);
        break;
    case QV_OP_gather: break; /* one rounding */
    case QV_OP_interpolate: units = (double)(op->u.interpolate.taps + 1) * max_x * max_w; break;
    case QV_OP_im2col: return 0; /* a copy is exact */
    case QV_OP_conv:
        epilogue = qv_op_conv_epilogue(&op->u.conv);
        units = gemm_error(qv_op_view(op, 1).cols, &epilogue, expected, max_x, max_w) +
                (op->u.conv.sums == 2 ? max_x : 0);
        break;
    case QV_OP_epilogue: units = gemm_error(1, &op->u.epilogue, expected, max_x, max_w); break;
    case QV_OP_COUNT: break;
    }
    double error = units * FLT_EPSILON;
    return error + half_unit(qv_op_view(op, qv_op_output(op)).dtype, fabs(expected) + error);
}
