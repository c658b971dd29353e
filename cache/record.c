/* SPDX-License-Identifier: MIT */
/* Prints a key's record, a JSON object. scan_records.c reads it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "files/json.h"
#include "files/utf8.h"
#include "qwenvit_media.h"

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

/* Adds a number above 0 in the format of all our metadata, which reads back as the same value. */
static void
add_real(struct qv_text *t, const char *name, double value)
{
    json_t *json = json_real(value);
    char *text = json ? qv_json_text(json, JSON_ENCODE_ANY) : NULL;
    json_decref(json);
    t->lost = t->lost || !text;
    if (text)
        qv_text_say(t, ",\"%s\":%s", name, text);
    free(text);
}

/* Adds the fields of a record that is ok. */
static void
add_result(struct qv_text *t, uint64_t xxh3, const qv_cache_result *r)
{
    qv_text_say(t, ",\"status\":\"ok\",\"damaged_frames\":%" PRId64 ",\"frames\":%" PRId64,
                r->damaged_frames, r->frames);
    qv_text_say(t, ",\"picture\":%s", r->is_image ? "true" : "false");
    if (r->sampled_fps > 0)
        add_real(t, "sampled_fps", r->sampled_fps);
    if (*qv_remark_text((qv_remark)r->remark))
        add_string(t, "remark", qv_remark_text((qv_remark)r->remark));
    qv_text_say(t, ",\"xxh3\":\"%016" PRIx64 "\"", xxh3);
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
