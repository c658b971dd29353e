/* SPDX-License-Identifier: MIT */
/* The public calls that are not a plan's: names, contexts, models, the short case. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "model/plan.h"

const char *
qv_version(void)
{
    return QV_VERSION;
}

const char *
qv_status_name(qv_status s)
{
    switch (s) {
#define NAME(name, text)                                                                           \
    case QV_##name: return "QV_" #name;
        QV_STATUS_LIST(NAME)
#undef NAME
    case QV_STATUS_MAX: break;
    }
    return "no qv_status";
}

const char *
qv_dtype_name(qv_dtype dtype)
{
    switch (dtype) {
    case QV_DTYPE_AUTO: return "auto";
    case QV_F32: return "f32";
    case QV_BF16: return "bf16";
    case QV_U8: return "u8";
    case QV_F16: return "f16";
    case QV_DTYPE_MAX: break;
    }
    return "no qv_dtype";
}

/* ---- context --------------------------------------------------------------------------------- */

static qv_status
no_backend(const char *name, qv_error *err)
{
    char built[64] = "";
    for (const struct qv_backend *const *b = qv_backends; *b; b++) {
        strncat(built, *built ? ", " : "", sizeof built - strlen(built) - 1);
        strncat(built, (*b)->name, sizeof built - strlen(built) - 1);
    }
    static const char *const known[] = { "cpu", "cuda", "metal", "ref" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return qv_fail(err, QV_ENODEVICE, "backend %s is not in this build (built in: %s)",
                           name, built);
    return qv_fail(err, QV_ENODEVICE, "no backend \"%s\" (built in: %s)", name, built);
}

qv_status
qv_context_open(const qv_context_options *options, qv_context **out, qv_error *err)
{
    static const qv_context_options defaults;
    if (!out)
        return qv_fail(err, QV_EINVAL, "out is NULL");
    const qv_context_options *o = options ? options : &defaults;
    if (!QV_RESERVED_IS_ZERO(o))
        return qv_fail(err, QV_EINVAL, "reserved context options must be 0");
    const char *name = o->backend ? o->backend : "auto";
    bool automatic = !strcmp(name, "auto");
    const struct qv_backend *only = automatic ? NULL : qv_backend_find(name);
    if (!automatic && !only)
        return no_backend(name, err);
    struct qv_device_options device = { o->device, o->threads, o->tf32, o->stream, 0 };
    qv_status status = qv_op_parse_kinds(o->plain, &device.plain, err);
    if (status)
        return status;
    qv_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return qv_fail(err, QV_ENOMEM, "no memory for a context");
    status = QV_ENODEVICE;
    for (const struct qv_backend *const *b = qv_backends; *b && status == QV_ENODEVICE; b++) {
        if (only && *b != only)
            continue;
        ctx->backend = *b;
        status = ctx->backend->open(&device, &ctx->dev, err);
    }
    if (status) {
        free(ctx);
        return status;
    }
    ctx->backend->caps(ctx->dev, &ctx->caps);
    ctx->in_order = o->stream != NULL;
    if (device.plain && !ctx->caps.has_plain)
        status =
            qv_fail(err, QV_EINVAL, "plain: backend %s has no plain kernels", ctx->backend->name);
    if (!status)
        status =
            qv_tune_open(&ctx->tune, o->tune_file, o->tune, ctx->backend->name, &ctx->caps, err);
    if (status)
        qv_context_close(&ctx);
    else
        *out = ctx;
    return status;
}

void
qv_context_close(qv_context **ctx)
{
    if (!ctx || !*ctx)
        return;
    qv_kernels_free(*ctx);
    qv_tune_close(&(*ctx)->tune);
    (*ctx)->backend->close((*ctx)->dev);
    free(*ctx);
    *ctx = NULL;
}

void
qv_context_get_info(const qv_context *ctx, qv_context_info *out)
{
    *out = (qv_context_info){ .backend = ctx->backend->name,
                              .threads = ctx->caps.threads,
                              .dtype = ctx->caps.dtype };
    memcpy(out->device, ctx->caps.device, sizeof out->device);
    memcpy(out->dtype_reason, ctx->caps.dtype_reason, sizeof out->dtype_reason);
    const char *device = ctx->caps.warning, *tune = ctx->tune.warning;
    snprintf(out->warning, sizeof out->warning, "%s%s%s", device, *device && *tune ? "; " : "",
             tune);
}

/* ---- model ----------------------------------------------------------------------------------- */

qv_status
qv_model_load(qv_context *ctx, const char *dir, const qv_model_options *options, qv_model **out,
              qv_error *err)
{
    static const qv_model_options defaults;
    const qv_model_options *o = options ? options : &defaults;
    if (!ctx || !dir || !out)
        return qv_fail(err, QV_EINVAL, "ctx, dir or out is NULL");
    if (!QV_RESERVED_IS_ZERO(o))
        return qv_fail(err, QV_EINVAL, "reserved model options must be 0");
    if (o->dtype != QV_DTYPE_AUTO && o->dtype != QV_F32 && o->dtype != QV_BF16)
        return qv_fail(err, QV_EINVAL, "dtype is %s; must be auto, f32 or bf16",
                       qv_dtype_name(o->dtype));
    qv_model *model = calloc(1, sizeof *model);
    if (!model)
        return qv_fail(err, QV_ENOMEM, "no memory for a model");
    model->ctx = ctx;
    model->dtype = o->dtype ? o->dtype : ctx->caps.dtype;
    model->describe = o->describe;
    qv_status status = qv_config_read(dir, &model->config, err);
    int64_t multiple = ctx->caps.width_multiple;
    if (!status && multiple)
        model->config.mlp_padding = (multiple - model->config.intermediate % multiple) % multiple;
    if (!status)
        status = qv_weights_load(ctx->dev, &model->config, dir, model->dtype, o->describe,
                                 &model->weights, err);
    if (status)
        free(model);
    else
        *out = model;
    return status;
}

void
qv_model_free(qv_model **model)
{
    if (!model || !*model)
        return;
    qv_plans_free_idle(*model);
    qv_weights_free((*model)->ctx->dev, &(*model)->weights);
    free(*model);
    *model = NULL;
}

void
qv_model_get_info(const qv_model *model, qv_model_info *out)
{
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
                            .video = c->video };
    memcpy(out->model_type, c->model_type, sizeof out->model_type);
    memcpy(out->digest, model->weights.digest, sizeof out->digest);
    memcpy(out->deepstack_layers, c->deepstack, sizeof out->deepstack_layers);
}

/* ---- the short case -------------------------------------------------------------------------- */

/* Tokens and DeepStack outputs from row `first` on. */
static qv_tokens
from_row(const qv_tokens *out, const struct qv_config *c, qv_dtype dtype, int64_t first)
{
    size_t skip = (size_t)(first * c->out_hidden) * qv_dtype_bytes(dtype);
    qv_tokens rest = { .tokens = out->tokens ? (char *)out->tokens + skip : NULL,
                       .capacity = out->capacity - first };
    for (int i = 0; i < QV_MAX_DEEPSTACK; i++)
        rest.deepstack[i] = out->deepstack[i] ? (char *)out->deepstack[i] + skip : NULL;
    return rest;
}

/* One clip through one plan. *data and *row advance. */
static qv_status
encode_clip(qv_model *model, const qv_plan_options *options, int64_t pairs, const char **data,
            qv_tokens *out, int64_t *row, qv_error *err)
{
    const struct qv_config *c = &model->config;
    qv_plan *plan = NULL;
    qv_status status = qv_plan_create(model, options, &plan, err);
    if (status)
        return status;
    qv_plan_info info;
    qv_plan_get_info(plan, &info);
    bool frames = options->input == QV_INPUT_FRAMES;
    int64_t patches = options->grid_h * options->grid_w;
    int64_t left = frames ? pairs * (options->still ? 1 : c->temporal) : pairs;
    size_t unit = frames ? (size_t)(patches * c->patch * c->patch * c->in_channels)
                         : (size_t)(patches * qv_config_row_dim(c)) * sizeof(float);
    qv_dtype dtype = options->output ? options->output : QV_F32;
    while (left > 0 && !status) {
        int64_t n = left < info.chunk_frames ? left : info.chunk_frames;
        qv_tokens rest = from_row(out, c, dtype, *row);
        status = qv_plan_push(plan, *data, n, err);
        if (!status)
            status = qv_plan_pull(plan, &rest, err);
        *data += (size_t)n * unit;
        *row += rest.n;
        left -= n;
    }
    qv_plan_free(&plan);
    return status;
}

qv_status
qv_encode(qv_model *model, qv_input input, const void *data, const int64_t *grid_thw,
          size_t n_grids, const qv_plan_options *options, qv_tokens *out, qv_error *err)
{
    enum { MOST_PAIRS = 1 << 20 };
    if (!model || !data || !grid_thw || !n_grids || !out)
        return qv_fail(err, QV_EINVAL, "model, data, grid_thw or out is NULL, or n_grids is 0");
    qv_plan_options o = options ? *options : (qv_plan_options){ 0 };
    o.input = input;
    int64_t rows = 0, area = model->config.merge * model->config.merge;
    for (size_t i = 0; i < n_grids; i++) {
        const int64_t *g = grid_thw + 3 * i;
        if (g[0] < 1 || g[0] > MOST_PAIRS || g[1] < 1 || g[1] > MOST_PAIRS || g[2] < 1 ||
            g[2] > MOST_PAIRS)
            return qv_fail(err, QV_EINVAL, "grid_thw[%zu] is %lld,%lld,%lld; each must be 1 to %d",
                           i, (long long)g[0], (long long)g[1], (long long)g[2], MOST_PAIRS);
        rows += g[0] * g[1] * g[2] / area;
    }
    if (out->capacity < rows)
        return qv_fail(err, QV_EINVAL, "capacity is %lld rows, %lld are needed",
                       (long long)out->capacity, (long long)rows);
    const char *at = data;
    int64_t row = 0;
    for (size_t i = 0; i < n_grids; i++) {
        o.grid_h = grid_thw[3 * i + 1];
        o.grid_w = grid_thw[3 * i + 2];
        qv_status status = encode_clip(model, &o, grid_thw[3 * i], &at, out, &row, err);
        if (status)
            return status;
    }
    out->n = row;
    return QV_OK;
}
