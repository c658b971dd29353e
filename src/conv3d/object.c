/* SPDX-License-Identifier: MIT */
/* Creates a Conv3d object, and returns information about it. */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "numbers.h"

/* ---- checking and cutting -------------------------------------------------------------------- */

static int64_t
kernel_extent(const qv_conv3d_desc *d)
{
    return (d->kernel[0] - 1) * d->dilation[0] + 1;
}

static qv_status
check_weights(const qv_conv3d_desc *d, const qv_conv3d_weights *w, qv_error *err)
{
    if (w->dtype != QV_DTYPE_AUTO && w->dtype != QV_F32 && w->dtype != QV_F16 &&
        w->dtype != QV_BF16)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: the weight's dtype is %s; it must be f32, f16 or bf16",
                       qv_dtype_name(w->dtype));
    if (w->weight && d->bias && !w->bias)
        return qv_fail(err, QV_EINVAL, "conv3d: bias is set, but weights.bias is NULL");
    if (w->weight && d->residual_rows && !w->residual)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: residual_rows is %lld, but weights.residual is NULL",
                       (long long)d->residual_rows);
    return QV_OK;
}

/* In a stream every call must return the same number of output frames, none of them computed from
 * padding alone. */
static qv_status
check_stream(const qv_conv3d_desc *d, qv_error *err)
{
    int64_t extent = kernel_extent(d), pad = d->pad_front[0];
    if (d->causal == QV_CAUSAL_NONE)
        return qv_fail(err, QV_EINVAL, "conv3d: a stream needs causal padding, zeros or first");
    if (d->d % d->stride[0])
        return qv_fail(err, QV_EINVAL,
                       "conv3d: d is %lld; in a stream it must be a multiple of the stride, %lld",
                       (long long)d->d, (long long)d->stride[0]);
    if (pad < extent - d->stride[0] || pad >= extent)
        return qv_fail(err, QV_EINVAL,
                       "conv3d: pad_front on axis depth is %lld; a stream with this kernel and "
                       "stride needs %lld to %lld",
                       (long long)pad,
                       (long long)(extent > d->stride[0] ? extent - d->stride[0] : 0),
                       (long long)(extent - 1));
    return QV_OK;
}

/* Describes a chunk as a separate convolution: a window of frames without padding in depth. */
static void
describe_chunk(struct qv_conv3d *conv)
{
    const qv_conv3d_desc *d = &conv->desc;
    qv_conv3d_desc *chunk = &conv->chunk_desc;
    int64_t extent = kernel_extent(d), frame_rows = conv->out[1] * conv->out[2];
    /* if samples are whole strides apart, the outputs of all samples are evenly spaced in memory */
    bool whole = d->n > 1 && conv->chunk > 1 && d->stride[0] > extent;
    *chunk = *d;
    if (__builtin_mul_overflow(conv->chunk - 1, d->stride[0], &chunk->d) ||
        __builtin_add_overflow(chunk->d, whole ? d->stride[0] : extent, &chunk->d))
        chunk->d = INT64_MAX; /* a size that the check rejects */
    chunk->pad_front[0] = chunk->pad_back[0] = 0;
    chunk->causal = QV_CAUSAL_NONE;
    conv->residual_varies = d->residual_rows && frame_rows % d->residual_rows;
    if (conv->residual_varies)
        chunk->residual_rows = d->n * conv->chunk * frame_rows;
}

/* Decides how the chosen lowering's input is cut from x. */
static void
cut_input(struct qv_conv3d *conv)
{
    const qv_conv3d_desc *d = &conv->desc;
    size_t element = qv_dtype_bytes(d->dtype);
    struct qv_conv3d_cut c = { .planes = d->n,
                               .frames = d->d,
                               .frame_bytes = (size_t)(d->h * d->w * d->c) * element,
                               .window = conv->chunk_desc.d,
                               .stride = d->stride[0],
                               .every = 1,
                               .pad = d->pad_front[0] };
    if (d->layout == QV_LAYOUT_CHANNELS_FIRST) {
        c.planes = d->n * d->c;
        c.frame_bytes = (size_t)(d->h * d->w) * element;
    }
    if (d->layout == QV_LAYOUT_FRAMES_U8)
        c.frame_bytes = (size_t)(d->h * d->w * d->c);
    if (d->layout == QV_LAYOUT_FRAMES_U8 && conv->decision.lowering == QV_LOWERING_STILL) {
        c.every = d->kernel[0];
        c.window = conv->chunk;
    }
    if (d->layout == QV_LAYOUT_PATCH_ROWS) { /* the rows of a frame pair move as one frame */
        c.frames = conv->out[0];
        c.frame_bytes = (size_t)(d->h * d->w * d->c * d->kernel[0]) * element;
        c.window = conv->chunk;
        c.stride = 1;
    }
    conv->cut = c;
}

static qv_status
keep_host_parts(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->desc;
    size_t front = (size_t)(conv->cut.planes * conv->cut.pad) * conv->cut.frame_bytes;
    size_t residual = (size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype);
    if (!conv->weighted) /* an object without weights only returns information: its frames may be
                          * larger than memory */
        return QV_OK;
    conv->zeros = calloc(1, conv->cut.frame_bytes);
    conv->parts = calloc((size_t)d->n, sizeof *conv->parts);
    if (conv->stream) {
        conv->front = calloc(1, front + 1);
        conv->next_front = calloc(1, front + 1);
    }
    if (residual)
        conv->residual = malloc(residual);
    if (!conv->zeros || !conv->parts || (conv->stream && (!conv->front || !conv->next_front)) ||
        (residual && !conv->residual))
        return qv_fail(err, QV_ENOMEM, "no memory for a conv3d's frames");
    if (conv->residual)
        memcpy(conv->residual, weights->residual, residual);
    return QV_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static qv_status
lay_out_weights(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err)
{
    const qv_conv3d_desc *desc = &conv->desc;
    const struct qv_conv3d_form *form = &conv->weight;
    const struct qv_program *p = &conv->program;
    qv_dtype from = weights->dtype ? weights->dtype : QV_F32;
    void *piece = malloc((size_t)(form->o * form->k) * qv_dtype_bytes(desc->dtype));
    if (!piece)
        return qv_fail(err, QV_ENOMEM, "no memory to reshape a weight [%lld, %lld]",
                       (long long)form->o, (long long)form->k);
    qv_status status = QV_OK;
    for (const struct qv_step *step = p->steps; step < p->steps + p->n && !status; step++) {
        const int place = step->operands[1];
        if (place < QV_CONV3D_WEIGHT)
            continue;
        const struct qv_view view = qv_op_view(&step->op, 1);
        const struct qv_matrix matrix = qv_matrix_of(&step->op, &view);
        qv_conv3d_reshape(desc, form, place - QV_CONV3D_WEIGHT, weights->weight, from,
                          weights->channels_last, piece);
        status = conv->ctx->backend->lay_out(conv->ctx->dev, &matrix, 0, matrix.n, piece,
                                             qv_program_place(p, 0, place), err);
    }
    free(piece);
    return status;
}

static qv_status
upload(struct qv_conv3d *conv, int place, const void *data, size_t bytes, qv_error *err)
{
    return conv->ctx->backend->upload(conv->ctx->dev, qv_program_place(&conv->program, 0, place),
                                      data, bytes, err);
}

/* Uploads the bias, rounded to the description's dtype. */
static qv_status
upload_bias(struct qv_conv3d *conv, const float *bias, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->desc;
    size_t bytes = (size_t)d->o * qv_dtype_bytes(d->dtype);
    void *values = malloc(bytes);
    if (!values)
        return qv_fail(err, QV_ENOMEM, "no memory for a bias of %zu bytes", bytes);
    for (int64_t i = 0; i < d->o; i++)
        qv_store(values, d->dtype, i, bias[i]);
    qv_status status = upload(conv, QV_CONV3D_BIAS, values, bytes, err);
    free(values);
    return status;
}

/* Uploads the tables of the list's patchify operation, if there is one. */
static qv_status
upload_tables(struct qv_conv3d *conv, qv_error *err)
{
    const struct qv_step *step = conv->program.steps;
    if (!conv->program.n || step->op.kind != QV_OP_patchify)
        return QV_OK;
    struct qv_item_place place;
    struct qv_item_norm norm;
    struct qv_coords *coords = malloc((size_t)step->op.u.patchify.rows * sizeof *coords);
    if (!coords)
        return qv_fail(err, QV_ENOMEM, "no memory for the coordinates of %lld rows",
                       (long long)step->op.u.patchify.rows);
    qv_conv3d_tables(&conv->desc, &step->op.u.patchify, &place, &norm, coords);
    const void *const tables[] = { &place, &norm, coords };
    qv_status status = QV_OK;
    for (int i = 0; i < 3 && !status; i++)
        status =
            upload(conv, step->operands[1 + i], tables[i], qv_op_view(&step->op, 1 + i).bytes, err);
    free(coords);
    return status;
}

/* Loads the program and uploads everything except the input; the residual too, if every chunk adds
 * the same rows. */
static qv_status
load(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->chunk_desc;
    qv_status status = qv_program_load(&conv->program, NULL, NULL, err);
    if (!status)
        status = lay_out_weights(conv, weights, err);
    if (!status && d->bias)
        status = upload_bias(conv, weights->bias, err);
    if (!status)
        status = upload_tables(conv, err);
    if (!status && conv->residual && !conv->residual_varies)
        status = upload(conv, QV_CONV3D_RESIDUAL, conv->residual,
                        (size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype), err);
    return status;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Prepares the program of a lowering of a chunk, whose depth is not padded: all that can be known
 * without weights. qv_program_free must be called even after a failure. */
static qv_status
prepare(qv_context *ctx, const qv_conv3d_desc *desc, qv_lowering lowering,
        struct qv_conv3d_form *weight, struct qv_program *out, qv_error *err)
{
    struct qv_conv3d_list list;
    struct qv_place places[QV_CONV3D_N_PLACES] = { 0 };
    /* the input's place also holds the frames that strides skip */
    places[QV_CONV3D_INPUT].bytes =
        (size_t)(desc->n * desc->d * desc->h * desc->w * desc->c) *
        (desc->layout == QV_LAYOUT_FRAMES_U8 ? 1 : qv_dtype_bytes(desc->dtype));
    qv_conv3d_lower(desc, lowering, &list);
    *weight = list.weight;
    return qv_program_prepare(ctx, list.steps, (size_t)list.n, places, QV_CONV3D_N_PLACES, 1, out,
                              err);
}

enum { MOST_CHUNK = 1 << 20 };

static qv_status
make(struct qv_conv3d *conv, const qv_conv3d_weights *weights, const qv_conv3d_options *o,
     qv_error *err)
{
    qv_context *ctx = conv->ctx;
    const qv_conv3d_desc *d = &conv->desc;
    int forced = o->lowering ? qv_lowering_find(o->lowering) : -1;
    qv_status status = qv_conv3d_decide(d, &ctx->caps, forced, &conv->decision, err);
    if (!status)
        status = check_weights(d, weights, err);
    if (!status && o->stream)
        status = check_stream(d, err);
    if (status)
        return status;
    qv_conv3d_output(d, conv->out);
    if (o->chunk < 0 || o->chunk > MOST_CHUNK)
        return qv_fail(err, QV_EINVAL, "conv3d: chunk is %lld; it must be from 0 (all) to %d",
                       (long long)o->chunk, MOST_CHUNK);
    conv->chunk = o->chunk && (o->chunk < conv->out[0] || o->stream) ? o->chunk : conv->out[0];
    describe_chunk(conv);
    status = qv_conv3d_check(&conv->chunk_desc, err); /* checked again, since padding has become
                                                       * frames */
    if (status)
        return status;
    cut_input(conv);
    status = prepare(ctx, &conv->chunk_desc, conv->decision.lowering, &conv->weight, &conv->program,
                     err);
    if (!status)
        status = keep_host_parts(conv, weights, err);
    return status || !conv->weighted ? status : load(conv, weights, err);
}

qv_status
qv_conv3d_create(qv_context *ctx, const qv_conv3d_desc *desc, const qv_conv3d_weights *weights,
                 const qv_conv3d_options *options, qv_conv3d **out, qv_error *err)
{
    QV_NEED(err, ctx, desc, out);
    static const qv_conv3d_options defaults;
    static const qv_conv3d_weights none;
    const qv_conv3d_options *o = options ? options : &defaults;
    if (o->lowering && qv_lowering_find(o->lowering) < 0)
        return qv_fail(err, QV_EINVAL, "conv3d: unknown lowering \"%.40s\"", o->lowering);
    struct qv_conv3d *conv = calloc(1, sizeof *conv);
    if (!conv)
        return qv_fail(err, QV_ENOMEM, "no memory for a conv3d");
    conv->ctx = ctx;
    conv->desc = qv_conv3d_defaults(desc, ctx->caps.dtype);
    conv->stream = o->stream;
    conv->weighted = weights && weights->weight;
    qv_status status = make(conv, weights ? weights : &none, o, err);
    if (status)
        qv_conv3d_free(&conv);
    else
        *out = conv;
    return status;
}

void
qv_conv3d_free(qv_conv3d **conv)
{
    if (!conv || !*conv)
        return;
    qv_program_free(&(*conv)->program);
    free((*conv)->front);
    free((*conv)->next_front);
    free((*conv)->zeros);
    free((*conv)->residual);
    free((*conv)->parts);
    free(*conv);
    *conv = NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Returns the bytes of the places from `first` to before `end`. */
static size_t
bytes_of(const struct qv_program *p, int first, int end)
{
    size_t bytes = 0;
    for (int i = first; i < end; i++)
        bytes += qv_aligned(p->places[i].bytes);
    return bytes;
}

void
qv_conv3d_get_info(const qv_conv3d *conv, qv_conv3d_info *out)
{
    QV_NEED_OR(, conv, out);
    const qv_conv3d_desc *d = &conv->desc;
    *out = (qv_conv3d_info){
        .desc = *d,
        .rows = qv_conv3d_rows(d),
        .chunk = conv->chunk,
        .x_bytes = (size_t)(conv->cut.planes * conv->cut.frames) * conv->cut.frame_bytes,
        .arena_bytes = qv_program_bytes(&conv->program),
        .weight_bytes = bytes_of(&conv->program, QV_CONV3D_WEIGHT, QV_CONV3D_N_PLACES),
        .lowering = conv->decision.lowering,
    };
    out->y_bytes = (size_t)(out->rows * d->o) * qv_dtype_bytes(d->dtype);
    memcpy(out->out, conv->out, sizeof out->out);
    memcpy(out->reason, conv->decision.reason, sizeof out->reason);
}

static void
add_cost(const struct qv_conv3d *conv, const struct qv_program *p, qv_conv3d_way *out)
{
    double chunks = (double)qv_ceil_div(conv->out[0], conv->chunk);
    out->flops = chunks * p->flops;
    out->bytes = chunks * p->bytes;
    out->scratch_bytes = bytes_of(p, QV_CONV3D_ROWS, QV_CONV3D_OUTPUT) + p->scratch[0];
}

qv_status
qv_conv3d_get_ways(const qv_conv3d *conv, qv_conv3d_way ways[QV_LOWERING_COUNT], qv_error *err)
{
    QV_NEED(err, conv, ways);
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        qv_conv3d_way *out = &ways[i];
        struct qv_conv3d_form weight;
        struct qv_program p;
        *out = (qv_conv3d_way){ .lowering = (qv_lowering)i,
                                .chosen = conv->decision.lowering == (qv_lowering)i };
        out->legal = qv_conv3d_legal(&conv->desc, &conv->ctx->caps, out->lowering, out->reason,
                                     sizeof out->reason);
        if (!out->legal)
            continue;
        qv_error why;
        qv_status status = prepare(conv->ctx, &conv->chunk_desc, out->lowering, &weight, &p, &why);
        if (!status)
            add_cost(conv, &p, out);
        qv_program_free(&p);
        if (status == QV_EUNSUPPORTED) { /* legal, but this device's library has no kernel for it */
            out->legal = false;
            snprintf(out->reason, sizeof out->reason, "%.*s", QV_REASON_BYTES - 1, why.text);
        } else if (status) {
            return qv_fail(err, status, "%s", why.text);
        }
    }
    return QV_OK;
}
