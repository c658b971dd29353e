/* SPDX-License-Identifier: MIT */
/* Makes a clip with the decoder program, because only that program links FFmpeg. */
#pragma once

#include "ipc/messages.h"

/* Writes a clip at the path. `program` as for qv_decoder_start. */
qv_status qvm_clip_make(const char *program, const char *path, const struct qvm_clip_shape *shape,
                        qv_error *err);
