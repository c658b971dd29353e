/* SPDX-License-Identifier: MIT */
/* Prints and reads the record of a key, a JSON object. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/json.h"
#include "files/outcome_json.h"
#include "files/text.h"
#include "part_index.h"
#include "path.h"

enum { MOST_ERROR_BYTES = 800 /* limit for a record's error */ };

static qv_status
failure_code(const char *name)
{
    for (int i = QV_EINVAL; i <= QV_ESTATE; i++)
        if (!strcmp(name, qv_status_name((qv_status)i)))
            return (qv_status)i;
    return QV_EFORMAT; /* a code that this build does not know is still a failure */
}

static void
add_string(struct qv_text *t, const char *name, const char *text)
{
    qv_text_say(t, ",\"%s\":\"", name);
    qv_text_escape(t, text, strlen(text));
    qv_text_add(t, "\"", 1);
}

static void
add_failure(struct qv_text *t, const qv_cache_result *r)
{
    qv_text_say(t, ",\"status\":\"failed\",\"code\":\"%s\"", qv_status_name(r->status));
    char *error = qv_utf8_text(r->error ? r->error : "");
    if (!error) {
        t->lost = true;
        return;
    }
    size_t n = strlen(error);
    if (n > MOST_ERROR_BYTES)
        for (n = MOST_ERROR_BYTES; n && ((unsigned char)error[n] & 0xc0) == 0x80;)
            n--; /* move back to the beginning of a character */
    error[n] = 0;
    add_string(t, "error", error);
    free(error);
}

/* Adds the fields of a successful record. */
static void
add_result(struct qv_text *t, uint64_t xxh3, const qv_cache_result *r)
{
    json_t *j = json_object();
    char *text =
        qv_outcome_json(j, r->outcome, QV_FOR_RECORD) ? NULL : qv_json_text(j, JSON_COMPACT);
    json_decref(j);
    t->lost = t->lost || !text;
    qv_text_say(t, ",\"status\":\"ok\",%.*s,\"xxh3\":\"%016" PRIx64 "\"",
                text ? (int)strlen(text) - 2 : 0, text ? text + 1 : "", xxh3);
    free(text);
}

static void
add_seconds(struct qv_text *t, const char *name, const char *seconds)
{
    if (*seconds)
        qv_text_say(t, ",\"%s\":%s", name, seconds);
}

void
qv_record_print(struct qv_text *t, const char *key, const qv_cache_source *s, uint64_t xxh3,
                const qv_cache_result *r, struct qv_index_row *row)
{
    char start[QV_CACHE_SECONDS], end[QV_CACHE_SECONDS];
    qv_cache_seconds(s->start_s, start);
    qv_cache_seconds(s->end_s, end);
    *row = (struct qv_index_row){ .path = qv_cache_key_hash(s->path),
                                  .asked = qv_cache_asked_hash(start, end, s->options),
                                  .bytes = s->bytes,
                                  .mtime_ns = s->mtime_ns,
                                  .status = (uint8_t)failure_code(qv_status_name(r->status)),
                                  .is_image = -1 };
    qv_text_add(t, "{\"key\":\"", 8);
    qv_text_escape(t, key, strlen(key));
    qv_text_add(t, "\"", 1);
    add_string(t, "path", s->path);
    add_seconds(t, "start", start);
    add_seconds(t, "end", end);
    if (s->options)
        add_string(t, "options", s->options);
    qv_text_say(t, ",\"bytes\":%" PRId64 ",\"mtime\":%" PRId64, s->bytes, s->mtime_ns);
    if (r->status) {
        add_failure(t, r);
    } else {
        add_result(t, xxh3, r);
        row->status = QV_OK;
        row->xxh3 = xxh3;
        row->is_image = r->outcome->is_image ? 1 : 0;
        row->sampled_fps = r->outcome->sampled_fps;
    }
    qv_text_add(t, "}", 1);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns a number's text in a record, for hashing; NULL if it is missing. Its name after a bare
 * comma cannot be inside a string, where quotes are escaped. */
static const char *
number_text(const char *record, const char *name, char text[64])
{
    char before[16];
    snprintf(before, sizeof before, ",\"%s\":", name);
    const char *at = strstr(record, before);
    if (!at)
        return NULL;
    at += strlen(before);
    snprintf(text, 64, "%.*s", (int)strcspn(at, ",}"), at);
    return text;
}

static qv_status
wrong_record(const char *path, const json_t *record, const char *words, qv_error *err)
{
    char shown[QV_QUOTE_SIZE];
    return qv_fail(err, QV_EFORMAT, "%s: the record of key %s: %s", path,
                   qv_json_show(json_object_get(record, "key"), shown), words);
}

/* Reads the fields of a successful record. */
static qv_status
read_result(const json_t *j, const char *path, struct qv_index_row *r, qv_error *err)
{
    const char *xxh3 = json_string_value(json_object_get(j, "xxh3"));
    const json_t *picture = json_object_get(j, "picture"), *fps = json_object_get(j, "sampled_fps");
    if (!xxh3 || strlen(xxh3) != 16 || strspn(xxh3, "0123456789abcdef") != 16)
        return wrong_record(path, j, "xxh3 must be 16 hexadecimal digits", err);
    if (!json_is_boolean(picture))
        return wrong_record(path, j, "picture must be true or false", err);
    if (fps && !(json_number_value(fps) > 0))
        return wrong_record(path, j, "sampled_fps must be a number above 0", err);
    r->xxh3 = strtoull(xxh3, NULL, 16);
    r->is_image = json_is_true(picture);
    r->sampled_fps = json_number_value(fps);
    return QV_OK;
}

qv_status
qv_record_row(const char *record, size_t bytes, const struct qv_cache_usual *usual,
              const char *path, const char *wanted, struct qv_index_row *r, qv_error *err)
{
    char start[64], end[64], normal[QV_CACHE_OPTIONS_BYTES];
    json_t *j = NULL;
    qv_status s = qv_json_parse(path, record, bytes, QV_JSON_MAX_BRACKETS, &j, err);
    if (s)
        return s;
    const char *key = json_string_value(json_object_get(j, "key")),
               *source = json_string_value(json_object_get(j, "path")),
               *status = json_string_value(json_object_get(j, "status")),
               *options = json_string_value(json_object_get(j, "options"));
    const bool ok = status && !strcmp(status, "ok");
    *r = (struct qv_index_row){ .is_image = -1 };
    if (!key || strcmp(key, wanted))
        s = wrong_record(path, j, "it names a different key", err);
    else if (!source || !(ok || (status && !strcmp(status, "failed"))))
        s = wrong_record(path, j, "it has no path, or no status of \"ok\" or \"failed\"", err);
    else if (ok)
        s = read_result(j, path, r, err);
    else if (!json_is_string(json_object_get(j, "code")))
        s = wrong_record(path, j, "a failure must have a code", err);
    else
        r->status = (uint8_t)failure_code(json_string_value(json_object_get(j, "code")));
    if (!s) {
        r->path = qv_cache_key_hash(source);
        r->bytes = json_integer_value(json_object_get(j, "bytes"));
        r->mtime_ns = json_integer_value(json_object_get(j, "mtime"));
        r->asked = qv_cache_asked_hash(number_text(record, "start", start),
                                       number_text(record, "end", end),
                                       qv_cache_normal(usual, -1, false, options, normal));
    }
    json_decref(j);
    return s;
}
