/* SPDX-License-Identifier: MIT */
#include "frames.h"

#include "context.h"
#include "error.h"

void *
qv_frames_stream(const qv_context *ctx, int *device)
{
    *device = ctx->device;
    return ctx->backend->frames_stream ? ctx->backend->frames_stream(ctx->dev) : NULL;
}

static qv_status
make_table(struct qv_axis *axis, int64_t in, int64_t out, qv_error *err)
{
    if (in < 1 || out < 1 || in > QV_AXIS_MOST || out > QV_AXIS_MOST)
        return qv_fail(err, QV_EINVAL, "resize: %lld pixels to %lld; a side must be from 1 to %d",
                       (long long)in, (long long)out, QV_AXIS_MOST);
    return qv_axis_make(axis, (int)in, (int)out)
               ? QV_OK
               : qv_fail(err, QV_ENOMEM, "no memory to resize %lld pixels to %lld", (long long)in,
                         (long long)out);
}

qv_status
qv_frames_resize(qv_context *ctx, const struct qv_frames_view *views, size_t n_views,
                 int64_t height, int64_t width, int64_t to_height, int64_t to_width, void **out,
                 qv_error *err)
{
    struct qv_resize r = { .views = views, .n_views = n_views };
    qv_status status = make_table(&r.down, height, to_height, err);
    if (!status)
        status = make_table(&r.across, width, to_width, err);
    if (!status)
        status = ctx->backend->resize(ctx->dev, &r, out, err);
    qv_axis_free(&r.down);
    qv_axis_free(&r.across);
    return status;
}

qv_status
qv_frames_read(qv_context *ctx, void *to, const void *frames, size_t bytes, qv_error *err)
{
    return ctx->backend->read_frames(ctx->dev, to, frames, bytes, err);
}

void
qv_frames_free(qv_context *ctx, void *frames)
{
    ctx->backend->free_frames(ctx->dev, frames);
}
