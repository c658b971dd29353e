/* SPDX-License-Identifier: MIT */
/* qwenvit cache status, keys, get and check: the verbs that read a cache. */
#include <stdlib.h>
#include <string.h>

#include "cache/open.h"
#include "cache/writer.h"
#include "cache_command.h"
#include "error.h"
#include "files/json.h"
#include "files/token_file.h"
#include "path.h"

/* What a verb does with an open cache. *code begins as TOOL_FAILED if parts are damaged, else as
 * TOOL_DONE. */
typedef qv_status verb_function(const struct tool_options *o, const qv_cache *c,
                                const qv_cache_info *info, int *code, qv_error *err);

static int
look(const struct tool_options *o, verb_function *verb)
{
    qv_error err = { 0 };
    qv_cache *c = NULL;
    qv_cache_info info;
    int code = TOOL_DONE;
    qv_status s = qv_cache_open(o->out, &c, &err);
    if (!s) {
        tool_cache_tell_damage(c);
        qv_cache_get_info(c, &info);
        code = info.n_damaged ? TOOL_FAILED : TOOL_DONE;
        s = verb(o, c, &info, &code, &err);
    }
    qv_cache_close(&c);
    return s ? tool_fail(s, &err) : code;
}

#define VERB(verb)                                                                                 \
    int tool_cache_##verb(const struct tool_options *o)                                            \
    {                                                                                              \
        return look(o, verb);                                                                      \
    }

static qv_status
parse_record(const char *text, json_t **record, qv_error *err)
{
    return qv_json_parse("a record", text, strlen(text), QV_JSON_MAX_BRACKETS, record, err);
}

/* Returns a key's record, to which fields may be added. */
static qv_status
read_record(const qv_cache *c, int64_t i, json_t **record, qv_error *err)
{
    char *text = NULL;
    qv_status s = qv_cache_record(c, i, &text, err);
    if (!s)
        s = parse_record(text, record, err);
    free(text);
    return s;
}

/* Returns why the record's clip failed; the text belongs to the record. */
static const char *
reason_of(const json_t *record)
{
    const char *error = json_string_value(json_object_get(record, "error"));
    return error ? error : "its record has no reason";
}

/* Returns the damaged parts' messages; *superseded is how many of those parts are superseded. */
static json_t *
damage_json(const qv_cache *c, int64_t *superseded)
{
    json_t *list = json_array();
    const char *words;
    bool is;
    *superseded = 0;
    for (int64_t i = 0; (words = qv_cache_damage(c, i, &is)) != NULL; i++) {
        json_array_append_new(list, tool_json_text(words));
        *superseded += is;
    }
    return list;
}

/* ---- status ---------------------------------------------------------------------------------- */

static qv_status
count_list(const struct tool_options *o, const qv_cache *c, int64_t n[QV_CACHE_STATE_MAX],
           qv_error *err)
{
    struct tool_list list = { 0 };
    const qv_status s = tool_cache_list(o, &list, err);
    char options[QV_CACHE_OPTIONS_BYTES];
    for (size_t i = 0; i < list.n && !s; i++) {
        const struct tool_entry *e = &list.at[i];
        const qv_cache_source source = qv_cache_source_of(e->path, e->own, options);
        n[qv_cache_compare(c, e->key, &source, tool_cache_trust(o))]++;
    }
    tool_list_free(&list);
    return s;
}

/* Counts the records of damaged clips and of clips that a GPU decoded. `check` reports the records
 * that cannot be read. */
static void
count_clips(const qv_cache *c, const qv_cache_info *in, int64_t *damaged, int64_t *by_gpu)
{
    static const char field[] = "\"damaged_frames\":";
    *damaged = *by_gpu = 0;
    for (int64_t i = 0; i < in->n_ok + in->n_failed; i++) {
        char *record = NULL;
        if (!qv_cache_record(c, i, &record, NULL)) {
            const char *at = strstr(record, field);
            *damaged += at && at[sizeof field - 1] != '0';
            *by_gpu += strstr(record, "\"decoded_by\":\"gpu\"") != NULL;
        }
        free(record);
    }
}

/* Adds the failed keys' records to the list, and without --json prints their errors. */
static qv_status
add_failures(const struct tool_options *o, const qv_cache *c, const qv_cache_info *in,
             json_t *failures, qv_error *err)
{
    qv_status s = QV_OK;
    struct tool_reasons reasons = { .n = 0 };
    struct tool_results to_file = o->to;
    to_file.json = false; /* the status record lists all failures */
    for (int64_t i = 0; i < in->n_ok + in->n_failed && in->n_failed && !s; i++) {
        qv_cache_item item;
        json_t *record = NULL;
        s = qv_cache_at(c, i, &item, err);
        if (s || !item.status)
            continue;
        s = read_record(c, i, &record, err);
        if (!s)
            tool_reasons_lose(&reasons, &to_file, NULL, item.key, item.status, reason_of(record));
        if (!s && json_array_append_new(failures, record))
            s = qv_fail(err, QV_ENOMEM, "no memory for failures");
    }
    if (!s && *reasons.lost.text)
        s = qv_fail(err, QV_EIO, "%s", reasons.lost.text);
    *reasons.lost.text = 0; /* the caller prints it */
    if (!o->to.json)
        tool_reasons_tell(&reasons, &o->to);
    free(reasons.at);
    return s;
}

/* Returns the model that made the cache, from its description; NULL for lack of memory. */
static json_t *
model_json(const qv_cache_info *in)
{
    json_error_t why;
    json_t *all = json_loads(in->made_by, 0, &why), *model = json_object_get(all, "model");
    json_t *type = json_object_get(all, "model_type");
    json_t *j = json_is_object(model) ? json_copy(model) : json_object();
    if (type && json_object_set(j, "type", type)) {
        json_decref(j);
        j = NULL;
    }
    json_decref(all);
    return j;
}

/* Counts the parts per FFmpeg version; *text has one line per version. Parts that do not record a
 * version are left out. */
static json_t *
ffmpeg_json(const qv_cache *c, const qv_cache_info *in, json_t **text)
{
    json_t *versions = json_object(), *n;
    char version[QV_CACHE_FFMPEG_BYTES];
    const char *key;
    bool lost = false;
    *text = json_array();
    for (int64_t i = 0; i < in->n_parts && !lost; i++)
        if (*qv_cache_part_ffmpeg(c, i, version))
            lost = json_object_set_new(versions, version,
                                       json_integer(1 + json_integer_value(
                                                            json_object_get(versions, version))));
    json_object_foreach(versions, key, n)
    {
        const json_int_t parts = json_integer_value(n);
        lost = json_array_append_new(*text, json_sprintf("%s in %lld part%s", key, (long long)parts,
                                                         parts == 1 ? "" : "s")) ||
               lost;
    }
    if (!lost)
        return versions;
    json_decref(versions);
    return NULL;
}

static const char status_text[] =
    "{cache}: {ok} ok, {failed} failed[text.listed?, {missing} missing, {changed} changed since]"
    "[damaged_clips?, {damaged_clips} ok with damaged frames]"
    "[gpu_clips?, {gpu_clips} decoded by a GPU]; "
    "{bytes|GB} of tokens, {text.size|GB} in {parts} part{parts|s}[damaged?, {damaged|n} damaged]\n"
    "[model?  model      [model.name?\"{model.name}\", ]{model.type}"
    "[model.folder?, \"{model.folder}\"]\n]"
    "[text.ffmpeg?  FFmpeg     {text.ffmpeg|\n             }\n]"
    "[gone?  gone       {gone} ok, but their files no longer exist; their tokens count\n]"
    "[text.prunable?  prunable   {superseded} superseded records with {superseded_bytes|GB} of "
    "tokens, {damaged_bytes|GB} in damaged parts (qwenvit cache prune)\n]";

static qv_status
status(const struct tool_options *o, const qv_cache *c, const qv_cache_info *in, int *code,
       qv_error *err)
{
    (void)code;
    int64_t n[QV_CACHE_STATE_MAX] = {
        [QV_CACHE_DONE] = in->n_ok, [QV_CACHE_FAILED] = in->n_failed
    };
    int64_t superseded, damaged_clips, gpu_clips;
    json_t *ffmpeg;
    if (o->list)
        n[QV_CACHE_DONE] = n[QV_CACHE_FAILED] = 0;
    json_t *failures = json_array();
    qv_status s = o->list ? count_list(o, c, n, err) : QV_OK;
    if (!s)
        s = add_failures(o, c, in, failures, err);
    if (s) {
        json_decref(failures);
        return s;
    }
    count_clips(c, in, &damaged_clips, &gpu_clips);
    json_t *versions = ffmpeg_json(c, in, &ffmpeg);
    json_t *j =
        tool_json("cache:t ok:I failed:I damaged_clips:I gpu_clips:I bytes:I part_bytes:I parts:I "
                  "superseded:I superseded_bytes:I damaged_bytes:I model:o damaged:o failures:o "
                  "ffmpeg:o text.listed:b text.size:I text.prunable:b text.ffmpeg:o",
                  o->out, n[QV_CACHE_DONE] + n[QV_CACHE_SOURCE_GONE], n[QV_CACHE_FAILED],
                  damaged_clips, gpu_clips, in->bytes, in->part_bytes, in->n_parts,
                  in->n_superseded, in->superseded_bytes, in->damaged_bytes, model_json(in),
                  damage_json(c, &superseded), failures, versions, o->list != NULL,
                  in->part_bytes + in->damaged_bytes, in->n_superseded || in->n_damaged, ffmpeg);
    if (o->list)
        tool_json_add(&j, "missing:I changed:I gone:I", n[QV_CACHE_MISSING], n[QV_CACHE_CHANGED],
                      n[QV_CACHE_SOURCE_GONE]);
    return tool_show(&o->to, j, status_text, err);
}

VERB(status)

/* ---- keys ------------------------------------------------------------------------------------ */

/* Prints a key on a line. A key with control characters is printed as a JSON string, which escapes
 * them. */
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
keys(const struct tool_options *o, const qv_cache *c, const qv_cache_info *in, int *code,
     qv_error *err)
{
    (void)code;
    qv_status s = QV_OK;
    for (int64_t i = 0; i < in->n_ok + in->n_failed && !s; i++) {
        qv_cache_item item;
        json_t *record = NULL;
        s = qv_cache_at(c, i, &item, err);
        if (!s && !o->to.json && !item.status)
            print_key(item.key);
        if (s || !o->to.json)
            continue;
        s = read_record(c, i, &record, err);
        if (s)
            break;
        tool_json_add(&record, "part:t tokens:I", item.part, item.rows);
        s = tool_show(&o->to, record, "", err);
    }
    return s;
}

VERB(keys)

/* ---- get ------------------------------------------------------------------------------------- */

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
                                                   .n_deepstack = l->n_deepstack };
    const struct qv_token_file_data data = { .tokens = item->tokens,
                                             .deepstack = item->deepstack,
                                             .grid_thw = item->grid_thw,
                                             .timestamps_s = item->timestamps_s };
    return qv_token_file_save(&options, &data, metadata, sizeof metadata / sizeof *metadata, err);
}

static qv_status
get(const struct tool_options *o, const qv_cache *c, const qv_cache_info *in, int *code,
    qv_error *err)
{
    char quoted[QV_QUOTE_SIZE], *key = qv_utf8_text(o->key), *record = NULL;
    qv_cache_item item = { .key = NULL };
    json_t *failed = NULL;
    *code = TOOL_DONE; /* another part may be damaged */
    qv_status s =
        key ? qv_cache_find(c, key, &item, err) : qv_fail(err, QV_ENOMEM, "no memory for a key");
    if (!s && !item.key)
        s = qv_fail(err, QV_EFORMAT, "%s: no key %s", o->out, qv_json_quote(key, quoted));
    const int64_t i = s ? 0 : item.index;
    if (!s)
        s = qv_cache_record(c, i, &record, err);
    if (!s && item.status) {
        s = parse_record(record, &failed, err);
        if (!s)
            s = qv_fail(err, QV_EFORMAT, "%s: key %s has no tokens: %s", o->out,
                        qv_json_quote(key, quoted), reason_of(failed));
        json_decref(failed);
    }
    if (!s)
        s = qv_cache_verify(c, i, err);
    if (!s)
        s = qv_cache_hold(c, &item, err);
    if (!s)
        s = write_item(o, in, &item, record, err);
    qv_cache_release(c, &item);
    free(key);
    free(record);
    return s;
}

int
tool_cache_get(const struct tool_options *o)
{
    qv_error err;
    const qv_status s = tool_check_token_file(o->output, &err);
    return s ? tool_fail(s, &err) : look(o, get);
}

/* ---- check ----------------------------------------------------------------------------------- */

static qv_status
check(const struct tool_options *o, const qv_cache *c, const qv_cache_info *in, int *code,
      qv_error *err)
{
    struct tool_progress bar;
    struct tool_reasons reasons = { .n = 0 };
    const int64_t n = in->n_ok + in->n_failed;
    const char **bad = o->repair ? calloc((size_t)n + 1, sizeof *bad) : NULL;
    int64_t n_bad = 0, n_wrong = 0, superseded;
    qv_status s = !o->repair || bad ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for keys");
    tool_progress_begin(&bar, "checking", n, o->to.quiet);
    bar.unit = "keys";
    for (int64_t i = 0; i < n && !s; i++) {
        qv_error why = { 0 };
        qv_cache_item item = { .key = "" };
        const qv_status one = qv_cache_verify(c, i, &why);
        if (one == QV_ENOMEM) {
            *err = why;
            s = one;
        } else if (one) {
            qv_cache_at(c, i, &item, NULL);
            tool_reasons_add(&reasons, item.key, why.text);
            if (bad && one == QV_EFORMAT) /* an unreadable key may be intact: keep it */
                bad[n_wrong++] = item.key;
            n_bad++;
        }
        tool_progress_show(&bar, i + 1);
    }
    tool_progress_end(&bar, n);
    tool_reasons_tell(&reasons, &o->to);
    json_t *damaged = damage_json(c, &superseded);
    *code = n_bad || superseded < in->n_damaged ? TOOL_FAILED : TOOL_DONE;
    json_t *j = tool_json("cache:t keys:I bad:I parts:I damaged_superseded:I damaged:o text:o",
                          o->out, n, n_bad, in->n_parts, superseded, damaged,
                          tool_json("stay:b", n_bad && !o->repair));
    if (!s)
        s = tool_show(&o->to, j,
                      "{cache}: {keys} key{keys|s} in {parts} part{parts|s}: {bad} bad "
                      "key{bad|s}, {damaged|n} damaged part{damaged|s}"
                      "[damaged_superseded?, {damaged_superseded} of them superseded (qwenvit "
                      "cache prune)]\n"
                      "[text.stay?--repair removes the bad keys, and the next run encodes them "
                      "again\n]",
                      err);
    else
        json_decref(j);
    if (!s && n_wrong) {
        const int removed = tool_cache_remove_keys(o, bad, (size_t)n_wrong);
        *code = removed || n_bad == n_wrong ? removed : *code;
    }
    free(bad);
    return s;
}

VERB(check)
