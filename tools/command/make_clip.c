/* SPDX-License-Identifier: MIT */
/* Makes clips to try on, for `synth --clip`, `bench job` and `bench start`, by the program that
 * links FFmpeg. They appear whole. */
#include <stdio.h>

#include "error.h"
#include "files/atomic_file.h"
#include "tool.h"

const struct qvm_clip_shape tool_clip_shape = {
    .width = 320, .height = 240, .fps = 25, .frames = 100
};

qv_status
tool_make_clip(const char *path, const struct qvm_clip_shape *s, qv_error *err)
{
    struct qv_atomic_file file = { 0 };
    qv_error why;
    qv_status status = qv_atomic_file_open(path, &file, err);
    if (status)
        return status;
    const char *to = file.temporary ? file.temporary : file.path;
    status = qvm_clip_make(tool_decoder_program(), to, s, &why);
    status =
        status ? qv_fail(err, status, "%s: %s", path, why.text) : qv_atomic_file_commit(&file, err);
    qv_atomic_file_abort(&file);
    return status;
}
