/* SPDX-License-Identifier: MIT */
/* qwenvit cache prune and delete: the verbs that remove from a cache. */
#include <stdlib.h>

#include "cache_command.h"
#include "error.h"
#include "path.h"

static void
tell(void *user, const char *words)
{
    (void)user;
    tool_complain("%s", words);
}

static bool
go_on(void *user, int64_t parts_done, int64_t n_parts)
{
    struct tool_progress *bar = user;
    bar->total = n_parts;
    tool_progress_show(bar, parts_done);
    return !tool_signals_caught();
}

static qv_status
report(const struct tool_options *o, const qv_cache_pruned *n, qv_error *err)
{
    json_t *j = tool_json("cache:t dry_run:b records:I keys:I missing:I rewritten:I removed:I "
                          "damaged:I left:I freed_bytes:I beside_bytes:I interrupted:b",
                          o->out, o->dry_run, n->records, n->keys, n->missing, n->rewritten,
                          n->removed, n->broken, n->left, n->freed, n->beside, n->stopped);
    return tool_show(
        &o->to, j,
        "{cache}: {records} record{records|s} [dry_run?would be ]removed, including every record "
        "of "
        "{keys} key{keys|s}; {rewritten} part{rewritten|s} [dry_run?would be ]rewritten, "
        "{removed} removed, {damaged} damaged removed; {freed_bytes|GB} [dry_run?would be ]freed, "
        "at most {beside_bytes|GB} of extra space needed meanwhile\n",
        err);
}

/* Reports the keys to delete that are not in the cache. If the cache cannot be opened, pruning
 * reports that. */
static void
tell_missing(const struct tool_options *o, const qv_cache_prune_options *options)
{
    qv_cache *c = NULL;
    const size_t n = options->n_drop && !qv_cache_open(o->out, &c, NULL) ? options->n_drop : 0;
    for (size_t i = 0; i < n; i++) {
        qv_cache_item item = { .key = NULL };
        if (!qv_cache_find(c, options->drop[i], &item, NULL) && !item.key)
            tool_complain("%s: no key \"%s\"", o->out, options->drop[i]);
    }
    qv_cache_close(&c);
}

/* Removes the records that the options name. A signal ends it between two parts. */
static int
remove_from(const struct tool_options *o, qv_cache_prune_options options, qv_error *err)
{
    struct tool_progress bar;
    qv_cache_pruned n;
    if (!qv_cache_exists(o->out))
        return tool_fail(qv_fail(err, QV_EIO, "%s: not a cache: qwenvit-cache.json is missing",
                                 o->out),
                         err);
    tell_missing(o, &options);
    options.dry_run = o->dry_run;
    options.no_lock = o->no_lock;
    options.told = tell;
    options.go_on = go_on;
    options.user = &bar;
    tool_signals_defer();
    tool_progress_begin(&bar, "pruning", 0, o->to.quiet);
    bar.unit = "parts";
    qv_status s = qv_cache_prune(o->out, &options, &n, err);
    tool_bar_end();
    if (s)
        return tool_fail(s == QV_EFORMAT ? s : QV_EBACKEND, err);
    s = report(o, &n, err);
    if (tool_signals_caught())
        tool_complain("interrupted between two parts; run it again to continue");
    return s ? tool_fail(s, err) : n.missing || n.left ? TOOL_FAILED : TOOL_DONE;
}

int
tool_cache_prune(const struct tool_options *o)
{
    qv_error err = { 0 };
    struct tool_list list = { .n = 0 };
    qv_status s = tool_cache_list(o, &list, &err);
    const char **keep = s ? NULL : calloc(list.n + 1, sizeof *keep);
    if (!s && o->list && !list.n)
        s = qv_fail(&err, QV_EFORMAT,
                    "%s: the list is empty; to remove a whole cache, delete its folder", o->list);
    else if (!s && !keep)
        s = qv_fail(&err, QV_ENOMEM, "no memory for %zu keys", list.n);
    for (size_t i = 0; i < list.n && !s; i++)
        keep[i] = list.at[i].key;
    const qv_cache_prune_options options = { .superseded = true,
                                             .keep = o->list ? keep : NULL,
                                             .n_keep = list.n };
    const int code = s ? tool_fail(s, &err) : remove_from(o, options, &err);
    free(keep);
    tool_list_free(&list);
    tool_signals_obey();
    return code;
}

int
tool_cache_remove_keys(const struct tool_options *o, const char *const *keys, size_t n)
{
    qv_error err = { 0 };
    return remove_from(o, (qv_cache_prune_options){ .drop = keys, .n_drop = n }, &err);
}

int
tool_cache_delete(const struct tool_options *o)
{
    qv_error err = { 0 };
    const size_t n = o->n_arguments;
    char **drop = calloc(n, sizeof *drop); /* as caches spell keys */
    bool lost = !drop;
    for (size_t i = 0; i < n && !lost; i++)
        lost = (drop[i] = qv_utf8_text(o->arguments[i])) == NULL;
    const int code = lost ? tool_fail(qv_fail(&err, QV_ENOMEM, "no memory for %zu keys", n), &err)
                          : tool_cache_remove_keys(o, (const char *const *)drop, n);
    for (size_t i = 0; i < n && drop; i++)
        free(drop[i]);
    free(drop);
    tool_signals_obey();
    return code;
}
