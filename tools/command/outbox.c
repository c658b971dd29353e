/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/safetensors.h"
#include "outbox.h"

enum { MOST_TENSORS = 3 + QV_MAX_DEEPSTACK };

struct tool_outbox {
    int n_deepstack;
    int64_t n_timestamps;
    size_t row_bytes;
    struct qv_safetensors_writer *writer;
};

/* The file's tensors in their order. names: what they are called. Returns how many. */
static size_t
list_tensors(const struct tool_outbox_options *o, struct qv_safetensor tensors[MOST_TENSORS],
             char names[MOST_TENSORS][24])
{
    size_t n = 0;
    const char *type = o->dtype == QV_BF16 ? "BF16" : "F32";
    memset(tensors, 0, MOST_TENSORS * sizeof *tensors);
    for (int i = 0; i < 1 + o->n_deepstack; i++, n++) {
        snprintf(names[n], sizeof names[n], i ? "deepstack.%d" : "tokens", i - 1);
        snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "%s", type);
        tensors[n].n_dims = 2;
        tensors[n].shape[0] = o->rows;
        tensors[n].shape[1] = o->width;
    }
    snprintf(names[n], sizeof names[n], "grid_thw");
    snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "I64");
    tensors[n].n_dims = 2;
    tensors[n].shape[0] = 1;
    tensors[n++].shape[1] = 3;
    snprintf(names[n], sizeof names[n], "timestamps");
    snprintf(tensors[n].dtype_name, sizeof tensors[n].dtype_name, "F64");
    tensors[n].n_dims = 1;
    tensors[n++].shape[0] = o->n_timestamps;
    for (size_t i = 0; i < n; i++)
        tensors[i].name = names[i];
    return n;
}

qv_status
tool_outbox_open(const struct tool_outbox_options *options, const char *const (*metadata)[2],
                 size_t n_metadata, struct tool_outbox **out, qv_error *err)
{
    struct qv_safetensor tensors[MOST_TENSORS];
    char names[MOST_TENSORS][24];
    struct tool_outbox *b = calloc(1, sizeof *b);
    if (!b)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for an output", options->source);
    b->n_deepstack = options->n_deepstack;
    b->n_timestamps = options->n_timestamps;
    b->row_bytes = (size_t)options->width * (options->dtype == QV_BF16 ? 2 : 4);
    size_t n = list_tensors(options, tensors, names);
    qv_status status = qv_safetensors_writer_open(options->path, tensors, n, metadata, n_metadata,
                                                  &b->writer, err);
    if (status)
        tool_outbox_close(&b);
    *out = b;
    return status;
}

void
tool_outbox_close(struct tool_outbox **outbox)
{
    if (*outbox)
        qv_safetensors_writer_abort(&(*outbox)->writer);
    free(*outbox);
    *outbox = NULL;
}

qv_status
tool_outbox_put(struct tool_outbox *b, const void *tokens, const void *const *deepstack,
                int64_t first, int64_t n, qv_error *err)
{
    uint64_t at = (uint64_t)first * b->row_bytes, bytes = (uint64_t)n * b->row_bytes;
    qv_status status = QV_OK;
    for (int i = 0; i < 1 + b->n_deepstack && !status; i++)
        status = qv_safetensors_writer_put(b->writer, (size_t)i, at, i ? deepstack[i - 1] : tokens,
                                           bytes, err);
    return status;
}

qv_status
tool_outbox_fill_in(struct tool_outbox *b, const int64_t *grid_thw, const double *timestamps_s,
                    const char *key, const char *value, qv_error *err)
{
    size_t grid = 1 + (size_t)b->n_deepstack;
    qv_status status =
        qv_safetensors_writer_put(b->writer, grid, 0, grid_thw, 3 * sizeof *grid_thw, err);
    if (!status)
        status = qv_safetensors_writer_put(b->writer, grid + 1, 0, timestamps_s,
                                           (uint64_t)b->n_timestamps * sizeof *timestamps_s, err);
    return status ? status : qv_safetensors_writer_amend(b->writer, key, value, err);
}

qv_status
tool_outbox_commit(struct tool_outbox *b, qv_error *err)
{
    return qv_safetensors_writer_finish(&b->writer, err);
}
