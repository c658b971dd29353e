/* SPDX-License-Identifier: MIT */
/*
 * qv_conv3d: a Conv3d as an object. The output depth is cut into chunks of one shape; a chunk's
 * input is a window of whole frames in which padding, frames kept from the call before and what
 * lies behind the end are frames like any other. So no operation pads depth, every chunk runs the
 * same kernels, and a stream of calls computes the same bits as one.
 */
#include <stdlib.h>
#include <string.h>

#include "decide.h"
#include "ready.h"
#include "dtype.h"
#include "error.h"
#include "options.h"

/* How x is cut along depth: `planes` runs of frames. */
struct cut {
    int64_t planes, frames; /* of a call */
    size_t frame_bytes;
    int64_t window; /* frames that a chunk looks at */
    int64_t stride; /* frames from one output to the next */
    int64_t every;  /* 1; or the frames of which the window takes the first alone */
    int64_t pad;    /* frames in front of x */
};

struct qv_conv3d {
    qv_context *ctx;
    qv_conv3d_desc desc, chunk_desc;
    int64_t out[3], chunk;
    bool stream, begun;   /* begun: `front` holds frames of the call before */
    bool residual_varies; /* from chunk to chunk */
    struct qv_conv3d_decision decision;
    struct cut cut;
    char *front, *next_front, *zeros; /* [planes, pad, frame_bytes]; one frame of zeros */
    void *residual;
    bool weighted;
    struct qv_conv3d_ready way;
};

/* ---- choosing -------------------------------------------------------------------------------- */

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of a call's chunks; stops early where a way has lost. */
static qv_status
time_way(struct qv_conv3d *conv, struct qv_conv3d_ready *w, double best_ms, double *median_ms,
         qv_error *err)
{
    enum { LEAST = 3, MOST = 15, ENOUGH_MS = 300 };
    const struct qv_backend *be = conv->ctx->backend;
    struct qv_device *dev = conv->ctx->dev;
    int64_t chunks = (conv->out[0] + conv->chunk - 1) / conv->chunk;
    double samples[MOST + 1], sum = 0;
    int n = 0;
    do { /* the first one warms up */
        double ms = 0;
        qv_status status = be->mark(dev, QV_MARK_BEGIN, err);
        if (!status)
            status = be->run(dev, w->calls, (size_t)w->list.n, err);
        if (!status)
            status = be->mark(dev, QV_MARK_END, err);
        if (!status)
            status = be->wait(dev, QV_MARK_END, err);
        if (!status)
            status = be->elapsed(dev, QV_MARK_BEGIN, QV_MARK_END, &ms, err);
        if (status)
            return status;
        samples[n] = ms * (double)chunks;
        sum += n ? samples[n] : 0;
        n++;
    } while (n < MOST + 1 && !(samples[n - 1] > 4 * best_ms) &&
             (n <= LEAST || sum < ENOUGH_MS * (double)chunks));
    int skip = n > 1 ? 1 : 0;
    qsort(samples + skip, (size_t)(n - skip), sizeof *samples, by_value);
    *median_ms = samples[skip + (n - skip) / 2];
    return QV_OK;
}

/* What the tune file calls this work. */
static void
work_text(const struct qv_conv3d *conv, char *text, size_t size)
{
    char line[900];
    snprintf(text, size, "conv3d chunk=%lld %s", (long long)conv->chunk,
             qv_conv3d_print(&conv->desc, line, sizeof line));
}

/* Runs every legal way and remembers the fastest. */
static qv_status
measure(struct qv_conv3d *conv, const qv_conv3d_weights *weights, const char *work, qv_error *err)
{
    qv_context *ctx = conv->ctx;
    double best_ms = 1e30;
    qv_lowering best = conv->decision.lowering;
    for (int i = 0; i < QV_LOWERING_COUNT; i++) {
        struct qv_conv3d_ready w;
        double ms = 0;
        if (!(conv->decision.legal >> i & 1))
            continue;
        qv_status status = qv_conv3d_ready_prepare(ctx, &conv->chunk_desc, (qv_lowering)i, &w, err);
        if (!status)
            status = qv_conv3d_ready_load(ctx, &conv->desc, weights, &w, err);
        if (!status)
            status = time_way(conv, &w, best_ms, &ms, err);
        qv_conv3d_ready_free(ctx, &w);
        if (status == QV_EUNSUPPORTED || status == QV_ENOMEM)
            continue; /* it has lost */
        if (status)
            return status;
        qv_tune_measured(&ctx->tune, work, qv_lowering_name((qv_lowering)i), ms);
        if (ms < best_ms) {
            best_ms = ms;
            best = (qv_lowering)i;
        }
    }
    qv_tune_choose(&ctx->tune, work, qv_lowering_name(best));
    return QV_OK;
}

/* A choice from the tune file, measured now or before, over what the thresholds say; one that is
 * not legal here is as if it were not there. */
static qv_status
choose(struct qv_conv3d *conv, const qv_conv3d_weights *weights, qv_error *err)
{
    char work[1000], text[QV_REASON_BYTES];
    struct qv_tune *tune = &conv->ctx->tune;
    work_text(conv, work, sizeof work);
    if (tune->measure && conv->weighted && !qv_tune_find(tune, work)) {
        qv_status status = measure(conv, weights, work, err);
        if (status)
            return status;
    }
    int lowering = qv_lowering_find(qv_tune_find(tune, work));
    if (lowering < 0 || !(conv->decision.legal >> lowering & 1))
        return QV_OK;
    qv_conv3d_legal(&conv->desc, &conv->ctx->caps, (qv_lowering)lowering, text, sizeof text);
    conv->decision.lowering = (qv_lowering)lowering;
    snprintf(conv->decision.reason, sizeof conv->decision.reason, "measured %.3g ms; %.150s",
             qv_tune_ms(tune, work, qv_lowering_name((qv_lowering)lowering)), text);
    return QV_OK;
}

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

/* In a stream every call must give the same number of outputs, and none of padding alone. */
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

/* A chunk as a description of its own: a window, nothing padded in depth. */
static void
describe_chunk(struct qv_conv3d *conv)
{
    const qv_conv3d_desc *d = &conv->desc;
    qv_conv3d_desc *chunk = &conv->chunk_desc;
    int64_t extent = kernel_extent(d), frame_rows = conv->out[1] * conv->out[2];
    /* whole strides between samples: then the frames of all follow each other evenly */
    bool whole = d->n > 1 && conv->chunk > 1 && d->stride[0] > extent;
    *chunk = *d;
    if (__builtin_mul_overflow(conv->chunk - 1, d->stride[0], &chunk->d) ||
        __builtin_add_overflow(chunk->d, whole ? d->stride[0] : extent, &chunk->d))
        chunk->d = INT64_MAX; /* which no check lets pass */
    chunk->pad_front[0] = chunk->pad_back[0] = 0;
    chunk->causal = QV_CAUSAL_NONE;
    conv->residual_varies = d->residual_rows && frame_rows % d->residual_rows;
    if (conv->residual_varies)
        chunk->residual_rows = d->n * conv->chunk * frame_rows;
}

/* How its input is taken from x, for the lowering that was chosen. */
static void
cut_input(struct qv_conv3d *conv)
{
    const qv_conv3d_desc *d = &conv->desc;
    size_t element = qv_dtype_bytes(d->dtype);
    struct cut c = { .planes = d->n,
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
    if (d->layout == QV_LAYOUT_PATCH_ROWS) { /* a frame pair's rows move as one frame */
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
    if (!conv->weighted) /* described only: its frames may be larger than memory */
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

/* Where every chunk adds the same rows they are put there once. */
static qv_status
upload_residual(struct qv_conv3d *conv, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->chunk_desc;
    if (!conv->residual || conv->residual_varies)
        return QV_OK;
    struct qv_buffer dst = { conv->way.arena, conv->way.places[QV_CONV3D_RESIDUAL] };
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
    status = qv_conv3d_check(&conv->chunk_desc, err); /* with its padding as frames */
    if (!status && !o->lowering)
        status = choose(conv, weights, err);
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
    static const qv_conv3d_options defaults;
    static const qv_conv3d_weights none;
    const qv_conv3d_options *o = options ? options : &defaults;
    if (!ctx || !desc || !out)
        return qv_fail(err, QV_EINVAL, "ctx, desc or out is NULL");
    if (!QV_RESERVED_IS_ZERO(o))
        return qv_fail(err, QV_EINVAL, "reserved conv3d options must be 0");
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
    qv_conv3d_ready_free((*conv)->ctx, &(*conv)->way);
    free((*conv)->front);
    free((*conv)->next_front);
    free((*conv)->zeros);
    free((*conv)->residual);
    free(*conv);
    *conv = NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

void
qv_conv3d_get_info(const qv_conv3d *conv, qv_conv3d_info *out)
{
    const qv_conv3d_desc *d = &conv->desc;
    *out = (qv_conv3d_info){
        .desc = *d,
        .rows = qv_conv3d_rows(d),
        .chunk = conv->chunk,
        .x_bytes = (size_t)(conv->cut.planes * conv->cut.frames) * conv->cut.frame_bytes,
        .arena_bytes = conv->way.arena_bytes,
        .weight_bytes = conv->way.weight_bytes,
        .lowering = conv->decision.lowering,
    };
    out->y_bytes = (size_t)(out->rows * d->o) * qv_dtype_bytes(d->dtype);
    memcpy(out->out, conv->out, sizeof out->out);
    memcpy(out->reason, conv->decision.reason, sizeof out->reason);
}

static void
add_cost(const struct qv_conv3d *conv, const struct qv_conv3d_ready *w, qv_conv3d_way *out)
{
    double chunks = (double)((conv->out[0] + conv->chunk - 1) / conv->chunk);
    for (int i = 0; i < w->list.n; i++) {
        out->flops += chunks * qv_op_flops(&w->list.steps[i].op);
        out->bytes += chunks * qv_op_bytes(&w->list.steps[i].op);
    }
    out->scratch_bytes = w->between_bytes + w->kernel_scratch;
}

qv_status
qv_conv3d_get_ways(const qv_conv3d *conv, qv_conv3d_way ways[QV_LOWERING_COUNT], qv_error *err)
{
    char work[1000];
    if (!conv || !ways)
        return qv_fail(err, QV_EINVAL, "conv or ways is NULL");
    work_text(conv, work, sizeof work);
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
            add_cost(conv, &w, out);
        qv_conv3d_ready_free(conv->ctx, &w);
        if (status == QV_EUNSUPPORTED) { /* legal, but this device's library has no such kernel */
            out->legal = false;
            snprintf(out->reason, sizeof out->reason, "%.*s", QV_REASON_BYTES - 1, why.text);
        } else if (status) {
            return qv_fail(err, status, "%s", why.text);
        }
        out->median_ms = qv_tune_ms(&conv->ctx->tune, work, qv_lowering_name(out->lowering));
    }
    return QV_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Frame `z` of a plane of x; in front and behind, what stands for it. */
static const char *
frame_at(const struct qv_conv3d *conv, const char *x, int64_t plane, int64_t z)
{
    const struct cut *c = &conv->cut;
    const char *first = x + (size_t)(plane * c->frames) * c->frame_bytes;
    if (z >= 0)
        return z < c->frames ? first + (size_t)z * c->frame_bytes : conv->zeros;
    if (conv->begun)
        return conv->front + (size_t)(plane * c->pad + c->pad + z) * c->frame_bytes;
    return conv->desc.causal == QV_CAUSAL_FIRST ? first : conv->zeros;
}

/* The window of the chunk that begins at output frame `from`; frames that lie side by side in x go
 * together. */
static qv_status
upload_window(struct qv_conv3d *conv, const char *x, int64_t from, qv_error *err)
{
    const struct cut *c = &conv->cut;
    int64_t first = from * c->stride - c->pad;
    struct qv_buffer dst = { conv->way.arena, conv->way.places[QV_CONV3D_INPUT] };
    const char *run = NULL;
    size_t bytes = 0;
    qv_status status = QV_OK;
    for (int64_t plane = 0; plane < c->planes && !status; plane++)
        for (int64_t j = 0; j < c->window && !status; j++) {
            const char *frame = frame_at(conv, x, plane, first + j * c->every);
            if (run && frame == run + bytes && frame != conv->zeros) {
                bytes += c->frame_bytes;
                continue;
            }
            if (run)
                status = conv->ctx->backend->upload(conv->ctx->dev, dst, run, bytes, err);
            dst.offset += bytes;
            run = frame;
            bytes = c->frame_bytes;
        }
    return status ? status : conv->ctx->backend->upload(conv->ctx->dev, dst, run, bytes, err);
}

/* Output frames [from, from + frames) of each sample; in a chunk samples lie conv->chunk apart. */
struct piece {
    size_t frame_bytes; /* of y */
    int64_t from, frames;
};

static qv_status
download(struct qv_conv3d *conv, const struct piece *p, char *y, qv_error *err)
{
    struct qv_buffer src = { conv->way.arena, conv->way.places[QV_CONV3D_OUTPUT] };
    qv_status status = QV_OK;
    for (int64_t n = 0; n < conv->desc.n && !status; n++) {
        status =
            conv->ctx->backend->download(conv->ctx->dev,
                                         y + (size_t)(n * conv->out[0] + p->from) * p->frame_bytes,
                                         src, (size_t)p->frames * p->frame_bytes, err);
        src.offset += (size_t)conv->chunk * p->frame_bytes;
    }
    return status;
}

/* The residual's rows of this chunk, where they are not the same in all. */
static qv_status
upload_residual_part(struct qv_conv3d *conv, const struct piece *p, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->desc;
    struct qv_buffer dst = { conv->way.arena, conv->way.places[QV_CONV3D_RESIDUAL] };
    int64_t frame_rows = conv->out[1] * conv->out[2];
    size_t row = p->frame_bytes / (size_t)frame_rows;
    qv_status status = QV_OK;
    if (!conv->residual || !conv->residual_varies)
        return QV_OK;
    for (int64_t n = 0; n < d->n; n++)
        for (int64_t i = 0; i < p->frames * frame_rows && !status; i++) {
            int64_t from = (n * conv->out[0] + p->from) * frame_rows + i;
            struct qv_buffer at = dst;
            at.offset += (size_t)(n * conv->chunk * frame_rows + i) * row;
            status = conv->ctx->backend->upload(conv->ctx->dev, at,
                                                (char *)conv->residual +
                                                    (size_t)(from % d->residual_rows) * row,
                                                row, err);
        }
    return status;
}

/* The last `pad` frames, for the call that follows. x may lie in the device's memory. */
static qv_status
keep_front(struct qv_conv3d *conv, const char *x, qv_error *err)
{
    const struct cut *c = &conv->cut;
    const struct qv_backend *be = conv->ctx->backend;
    qv_status status = QV_OK;
    for (int64_t plane = 0; plane < c->planes; plane++)
        for (int64_t j = 0; j < c->pad && !status; j++) {
            struct qv_memory there;
            char *to = conv->next_front + (size_t)(plane * c->pad + j) * c->frame_bytes;
            const char *frame = frame_at(conv, x, plane, c->frames - c->pad + j);
            if (be->wrap(conv->ctx->dev, frame, c->frame_bytes, &there)) {
                status = be->download(conv->ctx->dev, to, (struct qv_buffer){ &there, 0 },
                                      c->frame_bytes, err);
                qv_unwrap(conv->ctx->dev, &there);
            } else
                memcpy(to, frame, c->frame_bytes);
        }
    if (status)
        return status;
    char *front = conv->front;
    conv->front = conv->next_front;
    conv->next_front = front;
    conv->begun = true;
    return QV_OK;
}

/* One chunk without padding takes x as it lies. */
static bool
is_whole(const struct qv_conv3d *conv)
{
    const struct cut *c = &conv->cut;
    return conv->chunk == conv->out[0] && c->pad == 0 && c->every == 1 && c->window == c->frames;
}

/* The chunk's calls, with x and y (there[0], there[1]) in place where the device can use them. */
static void
redirect(struct qv_conv3d *conv, const void *x, void *y, struct qv_memory memory[2], bool there[2],
         struct qv_call calls[QV_CONV3D_MOST_STEPS])
{
    qv_conv3d_info info;
    const struct qv_conv3d_ready *way = &conv->way;
    qv_conv3d_get_info(conv, &info);
    const struct qv_backend *be = conv->ctx->backend;
    there[0] = is_whole(conv) && be->wrap(conv->ctx->dev, x, info.x_bytes, &memory[0]);
    there[1] = conv->chunk == conv->out[0] && be->wrap(conv->ctx->dev, y, info.y_bytes, &memory[1]);
    memcpy(calls, way->calls, (size_t)way->list.n * sizeof *calls);
    for (int i = 0; i < way->list.n; i++)
        for (int j = 0; j < QV_MAX_OPERANDS; j++) {
            const struct qv_conv3d_operand *o = &way->list.steps[i].operands[j];
            if (there[0] && o->buffer == QV_CONV3D_INPUT)
                calls[i].operands[j] = (struct qv_buffer){ &memory[0], (size_t)o->at };
            if (there[1] && o->buffer == QV_CONV3D_OUTPUT)
                calls[i].operands[j] = (struct qv_buffer){ &memory[1], (size_t)o->at };
        }
}

/* Chunk by chunk; what lies in the device's memory already (there) is neither copied nor, on a
 * stream of the caller's, waited for. */
static qv_status
run_chunks(struct qv_conv3d *conv, const void *x, void *y, const bool there[2],
           const struct qv_call *calls, qv_error *err)
{
    const struct qv_backend *be = conv->ctx->backend;
    struct qv_device *dev = conv->ctx->dev;
    struct piece p = { .frame_bytes = (size_t)(conv->out[1] * conv->out[2] * conv->desc.o) *
                                      qv_dtype_bytes(conv->desc.dtype) };
    qv_status status = QV_OK;
    for (; p.from < conv->out[0] && !status; p.from += conv->chunk) {
        p.frames = conv->out[0] - p.from < conv->chunk ? conv->out[0] - p.from : conv->chunk;
        status = there[0] ? QV_OK : upload_window(conv, x, p.from, err);
        if (!status)
            status = upload_residual_part(conv, &p, err);
        if (!status)
            status = be->run(dev, calls, (size_t)conv->way.list.n, err);
        if (!status && !(there[0] && there[1] && conv->ctx->in_order))
            status = be->sync(dev, err);
        if (!status && !there[1])
            status = download(conv, &p, y, err);
    }
    return status;
}

qv_status
qv_conv3d_run(qv_conv3d *conv, const void *x, void *y, qv_error *err)
{
    if (!conv || !x || !y)
        return qv_fail(err, QV_EINVAL, "conv, x or y is NULL");
    if (!conv->weighted)
        return qv_fail(err, QV_ESTATE, "this conv3d was made to be asked: it has no weights");
    struct qv_memory memory[2];
    struct qv_call calls[QV_CONV3D_MOST_STEPS];
    bool there[2];
    redirect(conv, x, y, memory, there, calls);
    qv_status status = run_chunks(conv, x, y, there, calls, err);
    for (int i = 0; i < 2; i++)
        if (there[i])
            qv_unwrap(conv->ctx->dev, &memory[i]);
    return status || !conv->stream ? status : keep_front(conv, x, err);
}

size_t
qv_conv3d_calls(const qv_conv3d *conv, const struct qv_call **calls)
{
    *calls = conv->way.calls;
    return (size_t)conv->way.list.n;
}

void
qv_conv3d_reset(qv_conv3d *conv)
{
    conv->begun = false;
}
