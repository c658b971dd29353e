/* SPDX-License-Identifier: MIT */
/* Has the program that decodes, which alone links FFmpeg, make a clip to try on. */
#ifndef QVM_MAKE_CLIP_H
#define QVM_MAKE_CLIP_H

#include "qwenvit_clips.h"

/* Writes a clip at the path. `how` is its shape, in numbers: width, height, frames a second, frames, whether it looks filmed, and
 * its number; or, if `clip` names one, how often that is repeated. `program` as for qv_decoder_start. */
qv_status qvm_clip_make(const char *program, const char *path, const char *how, const char *clip,
                        qv_error *err);

#endif
