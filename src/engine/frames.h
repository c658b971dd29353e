/* SPDX-License-Identifier: MIT */
/* Frames in a device's memory, which are resized there. Any thread may call these functions, even
 * during another thread's turn. */
#pragma once

#include "backend.h"

/* Returns the stream on which frames are resized, so the work that makes them must precede it in
 * stream order; NULL: the device cannot resize. *device becomes the device's index. */
void *qv_frames_stream(const qv_context *ctx, int *device);

/* Resizes frames [height, width] to *out [frames of all views, to_height, to_width, 3], in the
 * device's memory, from which items may be pushed. When it returns, the views are no longer
 * read. */
qv_status qv_frames_resize(qv_context *ctx, const struct qv_frames_view *views, size_t n_views,
                           int64_t height, int64_t width, int64_t to_height, int64_t to_width,
                           void **out, qv_error *err);
/* Copies bytes of resized frames to the host. */
qv_status qv_frames_read(qv_context *ctx, void *to, const void *frames, size_t bytes,
                         qv_error *err);
void qv_frames_free(qv_context *ctx, void *frames);
