/* SPDX-License-Identifier: MIT */
/* qwenvit cache --status, --get and --check. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "files/utf8.h"

/* ---- --status -------------------------------------------------------------------------------- */

/* What there is, of all keys or of those in a list. */
struct status {
    qv_cache_info info;
    int64_t ok, failed, missing, changed;
    json_t *failures; /* {"key", "code", "error"} */
};

/* The record of a key that failed, added to the failures or said. */
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
        tool_complain("%s%s%s", named ? "" : key, named ? "" : ": ", error);
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
        switch (qv_cache_compare(c, list.at[i].key, &source)) {
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
    for (int64_t i = 0; qv_cache_damage(c, i); i++)
        json_array_append_new(list, tool_json_text(qv_cache_damage(c, i)));
    return list;
}

static qv_status
print_status(const struct tool_options *o, const qv_cache *c, struct status *st, qv_error *err)
{
    const qv_cache_info *in = &st->info;
    if (!o->json) {
        printf("%s: %lld ok, %lld failed", o->out, (long long)st->ok, (long long)st->failed);
        if (o->list)
            printf(", %lld missing, %lld changed since", (long long)st->missing,
                   (long long)st->changed);
        printf("; %.3f GB of tokens, %.3f GB in %lld parts", (double)in->bytes / 1e9,
               (double)in->part_bytes / 1e9, (long long)in->n_parts);
        printf(in->n_damaged ? ", %lld damaged\n" : "\n", (long long)in->n_damaged);
        return QV_OK;
    }
    json_t *j =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:O}", "cache", tool_json_text(o->out), "ok",
                  (json_int_t)st->ok, "failed", (json_int_t)st->failed, "bytes",
                  (json_int_t)in->bytes, "part_bytes", (json_int_t)in->part_bytes, "parts",
                  (json_int_t)in->n_parts, "damaged", damage_json(c), "failures", st->failures);
    bool bad = !j;
    if (j && o->list)
        bad = json_object_set_new(j, "missing", json_integer(st->missing)) ||
              json_object_set_new(j, "changed", json_integer(st->changed));
    if (bad) {
        json_decref(j);
        return qv_fail(err, QV_ENOMEM, "no memory for a result");
    }
    return tool_emit_json(o, j, err);
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

enum { MOST_TENSORS = 3 + QV_MAX_DEEPSTACK };

struct tensors {
    struct qv_safetensor at[MOST_TENSORS];
    const void *data[MOST_TENSORS];
    char names[MOST_TENSORS][24];
    size_t n;
};

static void
add_tensor(struct tensors *t, const char *name, const char *dtype, int64_t rows, int64_t columns,
           const void *data)
{
    struct qv_safetensor *to = &t->at[t->n];
    memset(to, 0, sizeof *to);
    snprintf(t->names[t->n], sizeof t->names[0], "%s", name);
    snprintf(to->dtype_name, sizeof to->dtype_name, "%s", dtype);
    to->name = t->names[t->n];
    to->n_dims = columns ? 2 : 1;
    to->shape[0] = rows;
    to->shape[1] = columns;
    t->data[t->n++] = data;
}

static void
list_tensors(struct tensors *t, const qv_cache_layout *l, const qv_cache_item *item)
{
    const char *dtype = l->dtype == QV_BF16 ? "BF16" : l->dtype == QV_F16 ? "F16" : "F32";
    add_tensor(t, l->packed ? "packed" : "tokens", dtype, item->rows,
               l->packed ? l->width * (1 + l->n_deepstack) : l->width, item->tokens);
    for (int i = 0; i < l->n_deepstack && !l->packed; i++) {
        char name[24];
        snprintf(name, sizeof name, "deepstack.%d", i);
        add_tensor(t, name, dtype, item->rows, l->width, item->deepstack[i]);
    }
    add_tensor(t, "grid_thw", "I64", 1, 3, item->grid_thw);
    add_tensor(t, "timestamps", "F64", item->n_timestamps, 0, item->timestamps_s);
}

static qv_status
write_item(const struct tool_options *o, const qv_cache_info *info, const qv_cache_item *item,
           const char *record, qv_error *err)
{
    const char *const metadata[][2] = { { "format", "qwenvit" },
                                        { "qwenvit_version", qv_version() },
                                        { "key", item->key },
                                        { "record", record },
                                        { "cache", info->made_by } };
    struct tensors t = { .n = 0 };
    struct qv_safetensors_writer *w = NULL;
    list_tensors(&t, &info->layout, item);
    qv_status s = qv_safetensors_writer_open(o->output, t.at, t.n, metadata,
                                             sizeof metadata / sizeof *metadata, &w, err);
    for (size_t i = 0; i < t.n && !s; i++) {
        const uint64_t each = t.at[i].dtype_name[0] == 'I' || !strcmp(t.at[i].dtype_name, "F64") ? 8
                              : info->layout.dtype == QV_F32                                     ? 4
                                                             : 2;
        const uint64_t columns = t.at[i].n_dims == 2 ? (uint64_t)t.at[i].shape[1] : 1;
        s = qv_safetensors_writer_put(w, i, 0, t.data[i],
                                      (uint64_t)t.at[i].shape[0] * columns * each, err);
    }
    if (!s)
        s = qv_safetensors_writer_finish(&w, err);
    qv_safetensors_writer_abort(&w);
    return s;
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

static qv_status
check(const struct tool_options *o, const qv_cache *c, int64_t *n_bad, qv_error *err)
{
    qv_cache_info info;
    struct tool_progress bar;
    qv_cache_get_info(c, &info);
    const int64_t n = info.n_ok + info.n_failed;
    tool_progress_begin(&bar, "checking keys", n, o->quiet);
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
    if (!o->json) {
        printf("%s: %lld keys in %lld parts: %lld bad keys, %lld damaged parts\n", o->out,
               (long long)n, (long long)info.n_parts, (long long)*n_bad, (long long)info.n_damaged);
        if (*n_bad)
            printf("remove the parts that have bad keys and run it again: they are made again\n");
        return QV_OK;
    }
    json_t *j = json_pack("{s:o, s:I, s:I, s:I, s:o}", "cache", tool_json_text(o->out), "keys",
                          (json_int_t)n, "bad", (json_int_t)*n_bad, "parts",
                          (json_int_t)info.n_parts, "damaged", damage_json(c));
    return j ? tool_emit_json(o, j, err) : qv_fail(err, QV_ENOMEM, "no memory for a result");
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
    const bool bad = n_bad || (c && qv_cache_damage(c, 0));
    qv_cache_close(&c);
    return s ? tool_fail(s, &err) : bad ? TOOL_FAILED : TOOL_DONE;
}
