/* SPDX-License-Identifier: MIT */
/* Chooses the kernel of a convolution: conv.metal's tiles or naive one, or one of gemm.metal's if
 * the convolution is a GEMM. */
#include "tiles.h"

/* A convolution by its axes: depth, height, width. */
struct sizes {
    int64_t n, in[3], c, o, kernel[3], stride[3], dilation[3], out[3], x_depth, groups, rows, k;
    int64_t front[3], back[3];
};

static struct sizes
sizes_of(const struct qv_op_conv *op)
{
    struct sizes s = { .n = op->n,
                       .in = { op->d, op->h, op->w },
                       .c = op->c,
                       .o = op->o,
                       .kernel = { op->kd, op->kh, op->kw },
                       .stride = { op->sd, op->sh, op->sw },
                       .dilation = { op->dd, op->dh, op->dw },
                       .x_depth = op->x_depth,
                       .groups = op->groups,
                       .k = op->kd * op->kh * op->kw * (op->c / op->groups),
                       .front = { 0, op->top, op->left },
                       .back = { 0, op->bottom, op->right } };
    qv_op_conv_output(op, s.out);
    s.rows = s.n * s.out[0] * s.out[1] * s.out[2];
    return s;
}

/* Returns whether windows along an axis lie side by side, and the values in each are contiguous. */
static bool
is_tiled(const struct sizes *s, int axis)
{
    bool apart = s->in[axis] == s->kernel[axis] || s->stride[axis] == s->kernel[axis];
    bool dense = s->dilation[axis] == 1 || s->kernel[axis] == 1;
    bool even = s->in[axis] % s->kernel[axis] == 0 &&
                (axis > 0 || s->n == 1 || s->x_depth % s->kernel[axis] == 0);
    return apart && dense && even && !s->front[axis] && !s->back[axis];
}

/* Turns taps that are neighbours in memory into channels, the innermost axis first; rows of an
 * image, for instance, if a window is as wide as the image. A convolution over patches thus
 * becomes a GEMM. */
static void
fold(struct sizes *s)
{
    for (int axis = 2; axis >= 0 && is_tiled(s, axis); axis--) {
        s->c *= s->kernel[axis];
        s->in[axis] /= s->kernel[axis];
        if (axis == 0)
            s->x_depth = s->n == 1 ? s->in[0] : s->x_depth / s->kernel[0];
        s->kernel[axis] = s->stride[axis] = s->dilation[axis] = 1;
        if (s->in[axis] > 1)
            break;
    }
}

/* Returns whether y's rows are x's rows times w. */
static bool
is_gemm(const struct sizes *s)
{
    bool gemm = s->n == 1 || s->x_depth == s->in[0];
    for (int axis = 0; axis < 3; axis++)
        gemm = gemm && s->kernel[axis] == 1 && s->out[axis] == s->in[axis] && !s->front[axis] &&
               !s->back[axis];
    return gemm;
}

static qv_status
check_size(const struct sizes *s, qv_error *err)
{
    int64_t most = 1 << 30, cols = 1 << 26;
    bool fits = s->n <= most && s->c <= cols && s->o <= cols && s->k <= cols && s->x_depth <= most;
    for (int axis = 0; axis < 3; axis++)
        fits = fits && s->in[axis] <= most && s->dilation[axis] <= most &&
               s->stride[axis] <= most && s->front[axis] <= most && s->out[axis] <= most &&
               (s->kernel[axis] - 1) * s->dilation[axis] < most &&
               (s->out[axis] - 1) * s->stride[axis] < most;
    if (!fits || s->rows > most || s->rows * s->o >= (int64_t)1 << 32)
        return qv_fail(
            err, QV_EUNSUPPORTED,
            "conv: %lld rows of %lld channels, each over %lld values; Metal's kernels allow "
            "up to 2^30 rows and axes, 2^26 columns and fewer than 2^32 outputs",
            (long long)s->rows, (long long)s->o, (long long)s->k);
    return QV_OK;
}

static struct conv_args
args_of(const struct sizes *s, const struct qv_op_conv *op)
{
    struct conv_args a = { .n = (uint32_t)s->n,
                           .c = (uint32_t)s->c,
                           .o = (uint32_t)s->o,
                           .x_depth = (uint32_t)s->x_depth,
                           .groups = (uint32_t)s->groups,
                           .top = (uint32_t)s->front[1],
                           .left = (uint32_t)s->front[2],
                           .epilogue = { (float)op->alpha, (uint32_t)op->residual_rows } };
    for (int axis = 0; axis < 3; axis++) {
        a.in[axis] = (uint32_t)s->in[axis];
        a.taps[axis] = (uint32_t)s->kernel[axis];
        a.stride[axis] = (uint32_t)s->stride[axis];
        a.dilation[axis] = (uint32_t)s->dilation[axis];
        a.out[axis] = (uint32_t)s->out[axis];
    }
    return a;
}

static qv_status
launch_as_gemm(const struct sizes *s, const struct qv_op_conv *op, int choice,
               struct launch_metal *out, qv_error *err)
{
    struct qv_op_gemm gemm = { .m = s->rows,
                               .n = s->o,
                               .k = s->c,
                               .alpha = op->alpha,
                               .bias = op->bias,
                               .act = op->act,
                               .residual_rows = op->residual_rows,
                               .x_dtype = op->x_dtype,
                               .w_dtype = op->w_dtype,
                               .bias_dtype = op->bias_dtype,
                               .residual_dtype = op->residual_dtype,
                               .y_dtype = op->y_dtype };
    return qv_launch_gemm_metal(&gemm, choice, false, out, err);
}

qv_status
qv_launch_conv_metal(const struct qv_op_conv *op, int choice, bool naive, struct launch_metal *out,
                     qv_error *err)
{
    struct sizes s = sizes_of(op);
    qv_status status = check_size(&s, err);
    if (status)
        return status;
    naive = naive || s.groups > 1;
    if (!naive)
        fold(&s);
    if (!naive && !op->sums && is_gemm(&s))
        return launch_as_gemm(&s, op, choice, out, err);
    if (choice >= (naive ? 1 : TILES))
        return qv_fail(err, QV_EUNSUPPORTED, "conv: only %d kernels support it", naive ? 1 : TILES);
    out->real = (qv_dtype)op->x_dtype;
    out->constants[CONSTANT_BIAS] = op->bias != 0;
    out->constants[CONSTANT_ACT] = (uint32_t)op->act;
    out->constants[CONSTANT_RESIDUAL] = op->residual_rows != 0;
    out->args.conv = args_of(&s, op);
    if (naive) {
        out->obstacle = "it has groups";
        naive_launch("conv_naive", s.rows * s.o, out);
    } else {
        const struct tile_metal *tile = tile_choose(s.rows, s.o, choice);
        out->function = tile->conv;
        tile_launch(tile, s.rows, s.o, s.k, s.c % 4 == 0 ? 2 : s.k % 4 == 0 ? 1 : 0, out);
    }
    out->constants[CONSTANT_D] = (uint32_t)op->sums;
    return QV_OK;
}
