/* SPDX-License-Identifier: MIT */
/* What the verbs of `qwenvit cache` share: the list of keys, the report of damaged parts, and which
 * clips a fill must encode. */
#include "cache_command.h"
#include "error.h"
#include "job/more.h"

static qv_status
check_key(const struct tool_options *o, const struct tool_entry *entry, qv_error *err)
{
    char key[QV_CACHE_MAX_KEY + 1];
    qv_error why = { 0 };
    const qv_status s = qv_cache_key(entry->key, key, &why);
    return s && o->list ? qv_fail(err, s, "%s:%zu: %s", o->list, entry->line, why.text)
           : s          ? qv_fail(err, s, "%s", why.text)
                        : s;
}

qv_status
tool_cache_list(const struct tool_options *o, struct tool_list *list, qv_error *err)
{
    qv_status s =
        o->list ? tool_list_read(o->list, list, err)
                : tool_list_of_paths(o->arguments, o->n_arguments, o->recursive, false, list, err);
    if (!s)
        s = tool_check_list_outputs(o, list, NULL, 0, err);
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
                          ? "it is superseded: other parts have better records of its keys, and "
                            "qwenvit cache prune removes it"
                          : "its keys are skipped");
}

qv_status
tool_cache_find_work(const char *dir, const qv_cache_fill_options *options,
                     const struct tool_list *list, bool *wanted, int64_t *n_wanted,
                     qv_cache_fill **out, qv_error *err)
{
    const char *gone = NULL;
    qv_cache_fill_counts n = { .gone = 0 };
    qv_status s = qv_cache_fill_open(dir, options, out, err);
    if (s)
        return s;
    qv_cache_fill *fill = *out;
    tool_cache_tell_damage(qv_cache_fill_there(fill));
    for (size_t i = 0; i < list->n && !s; i++) {
        const struct tool_entry *entry = &list->at[i];
        bool is_wanted = false;
        s = qv_cache_fill_add(fill, entry->key, entry->path, entry->own, &is_wanted, err);
        *n_wanted += is_wanted;
        if (wanted)
            wanted[i] = is_wanted;
        if (!gone) {
            qv_cache_fill_get_counts(fill, &n);
            gone = n.gone ? entry->path : NULL;
        }
    }
    qv_cache_fill_get_counts(fill, &n);
    if (gone)
        tool_complain("the files of %lld clips no longer exist, the first is %s; their tokens stay "
                      "in the cache and count",
                      (long long)n.gone, gone);
    return s;
}
