/* SPDX-License-Identifier: MIT */
/* qwenvit cache: chooses the mode, and has functions that all modes need. */
#include "cache_command.h"

#include "error.h"

qv_cache_source
tool_cache_source(const struct tool_entry *entry, char options[QV_CACHE_OPTIONS_BYTES])
{
    return qv_cache_source_of(entry->path, entry->own, options);
}

static qv_status
check_key(const struct tool_options *o, const struct tool_entry *entry, qv_error *err)
{
    char key[QV_CACHE_MAX_KEY + 1];
    qv_error why = { 0 };
    const qv_status s = qv_cache_key(entry->key, key, &why);
    return s ? qv_fail(err, s, "%s:%zu: %s", qv_path_tail(o->list), entry->line, why.text) : s;
}

qv_status
tool_cache_list(const struct tool_options *o, struct tool_list *list, qv_error *err)
{
    if (!o->list)
        return QV_OK;
    qv_status s = tool_list_read(o->list, list, err);
    if (!s)
        s = tool_check_list_outputs(o, list, err);
    const uint64_t n_shards = o->shard[1] > 0 ? (uint64_t)o->shard[1] : 1;
    size_t n = 0;
    for (size_t i = 0; i < list->n && !s; i++) {
        const struct tool_entry *entry = &list->at[i];
        s = check_key(o, entry, err);
        if (qv_cache_key_hash(entry->key) % n_shards == (uint64_t)o->shard[0])
            list->at[n++] = *entry;
    }
    list->n = s ? list->n : n;
    return s;
}

qv_cache_trust
tool_cache_trust(const struct tool_options *o)
{
    return o->trust_keys  ? QV_CACHE_TRUST_KEYS
           : o->same_size ? QV_CACHE_TRUST_TIMES
                          : QV_CACHE_TRUST_NOTHING;
}

void
tool_cache_tell_damage(const qv_cache *cache)
{
    const char *words;
    bool superseded;
    for (int64_t i = 0; cache && (words = qv_cache_damage(cache, i, &superseded)) != NULL; i++)
        tool_complain("%s; %s", words,
                      superseded
                          ? "it is superseded: its keys have better records elsewhere, and --prune "
                            "removes it"
                          : "what it has is passed over");
}

qv_status
tool_cache_open(const struct tool_options *o, qv_cache **out, qv_error *err)
{
    const qv_status s = qv_cache_open(o->out, out, err);
    if (!s)
        tool_cache_tell_damage(*out);
    return s;
}

/* Counts the modes other than making a cache that the options ask for. */
static int
count_asked(const struct tool_options *o)
{
    return o->cache_status + (o->cache_get != NULL) + o->cache_check + o->cache_keys +
           (o->cache_prune || o->n_delete_keys);
}

static const char *
find_wrong(const struct tool_options *o)
{
    const int asked = count_asked(o);
    const bool prunes = o->cache_prune || o->n_delete_keys;
    return !o->out          ? "--out DIR is required"
           : o->n_arguments ? "clips are given by --list FILE"
           : asked > 1
               ? "--status, --get, --check, --keys and --prune with --delete exclude each other"
           : o->cache_get && !o->output ? "--get KEY needs -o FILE"
           : o->output && !o->cache_get ? "-o FILE goes with --get KEY"
           : asked && o->model          ? "--model DIR is for making a cache"
           : o->list && asked && !o->cache_status && !o->cache_prune
               ? "--list FILE is for making a cache, --status and --prune"
           : prunes && o->shard[1] ? "--shard is for making a cache and --status"
           : o->dry_run && asked && !prunes
               ? "--dry-run is for making a cache, --prune and --delete"
           : o->no_lock && !prunes                  ? "--no-lock is for --prune and --delete"
           : o->rate > 0 && (!o->dry_run || prunes) ? "--rate N is for --dry-run of making a cache"
           : !asked && !o->model                    ? "--model DIR is required"
           : !asked && !o->list                     ? "--list FILE is required"
           : o->clip.fps > 0 && o->clip.num_frames  ? "--fps and --num-frames exclude each other"
                                                    : NULL;
}

int
tool_cache(const struct tool_options *o)
{
    const char *wrong = find_wrong(o);
    if (wrong) {
        tool_complain("cache: %s (qwenvit cache --help)", wrong);
        return TOOL_USAGE;
    }
    return o->cache_status                      ? tool_cache_status(o)
           : o->cache_get                       ? tool_cache_get(o)
           : o->cache_check                     ? tool_cache_check(o)
           : o->cache_keys                      ? tool_cache_keys(o)
           : o->cache_prune || o->n_delete_keys ? tool_cache_prune(o)
           : o->dry_run                         ? tool_cache_estimate(o)
                                                : tool_cache_run(o);
}
