/* SPDX-License-Identifier: MIT */
/* What the parts of `qwenvit cache` share. */
#ifndef QV_TOOLS_CACHE_H
#define QV_TOOLS_CACHE_H

#include "list.h"
#include "qwenvit_cache.h"
#include "tool.h"

/* qv_cache_source_of a line, whose file is looked at. */
qv_cache_source tool_cache_source(const struct tool_entry *entry,
                                  char options[QV_CACHE_OPTIONS_BYTES]);
/* The list of the options, if there is one, with keys that caches can have; those of other shards are
 * taken out. */
qv_status tool_cache_list(const struct tool_options *o, struct tool_list *list, qv_error *err);
/* Tells what is damaged of a cache; NULL: nothing. */
void tool_cache_tell_damage(const qv_cache *cache);
/* Opens OUT, and tells what is damaged of it. */
qv_status tool_cache_open(const struct tool_options *o, qv_cache **out, qv_error *err);
/* Asks the fill of each line; one warning for all whose files are gone. wanted: [list->n], or NULL. */
struct qv_cache_fill;
qv_status tool_cache_add_list(struct qv_cache_fill *fill, const struct tool_list *list,
                              bool *wanted, int64_t *n_wanted, qv_error *err);
/* What of a clip's file is not compared. */
qv_cache_trust tool_cache_trust(const struct tool_options *o);

/* Each returns an exit code, told. */
int tool_cache_status(const struct tool_options *o);
int tool_cache_get(const struct tool_options *o);
int tool_cache_check(const struct tool_options *o);
int tool_cache_keys(const struct tool_options *o);
int tool_cache_prune(const struct tool_options *o);    /* --delete as well */
int tool_cache_estimate(const struct tool_options *o); /* what a run would take */
int tool_cache_run(const struct tool_options *o);
/* The same without signals, on devices that are open or (none of them) are opened. */
struct tool_devices;
struct tool_cache_times {
    double list_s, look_s, job_s; /* reading the list; what the cache lacks of it; making that */
};
int tool_cache_run_on(const struct tool_options *o, struct tool_devices *devices,
                      struct tool_cache_times *times);

#endif
