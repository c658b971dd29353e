/* SPDX-License-Identifier: MIT */
/* The table of formats in which a job's tokens are written to a file per source. */
#pragma once

#include "qwenvit_clips.h"

struct qv_format {
    const char *ending; /* file name extension */
    /* `user` is a struct qv_output. An entry that ends with a failure leaves nothing behind. */
    qv_job_sink sink;
};
extern const struct qv_format qv_token_files;
extern const struct qv_format *const qv_formats[]; /* all formats, terminated by NULL */

/* Where a file's tokens come from. */
struct qv_output {
    const char *path, *source; /* source: the path of the clip */
    const qv_model_info *model;
    const qv_context_info *context;
    bool hidden; /* also write the last block's rows */
};
