/* SPDX-License-Identifier: MIT */
/* The formats in which a job's tokens are written, as a table. */
#pragma once

#include "qwenvit_clips.h"

struct qv_format {
    const char *ending; /* of its files' names; NULL: it has no file for each source */
    /* An entry that ends with a failure leaves nothing behind. `user` of a format of files is a
     * struct qv_output. */
    qv_job_sink sink;
};
extern const struct qv_format qv_token_files, qv_cache_keys;
extern const struct qv_format *const qv_formats[]; /* all of them; NULL ends them */

/* Where a file's tokens come from. */
struct qv_output {
    const char *path, *source; /* source: the path of the clip */
    const qv_model_info *model;
    const qv_context_info *context;
    bool hidden; /* the last block's rows are wanted too */
};
