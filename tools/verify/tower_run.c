/* SPDX-License-Identifier: MIT */
/* qwenvit verify: loads a tower, runs it and keeps its layers' outputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "grow.h"
#include "model/plan.h"
#include "model/items.h"
#include "towers/read_config.h"
#include "verify.h"

/* ---- layers ---------------------------------------------------------------------------------- */

void
verify_layers_free(struct verify_layers *layers)
{
    for (size_t i = 0; i < layers->n; i++)
        free(layers->layers[i].rows);
    free(layers->layers);
    memset(layers, 0, sizeof *layers);
}

void
verify_input_free(struct verify_input *input)
{
    free(input->thw);
    free(input->data);
    memset(input, 0, sizeof *input);
}

struct verify_layer *
verify_layer_find(const struct verify_layers *layers, const char *name)
{
    for (size_t i = 0; i < layers->n; i++)
        if (!strcmp(layers->layers[i].name, name))
            return &layers->layers[i];
    return NULL;
}

bool
verify_is_pulled(const struct verify_layer *layer)
{
    return !strcmp(layer->name, "tokens") || !strncmp(layer->name, "deepstack.", 10);
}

const char *
verify_name_in_tower(const struct verify_layer *layer, char name[48])
{
    static const char deepstack[] = "deepstack.";
    const size_t n = sizeof deepstack - 1;
    if (!strcmp(layer->name, "tokens"))
        snprintf(name, 48, "merger");
    else if (!strncmp(layer->name, deepstack, n))
        snprintf(name, 48, "deepstack_merger_list.%.20s", layer->name + n);
    else
        snprintf(name, 48, "%s", layer->name);
    return name;
}

static struct verify_layer *
new_layer(struct verify_layers *layers, const char *name)
{
    struct verify_layer *grown =
        qv_grown(layers->layers, layers->n, &layers->capacity, sizeof *grown);
    if (!grown)
        return NULL;
    layers->layers = grown;
    struct verify_layer *l = &layers->layers[layers->n++];
    memset(l, 0, sizeof *l);
    snprintf(l->name, sizeof l->name, "%s", name);
    return l;
}

/* This qv_layer_hook appends rows to the layer of that name. */
static void
keep(void *user, const char *name, const float *rows, int64_t n_rows, int64_t n_cols)
{
    struct verify_layers *layers = user;
    struct verify_layer *l = verify_layer_find(layers, name);
    if (!l)
        l = new_layer(layers, name);
    float *grown = l ? realloc(l->rows, (size_t)((l->n + n_rows) * n_cols) * sizeof *grown) : NULL;
    if (!grown) {
        layers->lost = true;
        return;
    }
    memcpy(grown + l->n * n_cols, rows, (size_t)(n_rows * n_cols) * sizeof *grown);
    l->rows = grown;
    l->n += n_rows;
    l->cols = n_cols;
}

/* ---- the ideal bf16 tower -------------------------------------------------------------------- */

static bool
round_to_bf16(float *x, size_t n)
{
    bool inexact = false;
    for (size_t i = 0; i < n; i++) {
        const float rounded = qv_bf16_to_f32(qv_f32_to_bf16(x[i]));
        inexact |= rounded != x[i];
        x[i] = rounded;
    }
    return inexact;
}

struct ideal {
    qv_context *ctx;
    bool exact_pixels; /* the bf16 tower's patch rows are exact, so these are not rounded */
    float *values;
    size_t bytes;
    qv_status status;
    qv_error err;
};

/* This qv_probe rounds what the step wrote. */
static void
round_output(void *user, const struct qv_step *step, const struct qv_call *call)
{
    struct ideal *ideal = user;
    const int y = qv_op_output(&step->op);
    const struct qv_view out = qv_op_view(&step->op, y);
    const struct qv_backend *be = ideal->ctx->backend;
    struct qv_device *dev = ideal->ctx->dev;
    const bool exact = step->op.kind == QV_OP_patchify && ideal->exact_pixels;
    if (ideal->status || out.dtype != QV_F32 || step->op.kind == QV_OP_convert || exact)
        return;
    if (out.bytes > ideal->bytes) {
        float *grown = realloc(ideal->values, out.bytes);
        if (!grown) {
            ideal->status =
                qv_fail(&ideal->err, QV_ENOMEM, "no memory to round %zu bytes", out.bytes);
            return;
        }
        ideal->values = grown;
        ideal->bytes = out.bytes;
    }
    ideal->status =
        be->download(dev, &(struct qv_download){ ideal->values, call->operands[y], out.bytes }, 1,
                     &ideal->err);
    round_to_bf16(ideal->values, out.bytes / sizeof(float));
    if (!ideal->status)
        ideal->status = be->upload(dev, call->operands[y], ideal->values, out.bytes, &ideal->err);
}

/* ---- running --------------------------------------------------------------------------------- */

struct passage {
    qv_plan *plan;
    qv_plan_info info;
    qv_tokens tokens; /* tokens of a chunk */
    float *rounded;   /* pixel_values, if the ideal tower rounds them */
    uint8_t *frames;  /* what pixel_values were made of */
    struct ideal ideal;
};

static void
end_passage(struct passage *p, qv_model *model)
{
    qv_plan_free(&p->plan);
    qv_plans_free_idle(model); /* so that the next run gets a fresh plan */
    free(p->tokens.tokens);
    for (int i = 0; i < QV_MAX_DEEPSTACK; i++)
        free(p->tokens.deepstack[i]);
    free(p->rounded);
    free(p->frames);
    free(p->ideal.values);
}

static qv_status
begin_passage(struct passage *p, qv_model *model, qv_input input, const int64_t thw[3],
              enum verify_run_kind kind, struct verify_layers *out, qv_error *err)
{
    qv_plan_options options = { .input = input,
                                .hook = kind == VERIFY_AS_IT_IS ? NULL : keep,
                                .hook_user = out,
                                .grid_thw = { thw[0], thw[1], thw[2] } };
    qv_status status = qv_plan_create(model, &options, &p->plan, err);
    if (status)
        return status;
    qv_plan_get_info(p->plan, &p->info);
    p->ideal.ctx = model->ctx;
    p->ideal.exact_pixels = qv_config_pixels_are_exact(&model->config, QV_BF16);
    if (kind == VERIFY_IDEAL)
        p->plan->probe = round_output;
    p->plan->probe_user = &p->ideal;
    p->tokens.capacity = p->info.tokens;
    size_t bytes = (size_t)(p->tokens.capacity * model->config.out_hidden) * sizeof(float);
    bool ok = (p->tokens.tokens = malloc(bytes)) != NULL;
    for (int64_t i = 0; i < model->config.n_deepstack; i++)
        ok = (p->tokens.deepstack[i] = malloc(bytes)) != NULL && ok;
    return ok ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for a chunk of tokens");
}

static void
keep_tokens(const struct passage *p, const qv_model *model, struct verify_layers *out)
{
    int64_t cols = model->config.out_hidden;
    keep(out, "tokens", p->tokens.tokens, p->tokens.n, cols);
    for (int64_t i = 0; i < model->config.n_deepstack; i++) {
        char name[48];
        snprintf(name, sizeof name, "deepstack.%lld", (long long)i);
        keep(out, name, p->tokens.deepstack[i], p->tokens.n, cols);
    }
}

static qv_status
pass(struct passage *p, qv_model *model, qv_input input, const qv_item *item,
     struct verify_layers *out, qv_error *err)
{
    const int64_t *g = item->grid_thw;
    const qv_capacity pair = qv_capacity_of(&model->config, (const int64_t[3]){ 1, g[1], g[2] });
    const int64_t step = qv_capacity_fits(&p->info.capacity, &pair);
    for (int64_t first = 0; first < g[0]; first += step) {
        const qv_item piece = qv_item_piece(model, input, item, first, step);
        qv_status status = qv_plan_push(p->plan, &piece, 1, err);
        if (!status && p->ideal.status)
            status = qv_fail(err, p->ideal.status, "%s", p->ideal.err.text);
        if (!status)
            status = qv_plan_pull(p->plan, &p->tokens, err);
        if (status)
            return status;
        keep_tokens(p, model, out);
    }
    return out->lost ? qv_fail(err, QV_ENOMEM, "no memory to keep every layer") : QV_OK;
}

/* Recovers the frames whose bytes became the pixel_values of a grid; sets *out to NULL if these
 * were not normalised as a clip's. */
static qv_status
frames_of(const struct qv_config *c, const int64_t g[3], const float *rows, uint8_t **out,
          qv_error *err)
{
    const int64_t p = c->patch, m = c->merge, row = qv_config_row_dim(c), pair = g[1] * g[2];
    const double far = 1e-5; /* f32 rounds far less, and bytes lie far more apart */
    uint8_t *frames = *out = malloc((size_t)(g[0] * pair * row));
    if (!frames)
        return qv_fail(err, QV_ENOMEM, "no memory for the frames of a clip");
    for (int64_t i = 0; i < g[0] * pair * row; i++) {
        const int64_t in = i / row % pair, block = in / (m * m), v = i % row;
        const int64_t y = (block / (g[2] / m) * m + in % (m * m) / m) * p + v % (p * p) / p;
        const int64_t x = (block % (g[2] / m) * m + in % m) * p + v % p;
        const int64_t frame = i / row / pair * c->temporal + v / (p * p) % c->temporal;
        const int64_t channel = v / (p * p) / c->temporal;
        const double mean = c->video.mean[channel], std = c->video.std[channel];
        const double byte = round((rows[i] * std + mean) * 255);
        if (!(byte >= 0 && byte <= 255 && fabs((byte / 255 - mean) / std - rows[i]) < far)) {
            free(frames);
            *out = NULL;
            return QV_OK;
        }
        frames[((frame * g[1] * p + y) * g[2] * p + x) * c->in_channels + channel] = (uint8_t)byte;
    }
    return QV_OK;
}

static const void *
rounded_pixels(struct passage *p, const void *data, size_t bytes)
{
    p->rounded = malloc(bytes);
    if (p->rounded) {
        memcpy(p->rounded, data, bytes);
        round_to_bf16(p->rounded, bytes / sizeof(float));
    }
    return p->rounded;
}

qv_status
verify_run(qv_model *model, const struct verify_input *input, enum verify_run_kind kind,
           struct verify_layers *out, qv_error *err)
{
    const char *data = input->data;
    qv_status status = QV_OK;
    for (size_t i = 0; i < input->n && !status; i++) {
        const int64_t *g = input->thw[i];
        const size_t values = (size_t)(g[0] * g[1] * g[2] * qv_config_row_dim(&model->config));
        const size_t bytes = values * qv_dtype_bytes(qv_input_dtype(input->input));
        struct passage p = { 0 };
        qv_item item = { .data = data, .grid_thw = { g[0], g[1], g[2] }, .is_image = input->still };
        qv_input kind_of = input->input;
        if (kind_of == QV_INPUT_PATCHES)
            status =
                frames_of(&model->config, g, (const float *)(const void *)data, &p.frames, err);
        if (p.frames) {
            kind_of = QV_INPUT_FRAMES;
            item.data = p.frames;
        } else if (kind == VERIFY_IDEAL && kind_of == QV_INPUT_PATCHES) {
            item.data = rounded_pixels(&p, data, bytes);
        }
        if (!status && !item.data)
            status = qv_fail(err, QV_ENOMEM, "no memory for %zu bytes of pixels", bytes);
        if (!status)
            status = begin_passage(&p, model, kind_of, g, kind, out, err);
        if (!status)
            status = pass(&p, model, kind_of, &item, out, err);
        end_passage(&p, model);
        data += bytes; /* only patches may be of several clips; frames are of one */
    }
    if (status)
        verify_layers_free(out);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* A backend's table whose lay_out() is replaced while weights are loaded. It is the first member,
 * so that dev->backend, which points to it, also points to the rest. */
struct watched {
    struct qv_backend table;
    const struct qv_backend *base;
    enum verify_rounding rounding;
    bool inexact;
};

static qv_status
lay_out_watched(struct qv_device *dev, const struct qv_matrix *matrix, int64_t row0, int64_t rows,
                const void *src, struct qv_buffer dst, qv_error *err)
{
    struct watched *w = (struct watched *)(void *)dev->backend;
    size_t n = (size_t)(rows * matrix->k);
    float *copy = malloc(n * sizeof *copy);
    if (!copy)
        return qv_fail(err, QV_ENOMEM, "no memory to round %zu weights", n);
    memcpy(copy, src, n * sizeof *copy);
    w->inexact |= round_to_bf16(copy, n);
    bool round = w->rounding != VERIFY_AS_STORED;
    qv_status status = w->base->lay_out(dev, matrix, row0, rows, round ? copy : src, dst, err);
    free(copy);
    return status;
}

static qv_status
watch_positions(struct watched *w, qv_model *model, qv_error *err)
{
    const struct qv_config *c = &model->config;
    size_t n = (size_t)(c->n_positions * c->hidden), bytes = n * sizeof(float);
    if (model->tower.positions == QV_NO_TENSOR)
        return QV_OK;
    struct qv_buffer at = model->weights.buffers[model->tower.positions];
    float *table = malloc(bytes);
    if (!table)
        return qv_fail(err, QV_ENOMEM, "no memory for the position table");
    qv_status status =
        w->base->download(model->ctx->dev, &(struct qv_download){ table, at, bytes }, 1, err);
    if (!status)
        w->inexact |= round_to_bf16(table, n);
    if (!status && w->rounding != VERIFY_AS_STORED)
        status = w->base->upload(model->ctx->dev, at, table, bytes, err);
    free(table);
    return status;
}

qv_status
verify_config(const struct verify_job *job, struct qv_config *out, qv_error *err)
{
    const qv_status status = qv_config_read(job->dir, out, err);
    if (!status)
        qv_config_overrule(out, job->image_mean, job->image_std);
    return status;
}

qv_status
verify_load(const struct verify_job *job, qv_context *ctx, qv_dtype dtype,
            enum verify_rounding rounding, qv_model **out, bool *inexact, qv_error *err)
{
    const qv_model_options options = { .dtype = dtype,
                                       .image_mean = job->image_mean,
                                       .image_std = job->image_std };
    if (dtype != QV_F32)
        return qv_model_load(ctx, job->dir, &options, out, err);
    struct watched w = { .table = *ctx->dev->backend,
                         .base = ctx->dev->backend,
                         .rounding = rounding };
    w.table.lay_out = lay_out_watched;
    ctx->dev->backend = &w.table;
    qv_status status = qv_model_load(ctx, job->dir, &options, out, err);
    ctx->dev->backend = w.base;
    if (!status)
        status = watch_positions(&w, *out, err);
    if (status)
        qv_model_free(out);
    if (inexact)
        *inexact = w.inexact;
    return status;
}
