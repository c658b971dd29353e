/* SPDX-License-Identifier: MIT */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

void
qv_conv3d_ready_free(qv_context *ctx, struct qv_conv3d_ready *w)
{
    for (int i = 0; i < w->n_kernels; i++)
        qv_kernel_put(ctx, w->kernels[i]);
    if (w->arena)
        ctx->backend->free(ctx->dev, w->arena);
    memset(w, 0, sizeof *w);
}

/* Returns the weight that a step takes, in the form in which the backend is asked for its layout; n
 * is 0 if it takes none. */
static struct qv_matrix
matrix_of(const struct qv_conv3d_step *step)
{
    struct qv_view w = qv_op_view(&step->op, 1);
    if (step->operands[1].buffer != QV_CONV3D_WEIGHT)
        return (struct qv_matrix){ 0 };
    return qv_matrix_of(&step->op, &w);
}

qv_status
qv_conv3d_ready_prepare(qv_context *ctx, const qv_conv3d_desc *desc, qv_lowering lowering,
                        struct qv_conv3d_ready *w, qv_error *err)
{
    memset(w, 0, sizeof *w);
    qv_conv3d_lower(desc, lowering, &w->list);
    for (int i = 0; i < w->list.n; i++) {
        struct qv_conv3d_step *step = &w->list.steps[i];
        struct qv_matrix matrix = matrix_of(step);
        qv_status status = qv_kernel_get(ctx, &step->op, &w->kernels[i], err);
        if (!status) {
            w->n_kernels++;
            size_t bytes = ctx->kernels.entries[w->kernels[i]].scratch_bytes;
            w->kernel_scratch = bytes > w->kernel_scratch ? bytes : w->kernel_scratch;
        }
        if (!status && matrix.n) {
            struct qv_layout layout = { 0 };
            status = ctx->backend->layout(ctx->dev, &matrix, &layout, err);
            w->piece_places[step->operands[1].at] = w->weight_bytes;
            w->weight_bytes += qv_aligned(layout.bytes);
        }
        if (status)
            return status;
    }
    w->list.bytes[QV_CONV3D_WEIGHT] = w->weight_bytes;
    size_t x = (size_t)(desc->n * desc->d * desc->h * desc->w * desc->c) *
               (desc->layout == QV_LAYOUT_FRAMES_U8 ? 1 : qv_dtype_bytes(desc->dtype));
    if (w->list.bytes[QV_CONV3D_INPUT] < x) /* frames that strides skip are in the buffer as well */
        w->list.bytes[QV_CONV3D_INPUT] = x;
    double sum = (double)w->kernel_scratch;
    for (int b = 0; b < QV_CONV3D_BUFFERS; b++)
        sum += (double)w->list.bytes[b];
    if (sum > (double)(PTRDIFF_MAX / 2))
        return qv_fail(err, QV_ENOMEM, "no memory for %.3g bytes of a conv3d", sum);
    for (int b = 0; b < QV_CONV3D_BUFFERS; b++) {
        w->places[b] = w->arena_bytes;
        w->arena_bytes += qv_aligned(w->list.bytes[b]);
        if (b == QV_CONV3D_ROWS || b == QV_CONV3D_VOXELS || b == QV_CONV3D_SUMS)
            w->between_bytes += qv_aligned(w->list.bytes[b]);
    }
    w->arena_bytes += qv_aligned(w->kernel_scratch);
    return QV_OK;
}

static qv_status
lay_out_weights(qv_context *ctx, const qv_conv3d_desc *desc, const qv_conv3d_weights *weights,
                struct qv_conv3d_ready *w, qv_error *err)
{
    const struct qv_conv3d_form *form = &w->list.weight;
    qv_dtype from = weights->dtype ? weights->dtype : QV_F32;
    void *piece = malloc((size_t)(form->o * form->k) * qv_dtype_bytes(desc->dtype));
    if (!piece)
        return qv_fail(err, QV_ENOMEM, "no memory to reshape a weight [%lld, %lld]",
                       (long long)form->o, (long long)form->k);
    qv_status status = QV_OK;
    for (int i = 0; i < w->list.n && !status; i++) {
        struct qv_matrix matrix = matrix_of(&w->list.steps[i]);
        int at = (int)w->list.steps[i].operands[1].at;
        if (!matrix.n)
            continue;
        qv_conv3d_reshape(desc, form, at, weights->weight, from, weights->channels_last, piece);
        struct qv_buffer dst = { w->arena, w->places[QV_CONV3D_WEIGHT] + w->piece_places[at] };
        status = ctx->backend->lay_out(ctx->dev, &matrix, 0, matrix.n, piece, dst, err);
    }
    free(piece);
    return status;
}

static struct qv_buffer
operand(const struct qv_conv3d_ready *w, const struct qv_conv3d_operand *o)
{
    size_t at = o->buffer == QV_CONV3D_WEIGHT ? w->piece_places[o->at] : (size_t)o->at;
    if (o->buffer == QV_CONV3D_NONE)
        return (struct qv_buffer){ 0 };
    return (struct qv_buffer){ w->arena, w->places[o->buffer] + at };
}

/* Uploads the bias, rounded to the description's dtype. */
static qv_status
upload_bias(qv_context *ctx, const qv_conv3d_desc *desc, const float *bias,
            const struct qv_conv3d_ready *w, qv_error *err)
{
    struct qv_buffer dst = { w->arena, w->places[QV_CONV3D_BIAS] };
    size_t bytes = (size_t)desc->o * qv_dtype_bytes(desc->dtype);
    void *values = malloc(bytes);
    if (!values)
        return qv_fail(err, QV_ENOMEM, "no memory for a bias of %zu bytes", bytes);
    for (int64_t i = 0; i < desc->o; i++)
        qv_store(values, desc->dtype, i, bias[i]);
    qv_status status = ctx->backend->upload(ctx->dev, dst, values, bytes, err);
    free(values);
    return status;
}

/* Uploads the tables of the list's patchify operation, if there is one. */
static qv_status
upload_tables(qv_context *ctx, const qv_conv3d_desc *desc, const struct qv_conv3d_ready *w,
              qv_error *err)
{
    const struct qv_conv3d_step *step = &w->list.steps[0];
    if (!w->list.n || step->op.kind != QV_OP_patchify)
        return QV_OK;
    struct qv_item_place place;
    struct qv_item_norm norm;
    struct qv_coords *coords = malloc((size_t)step->op.u.patchify.rows * sizeof *coords);
    if (!coords)
        return qv_fail(err, QV_ENOMEM, "no memory for the coordinates of %lld rows",
                       (long long)step->op.u.patchify.rows);
    qv_conv3d_tables(desc, &step->op.u.patchify, &place, &norm, coords);
    const void *const tables[] = { &place, &norm, coords };
    qv_status status = QV_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = ctx->backend->upload(ctx->dev, operand(w, &step->operands[1 + i]), tables[i],
                                      qv_op_view(&step->op, 1 + i).bytes, err);
    free(coords);
    return status;
}

qv_status
qv_conv3d_ready_load(qv_context *ctx, const qv_conv3d_desc *desc, const qv_conv3d_weights *weights,
                     struct qv_conv3d_ready *w, qv_error *err)
{
    qv_status status = ctx->backend->alloc(ctx->dev, w->arena_bytes, &w->arena, err);
    if (!status)
        status = lay_out_weights(ctx, desc, weights, w, err);
    if (!status && desc->bias)
        status = upload_bias(ctx, desc, weights->bias, w, err);
    if (!status)
        status = upload_tables(ctx, desc, w, err);
    size_t end = w->arena_bytes - qv_aligned(w->kernel_scratch);
    for (int i = 0; i < w->list.n && !status; i++) {
        const struct qv_conv3d_step *step = &w->list.steps[i];
        w->calls[i].kernel = ctx->kernels.entries[w->kernels[i]].kernel;
        w->calls[i].scratch = (struct qv_buffer){ w->arena, end };
        for (int j = 0; j < qv_op_n_operands(step->op.kind); j++)
            w->calls[i].operands[j] = operand(w, &step->operands[j]);
    }
    return status;
}
