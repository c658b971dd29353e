/* SPDX-License-Identifier: MIT */
/* A file of tokens that is being made. It appears whole, or not at all. */
#ifndef QV_TOOLS_OUTBOX_H
#define QV_TOOLS_OUTBOX_H

#include "qwenvit.h"

struct tool_outbox;

/* The file holds tokens and DeepStack's outputs [rows, width], grid_thw [1, 3] and timestamps
 * [n_timestamps]. */
struct tool_outbox_options {
    const char *path;   /* of the file */
    const char *source; /* for error texts */
    qv_dtype dtype;     /* of tokens: f32 or bf16 */
    int64_t rows, width, n_timestamps;
    int n_deepstack;
};
/* metadata[n_metadata]: keys and values. */
qv_status tool_outbox_open(const struct tool_outbox_options *options,
                           const char *const (*metadata)[2], size_t n_metadata,
                           struct tool_outbox **out, qv_error *err);
/* Removes what was not committed. */
void tool_outbox_close(struct tool_outbox **b);

/* Rows [first, first + n) of tokens and of each of DeepStack's outputs. */
qv_status tool_outbox_put(struct tool_outbox *b, const void *tokens, const void *const *deepstack,
                          int64_t first, int64_t n, qv_error *err);

/* What is known at the end: grid_thw [3], timestamps, and the value of a metadata's key. */
qv_status tool_outbox_fill_in(struct tool_outbox *b, const int64_t *grid_thw,
                              const double *timestamps_s, const char *key, const char *value,
                              qv_error *err);
/* The file appears. */
qv_status tool_outbox_commit(struct tool_outbox *b, qv_error *err);

#endif
