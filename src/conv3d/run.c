/* SPDX-License-Identifier: MIT */
/* Runs a Conv3d: uploads and downloads its chunks, and keeps the frames that a stream needs. */
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "object.h"

/* Returns frame `z` of a plane of x; its substitute, if z is in front of x or past its end. */
static const char *
frame_at(const struct qv_conv3d *conv, const char *x, int64_t plane, int64_t z)
{
    const struct qv_conv3d_cut *c = &conv->cut;
    const char *first = x + (size_t)(plane * c->frames) * c->frame_bytes;
    if (z >= 0)
        return z < c->frames ? first + (size_t)z * c->frame_bytes : conv->zeros;
    if (conv->begun)
        return conv->front + (size_t)(plane * c->pad + c->pad + z) * c->frame_bytes;
    return conv->desc.causal == QV_CAUSAL_FIRST ? first : conv->zeros;
}

/* Uploads the window of the chunk that begins at output frame `from`; frames that are adjacent in x
 * go together. */
static qv_status
upload_window(struct qv_conv3d *conv, const char *x, int64_t from, qv_error *err)
{
    const struct qv_conv3d_cut *c = &conv->cut;
    int64_t first = from * c->stride - c->pad;
    struct qv_buffer dst = qv_program_place(&conv->program, 0, QV_CONV3D_INPUT);
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

/* Output frames [from, from + frames) of each sample; in a chunk's output, samples are conv->chunk
 * frames apart. */
struct piece {
    size_t frame_bytes; /* bytes of an output frame */
    int64_t from, frames;
};

static qv_status
download(struct qv_conv3d *conv, const struct piece *p, char *y, qv_error *err)
{
    struct qv_buffer src = qv_program_place(&conv->program, 0, QV_CONV3D_OUTPUT);
    for (int64_t n = 0; n < conv->desc.n; n++, src.offset += (size_t)conv->chunk * p->frame_bytes)
        conv->parts[n] =
            (struct qv_download){ y + (size_t)(n * conv->out[0] + p->from) * p->frame_bytes, src,
                                  (size_t)p->frames * p->frame_bytes };
    return conv->ctx->backend->download(conv->ctx->dev, conv->parts, (size_t)conv->desc.n, err);
}

/* Uploads this chunk's rows of the residual, if they differ between chunks. */
static qv_status
upload_residual_part(struct qv_conv3d *conv, const struct piece *p, qv_error *err)
{
    const qv_conv3d_desc *d = &conv->desc;
    struct qv_buffer dst = qv_program_place(&conv->program, 0, QV_CONV3D_RESIDUAL);
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

/* Keeps the last `pad` frames for the next call. x may be in the device's memory. */
static qv_status
keep_front(struct qv_conv3d *conv, const char *x, qv_error *err)
{
    const struct qv_conv3d_cut *c = &conv->cut;
    const struct qv_backend *be = conv->ctx->backend;
    qv_status status = QV_OK;
    for (int64_t plane = 0; plane < c->planes; plane++)
        for (int64_t j = 0; j < c->pad && !status; j++) {
            struct qv_memory there;
            char *to = conv->next_front + (size_t)(plane * c->pad + j) * c->frame_bytes;
            const char *frame = frame_at(conv, x, plane, c->frames - c->pad + j);
            if (be->wrap(conv->ctx->dev, frame, c->frame_bytes, &there)) {
                const struct qv_download part = { to, { &there, 0 }, c->frame_bytes };
                status = be->download(conv->ctx->dev, &part, 1, err);
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

/* Returns whether x can be used in place: there is one chunk, and no padding. */
static bool
is_whole(const struct qv_conv3d *conv)
{
    const struct qv_conv3d_cut *c = &conv->cut;
    return conv->chunk == conv->out[0] && c->pad == 0 && c->every == 1 && c->window == c->frames;
}

/* Copies the chunk's calls, and lets them use x and y in place (there[0], there[1]) if the device
 * can. */
static void
redirect(struct qv_conv3d *conv, const void *x, void *y, struct qv_memory memory[2], bool there[2],
         struct qv_call calls[QV_CONV3D_MOST_STEPS])
{
    qv_conv3d_info info;
    const struct qv_program *p = &conv->program;
    qv_conv3d_get_info(conv, &info);
    const struct qv_backend *be = conv->ctx->backend;
    there[0] = is_whole(conv) && be->wrap(conv->ctx->dev, x, info.x_bytes, &memory[0]);
    there[1] = conv->chunk == conv->out[0] && be->wrap(conv->ctx->dev, y, info.y_bytes, &memory[1]);
    memcpy(calls, p->calls, p->n * sizeof *calls);
    for (size_t i = 0; i < p->n; i++)
        for (int j = 0; j < QV_MAX_OPERANDS; j++) {
            const int place = p->steps[i].operands[j];
            const size_t at = (size_t)p->steps[i].offsets[j];
            if (there[0] && place == QV_CONV3D_INPUT)
                calls[i].operands[j] = (struct qv_buffer){ &memory[0], at };
            if (there[1] && place == QV_CONV3D_OUTPUT)
                calls[i].operands[j] = (struct qv_buffer){ &memory[1], at };
        }
}

/* Runs all chunks in order. If x or y is in the device's memory (there), it is not copied; if both
 * are, on the caller's stream, nothing waits. */
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
            status = be->run(dev, calls, conv->program.n, err);
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
    QV_NEED(err, conv, x, y);
    if (!conv->weighted)
        return qv_fail(err, QV_ESTATE, "this conv3d was created without weights");
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

void
qv_conv3d_reset(qv_conv3d *conv)
{
    QV_NEED_OR(, conv);
    conv->begun = false;
}
