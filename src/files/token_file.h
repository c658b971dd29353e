/* SPDX-License-Identifier: MIT */
/* A safetensors file of one source's tokens, as `encode`, `cache get` and Python's save()
 * write it. It appears whole or not at all. */
#pragma once

#include <stdio.h>
#include <string.h>

#include "qwenvit.h"
#include "qwenvit_clips.h"

/* The file holds tokens [rows, width] and DeepStack's outputs of the same shape; the last block's
 * rows, hidden [rows * patches, hidden], unless hidden is 0; grid_thw [n_grids, 3]; and timestamps
 * [n_timestamps]. */
struct qv_token_file_options {
    const char *path;   /* of the file to write */
    const char *source; /* for error texts */
    qv_dtype dtype;     /* dtype of the tokens: f32 or bf16 */
    int64_t rows, width, n_grids, n_timestamps;
    int n_deepstack;
    int64_t hidden, patches; /* patches of a token */
};

/* Writes the name of matrix i: "tokens", "deepstack.0", ... */
static inline void
qv_token_file_name(int i, char out[24])
{
    if (i)
        snprintf(out, 24, "deepstack.%d", i - 1);
    else
        strcpy(out, "tokens");
}

/* The origin of tokens. A NULL text is not written; digest "": unknown. */
struct qv_token_file_origin {
    const char *source; /* path, or key, in UTF-8 */
    const char *model, *digest, *identity, *precision, *backend,
        *device;               /* as in qv_model_info and qv_context_info */
    const char *preprocessing; /* of qv_token_file_preprocessing */
};

enum { QV_TOKEN_FILE_TEXTS = 10 };
#define QV_TOKEN_FILE_PREPROCESSING "preprocessing"

/* Sets the metadata of a file in order. Returns the number of pairs; their texts are `origin`'s. */
size_t qv_token_file_metadata(const struct qv_token_file_origin *origin,
                              const char *metadata[QV_TOKEN_FILE_TEXTS][2]);

/* Returns how a clip's or image's frames were made, as JSON text that the caller free()s: as known
 * when the file is opened or, with at_end, once all frames are decoded and damaged_frames is known.
 * NULL if out of memory. */
char *qv_token_file_preprocessing(const qv_outcome *outcome, bool at_end);

struct qv_token_file;

/* What is in a file. */
struct qv_token_file_data {
    const void *tokens, *const *deepstack, *hidden; /* hidden: the rows of these tokens */
    /* what is known only at the end */
    const int64_t *grid_thw;
    const double *timestamps_s;
    const char *preprocessing; /* replaces the metadata's; NULL: that stays */
};

/* Begins a file. metadata[n_metadata] are pairs of a key and a value. */
qv_status qv_token_file_begin(const struct qv_token_file_options *options,
                              const char *const (*metadata)[2], size_t n_metadata,
                              struct qv_token_file **out, qv_error *err);
/* Writes rows [first, first + n) of tokens, and those that belong to them. */
qv_status qv_token_file_rows(struct qv_token_file *file, const struct qv_token_file_data *data,
                             int64_t first, int64_t n, qv_error *err);
/* Writes what is known only at the end, and has the file appear under its name; with NULL, or if
 * that fails, the file is removed. Frees *file, which may be NULL. */
qv_status qv_token_file_end(struct qv_token_file **file, const struct qv_token_file_data *data,
                            qv_error *err);
/* Writes a whole file of tokens that are in memory. */
qv_status qv_token_file_save(const struct qv_token_file_options *options,
                             const struct qv_token_file_data *data,
                             const char *const (*metadata)[2], size_t n_metadata, qv_error *err);
