/* SPDX-License-Identifier: MIT */
#include "token_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "dtype.h"
#include "error.h"
#include "json.h"
#include "outcome_json.h"
#include "safetensors.h"

enum { MOST_TENSORS = 4 + QV_MAX_DEEPSTACK };

struct qv_token_file {
    struct qv_token_file_options o; /* copied; its texts may be freed after opening */
    int n_matrices;
    size_t row_bytes;
    struct qv_safetensors_writer *writer;
};

/* The file's tensors, in their order. */
struct list {
    struct qv_safetensor at[MOST_TENSORS];
    char names[MOST_TENSORS][24];
    size_t n;
};

/* Adds a tensor, and returns the buffer for its name. With columns 0 it has one dimension. */
static char *
add(struct list *l, const char *dtype, int64_t rows, int64_t columns)
{
    struct qv_safetensor *t = &l->at[l->n];
    *t = (struct qv_safetensor){ .name = l->names[l->n],
                                 .n_dims = columns ? 2 : 1,
                                 .shape = { rows, columns } };
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", dtype);
    return l->names[l->n++];
}

static void
list_tensors(const struct qv_token_file *f, struct list *l)
{
    const struct qv_token_file_options *o = &f->o;
    for (int i = 0; i < f->n_matrices; i++)
        qv_token_file_name(i, add(l, qv_dtype_file_name(o->dtype), o->rows, o->width));
    if (o->hidden)
        snprintf(add(l, qv_dtype_file_name(o->dtype), o->rows * o->patches, o->hidden), 24,
                 "hidden");
    snprintf(add(l, "I64", o->n_grids, 3), 24, "grid_thw");
    snprintf(add(l, "F64", o->n_timestamps, 0), 24, "timestamps");
}

/* ---- metadata -------------------------------------------------------------------------------- */

size_t
qv_token_file_metadata(const struct qv_token_file_origin *o,
                       const char *metadata[QV_TOKEN_FILE_TEXTS][2])
{
    const char *const all[QV_TOKEN_FILE_TEXTS][2] = {
        { "format", "qwenvit" },
        { "qwenvit_version", qv_version() },
        { "source", o->source },
        { "model", o->model },
        { "weights_digest", o->digest && !*o->digest ? "unknown" : o->digest },
        { "identity", o->identity },
        { "precision", o->precision },
        { "backend", o->backend },
        { "device", o->device },
        { QV_TOKEN_FILE_PREPROCESSING, o->preprocessing },
    };
    size_t n = 0;
    for (size_t i = 0; i < QV_TOKEN_FILE_TEXTS; i++)
        if (all[i][1]) {
            metadata[n][0] = all[i][0];
            metadata[n++][1] = all[i][1];
        }
    return n;
}

char *
qv_token_file_preprocessing(const qv_outcome *outcome, bool at_end)
{
    qv_outcome o = *outcome;
    if (!at_end)
        o.damaged_frames = 0;
    json_t *j = json_object();
    char *text = qv_outcome_json(j, &o, QV_FOR_FILE) ? NULL : qv_json_text(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

/* ---- the file -------------------------------------------------------------------------------- */

qv_status
qv_token_file_begin(const struct qv_token_file_options *options, const char *const (*metadata)[2],
                    size_t n_metadata, struct qv_token_file **out, qv_error *err)
{
    struct list list = { .n = 0 };
    struct qv_token_file *f = calloc(1, sizeof *f);
    if (!f)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for an output", options->source);
    f->o = *options;
    f->n_matrices = 1 + options->n_deepstack;
    f->row_bytes = (size_t)options->width * qv_dtype_bytes(options->dtype);
    list_tensors(f, &list);
    const qv_status s = qv_safetensors_writer_open(options->path, list.at, list.n, metadata,
                                                   n_metadata, &f->writer, err);
    if (s)
        qv_token_file_end(&f, NULL, NULL);
    *out = f;
    return s;
}

qv_status
qv_token_file_rows(struct qv_token_file *f, const struct qv_token_file_data *data, int64_t first,
                   int64_t n, qv_error *err)
{
    const uint64_t row = (uint64_t)(f->o.patches * f->o.hidden) * qv_dtype_bytes(f->o.dtype);
    const uint64_t at = (uint64_t)first * f->row_bytes, bytes = (uint64_t)n * f->row_bytes;
    qv_status s = QV_OK;
    for (int i = 0; i < f->n_matrices && !s; i++)
        s = qv_safetensors_writer_put(f->writer, (size_t)i, at,
                                      i ? data->deepstack[i - 1] : data->tokens, bytes, err);
    if (f->o.hidden && !s)
        s = qv_safetensors_writer_put(f->writer, (size_t)f->n_matrices, (uint64_t)first * row,
                                      data->hidden, (uint64_t)n * row, err);
    return s;
}

static qv_status
fill_in(struct qv_token_file *f, const struct qv_token_file_data *data, qv_error *err)
{
    const size_t grid = (size_t)f->n_matrices + (f->o.hidden ? 1 : 0);
    qv_status s =
        qv_safetensors_writer_put(f->writer, grid, 0, data->grid_thw,
                                  (uint64_t)f->o.n_grids * 3 * sizeof *data->grid_thw, err);
    if (!s)
        s = qv_safetensors_writer_put(f->writer, grid + 1, 0, data->timestamps_s,
                                      (uint64_t)f->o.n_timestamps * sizeof *data->timestamps_s,
                                      err);
    if (!s && data->preprocessing)
        s = qv_safetensors_writer_amend(f->writer, QV_TOKEN_FILE_PREPROCESSING, data->preprocessing,
                                        err);
    return s;
}

qv_status
qv_token_file_end(struct qv_token_file **file, const struct qv_token_file_data *data, qv_error *err)
{
    struct qv_token_file *f = *file;
    *file = NULL;
    if (!f)
        return QV_OK;
    qv_status s = data ? fill_in(f, data, err) : QV_OK;
    if (data && !s)
        s = qv_safetensors_writer_finish(&f->writer, err);
    qv_safetensors_writer_abort(&f->writer);
    free(f);
    return s;
}

qv_status
qv_token_file_save(const struct qv_token_file_options *options,
                   const struct qv_token_file_data *data, const char *const (*metadata)[2],
                   size_t n_metadata, qv_error *err)
{
    struct qv_token_file *f = NULL;
    qv_status s = qv_token_file_begin(options, metadata, n_metadata, &f, err);
    if (!s)
        s = qv_token_file_rows(f, data, 0, options->rows, err);
    const qv_status ended = qv_token_file_end(&f, s ? NULL : data, err);
    return s ? s : ended;
}
