/* SPDX-License-Identifier: MIT */
/* Has the program that decodes, which alone links FFmpeg, make a clip to try on. */
#ifndef QVM_MAKE_CLIP_H
#define QVM_MAKE_CLIP_H

#include "qwenvit_clips.h"

/* Writes a clip at the path. `shape` is six numbers with commas between them: width, height, frames
 * per second, frames, whether it looks filmed, and its number. `program` as for
 * qv_decoder_start. */
qv_status qvm_clip_make(const char *program, const char *path, const char *shape, qv_error *err);

#endif
