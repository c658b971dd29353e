/* SPDX-License-Identifier: MIT */
/* Has the program that decodes, which alone links FFmpeg, make a clip. */
#pragma once

#include "ipc/messages.h"

/* Writes a clip at the path. `program` as for qv_decoder_start. */
qv_status qvm_clip_make(const char *program, const char *path, const struct qvm_clip_shape *shape,
                        qv_error *err);
