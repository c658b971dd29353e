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

static bool
make_table(struct qv_axis *axis, int in, int out)
{
    const int taps = qv_axis_measure(axis, in, out);
    return taps && qv_axis_fill(axis, taps);
}

qv_status
qv_frames_resize(qv_context *ctx, const struct qv_frames_view *views, size_t n_views, int height,
                 int width, int to_height, int to_width, void **out, qv_error *err)
{
    struct qv_resize r = { .views = views, .n_views = n_views };
    qv_status status =
        make_table(&r.down, height, to_height) && make_table(&r.across, width, to_width)
            ? ctx->backend->resize(ctx->dev, &r, out, err)
            : qv_fail(err, QV_ENOMEM, "no memory to resize %dx%d to %dx%d", width, height, to_width,
                      to_height);
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
