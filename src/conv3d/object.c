/* SPDX-License-Identifier: MIT */
/* Creates a Conv3d object, and answers questions about it. */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "numbers.h"

/* ---- creating -------------------------------------------------------------------------------- */

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
        return qv_fail(err, QV_EINVAL, "conv3d: the weight's dtype is %s; must be f32, f16 or bf16",
                       qv_dtype_name(w->dtype));
    if (w->weight && d->bias && !w->bias)
        return qv_fail(err, QV_EINVAL, "conv3d: bias is asked for, but weights.bias is NULL");
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
                       "conv3d: a stream's d %lld must be a multiple of stride %lld",
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

/* Describes a chunk as a convolution of its own: a window of frames without padding in depth. */
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
        chunk->d = INT64_MAX; /* a size that the check refuses */
    chunk->pad_front[0] = chunk->pad_back[0] = 0;
    chunk->causal = QV_CAUSAL_NONE;
    conv->residual_varies = d->residual_rows && frame_rows % d->residual_rows;
    if (conv->residual_varies)
        chunk->residual_rows = d->n * conv->chunk * frame_rows;
}

/* Sets how the chosen lowering's input is cut out of x. */
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
    if (!conv->weighted) /* an object without weights only answers questions: its frames may be
                          * larger than memory */
        return QV_OK;
    conv->zeros = calloc(1, conv->cut.frame_bytes);
    if (conv->stream) {
        conv->front = calloc(1, front + 1);
        conv->next_front = calloc(1, front + 1);
    }
    if (residual)
        conv->residual = malloc(residual);
    if (!conv->zeros || (conv->stream && (!conv->front || !conv->next_front)) ||
        (residual && !conv->residual))
        return qv_fail(err, QV_ENOMEM, "no memory for a conv3d's frames");
    if (conv->residual)
        memcpy(conv->residual, weights->residual, residual);
    return QV_OK;
}

/* Uploads the residual once, if every chunk adds the same rows. */
static qv_status
upload_residual(struct qv_conv3d *conv, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->chunk_desc;
    if (!conv->residual || conv->residual_varies)
        return QV_OK;
    struct qv_buffer dst = qv_program_place(&conv->way.program, 0, QV_CONV3D_RESIDUAL);
    return conv->ctx->backend->upload(conv->ctx->dev, dst, conv->residual,
                                      (size_t)(d->residual_rows * d->o) * qv_dtype_bytes(d->dtype),
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
        return qv_fail(err, QV_EINVAL, "conv3d: chunk is %lld; must be 0 (all) to %d",
                       (long long)o->chunk, MOST_CHUNK);
    conv->chunk = o->chunk && (o->chunk < conv->out[0] || o->stream) ? o->chunk : conv->out[0];
    describe_chunk(conv);
    status = qv_conv3d_check(&conv->chunk_desc, err); /* checked again, since padding has become
                                                       * frames */
    if (status)
        return status;
    cut_input(conv);
    status =
        qv_conv3d_ready_prepare(ctx, &conv->chunk_desc, conv->decision.lowering, &conv->way, err);
    if (!status)
        status = keep_host_parts(conv, weights, err);
    if (!status && conv->weighted)
        status = qv_conv3d_ready_load(ctx, d, weights, &conv->way, err);
    return status ? status : upload_residual(conv, err);
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
        return qv_fail(err, QV_EINVAL, "conv3d: no lowering is called \"%.40s\"", o->lowering);
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
    qv_program_free(&(*conv)->way.program);
    free((*conv)->front);
    free((*conv)->next_front);
    free((*conv)->zeros);
    free((*conv)->residual);
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
        .arena_bytes = qv_program_bytes(&conv->way.program),
        .weight_bytes = bytes_of(&conv->way.program, QV_CONV3D_WEIGHT, QV_CONV3D_N_PLACES),
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
        struct qv_conv3d_ready w;
        *out = (qv_conv3d_way){ .lowering = (qv_lowering)i,
                                .chosen = conv->decision.lowering == (qv_lowering)i };
        out->legal = qv_conv3d_legal(&conv->desc, &conv->ctx->caps, out->lowering, out->reason,
                                     sizeof out->reason);
        if (!out->legal)
            continue;
        qv_error why;
        qv_status status =
            qv_conv3d_ready_prepare(conv->ctx, &conv->chunk_desc, out->lowering, &w, &why);
        if (!status)
            add_cost(conv, &w.program, out);
        qv_program_free(&w.program);
        if (status == QV_EUNSUPPORTED) { /* legal, but this device's library has no kernel for it */
            out->legal = false;
            snprintf(out->reason, sizeof out->reason, "%.*s", QV_REASON_BYTES - 1, why.text);
        } else if (status) {
            return qv_fail(err, status, "%s", why.text);
        }
    }
    return QV_OK;
}
