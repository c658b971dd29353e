/* SPDX-License-Identifier: MIT */
/* Estimates what a list of clips amounts to, before anything is computed. */
#ifndef QV_TOOLS_ESTIMATE_H
#define QV_TOOLS_ESTIMATE_H

#include "list.h"
#include "tool.h"

/* Sums over the whole list, scaled up from the clips that were opened: all of them, or a sample at
 * equal distances. */
struct tool_estimate {
    int64_t n, opened, unusable; /* clips of the list; clips that were opened; clips of these that
                                  * cannot be used */
    double images, frames, source_frames, tokens;
};

/* The rules by which frames are chosen: a model's numbers, or those of the published files. */
struct tool_rules {
    qv_preprocess image, video;
};
struct tool_rules tool_rules_of(const qv_model_info *model); /* NULL: the published numbers */

/* Opens clips for their sizes, and reports those that cannot be used. Returns QV_ENOMEM or
 * QV_EBACKEND. */
qv_status tool_estimate_list(const struct tool_options *o, const struct tool_list *list,
                             const struct tool_rules *rules, struct tool_estimate *out,
                             qv_error *err);
/* Returns the sums for tool_show, with TOOL_ESTIMATE_TEXT; NULL for lack of memory. */
json_t *tool_estimate_json(const struct tool_estimate *e);
/* Returns what tokens take on a disk, as text; NULL for lack of memory. */
json_t *tool_disk_json(double bytes, qv_dtype dtype, int64_t width, int n_deepstack);
#define TOOL_ESTIMATE_TEXT                                                                         \
    "  clips      {clips}, {text.images|0f} of them images[text.sampled?; estimated from "         \
    "{opened} "                                                                                    \
    "of them, evenly spaced][unusable?; {unusable} of {opened} cannot be used]\n"                  \
    "  frames     {text.frames|0f} to decode and keep, of {text.source_frames|0f} that the clips " \
    "have\n"                                                                                       \
    "  tokens     {text.tokens|0f}\n"

/* Runs `info --list`: reports the sums. model is NULL, or the model that would make the tokens.
 * Returns an exit code. */
int tool_info_list(const struct tool_options *o, const qv_model_info *model);

#endif
