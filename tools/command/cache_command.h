/* SPDX-License-Identifier: MIT */
/* Declarations that the parts of `qwenvit cache` share. */
#ifndef QV_TOOLS_CACHE_COMMAND_H
#define QV_TOOLS_CACHE_COMMAND_H

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

/* Removes keys from all parts, and reports it. Returns an exit code. */
int tool_cache_remove_keys(const struct tool_options *o, const char *const *keys, size_t n);
/* estimate.c: estimates what a run would take. Returns an exit code. */
int tool_cache_estimate(const struct tool_options *o);
/* Makes a cache like `qwenvit cache fill`, but without catching signals, on devices that are open;
 * if there are none, it opens them. */
struct tool_devices;
struct tool_cache_times {
    double list_s, look_s, job_s; /* time to read the list; to find what the cache lacks of it; to
                                   * compute that */
};
int tool_cache_run_on(const struct tool_options *o, struct tool_devices *devices,
                      struct tool_cache_times *times);

#endif
