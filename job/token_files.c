/* SPDX-License-Identifier: MIT */
/* Writes each source's tokens to a separate safetensors file. */
#include <stdlib.h>

#include "error.h"
#include "files/text.h"
#include "files/token_file.h"
#include "formats.h"
#include "path.h"

static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    const struct qv_output *o = user;
    const qv_model_info *m = o->model;
    struct qv_token_file *file = NULL;
    char *preprocessing = qv_token_file_preprocessing(&r->outcome, false);
    char *source = qv_utf8_text(o->source);
    const struct qv_token_file_origin origin = { .source = source,
                                                 .model = m->model_type,
                                                 .digest = m->digest,
                                                 .identity = m->identity,
                                                 .precision = qv_dtype_name(m->dtype),
                                                 .backend = o->context->backend,
                                                 .device = o->context->device,
                                                 .preprocessing = preprocessing };
    const char *metadata[QV_TOKEN_FILE_TEXTS][2];
    const size_t n = qv_token_file_metadata(&origin, metadata);
    const struct qv_token_file_options options = { .path = o->path,
                                                   .source = o->source,
                                                   .dtype = r->dtype,
                                                   .rows = r->n_tokens,
                                                   .width = m->out_hidden,
                                                   .n_grids = 1,
                                                   .n_timestamps = r->outcome.n_frames,
                                                   .n_deepstack = m->n_deepstack,
                                                   .hidden = o->hidden ? m->hidden : 0,
                                                   .patches = m->merge_size * m->merge_size };
    const qv_status status =
        preprocessing && source
            ? qv_token_file_begin(&options, (const char *const(*)[2])metadata, n, &file, err)
            : qv_fail(err, QV_ENOMEM, "%s: no memory for metadata", o->source);
    free(preprocessing);
    free(source);
    *entry = file;
    return status;
}

static qv_status
put(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    const qv_tokens *t = &rows->tokens;
    const struct qv_token_file_data data = { .tokens = t->tokens,
                                             .deepstack = (const void *const *)t->deepstack,
                                             .hidden = t->hidden };
    (void)user, (void)r;
    return qv_token_file_rows(entry, &data, rows->first, t->n, err);
}

/* Fills in facts that are known only now, such as how many frames were damaged. */
static qv_status
end(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct qv_token_file *file = entry;
    char *preprocessing = r->status ? NULL : qv_token_file_preprocessing(&r->outcome, true);
    const struct qv_token_file_data data = { .grid_thw = r->outcome.grid_thw,
                                             .timestamps_s = r->timestamps_s,
                                             .preprocessing = preprocessing };
    (void)user;
    const qv_status status = qv_token_file_end(&file, preprocessing ? &data : NULL, err);
    free(preprocessing);
    return r->status || preprocessing
               ? status
               : qv_fail(err, QV_ENOMEM, "%s: no memory for metadata", r->key);
}

const struct qv_format qv_token_files = { ".safetensors", { begin, put, end, NULL } };
