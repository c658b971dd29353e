/* SPDX-License-Identifier: MIT */
/* Declarations that the parts of `qwenvit cache`, and what estimates a list, share. */
#pragma once

#include "list.h"
#include "qwenvit_cache.h"
#include "tool.h"

/* Reads the list of the options, if there is one. It checks that caches can have the keys, and
 * leaves out those of other shards. */
qv_status tool_cache_list(const struct tool_options *o, struct tool_list *list, qv_error *err);
/* Reports the damaged parts of a cache; NULL: nothing to report. */
void tool_cache_tell_damage(const qv_cache *cache);
/* Adds each line to the fill, with one warning for all clips whose files are gone. wanted is
 * [list->n], or NULL. */
struct qv_cache_fill;
qv_status tool_cache_add_list(struct qv_cache_fill *fill, const struct tool_list *list,
                              bool *wanted, int64_t *n_wanted, qv_error *err);
/* Returns what is not compared of a clip's file. */
qv_cache_trust tool_cache_trust(const struct tool_options *o);

int tool_cache_remove_keys(const struct tool_options *o, const char *const *keys, size_t n);
/* Makes a cache like `qwenvit cache fill`, but without catching signals, on devices that are open;
 * if there are none, it opens them. */
struct tool_devices;
struct tool_cache_times {
    double list_s, look_s, job_s; /* time to read the list; to find what the cache lacks of it; to
                                   * compute that */
};
int tool_cache_run_on(const struct tool_options *o, struct tool_devices *devices,
                      struct tool_cache_times *times);

/* ---- estimate.c ------------------------------------------------------------------------------ */

int tool_cache_estimate(const struct tool_options *o);

/* The rules by which frames are chosen: a model's numbers, or those of the published files. */
struct tool_rules {
    qv_preprocess image, video;
};
struct tool_rules tool_rules_of(const qv_model_info *model); /* NULL: the published numbers */

/* Runs `info --list`: reports the sums. model is NULL, or the model that would make the tokens.
 * Returns an exit code. */
int tool_info_list(const struct tool_options *o, const qv_model_info *model);

/* Encodes clips on the devices of the options, and discards the tokens. */
struct tool_measured {
    int64_t clips, tokens;  /* of those that did not fail */
    double seconds, load_s; /* load_s: before the others */
};
qv_status tool_measure(const struct tool_options *o, const struct tool_entry *const *clips,
                       size_t n, struct tool_measured *out, qv_error *err);
