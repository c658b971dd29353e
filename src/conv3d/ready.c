/* SPDX-License-Identifier: MIT */
/* Makes one lowering of a Conv3d ready to run: its program, its weights and its tables. */
#include "object.h"

#include <stdlib.h>

#include "dtype.h"
#include "error.h"

qv_status
qv_conv3d_ready_prepare(qv_context *ctx, const qv_conv3d_desc *desc, qv_lowering lowering,
                        struct qv_conv3d_ready *w, qv_error *err)
{
    struct qv_place places[QV_CONV3D_N_PLACES] = { 0 };
    /* frames that strides skip are in the input's place as well */
    places[QV_CONV3D_INPUT].bytes =
        (size_t)(desc->n * desc->d * desc->h * desc->w * desc->c) *
        (desc->layout == QV_LAYOUT_FRAMES_U8 ? 1 : qv_dtype_bytes(desc->dtype));
    qv_conv3d_lower(desc, lowering, &w->list);
    return qv_program_prepare(ctx, w->list.steps, (size_t)w->list.n, places, QV_CONV3D_N_PLACES, 1,
                              &w->program, err);
}

static qv_status
lay_out_weights(qv_context *ctx, const qv_conv3d_desc *desc, const qv_conv3d_weights *weights,
                const struct qv_conv3d_ready *w, qv_error *err)
{
    const struct qv_conv3d_form *form = &w->list.weight;
    qv_dtype from = weights->dtype ? weights->dtype : QV_F32;
    void *piece = malloc((size_t)(form->o * form->k) * qv_dtype_bytes(desc->dtype));
    if (!piece)
        return qv_fail(err, QV_ENOMEM, "no memory to reshape a weight [%lld, %lld]",
                       (long long)form->o, (long long)form->k);
    qv_status status = QV_OK;
    for (int i = 0; i < w->list.n && !status; i++) {
        const struct qv_step *step = &w->list.steps[i];
        const int place = step->operands[1];
        if (place < QV_CONV3D_WEIGHT)
            continue;
        const struct qv_view view = qv_op_view(&step->op, 1);
        const struct qv_matrix matrix = qv_matrix_of(&step->op, &view);
        qv_conv3d_reshape(desc, form, place - QV_CONV3D_WEIGHT, weights->weight, from,
                          weights->channels_last, piece);
        status = ctx->backend->lay_out(ctx->dev, &matrix, 0, matrix.n, piece,
                                       qv_program_place(&w->program, 0, place), err);
    }
    free(piece);
    return status;
}

/* Uploads the bias, rounded to the description's dtype. */
static qv_status
upload_bias(qv_context *ctx, const qv_conv3d_desc *desc, const float *bias,
            const struct qv_conv3d_ready *w, qv_error *err)
{
    size_t bytes = (size_t)desc->o * qv_dtype_bytes(desc->dtype);
    void *values = malloc(bytes);
    if (!values)
        return qv_fail(err, QV_ENOMEM, "no memory for a bias of %zu bytes", bytes);
    for (int64_t i = 0; i < desc->o; i++)
        qv_store(values, desc->dtype, i, bias[i]);
    qv_status status =
        ctx->backend->upload(ctx->dev, qv_program_place(&w->program, 0, QV_CONV3D_BIAS), values,
                             bytes, err);
    free(values);
    return status;
}

/* Uploads the tables of the list's patchify operation, if there is one. */
static qv_status
upload_tables(qv_context *ctx, const qv_conv3d_desc *desc, const struct qv_conv3d_ready *w,
              qv_error *err)
{
    const struct qv_step *step = &w->list.steps[0];
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
        status =
            ctx->backend->upload(ctx->dev, qv_program_place(&w->program, 0, step->operands[1 + i]),
                                 tables[i], qv_op_view(&step->op, 1 + i).bytes, err);
    free(coords);
    return status;
}

qv_status
qv_conv3d_ready_load(qv_context *ctx, const qv_conv3d_desc *desc, const qv_conv3d_weights *weights,
                     struct qv_conv3d_ready *w, qv_error *err)
{
    qv_status status = qv_program_load(&w->program, NULL, NULL, err);
    if (!status)
        status = lay_out_weights(ctx, desc, weights, w, err);
    if (!status && desc->bias)
        status = upload_bias(ctx, desc, weights->bias, w, err);
    if (!status)
        status = upload_tables(ctx, desc, w, err);
    return status;
}
