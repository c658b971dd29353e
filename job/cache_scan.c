/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cache_scan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache_cursor.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"

enum { MAX_DIMS = 2, GRID = QV_CACHE_MAX_TENSORS, TIMES, UNUSED, N_KINDS };
enum { HAS_FORMAT = 1, HAS_VERSION = 2, HAS_SEALED = 4, HAS_RECORDS = 8, HAS_ALL = 15 };

uint64_t
qv_scan_hash(uint64_t seed, const char *key, size_t bytes)
{
    return XXH3_64bits_withSeed(key, bytes, seed);
}

void
qv_scan_free(struct qv_scanner *s)
{
    struct qv_text *const texts[] = { &s->text, &s->records, &s->names, &s->word,
                                      &s->path, &s->start,   &s->end,   &s->options };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]->at);
    free(s->items);
    free(s->ranges);
    free(s->table);
    *s = (struct qv_scanner){ .seed = s->seed, .layout = s->layout };
}

/* ---- keys of the part ------------------------------------------------------------------------ */

static bool
grow_table(struct qv_scanner *s)
{
    const size_t room = s->table_room ? 2 * s->table_room : 1024;
    uint32_t *table = calloc(room, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < s->n_items; i++) {
        size_t at = (size_t)s->items[i].hash & (room - 1);
        while (table[at])
            at = (at + 1) & (room - 1);
        table[at] = (uint32_t)i + 1;
    }
    free(s->table);
    s->table = table;
    s->table_room = room;
    return true;
}

static bool
is_key(const struct qv_scanner *s, size_t i, const char *key, size_t bytes)
{
    const struct qv_scan_item *item = &s->items[i];
    return item->name_bytes == bytes && !memcmp(s->names.at + item->name, key, bytes);
}

static struct qv_scan_item *
add_item(struct qv_scanner *s, const char *key, size_t bytes, uint64_t hash)
{
    if (s->n_items == s->items_room) {
        const size_t room = 2 * s->items_room + 512;
        struct qv_scan_item *items = realloc(s->items, room * sizeof *items);
        if (!items)
            return NULL;
        s->items = items;
        s->items_room = room;
    }
    struct qv_scan_item *item = &s->items[s->n_items];
    *item = (struct qv_scan_item){ .name = s->names.n, .name_bytes = bytes, .hash = hash };
    qv_text_add(&s->names, key, bytes);
    qv_text_add(&s->names, "", 1);
    return s->names.lost ? NULL : item;
}

/* The key's item, which is made if it is not there; NULL for lack of memory. */
static struct qv_scan_item *
find_item(struct qv_scanner *s, const char *key, size_t bytes)
{
    if (s->n_items && is_key(s, s->last, key, bytes)) /* tensors of a key mostly stand together */
        return &s->items[s->last];
    if (2 * (s->n_items + 1) > s->table_room && !grow_table(s))
        return NULL;
    const uint64_t hash = qv_scan_hash(s->seed, key, bytes);
    size_t at = (size_t)hash & (s->table_room - 1);
    for (; s->table[at]; at = (at + 1) & (s->table_room - 1)) {
        const size_t i = s->table[at] - 1;
        if (s->items[i].hash == hash && is_key(s, i, key, bytes)) {
            s->last = i;
            return &s->items[i];
        }
    }
    struct qv_scan_item *item = add_item(s, key, bytes, hash);
    if (item) {
        s->last = s->n_items++;
        s->table[at] = (uint32_t)s->n_items;
    }
    return item;
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensor {
    char dtype[16];
    int64_t shape[MAX_DIMS];
    int n_dims;
    int64_t begin, end; /* from the data's begin */
};

static bool
read_shape(struct qv_cursor *c, struct tensor *t)
{
    t->n_dims = 0;
    if (!qv_cursor_expect(c, '[', "a shape is a list"))
        return false;
    do {
        if (t->n_dims == MAX_DIMS)
            return qv_cursor_fail(c, "a shape has one or two sizes");
        if (!qv_cursor_int(c, &t->shape[t->n_dims]))
            return false;
        if (t->shape[t->n_dims++] < 0)
            return qv_cursor_fail(c, "a size is below 0");
    } while (qv_cursor_take(c, ','));
    return qv_cursor_expect(c, ']', "a comma or the shape's end is needed");
}

static bool
read_offsets(struct qv_cursor *c, struct tensor *t)
{
    if (!qv_cursor_expect(c, '[', "data_offsets are a list") || !qv_cursor_int(c, &t->begin) ||
        !qv_cursor_expect(c, ',', "data_offsets are two") || !qv_cursor_int(c, &t->end) ||
        !qv_cursor_expect(c, ']', "data_offsets are two"))
        return false;
    return (t->begin >= 0 && t->begin <= t->end) ||
           qv_cursor_fail(c, "data_offsets are no begin and end");
}

static bool
read_dtype(struct qv_scanner *s, struct qv_cursor *c, struct tensor *t)
{
    s->word.n = 0;
    if (!qv_cursor_string(c, &s->word))
        return false;
    snprintf(t->dtype, sizeof t->dtype, "%s", s->word.n < sizeof t->dtype ? s->word.at : "?");
    return true;
}

/* Each of the three fields once, in any order, and nothing else. */
static bool
read_tensor(struct qv_scanner *s, struct qv_cursor *c, struct tensor *t)
{
    bool first = true;
    unsigned seen = 0;
    if (!qv_cursor_expect(c, '{', "a tensor's entry is an object"))
        return false;
    while (qv_cursor_member(c, &first, &s->word)) {
        const unsigned field = !strcmp(s->word.at, "dtype")          ? 1
                               : !strcmp(s->word.at, "shape")        ? 2
                               : !strcmp(s->word.at, "data_offsets") ? 4
                                                                     : 0;
        if (!field || seen & field)
            return qv_cursor_fail(c,
                                  "a tensor's entry has dtype, shape and data_offsets, each once");
        seen |= field;
        if (!(field == 1   ? read_dtype(s, c, t)
              : field == 2 ? read_shape(c, t)
                           : read_offsets(c, t)))
            return false;
    }
    return !c->wrong && (seen == 7 || qv_cursor_fail(c, "a tensor's entry lacks a field"));
}

/* "0", "17": the number, which has no zeros in front; -1: it is none. */
static int64_t
read_number(const char *text)
{
    int64_t v = 0;
    if (!*text || (*text == '0' && text[1]) || strlen(text) > 12)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        v = 10 * v + *text - '0';
    }
    return v;
}

/* Which tensor of a key its last name is: an index of the layout's, GRID or TIMES; -1: none. */
static int
tensor_kind(const qv_cache_layout *l, const char *name)
{
    if (!strcmp(name, "grid_thw"))
        return GRID;
    if (!strcmp(name, "timestamps"))
        return TIMES;
    if (!strcmp(name, l->packed ? "packed" : "tokens"))
        return 0;
    if (l->packed || strncmp(name, "deepstack.", 10))
        return -1;
    const int64_t i = read_number(name + 10);
    return i >= 0 && i < l->n_deepstack ? 1 + (int)i : -1;
}

/* dtype, shape and bytes are those of its kind. */
static bool
check_tensor(const struct qv_scanner *s, struct qv_cursor *c, const struct tensor *t, int kind)
{
    const bool rows = kind < GRID;
    const char *dtype = rows            ? qv_cache_dtype_name(s->layout.dtype)
                        : kind == GRID  ? "I64"
                        : kind == TIMES ? "F64"
                                        : "U8";
    int64_t bytes = rows ? (int64_t)qv_dtype_bytes(s->layout.dtype) : kind == UNUSED ? 1 : 8;
    if (!dtype || strcmp(t->dtype, dtype))
        return qv_cursor_fail(c, "a tensor's dtype is not that of the cache");
    if (t->n_dims != (rows || kind == GRID ? 2 : 1) ||
        (rows && (t->shape[0] < 1 || t->shape[0] > UINT32_MAX ||
                  t->shape[1] != qv_cache_columns(&s->layout))) ||
        (kind == GRID && (t->shape[0] != 1 || t->shape[1] != 3)) ||
        (kind == TIMES && t->shape[0] > UINT32_MAX))
        return qv_cursor_fail(c, "a tensor's shape is not that of the cache");
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return qv_cursor_fail(c, "a tensor's size overflows 64 bits");
    if (t->end - t->begin != bytes)
        return qv_cursor_fail(c, "a tensor's data_offsets are not as far apart as its shape says");
    return true;
}

static bool
add_range(struct qv_scanner *s, struct qv_cursor *c, const struct tensor *t)
{
    if (s->n_ranges == s->ranges_room) {
        const size_t room = 2 * s->ranges_room + 4096;
        struct qv_scan_range *r = realloc(s->ranges, room * sizeof *r);
        if (!r)
            return qv_cursor_fail_memory(c);
        s->ranges = r;
        s->ranges_room = room;
    }
    s->ranges[s->n_ranges++] =
        (struct qv_scan_range){ .at = (uint64_t)t->begin, .end = (uint64_t)t->end };
    return true;
}

static bool
add_to_key(struct qv_scanner *s, struct qv_cursor *c, struct qv_scan_item *item,
           const struct tensor *t, int kind)
{
    const uint64_t at = s->header + (uint64_t)t->begin;
    if (item->seen & 1u << kind)
        return qv_cursor_fail(c, "a tensor is there twice");
    if (kind < GRID && item->seen & ((1u << GRID) - 1) && item->rows != t->shape[0])
        return qv_cursor_fail(c, "tensors of a key have different numbers of rows");
    item->seen |= 1u << kind;
    if (kind == GRID) {
        item->grid = at;
    } else if (kind == TIMES) {
        item->times = at;
        item->n_times = (uint64_t)t->shape[0];
    } else {
        item->at[kind] = at;
        item->rows = t->shape[0];
    }
    return true;
}

static bool
add_tensor(struct qv_scanner *s, struct qv_cursor *c, struct qv_text *name)
{
    struct tensor t = { .n_dims = 0 };
    if (!strncmp(name->at, "__", 2)) {
        if (strncmp(name->at, "__unused.", 9) || read_number(name->at + 9) != (int64_t)s->n_unused)
            return qv_cursor_fail(c, "a tensor that begins with \"__\" is not the next __unused.N");
        s->n_unused++;
        return read_tensor(s, c, &t) && check_tensor(s, c, &t, UNUSED) && add_range(s, c, &t);
    }
    char *slash = strrchr(name->at, '/');
    const int kind = slash && slash > name->at ? tensor_kind(&s->layout, slash + 1) : -1;
    if (kind < 0)
        return qv_cursor_fail(c, "a tensor's name is not KEY/ and one of the cache's tensors");
    const size_t bytes = (size_t)(slash - name->at);
    if (bytes > QV_CACHE_MAX_KEY)
        return qv_cursor_fail(c, "a key is too long");
    struct qv_scan_item *item = find_item(s, name->at, bytes);
    if (!item)
        return qv_cursor_fail_memory(c);
    return read_tensor(s, c, &t) && check_tensor(s, c, &t, kind) && add_range(s, c, &t) &&
           add_to_key(s, c, item, &t, kind);
}

/* ---- records --------------------------------------------------------------------------------- */

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
read_text(struct qv_cursor *c, struct qv_text *to)
{
    to->n = 0;
    return qv_cursor_string(c, to);
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
    if (!read_text(c, &s->word))
        return false;
    *ok = !strcmp(s->word.at, "ok");
    return *ok || !strcmp(s->word.at, "failed") ||
           qv_cursor_fail(c, "a record's status is \"ok\" or \"failed\"");
}

/* A code that this build does not know is a failure all the same. */
static bool
read_code(struct qv_scanner *s, struct qv_cursor *c, qv_status *code)
{
    if (!read_text(c, &s->word))
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
    if (!read_text(c, &s->word))
        return false;
    char *end = s->word.at;
    *out = strtoull(s->word.at, &end, 16);
    return (s->word.n == 16 && strspn(s->word.at, "0123456789abcdef") == 16) ||
           qv_cursor_fail(c, "a record's xxh3 is 16 hexadecimal digits");
}

/* By jansson, whose numbers have a point in every locale. Most keys of a part have one rate. */
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
    struct qv_scan_item item; /* what it says of it */
    struct qv_text key;
};

static bool
read_field(struct qv_scanner *s, struct qv_cursor *c, struct record *r, unsigned field)
{
    switch (field) {
    case F_KEY: return read_text(c, &r->key);
    case F_PATH: return read_text(c, &s->path);
    case F_START: return read_real(c, &s->start);
    case F_END: return read_real(c, &s->end);
    case F_OPTIONS: return read_text(c, &s->options);
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
        return qv_cursor_fail(c, "a record's key is none");
    if (r->ok ? !(r->seen & F_XXH3) || r->seen & F_CODE : !(r->seen & F_CODE))
        return qv_cursor_fail(c, "a record that is ok has an xxh3, one that failed a code");
    return true;
}

/* What the record says becomes its key's. */
static bool
keep_record(struct qv_scanner *s, struct qv_cursor *c, const struct record *r, uint64_t begin,
            uint64_t end)
{
    struct qv_scan_item *item = find_item(s, r->key.at, r->key.n);
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
    item->source = qv_cache_source_hash(s->path.at, r->seen & F_START ? s->start.at : NULL,
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

static bool
read_records(struct qv_scanner *s, struct qv_cursor *outer)
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
    if (!c.wrong) { /* nothing may stand behind them */
        const char *at = c.at;
        at += strspn(at, " \t\r\n");
        if (at != c.end)
            qv_cursor_fail(&c, "something follows the records");
    }
    outer->lost = outer->lost || c.lost;
    return c.wrong ? qv_cursor_fail(outer, c.wrong) : true;
}

/* ---- the header ------------------------------------------------------------------------------ */

static bool
read_metadata_field(struct qv_scanner *s, struct qv_cursor *c)
{
    static const char *const names[] = { "format", "version", "sealed", "records" };
    unsigned field = 0;
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(s->word.at, names[i]))
            field = 1u << i;
    if (!field || s->metadata & field)
        return qv_cursor_fail(c, "__metadata__ has format, version, sealed and records, each once");
    s->metadata |= field;
    if (field == HAS_RECORDS) {
        s->records.n = 0;
        return qv_cursor_string(c, &s->records) && read_records(s, c);
    }
    if (!read_text(c, &s->word))
        return false;
    if (field == HAS_FORMAT && strcmp(s->word.at, QV_CACHE_FORMAT))
        return qv_cursor_fail(c, "its format is not \"" QV_CACHE_FORMAT "\"");
    if (field == HAS_VERSION && strcmp(s->word.at, QV_CACHE_VERSION))
        return qv_cursor_fail(c, "its version is not \"" QV_CACHE_VERSION
                                 "\", which this build reads");
    if (field != HAS_SEALED)
        return true;
    struct qv_cursor number = { .at = s->word.at, .end = s->word.at + s->word.n };
    if (!qv_cursor_int(&number, &s->sealed_ns) || number.at != number.end || s->sealed_ns < 0)
        return qv_cursor_fail(c, "`sealed` is no number of nanoseconds");
    return s->sealed_ns <= qv_cache_latest_ns() ||
           qv_cursor_fail(c, "`sealed` lies more than 100 years from now");
}

static bool
read_metadata(struct qv_scanner *s, struct qv_cursor *c)
{
    bool first = true;
    if (s->metadata)
        return qv_cursor_fail(c, "__metadata__ is there twice");
    if (!qv_cursor_expect(c, '{', "__metadata__ is an object"))
        return false;
    while (qv_cursor_member(c, &first, &s->word))
        if (!read_metadata_field(s, c))
            return false;
    return !c->wrong &&
           (s->metadata == HAS_ALL ||
            qv_cursor_fail(c, "__metadata__ lacks format, version, sealed or records"));
}

static int
by_begin(const void *a, const void *b)
{
    const struct qv_scan_range *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Tensors cover the data without holes or overlaps to the file's last byte. */
static bool
check_cover(struct qv_scanner *s, struct qv_cursor *c)
{
    bool sorted = true;
    for (size_t i = 1; i < s->n_ranges && sorted; i++)
        sorted = s->ranges[i - 1].end <= s->ranges[i].at;
    if (!sorted)
        qsort(s->ranges, s->n_ranges, sizeof *s->ranges, by_begin);
    uint64_t end = 0;
    for (size_t i = 0; i < s->n_ranges; i++) {
        if (s->ranges[i].at != end)
            return qv_cursor_fail(c, "there are holes or overlaps between tensors");
        end = s->ranges[i].end;
    }
    if (end > s->size - s->header)
        return qv_cursor_fail(c, "the file ends before its data (it was cut short)");
    return end == s->size - s->header ||
           qv_cursor_fail(c, "bytes follow the data of the last tensor");
}

static bool
check_item(const struct qv_scanner *s, struct qv_cursor *c, const struct qv_scan_item *item)
{
    const int n = qv_cache_n_tensors(&s->layout);
    const unsigned all = ((1u << n) - 1) | 1u << GRID | 1u << TIMES;
    if (!item->recorded)
        return qv_cursor_fail(c, "a key has tensors and no record");
    if (item->seen != (item->status ? 0 : all))
        return qv_cursor_fail(c, "a key that is ok lacks a tensor, or one that failed has one");
    if (item->status)
        return true;
    const uint64_t step = n > 1 ? item->at[1] - item->at[0] : 0;
    for (int i = 0; i < n && i < QV_CACHE_MAX_TENSORS; i++)
        if (item->at[i] % QV_CACHE_ALIGN || item->at[i] != item->at[0] + (uint64_t)i * step ||
            step / QV_CACHE_ALIGN > UINT32_MAX)
            return qv_cursor_fail(c,
                                  "a key's tensors do not lie at equal distances, multiples of 64");
    return (item->grid % 8 == 0 && item->times == item->grid + 24) ||
           qv_cursor_fail(c,
                          "a key's timestamps do not lie behind its grid_thw, at a multiple of 8");
}

static bool
read_header(struct qv_scanner *s, struct qv_cursor *c)
{
    bool first = true;
    struct qv_text name = { 0 };
    if (qv_cursor_expect(c, '{', "the header is an object"))
        while (qv_cursor_member(c, &first, &name) &&
               (!strcmp(name.at, "__metadata__") ? read_metadata(s, c) : add_tensor(s, c, &name)))
            ;
    free(name.at);
    if (c->wrong)
        return false;
    c->at += strspn(c->at, " \t\r\n");
    if (c->at != c->end)
        return qv_cursor_fail(c, "something follows the header's object");
    if (!s->metadata)
        return qv_cursor_fail(c, "there is no __metadata__");
    for (size_t i = 0; i < s->n_items; i++)
        if (!check_item(s, c, &s->items[i]))
            return false;
    return check_cover(s, c);
}

static qv_status
load_header(struct qv_scanner *s, int fd, const char *path, qv_error *err)
{
    unsigned char head[8];
    if (s->size < 8)
        return qv_fail(err, QV_EFORMAT, "%s: has %llu bytes; a part begins with 8",
                       qv_path_tail(path), (unsigned long long)s->size);
    qv_status status = qv_file_read(fd, path, 0, head, 8, err);
    uint64_t n = 0;
    for (int i = 7; i >= 0 && !status; i--)
        n = n << 8 | head[i];
    if (status)
        return status;
    if (n > QV_SAFETENSORS_MAX_HEADER || n > s->size - 8)
        return qv_fail(
            err, QV_EFORMAT,
            "%s: header length is %llu; at most %u is read, and %llu bytes follow (it was "
            "cut short, or is no part)",
            qv_path_tail(path), (unsigned long long)n, QV_SAFETENSORS_MAX_HEADER,
            (unsigned long long)(s->size - 8));
    if (n + 1 > s->text.room) {
        char *at = realloc(s->text.at, (size_t)n + 1);
        if (!at)
            return qv_fail(err, QV_ENOMEM, "%s: no memory for a header of %llu bytes",
                           qv_path_tail(path), (unsigned long long)n);
        s->text.at = at;
        s->text.room = (size_t)n + 1;
    }
    status = qv_file_read(fd, path, 8, s->text.at, n, err);
    s->text.n = (size_t)n;
    s->text.at[n] = 0;
    s->header = 8 + n;
    return status;
}

qv_status
qv_scan_part(struct qv_scanner *s, const char *path, qv_error *err)
{
    int fd = -1;
    qv_status status = qv_file_open(path, &fd, &s->size, err);
    if (status)
        return status;
    s->n_items = s->n_ranges = s->last = 0;
    s->n_unused = 0;
    s->metadata = 0;
    s->names.n = s->records.n = 0;
    s->names.lost = s->records.lost = false;
    if (s->table)
        memset(s->table, 0, s->table_room * sizeof *s->table);
    status = load_header(s, fd, path, err);
    close(fd);
    if (status)
        return status;
    struct qv_cursor c = { .at = s->text.at, .end = s->text.at + s->text.n };
    if (read_header(s, &c))
        return QV_OK;
    return qv_fail(err, c.lost ? QV_ENOMEM : QV_EFORMAT, "%s: byte %llu: %s", qv_path_tail(path),
                   (unsigned long long)(8 + (c.at - s->text.at)), c.wrong);
}
