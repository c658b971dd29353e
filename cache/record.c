/* SPDX-License-Identifier: MIT */
/* Prints a key's record, a JSON object. scan_records.c reads it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "files/json.h"
#include "files/outcome_json.h"
#include "files/utf8.h"

enum { MOST_ERROR_BYTES = 800 /* limit for a record's error */ };

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
            n--; /* go back to the beginning of a character */
    error[n] = 0;
    add_string(t, "error", error);
    free(error);
}

/* Adds the fields of a record that is ok. */
static void
add_result(struct qv_text *t, uint64_t xxh3, const qv_cache_result *r)
{
    json_t *j = json_object();
    char *text = qv_outcome_json(j, r->outcome, QV_FOR_RECORD, 0, QV_LAST_PLACE)
                     ? NULL
                     : qv_json_text(j, JSON_COMPACT);
    json_decref(j);
    t->lost = t->lost || !text;
    qv_text_say(t, ",\"status\":\"ok\",%.*s,\"xxh3\":\"%016" PRIx64 "\"",
                text ? (int)strlen(text) - 2 : 0, text ? text + 1 : "", xxh3);
    free(text);
}

void
qv_cache_print_record(struct qv_text *t, const char *key, const qv_cache_source *s, uint64_t xxh3,
                      const qv_cache_result *r)
{
    qv_text_add(t, "{\"key\":\"", 8);
    qv_text_escape(t, key, strlen(key));
    qv_text_add(t, "\"", 1);
    add_string(t, "path", s->path);
    if (s->start_s > 0) {
        qv_text_say(t, ",\"start\":");
        qv_text_seconds(t, s->start_s);
    }
    if (s->end_s > 0) {
        qv_text_say(t, ",\"end\":");
        qv_text_seconds(t, s->end_s);
    }
    if (s->options)
        add_string(t, "options", s->options);
    qv_text_say(t, ",\"bytes\":%" PRId64 ",\"mtime\":%" PRId64, s->bytes, s->mtime_ns);
    if (r->status)
        add_failure(t, r);
    else
        add_result(t, xxh3, r);
    qv_text_add(t, "}", 1);
}
