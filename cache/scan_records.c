/* SPDX-License-Identifier: MIT */
/* Reads the records of the part that is being scanned: a JSON list inside a string of its
 * header. */
#include <stdlib.h>
#include <string.h>

#include "cursor.h"
#include "scan.h"

bool
qv_scan_fail_foreign(struct qv_scanner *s, struct qv_cursor *c, const char *wrong)
{
    s->foreign = true;
    return qv_cursor_fail(c, wrong);
}

bool
qv_scan_text(struct qv_cursor *c, struct qv_text *to)
{
    to->n = 0;
    return qv_cursor_string(c, to);
}

enum {
    F_KEY = 1,
    F_PATH = 2,
    F_START = 4,
    F_END = 8,
    F_OPTIONS = 16,
    F_BYTES = 32,
    F_MTIME = 64,
    F_STATUS = 128,
    F_CODE = 256,
    F_XXH3 = 512,
    F_IMAGE = 1024,
    F_RATE = 2048,
};

static const struct {
    const char *name;
    unsigned field;
} fields[] = { { "key", F_KEY },     { "path", F_PATH },       { "start", F_START },
               { "end", F_END },     { "options", F_OPTIONS }, { "bytes", F_BYTES },
               { "mtime", F_MTIME }, { "status", F_STATUS },   { "code", F_CODE },
               { "xxh3", F_XXH3 },   { "picture", F_IMAGE },   { "sampled_fps", F_RATE } };

static unsigned
find_field(const char *name)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(name, fields[i].name))
            return fields[i].field;
    return 0;
}

static bool
read_real(struct qv_cursor *c, struct qv_text *to)
{
    char text[64];
    if (!qv_cursor_number(c, text, sizeof text))
        return false;
    to->n = 0;
    qv_text_add(to, text, strlen(text) + 1);
    return !to->lost || qv_cursor_fail_memory(c);
}

static bool
read_status(struct qv_scanner *s, struct qv_cursor *c, bool *ok)
{
    if (!qv_scan_text(c, &s->word))
        return false;
    *ok = !strcmp(s->word.at, "ok");
    return *ok || !strcmp(s->word.at, "failed") ||
           qv_scan_fail_foreign(s, c, "a record's status is not known: \"ok\" and \"failed\" are");
}

/* Reads a failure's code. One that this build does not know is a failure all the same. */
static bool
read_code(struct qv_scanner *s, struct qv_cursor *c, qv_status *code)
{
    if (!qv_scan_text(c, &s->word))
        return false;
    *code = QV_EFORMAT;
    for (int i = QV_EINVAL; i <= QV_ESTATE; i++)
        if (!strcmp(s->word.at, qv_status_name((qv_status)i)))
            *code = (qv_status)i;
    return true;
}

static bool
read_checksum(struct qv_scanner *s, struct qv_cursor *c, uint64_t *out)
{
    if (!qv_scan_text(c, &s->word))
        return false;
    char *end = s->word.at;
    *out = strtoull(s->word.at, &end, 16);
    return (s->word.n == 16 && strspn(s->word.at, "0123456789abcdef") == 16) ||
           qv_cursor_fail(c, "a record's xxh3 is 16 hexadecimal digits");
}

/* Parses the rate by jansson, which expects a point in every locale. Most keys of a part have the
 * same rate, so the last one is kept. */
static bool
read_rate(struct qv_scanner *s, struct qv_cursor *c, double *out)
{
    char text[sizeof s->rate];
    if (!qv_cursor_number(c, text, sizeof text))
        return false;
    if (strcmp(text, s->rate)) {
        json_error_t error = { 0 };
        json_t *number = json_loads(text, JSON_DECODE_ANY, &error);
        if (!number && json_error_code(&error) == json_error_out_of_memory)
            return qv_cursor_fail_memory(c);
        s->rate_fps = json_number_value(number);
        json_decref(number);
        memcpy(s->rate, text, sizeof text);
    }
    *out = s->rate_fps;
    return *out > 0 || qv_cursor_fail(c, "a record's sampled_fps is no number above 0");
}

static bool
read_image(struct qv_cursor *c, int8_t *out)
{
    bool is_image = false;
    const bool good = qv_cursor_bool(c, &is_image, "a record's picture is true or false");
    *out = (int8_t)is_image;
    return good;
}

struct record {
    unsigned seen;
    bool ok;
    struct qv_scan_item item; /* what the record says of its key */
    struct qv_text key;
};

static bool
read_field(struct qv_scanner *s, struct qv_cursor *c, struct record *r, unsigned field)
{
    switch (field) {
    case F_KEY: return qv_scan_text(c, &r->key);
    case F_PATH: return qv_scan_text(c, &s->path);
    case F_START: return read_real(c, &s->start);
    case F_END: return read_real(c, &s->end);
    case F_OPTIONS: return qv_scan_text(c, &s->options);
    case F_BYTES: return qv_cursor_int(c, &r->item.bytes);
    case F_MTIME: return qv_cursor_int(c, &r->item.mtime_ns);
    case F_STATUS: return read_status(s, c, &r->ok);
    case F_CODE: return read_code(s, c, &r->item.status);
    case F_XXH3: return read_checksum(s, c, &r->item.xxh3);
    case F_IMAGE: return read_image(c, &r->item.is_image);
    case F_RATE: return read_rate(s, c, &r->item.sampled_fps);
    default: return qv_cursor_skip(c);
    }
}

static bool
check_record(struct qv_cursor *c, const struct record *r)
{
    if (!(r->seen & F_KEY) || !(r->seen & F_PATH) || !(r->seen & F_STATUS))
        return qv_cursor_fail(c, "a record has no key, path or status");
    if (!r->key.n || r->key.n > QV_CACHE_MAX_KEY || !strncmp(r->key.at, "__", 2))
        return qv_cursor_fail(c, "a record's key is not valid");
    if (r->ok ? !(r->seen & F_XXH3) || r->seen & F_CODE : !(r->seen & F_CODE))
        return qv_cursor_fail(c, "a record that is ok has an xxh3, one that failed a code");
    return true;
}

/* Copies what a record says to its key's item. */
static bool
keep_record(struct qv_scanner *s, struct qv_cursor *c, const struct record *r, uint64_t begin,
            uint64_t end)
{
    struct qv_scan_item *item = qv_scan_item_of(s, r->key.at, r->key.n);
    if (!item)
        return qv_cursor_fail_memory(c);
    if (item->recorded)
        return qv_cursor_fail(c, "a key has two records");
    item->recorded = true;
    item->status = r->ok ? QV_OK : r->item.status;
    item->bytes = r->item.bytes;
    item->mtime_ns = r->item.mtime_ns;
    item->xxh3 = r->item.xxh3;
    item->is_image = r->item.is_image;
    item->sampled_fps = r->item.sampled_fps;
    item->record = begin;
    item->record_bytes = end - begin;
    item->path = qv_cache_key_hash(s->path.at);
    item->asked = qv_cache_asked_hash(r->seen & F_START ? s->start.at : NULL,
                                      r->seen & F_END ? s->end.at : NULL,
                                      r->seen & F_OPTIONS ? s->options.at : NULL);
    return true;
}

static bool
read_record(struct qv_scanner *s, struct qv_cursor *c, struct record *r)
{
    bool first = true;
    r->seen = 0;
    r->item = (struct qv_scan_item){ .is_image = -1 };
    if (!qv_cursor_expect(c, '{', "a record is an object"))
        return false;
    const char *begin = c->at - 1;
    while (qv_cursor_member(c, &first, &s->word)) {
        const unsigned field = find_field(s->word.at);
        if (r->seen & field)
            return qv_cursor_fail(c, "a record has a field twice");
        r->seen |= field;
        if (!read_field(s, c, r, field))
            return false;
    }
    return !c->wrong && check_record(c, r) &&
           keep_record(s, c, r, (uint64_t)(begin - s->records.at),
                       (uint64_t)(c->at - s->records.at));
}

bool
qv_scan_records(struct qv_scanner *s, struct qv_cursor *outer)
{
    struct qv_cursor c = { .at = s->records.at, .end = s->records.at + s->records.n };
    struct record r = { .seen = 0 };
    if (qv_cursor_expect(&c, '[', "records are a list") && !qv_cursor_take(&c, ']')) {
        bool good;
        do
            good = read_record(s, &c, &r);
        while (good && qv_cursor_take(&c, ','));
        if (good)
            qv_cursor_expect(&c, ']', "a comma or the end of the records is needed");
    }
    free(r.key.at);
    if (!c.wrong) { /* nothing may follow the records */
        const char *at = c.at;
        at += strspn(at, " \t\r\n");
        if (at != c.end)
            qv_cursor_fail(&c, "something follows the records");
    }
    outer->lost = outer->lost || c.lost;
    return c.wrong ? qv_cursor_fail(outer, c.wrong) : true;
}
