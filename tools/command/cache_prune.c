/* SPDX-License-Identifier: MIT */
/* qwenvit cache --prune and --delete. */
#include <stdlib.h>

#include "cache_command.h"
#include "error.h"
#include "files/utf8.h"

/* The keys to keep and to drop, as caches spell them. */
struct keys {
    struct tool_list list;
    const char **keep;
    char **drop; /* [n_delete_keys] */
};

static qv_status
read_keys(const struct tool_options *o, struct keys *k, qv_error *err)
{
    qv_status s = tool_cache_list(o, &k->list, err);
    if (!s && o->list && !k->list.n)
        return qv_fail(err, QV_EFORMAT,
                       "%s: has no key; to remove all of a cache, remove its folder",
                       qv_path_tail(o->list));
    k->keep = calloc(k->list.n + 1, sizeof *k->keep);
    k->drop = calloc(o->n_delete_keys + 1, sizeof *k->drop);
    bool lost = !k->keep || !k->drop;
    for (size_t i = 0; i < k->list.n && !lost; i++)
        k->keep[i] = k->list.at[i].key;
    for (size_t i = 0; i < o->n_delete_keys && !lost; i++)
        lost = (k->drop[i] = qv_utf8_text(o->delete_keys[i])) == NULL;
    return s ? s : lost ? qv_fail(err, QV_ENOMEM, "no memory for keys") : QV_OK;
}

static void
free_keys(const struct tool_options *o, struct keys *k)
{
    for (size_t i = 0; k->drop && i < o->n_delete_keys; i++)
        free(k->drop[i]);
    free(k->drop);
    free(k->keep);
    tool_list_free(&k->list);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

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

/* ---- reporting ------------------------------------------------------------------------------- */

static qv_status
report(const struct tool_options *o, const qv_cache_pruned *n, qv_error *err)
{
    const char *is = o->dry_run ? "would be " : "";
    if (!o->json) {
        tool_print(
            "%s: %lld records %sremoved, %lld keys with all of theirs; %lld parts %srewritten, "
            "%lld "
            "removed, %lld damaged ones removed; %.3f GB %sfreed",
            o->out, (long long)n->records, is, (long long)n->keys, (long long)n->rewritten, is,
            (long long)n->removed, (long long)n->broken, (double)n->freed / 1e9, is);
        tool_print(", with %.3f GB beside at most\n", (double)n->beside / 1e9);
        return QV_OK;
    }
    json_t *j = json_pack("{s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "cache",
                          tool_json_text(o->out), "dry_run", o->dry_run, "records",
                          (json_int_t)n->records, "keys", (json_int_t)n->keys, "missing",
                          (json_int_t)n->missing, "rewritten", (json_int_t)n->rewritten, "removed",
                          (json_int_t)n->removed, "damaged", (json_int_t)n->broken, "left",
                          (json_int_t)n->left, "freed_bytes", (json_int_t)n->freed, "beside_bytes",
                          (json_int_t)n->beside, "interrupted", n->stopped);
    return j ? tool_emit_json(o, j, err) : qv_fail(err, QV_ENOMEM, "no memory for a result");
}

static int
prune(const struct tool_options *o, const struct keys *k, qv_error *err)
{
    struct tool_progress bar;
    qv_cache_pruned n;
    const qv_cache_prune_options options = { .superseded = o->cache_prune,
                                             .keep = o->list ? k->keep : NULL,
                                             .n_keep = k->list.n,
                                             .drop = (const char *const *)k->drop,
                                             .n_drop = o->n_delete_keys,
                                             .dry_run = o->dry_run,
                                             .no_lock = o->no_lock,
                                             .told = tell,
                                             .go_on = go_on,
                                             .user = &bar };
    tool_progress_begin(&bar, "pruning", 0, o->quiet);
    bar.unit = "parts";
    qv_status s = qv_cache_prune(o->out, &options, &n, err);
    tool_bar_end();
    if (s) {
        tool_complain("%s", err->text);
        return s == QV_EFORMAT ? TOOL_BAD_INPUT : TOOL_DEVICE;
    }
    if (n.missing)
        tool_complain("%s: %lld of the keys to delete were not there", o->out,
                      (long long)n.missing);
    s = report(o, &n, err);
    return s ? tool_fail(s, err) : n.missing || n.left ? TOOL_FAILED : TOOL_DONE;
}

int
tool_cache_prune(const struct tool_options *o)
{
    qv_error err = { 0 };
    struct keys k = { .keep = NULL };
    tool_signals_defer();
    qv_status s = read_keys(o, &k, &err);
    if (!s && !qv_cache_exists(o->out))
        s = qv_fail(&err, QV_EIO, "%s: there is no qwenvit-cache.json in it, so this is no cache",
                    qv_path_tail(o->out));
    const int code = s ? tool_fail(s, &err) : prune(o, &k, &err);
    free_keys(o, &k);
    if (tool_signals_caught())
        tool_complain("interrupted: no part is half done; run it again to go on");
    tool_signals_obey();
    return code;
}
