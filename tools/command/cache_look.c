/* SPDX-License-Identifier: MIT */
/* qwenvit cache --status, --get, --check and --keys. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache_command.h"
#include "error.h"
#include "files/json.h"
#include "files/token_file.h"
#include "files/utf8.h"

/* ---- --status -------------------------------------------------------------------------------- */

/* Counts of all keys, or of the keys in a list. */
struct status {
    qv_cache_info info;
    int64_t ok, failed, missing, changed, gone;
    json_t *failures; /* records with "key", "code" and "error" */
};

/* Reports a failed key: adds its record to the failures, or prints its error. */
static qv_status
tell_failure(const struct tool_options *o, const qv_cache *c, int64_t i, struct status *st,
             qv_error *err)
{
    char *text = NULL;
    qv_status s = qv_cache_record(c, i, &text, err);
    json_t *record = NULL;
    if (!s)
        s = qv_json_parse("a record", text, strlen(text), QV_JSON_MAX_BRACKETS, &record, err);
    free(text);
    if (s)
        return s;
    const char *key = json_string_value(json_object_get(record, "key"));
    const char *error = json_string_value(json_object_get(record, "error"));
    const bool named = key && error && !strncmp(error, key, strlen(key));
    if (!o->json)
        tool_complain("%s%s%s", named ? "" : key, named ? "" : ": ",
                      error ? error : "its record has no reason");
    else if (json_array_append(st->failures, record))
        s = qv_fail(err, QV_ENOMEM, "no memory for failures");
    json_decref(record);
    return s;
}

static qv_status
count_list(const struct tool_options *o, const qv_cache *c, struct status *st, qv_error *err)
{
    struct tool_list list = { 0 };
    const qv_status s = tool_cache_list(o, &list, err);
    char options[QV_CACHE_OPTIONS_BYTES];
    for (size_t i = 0; i < list.n && !s; i++) {
        const qv_cache_source source = tool_cache_source(&list.at[i], options);
        switch (qv_cache_compare(c, list.at[i].key, &source, tool_cache_trust(o))) {
        case QV_CACHE_SOURCE_GONE: st->gone++; /* fall through */
        case QV_CACHE_DONE: st->ok++; break;
        case QV_CACHE_FAILED: st->failed++; break;
        case QV_CACHE_CHANGED: st->changed++; break;
        case QV_CACHE_MISSING:
        case QV_CACHE_STATE_MAX: st->missing++; break;
        }
    }
    tool_list_free(&list);
    return s;
}

static qv_status
look_at(const struct tool_options *o, const qv_cache *c, struct status *st, qv_error *err)
{
    qv_status s = QV_OK;
    qv_cache_get_info(c, &st->info);
    st->ok = st->info.n_ok;
    st->failed = st->info.n_failed;
    if (o->list) {
        st->ok = st->failed = 0;
        s = count_list(o, c, st, err);
    }
    for (int64_t i = 0; i < st->info.n_ok + st->info.n_failed && st->info.n_failed && !s; i++) {
        qv_cache_item item;
        s = qv_cache_at(c, i, &item, err);
        if (!s && item.status)
            s = tell_failure(o, c, i, st, err);
    }
    return s;
}

static json_t *
damage_json(const qv_cache *c)
{
    json_t *list = json_array();
    for (int64_t i = 0; qv_cache_damage(c, i, NULL); i++)
        json_array_append_new(list, tool_json_text(qv_cache_damage(c, i, NULL)));
    return list;
}

/* Returns the model that made the cache, from its description; NULL for lack of memory. */
static json_t *
model_json(const qv_cache_info *in)
{
    json_error_t why;
    json_t *all = json_loads(in->made_by, 0, &why);
    json_t *model = json_object_get(all, "model"), *type = json_object_get(all, "model_type");
    json_t *j = json_is_object(model) ? json_copy(model) : json_object();
    if (type && json_object_set(j, "type", type)) {
        json_decref(j);
        j = NULL;
    }
    json_decref(all);
    return j;
}

/* Returns the model's name, type and folder as texts. */
static json_t *
model_texts(const json_t *model)
{
    static const char *const fields[] = { "name", "type", "folder" };
    json_t *texts = json_array();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char quoted[QV_QUOTE_SIZE];
        const char *text = json_string_value(json_object_get(model, fields[i]));
        if (text)
            json_array_append_new(texts, json_string(i == 1 ? text : qv_json_quote(text, quoted)));
    }
    return texts;
}

static const char status_text[] =
    "{text.path}: {ok} ok, {failed} failed[text.listed?, {missing} missing, {changed} changed "
    "since]; "
    "{bytes|GB} of tokens, {text.size|GB} in {parts} parts[damaged?, {text.n_damaged} damaged]\n"
    "[text.model?  model      {text.model|, }\n]"
    "[gone?  gone       {gone} of the ok have no files any more; their tokens count\n]"
    "[text.prunable?  prunable   {superseded} superseded records with {superseded_bytes|GB} of "
    "tokens, {damaged_bytes|GB} in damaged parts (--prune)\n]";

static qv_status
print_status(const struct tool_options *o, const qv_cache *c, struct status *st, qv_error *err)
{
    const qv_cache_info *in = &st->info;
    json_t *model = model_json(in);
    json_t *text =
        json_pack("{s:o, s:b, s:I, s:I, s:o, s:b}", "path", json_string_nocheck(o->out), "listed",
                  o->list != NULL, "size", (json_int_t)(in->part_bytes + in->damaged_bytes),
                  "n_damaged", (json_int_t)in->n_damaged, "model", model_texts(model), "prunable",
                  in->n_superseded || in->n_damaged);
    json_t *j =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:O}", "cache",
                  tool_json_text(o->out), "ok", (json_int_t)st->ok, "failed",
                  (json_int_t)st->failed, "bytes", (json_int_t)in->bytes, "part_bytes",
                  (json_int_t)in->part_bytes, "parts", (json_int_t)in->n_parts, "superseded",
                  (json_int_t)in->n_superseded, "superseded_bytes",
                  (json_int_t)in->superseded_bytes, "damaged_bytes", (json_int_t)in->damaged_bytes,
                  "model", model, "damaged", damage_json(c), "failures", st->failures);
    int lost = json_object_set_new(j, "text", text);
    if (o->list)
        lost |= json_object_update_new(j, json_pack("{s:I, s:I, s:I}", "missing",
                                                    (json_int_t)st->missing, "changed",
                                                    (json_int_t)st->changed, "gone",
                                                    (json_int_t)st->gone));
    return tool_show(o, j, lost, status_text, err);
}

int
tool_cache_status(const struct tool_options *o)
{
    qv_error err = { 0 };
    qv_cache *c = NULL;
    struct status st = { .failures = json_array() };
    qv_status s = st.failures ? tool_cache_open(o, &c, &err)
                              : qv_fail(&err, QV_ENOMEM, "no memory for failures");
    if (!s)
        s = look_at(o, c, &st, &err);
    if (!s)
        s = print_status(o, c, &st, &err);
    const int code = s ? tool_fail(s, &err) : st.info.n_damaged ? TOOL_FAILED : TOOL_DONE;
    json_decref(st.failures);
    qv_cache_close(&c);
    return code;
}

/* ---- --get ----------------------------------------------------------------------------------- */

static qv_status
write_item(const struct tool_options *o, const qv_cache_info *info, const qv_cache_item *item,
           const char *record, qv_error *err)
{
    const char *const metadata[][2] = { { "format", "qwenvit" },
                                        { "qwenvit_version", qv_version() },
                                        { "key", item->key },
                                        { "record", record },
                                        { "cache", info->made_by } };
    const qv_cache_layout *l = &info->layout;
    const struct qv_token_file_options options = { .path = o->output,
                                                   .source = item->key,
                                                   .dtype = l->dtype,
                                                   .rows = item->rows,
                                                   .width = l->width,
                                                   .n_grids = 1,
                                                   .n_timestamps = item->n_timestamps,
                                                   .n_deepstack = l->n_deepstack,
                                                   .packed = l->packed };
    const struct qv_token_file_data data = { .tokens = item->tokens,
                                             .deepstack = item->deepstack,
                                             .grid_thw = item->grid_thw,
                                             .timestamps_s = item->timestamps_s };
    return qv_token_file_save(&options, &data, metadata, sizeof metadata / sizeof *metadata, err);
}

static qv_status
get(const struct tool_options *o, const qv_cache *c, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    qv_cache_info info;
    int64_t i = 0;
    char *key = qv_utf8_text(o->cache_get), *record = NULL;
    if (!key)
        return qv_fail(err, QV_ENOMEM, "no memory for a key");
    qv_cache_get_info(c, &info);
    qv_cache_item item = { .key = NULL };
    qv_status s = qv_cache_find(c, key, &item, err);
    if (!s && !item.key)
        s = qv_fail(err, QV_EFORMAT, "%s: there is no key %s", o->out, qv_json_quote(key, quoted));
    free(key);
    if (!s)
        i = item.index;
    if (!s)
        s = qv_cache_record(c, i, &record, err);
    if (!s && item.status)
        s = qv_fail(err, QV_EFORMAT, "%s: this key has failed: %s", o->out, record);
    if (!s)
        s = qv_cache_verify(c, i, err);
    if (!s)
        s = qv_cache_hold(c, &item, err);
    if (!s)
        s = write_item(o, &info, &item, record, err);
    qv_cache_release(c, &item);
    free(record);
    return s;
}

int
tool_cache_get(const struct tool_options *o)
{
    qv_error err = { 0 };
    qv_cache *c = NULL;
    qv_status s = tool_cache_open(o, &c, &err);
    if (!s)
        s = get(o, c, &err);
    qv_cache_close(&c);
    return s ? tool_fail(s, &err) : TOOL_DONE;
}

/* ---- --check --------------------------------------------------------------------------------- */

/* Counts the damaged parts that are superseded. */
static int64_t
count_superseded(const qv_cache *c)
{
    int64_t n = 0;
    bool superseded;
    for (int64_t i = 0; qv_cache_damage(c, i, &superseded); i++)
        n += superseded;
    return n;
}

static qv_status
check(const struct tool_options *o, const qv_cache *c, int64_t *n_bad, qv_error *err)
{
    qv_cache_info info;
    struct tool_progress bar;
    qv_cache_get_info(c, &info);
    const int64_t n = info.n_ok + info.n_failed;
    tool_progress_begin(&bar, "checking", n, o->quiet);
    bar.unit = "keys";
    for (int64_t i = 0; i < n; i++) {
        qv_error why = { 0 };
        const qv_status s = qv_cache_verify(c, i, &why);
        if (s == QV_ENOMEM) {
            *err = why;
            return s;
        }
        if (s) {
            tool_complain("%s", why.text);
            ++*n_bad;
        }
        tool_progress_show(&bar, i + 1);
    }
    tool_progress_end(&bar, n);
    json_t *j =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:o, s:{s:o, s:I}}", "cache", tool_json_text(o->out),
                  "keys", (json_int_t)n, "bad", (json_int_t)*n_bad, "parts",
                  (json_int_t)info.n_parts, "damaged_superseded", (json_int_t)count_superseded(c),
                  "damaged", damage_json(c), "text", "path", json_string_nocheck(o->out),
                  "n_damaged", (json_int_t)info.n_damaged);
    return tool_show(o, j, 0,
                     "{text.path}: {keys} keys in {parts} parts: {bad} bad keys, {text.n_damaged} "
                     "damaged parts[damaged_superseded?, {damaged_superseded} of them superseded "
                     "(--prune)]\n"
                     "[bad?--delete KEY removes a bad key, and the next run makes it again\n]",
                     err);
}

int
tool_cache_check(const struct tool_options *o)
{
    qv_error err = { 0 };
    qv_cache *c = NULL;
    int64_t n_bad = 0;
    qv_status s = tool_cache_open(o, &c, &err);
    if (!s)
        s = check(o, c, &n_bad, &err);
    qv_cache_info info = { .n_damaged = 0 };
    if (c)
        qv_cache_get_info(c, &info);
    const bool bad = n_bad || (c && count_superseded(c) < info.n_damaged);
    qv_cache_close(&c);
    return s ? tool_fail(s, &err) : bad ? TOOL_FAILED : TOOL_DONE;
}

/* ---- --keys ---------------------------------------------------------------------------------- */

/* Prints a key on a line; a key with control characters as a JSON string, in which they are
 * escaped. */
static void
print_key(const char *key)
{
    json_t *json = qv_is_printable(key) ? NULL : json_string(key);
    char *text = json ? tool_json_line(json) : NULL;
    tool_print("%s\n", text ? text : key);
    free(text);
    json_decref(json);
}

static qv_status
print_record(const struct tool_options *o, const qv_cache *c, const qv_cache_item *item,
             qv_error *err)
{
    char *text = NULL;
    json_t *record = NULL;
    qv_status s = qv_cache_record(c, item->index, &text, err);
    if (!s)
        s = qv_json_parse("a record", text, strlen(text), QV_JSON_MAX_BRACKETS, &record, err);
    free(text);
    if (!s && (json_object_set_new(record, "part", tool_json_text(item->part)) ||
               json_object_set_new(record, "tokens", json_integer(item->rows)))) {
        json_decref(record);
        s = qv_fail(err, QV_ENOMEM, "no memory for a record");
    }
    return s ? s : tool_emit_json(o, record, err);
}

int
tool_cache_keys(const struct tool_options *o)
{
    qv_error err = { 0 };
    qv_cache *c = NULL;
    qv_cache_info info = { .n_ok = 0 };
    qv_status s = tool_cache_open(o, &c, &err);
    if (!s)
        qv_cache_get_info(c, &info);
    for (int64_t i = 0; i < info.n_ok + info.n_failed && !s; i++) {
        qv_cache_item item;
        s = qv_cache_at(c, i, &item, &err);
        if (!s && o->json)
            s = print_record(o, c, &item, &err);
        else if (!s && !item.status)
            print_key(item.key);
    }
    qv_cache_close(&c);
    return s ? tool_fail(s, &err) : info.n_damaged ? TOOL_FAILED : TOOL_DONE;
}
