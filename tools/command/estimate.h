/* SPDX-License-Identifier: MIT */
/* What a list of clips comes to, before anything is computed. */
#ifndef QV_TOOLS_ESTIMATE_H
#define QV_TOOLS_ESTIMATE_H

#include "list.h"
#include "tool.h"

/* Sums of all of the list, by those of its clips that were opened: all, or so many at equal distances. */
struct tool_estimate {
    int64_t n, opened, unusable; /* clips of the list; opened, some of which could not be */
    double images, frames, source_frames, tokens;
};

/* How frames are chosen: a model's numbers, or those of the published files. */
struct tool_rules {
    qv_preprocess image, video;
};
struct tool_rules tool_rules_of(const qv_model_info *model); /* NULL: no model */

/* Opens clips for their sizes. Those that cannot be are told. QV_ENOMEM, QV_EBACKEND. */
qv_status tool_estimate_list(const struct tool_options *o, const struct tool_list *list,
                             const struct tool_rules *rules, struct tool_estimate *out,
                             qv_error *err);
void tool_estimate_print(const struct tool_estimate *e);
json_t *tool_estimate_json(const struct tool_estimate *e); /* NULL for lack of memory */

/* `info --list`: the sums, told; model: NULL, or what tokens are made by. An exit code. */
int tool_info_list(const struct tool_options *o, const qv_model_info *model);

#endif
