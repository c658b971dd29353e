/* SPDX-License-Identifier: MIT */
/* Lists a lowering's operations, and lays out the weight for them. */
#include <string.h>

#include "lower.h"
#include "dtype.h"

/* The list that is being written, and the place that holds x at this point of it. */
struct lowering {
    const qv_conv3d_desc *desc;
    struct qv_conv3d_list *list;
    int x;
    int64_t out[3], rows;
};

/* Operations are compared by value, so padding bytes of the union must be zero too. */
static struct qv_op
op_of(enum qv_op_kind kind)
{
    struct qv_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    return op;
}

/* Appends a step. All operands have the description's dtype, except unfinished sums (f32). */
static struct qv_step *
add(struct lowering *l, const struct qv_op *op)
{
    struct qv_step *step = &l->list->steps[l->list->n++];
    memset(step, 0, sizeof *step);
    step->op = *op;
    qv_op_set_dtype(&step->op, l->desc->dtype);
    if (op->kind == QV_OP_conv && op->u.conv.sums)
        step->op.u.conv.y_dtype = QV_F32;
    return step;
}

/* Sets bias and residual, from operand `first` on. */
static void
take_epilogue(const struct lowering *l, struct qv_step *step, int first)
{
    if (l->desc->bias)
        step->operands[first] = QV_CONV3D_BIAS;
    if (l->desc->residual_rows)
        step->operands[first + 1] = QV_CONV3D_RESIDUAL;
}

/* ---- rows and voxels ------------------------------------------------------------------------- */

/* Adds the operation that turns byte frames into patch rows in block order; with `still` one frame
 * represents kernel[0] equal frames. */
static void
bytes_to_rows(struct lowering *l, bool still)
{
    const qv_conv3d_desc *d = l->desc;
    struct qv_op op = op_of(QV_OP_patchify);
    int64_t temporal = still ? 1 : d->kernel[0];
    op.u.patchify = (struct qv_op_patchify){ .rows = l->rows,
                                             .patch = d->kernel[1],
                                             .temporal = temporal,
                                             .channels = d->c,
                                             .items = 1,
                                             .patches = l->rows * temporal };
    struct qv_step *step = add(l, &op);
    step->operands[0] = l->x;
    step->operands[1] = QV_CONV3D_PLACES;
    step->operands[2] = QV_CONV3D_NORMS;
    step->operands[3] = QV_CONV3D_COORDS;
    step->operands[4] = QV_CONV3D_ROWS;
    l->x = QV_CONV3D_ROWS;
}

void
qv_conv3d_tables(const qv_conv3d_desc *desc, const struct qv_op_patchify *op,
                 struct qv_item_place *place, struct qv_item_norm *norm, struct qv_coords *coords)
{
    int64_t out[3], patches;
    qv_conv3d_output(desc, out);
    patches = out[1] * out[2];
    *place = (struct qv_item_place){ 0, (int32_t)(patches * op->temporal), (int32_t)patches,
                                     (int32_t)out[2] };
    for (int i = 0; i < 3; i++) {
        norm->scale[i] = (float)desc->pixel_scale[i];
        norm->shift[i] = (float)desc->pixel_shift[i];
    }
    for (int64_t pair = 0; pair < op->rows / patches; pair++)
        qv_block_coords(out[1], out[2], desc->merge, 0, pair, coords + pair * patches);
}

static void
im2col(struct lowering *l, const struct qv_op_im2col *fields, int y)
{
    struct qv_op op = op_of(QV_OP_im2col);
    op.u.im2col = *fields;
    struct qv_step *step = add(l, &op);
    step->operands[0] = l->x;
    step->operands[1] = y;
    l->x = y;
}

/* Makes the input a matrix of patches; `still` takes only the first frame of each patch. */
static void
make_rows(struct lowering *l, bool still)
{
    const qv_conv3d_desc *d = l->desc;
    if (d->layout == QV_LAYOUT_FRAMES_U8)
        bytes_to_rows(l, still);
    else if (still || !qv_conv3d_input_is_rows(d))
        im2col(l,
               &(struct qv_op_im2col){ .n = d->n,
                                       .d = d->d,
                                       .h = d->h,
                                       .w = d->w,
                                       .c = d->c,
                                       .kd = still ? 1 : d->kernel[0],
                                       .kh = d->kernel[1],
                                       .kw = d->kernel[2],
                                       .sd = d->stride[0],
                                       .sh = d->stride[1],
                                       .sw = d->stride[2],
                                       .channels_first = d->layout == QV_LAYOUT_CHANNELS_FIRST },
               QV_CONV3D_ROWS);
}

/* Moves strides into im2col on axes where the kernel is 1 and nothing is padded: the voxels that
 * they skip need not be copied. Returns whether there are any. */
static bool
thin_out(const qv_conv3d_desc *d, struct qv_op_im2col *v)
{
    int64_t *const strides[3] = { &v->sd, &v->sh, &v->sw };
    bool thinner = false;
    for (int a = 0; a < 3; a++)
        if (d->kernel[a] == 1 && d->stride[a] > 1 && !d->pad_front[a] && !d->pad_back[a]) {
            *strides[a] = d->stride[a];
            thinner = true;
        }
    return thinner;
}

/* Makes the channels-last volume that a convolution reads, which is x, or one kernel's volume per
 * patch row. Returns its sizes, and the strides that im2col has already applied. */
static struct qv_op_im2col
make_voxels(struct lowering *l)
{
    const qv_conv3d_desc *d = l->desc;
    struct qv_op_im2col v = { .n = d->n,
                              .d = d->d,
                              .h = d->h,
                              .w = d->w,
                              .c = d->c,
                              .kd = 1,
                              .kh = 1,
                              .kw = 1,
                              .sd = 1,
                              .sh = 1,
                              .sw = 1,
                              .channels_first = d->layout != QV_LAYOUT_CHANNELS_LAST };
    if (d->layout == QV_LAYOUT_FRAMES_U8)
        bytes_to_rows(l, false);
    if (d->layout == QV_LAYOUT_FRAMES_U8 || d->layout == QV_LAYOUT_PATCH_ROWS) {
        v.n = l->rows;
        v.d = d->kernel[0];
        v.h = d->kernel[1];
        v.w = d->kernel[2];
    }
    if (thin_out(d, &v) || v.channels_first)
        im2col(l, &v, QV_CONV3D_VOXELS);
    v.d = (v.d - 1) / v.sd + 1;
    v.h = (v.h - 1) / v.sh + 1;
    v.w = (v.w - 1) / v.sw + 1;
    return v;
}

/* ---- GEMMs and convolutions ------------------------------------------------------------------ */

static void
add_gemm(struct lowering *l, bool still)
{
    const qv_conv3d_desc *d = l->desc;
    struct qv_conv3d_form *w = &l->list->weight;
    struct qv_op op = op_of(QV_OP_gemm);
    *w = (struct qv_conv3d_form){ .pieces = 1,
                                  .o = d->o,
                                  .k = d->c * (still ? 1 : d->kernel[0]) * d->kernel[1] *
                                       d->kernel[2],
                                  .summed = still,
                                  .channels_last = d->layout == QV_LAYOUT_CHANNELS_LAST };
    op.u.gemm = (struct qv_op_gemm){ .m = l->rows,
                                     .n = w->o,
                                     .k = w->k,
                                     .alpha = d->alpha,
                                     .bias = d->bias,
                                     .act = d->act,
                                     .residual_rows = d->residual_rows };
    struct qv_step *step = add(l, &op);
    step->operands[0] = l->x;
    step->operands[1] = QV_CONV3D_WEIGHT;
    take_epilogue(l, step, 2);
    step->operands[4] = QV_CONV3D_OUTPUT;
}

/* Returns the convolution of the whole kernel over the volume v, without its epilogue. */
static struct qv_op
conv_over(const qv_conv3d_desc *d, const struct qv_op_im2col *v)
{
    struct qv_op op = op_of(QV_OP_conv);
    op.u.conv = (struct qv_op_conv){ .n = v->n,
                                     .d = v->d,
                                     .h = v->h,
                                     .w = v->w,
                                     .c = d->c,
                                     .o = d->o,
                                     .kd = d->kernel[0],
                                     .kh = d->kernel[1],
                                     .kw = d->kernel[2],
                                     .sd = d->stride[0] / v->sd,
                                     .sh = d->stride[1] / v->sh,
                                     .sw = d->stride[2] / v->sw,
                                     .dd = d->dilation[0],
                                     .dh = d->dilation[1],
                                     .dw = d->dilation[2],
                                     .top = d->pad_front[1],
                                     .bottom = d->pad_back[1],
                                     .left = d->pad_front[2],
                                     .right = d->pad_back[2],
                                     .groups = d->groups,
                                     .x_depth = v->d,
                                     .alpha = 1 };
    return op;
}

/* Reduces a convolution to one depth tap: a kernel of depth 1 over every sd-th frame. Frames that
 * are evenly spaced in memory become a batch. */
static void
take_tap(struct qv_op_conv *c)
{
    int64_t frames = (c->d - c->dd * (c->kd - 1) - 1) / c->sd + 1;
    c->kd = c->dd = 1;
    c->d = (frames - 1) * c->sd + 1;
    if (c->n == 1 || frames == 1 || c->x_depth == frames * c->sd) {
        c->x_depth = frames == 1 ? c->x_depth : c->sd;
        c->n *= frames;
        c->d = c->sd = 1;
    }
}

static struct qv_step *
add_conv(struct lowering *l, const struct qv_op *op)
{
    const qv_conv3d_desc *d = l->desc;
    const struct qv_op_conv *c = &op->u.conv;
    struct qv_conv3d_form *w = &l->list->weight;
    if (!w->pieces++)
        *w = (struct qv_conv3d_form){ .pieces = 1,
                                      .o = d->o,
                                      .k = d->c / d->groups * c->kd * c->kh * c->kw };
    struct qv_step *step = add(l, op);
    step->operands[0] = l->x;
    step->operands[1] = QV_CONV3D_WEIGHT + w->pieces - 1;
    step->operands[4] = c->sums ? QV_CONV3D_SUMS : QV_CONV3D_OUTPUT;
    return step;
}

/* Lowers `frames` and `direct`: one convolution with its epilogue. */
static void
convolve_at_once(struct lowering *l, bool frames)
{
    const qv_conv3d_desc *d = l->desc;
    struct qv_op_im2col v = make_voxels(l);
    struct qv_op op = conv_over(d, &v);
    if (frames)
        take_tap(&op.u.conv);
    op.u.conv.alpha = d->alpha;
    op.u.conv.bias = d->bias;
    op.u.conv.act = d->act;
    op.u.conv.residual_rows = d->residual_rows;
    take_epilogue(l, add_conv(l, &op), 2);
}

static void
convolve_by_depth(struct lowering *l)
{
    const qv_conv3d_desc *d = l->desc;
    struct qv_op_im2col v = make_voxels(l);
    int64_t frame_bytes = v.h * v.w * d->c * (int64_t)qv_dtype_bytes(d->dtype);
    struct qv_op op = conv_over(d, &v);
    take_tap(&op.u.conv);
    for (int64_t t = 0; t < d->kernel[0]; t++) {
        op.u.conv.sums = t ? 2 : 1;
        add_conv(l, &op)->offsets[0] = t * d->dilation[0] * frame_bytes;
    }
    op = op_of(QV_OP_epilogue);
    op.u.epilogue = (struct qv_op_epilogue){ .rows = l->rows,
                                             .cols = d->o,
                                             .alpha = d->alpha,
                                             .bias = d->bias,
                                             .act = d->act,
                                             .residual_rows = d->residual_rows };
    struct qv_step *step = add(l, &op);
    step->operands[0] = QV_CONV3D_SUMS;
    take_epilogue(l, step, 1);
    step->operands[3] = QV_CONV3D_OUTPUT;
}

void
qv_conv3d_lower(const qv_conv3d_desc *desc, qv_lowering lowering, struct qv_conv3d_list *out)
{
    struct lowering l = { .desc = desc, .list = out, .x = QV_CONV3D_INPUT };
    memset(out, 0, sizeof *out);
    qv_conv3d_output(desc, l.out);
    l.rows = qv_conv3d_rows(desc);
    switch (lowering) {
    case QV_LOWERING_PATCHIFY:
    case QV_LOWERING_STILL:
    case QV_LOWERING_POINTWISE:
        make_rows(&l, lowering == QV_LOWERING_STILL);
        add_gemm(&l, lowering == QV_LOWERING_STILL);
        break;
    case QV_LOWERING_FRAMES:
    case QV_LOWERING_DIRECT: convolve_at_once(&l, lowering == QV_LOWERING_FRAMES); break;
    case QV_LOWERING_BY_DEPTH: convolve_by_depth(&l); break;
    case QV_LOWERING_COUNT: break;
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

void
qv_conv3d_reshape(const qv_conv3d_desc *desc, const struct qv_conv3d_form *form, int piece,
                  const void *src, int64_t from, bool src_channels_last, void *dst)
{
    int64_t c = desc->c / desc->groups, kd = desc->kernel[0];
    int64_t area = desc->kernel[1] * desc->kernel[2];
    /* depth taps [first, first + taps) go into this piece; each value is the sum of `sum` taps */
    int64_t first = form->pieces > 1 ? piece : 0, sum = form->summed ? kd : 1;
    int64_t taps = form->pieces > 1 || form->summed ? 1 : kd;
    int64_t step_c = src_channels_last ? 1 : kd * area, step_tap = src_channels_last ? c : 1;
    for (int64_t o = 0; o < desc->o; o++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t t = 0; t < taps * area; t++) {
                double value = 0;
                for (int64_t s = 0; s < sum; s++)
                    value += qv_load(src, from,
                                     o * c * kd * area + j * step_c +
                                         ((first + s) * area + t) * step_tap);
                int64_t col = form->channels_last ? t * c + j : j * taps * area + t;
                qv_store(dst, desc->dtype, o * form->k + col, value);
            }
}

void
qv_conv3d_channels_last_to_first(const void *w, int64_t o, int64_t taps, int64_t c,
                                 size_t element_bytes, void *out)
{
    const char *from = w;
    char *to = out;
    for (int64_t i = 0; i < o; i++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t t = 0; t < taps; t++, to += element_bytes)
                memcpy(to, from + (size_t)((i * taps + t) * c + j) * element_bytes, element_bytes);
}
