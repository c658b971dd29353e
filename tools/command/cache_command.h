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
/* Opens a fill and adds each line to it, with one warning for all clips whose files are gone.
 * wanted is [list->n], or NULL; *n_wanted begins as 0. */
qv_status tool_cache_find_work(const char *dir, const qv_cache_fill_options *options,
                               const struct tool_list *list, bool *wanted, int64_t *n_wanted,
                               qv_cache_fill **out, qv_error *err);
/* Returns what is not compared of a clip's file. */
qv_cache_trust tool_cache_trust(const struct tool_options *o);

int tool_cache_remove_keys(const struct tool_options *o, const char *const *keys, size_t n);
/* ---- estimate.c ------------------------------------------------------------------------------ */

int tool_cache_estimate(const struct tool_options *o);

/* Runs `info --list`: reports the sums. model is NULL, or the model that would make the tokens.
 * Returns an exit code. */
int tool_info_list(const struct tool_options *o, const qv_model_info *model);
