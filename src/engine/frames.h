/* SPDX-License-Identifier: MIT */
/* Frames that lie in a device's memory, and are resized there. Any thread may call these functions,
 * also in another's turn. */
#pragma once

#include "backend.h"

/* Returns the stream in whose order the work that makes frames must be; NULL: the device resizes
 * none. *device becomes the device's index. */
void *qv_frames_stream(const qv_context *ctx, int *device);

/* Resizes frames [height, width] to *out [frames of all views, to_height, to_width, 3], in the
 * device's memory, from which items may be pushed. When it returns, no view is read any more. */
qv_status qv_frames_resize(qv_context *ctx, const struct qv_frames_view *views, size_t n_views,
                           int64_t height, int64_t width, int64_t to_height, int64_t to_width,
                           void **out, qv_error *err);
/* Copies so many bytes of these to the host. */
qv_status qv_frames_read(qv_context *ctx, void *to, const void *frames, size_t bytes,
                         qv_error *err);
void qv_frames_free(qv_context *ctx, void *frames);
