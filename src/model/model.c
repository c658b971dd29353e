/* SPDX-License-Identifier: MIT */
#include "feeder.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "plan.h"
#include "towers/read_config.h"

/* Lets the backend load what every plan of this model needs, whatever its capacity: the libraries'
 * GEMMs and attention for this dtype. */
static void
warm(const qv_model *model)
{
    const struct qv_config *c = &model->config;
    const struct qv_tower_shape shape = { /* the size of a small bucket */
                                          .capacity = { .patches = 1024, .segments = 8 },
                                          .dtype = model->dtype
    };
    struct qv_op ops[] = { { .kind = QV_OP_gemm }, qv_steps_attention(c, &shape) };
    ops[0].u.gemm = (struct qv_op_gemm){ .m = shape.capacity.patches,
                                         .n = 3 * c->heads * qv_config_head_dim(c),
                                         .k = c->hidden,
                                         .alpha = 1,
                                         .bias = true };
    qv_op_set_dtype(&ops[0], model->dtype);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        model->ctx->backend->warm(model->ctx->dev, &ops[i]);
}

/* Decides how to run the patch embedding. A Conv3d whose kernel equals its stride is lowered in the
 * same way at every size, so one decision, made for the device's chunk size, serves all plans. */
static qv_status
decide_patch_embed(qv_model *model, qv_error *err)
{
    const qv_context *ctx = model->ctx;
    const struct qv_tower_shape shape = {
        .capacity = { .patches = qv_model_packing(model, 0).rows }, .dtype = model->dtype
    };
    const qv_conv3d_desc desc = qv_steps_patch_embed(&model->config, &shape);
    return qv_conv3d_decide(&desc, &ctx->caps, -1, &model->patch_embed, err);
}

/* Replaces the checkpoint's means and deviations with the caller's. */
static qv_status
overrule(const qv_model_options *o, struct qv_config *c, qv_error *err)
{
    const double *const given[2] = { o->image_mean, o->image_std };
    for (int i = 0; i < 2; i++) {
        for (int j = 0; given[i] && j < 3; j++)
            if (!(fabs(given[i][j]) <= 1e3) || (i && given[i][j] < 1e-6))
                return qv_fail(err, QV_EINVAL, "%s[%d] is %g; it must be a number from %g to 1000",
                               i ? "image_std" : "image_mean", j, given[i][j], i ? 1e-6 : -1e3);
    }
    qv_config_overrule(c, o->image_mean, o->image_std);
    return QV_OK;
}

qv_status
qv_model_load(qv_context *ctx, const char *dir, const qv_model_options *options, qv_model **out,
              qv_error *err)
{
    QV_NEED(err, ctx, dir, out);
    static const qv_model_options defaults;
    const qv_model_options *o = options ? options : &defaults;
    if (o->dtype != QV_DTYPE_AUTO && o->dtype != QV_F32 && o->dtype != QV_BF16)
        return qv_fail(err, QV_EINVAL, "dtype is %s; it must be auto, f32 or bf16",
                       qv_dtype_name(o->dtype));
    qv_model *model = calloc(1, sizeof *model);
    if (!model)
        return qv_fail(err, QV_ENOMEM, "no memory for a model");
    model->folder = strdup(dir);
    model->ctx = ctx;
    model->dtype = o->dtype ? o->dtype : ctx->caps.dtype;
    model->describe = o->describe;
    qv_status status = model->folder ? qv_config_read(dir, &model->config, err)
                                     : qv_fail(err, QV_ENOMEM, "no memory for a model");
    if (!status)
        status = overrule(o, &model->config, err);
    int64_t multiple = ctx->caps.width_multiple;
    if (!status && multiple)
        model->config.mlp_padding = (multiple - model->config.intermediate % multiple) % multiple;
    if (!status)
        status = qv_tower_open(&model->config, &model->tower, err);
    if (!status) {
        model->bits = qv_capacity_bits(&ctx->caps, model->dtype, model->config.merge,
                                       qv_config_head_dim(&model->config));
        status = decide_patch_embed(model, err);
    }
    if (!status && !model->describe && ctx->backend->warm)
        warm(model);
    if (!status)
        status =
            qv_weights_load(ctx->dev, &model->config, &model->tower, dir,
                            &(struct qv_weights_loading){ model->dtype, ctx->threads, o->describe },
                            &model->weights, err);
    if (!status)
        status = qv_identity_make(&model->config, model->weights.digest, model->identity,
                                  &model->numbers, err);
    if (!status && *model->weights.remark)
        qv_config_warn(&model->config, model->weights.remark);
    if (status) {
        qv_weights_free(ctx->dev, &model->weights);
        qv_tower_close(&model->tower);
        free(model->folder);
        free(model);
    } else {
        *out = model;
    }
    return status;
}

void
qv_model_free(qv_model **model)
{
    if (!model || !*model)
        return;
    qv_plans_free_idle(*model);
    qv_weights_free((*model)->ctx->dev, &(*model)->weights);
    qv_tower_close(&(*model)->tower);
    free((*model)->folder);
    free((*model)->numbers);
    free(*model);
    *model = NULL;
}

qv_context *
qv_model_context(const qv_model *model)
{
    QV_NEED_OR(NULL, model);
    return model->ctx;
}

void
qv_model_get_info(const qv_model *model, qv_model_info *out)
{
    QV_NEED_OR(, model, out);
    const struct qv_config *c = &model->config;
    *out = (qv_model_info){ .dtype = model->dtype,
                            .depth = c->depth,
                            .hidden = c->hidden,
                            .heads = c->heads,
                            .head_dim = qv_config_head_dim(c),
                            .intermediate = c->intermediate,
                            .out_hidden = c->out_hidden,
                            .patch_size = c->patch,
                            .temporal_patch_size = c->temporal,
                            .merge_size = c->merge,
                            .in_channels = c->in_channels,
                            .row_dim = qv_config_row_dim(c),
                            .n_deepstack = (int)c->n_deepstack,
                            .n_parameters = model->weights.n_parameters,
                            .weight_bytes = model->weights.bytes,
                            .image = c->image,
                            .video = c->video,
                            .folder = model->folder,
                            .note = c->note,
                            .warning = c->warning,
                            .device = model->ctx->device,
                            .identity = model->identity,
                            .config = model->numbers,
                            .lowering = qv_lowering_name(model->patch_embed.lowering) };
    memcpy(out->model_type, c->model_type, sizeof out->model_type);
    memcpy(out->lowering_reason, model->patch_embed.reason, sizeof out->lowering_reason);
    memcpy(out->digest, model->weights.digest, sizeof out->digest);
    memcpy(out->deepstack_layers, c->deepstack, sizeof out->deepstack_layers);
}
