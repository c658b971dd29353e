/* SPDX-License-Identifier: MIT */
/* Estimates what a list of clips amounts to, before anything is computed. */
#ifndef QV_TOOLS_ESTIMATE_H
#define QV_TOOLS_ESTIMATE_H

#include "list.h"
#include "tool.h"

/* The rules by which frames are chosen: a model's numbers, or those of the published files. */
struct tool_rules {
    qv_preprocess image, video;
};
struct tool_rules tool_rules_of(const qv_model_info *model); /* NULL: the published numbers */

/* Runs `info --list`: reports the sums. model is NULL, or the model that would make the tokens.
 * Returns an exit code. */
int tool_info_list(const struct tool_options *o, const qv_model_info *model);

/* measure.c: encodes clips on the devices of the options, and discards the tokens. */
struct tool_measured {
    int64_t clips, tokens;  /* of those that did not fail */
    double seconds, load_s; /* load_s: before the others */
};
qv_status tool_measure(const struct tool_options *o, const struct tool_entry *const *clips,
                       size_t n, struct tool_measured *out, qv_error *err);

#endif
