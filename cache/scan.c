/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "scan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cursor.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "files/safetensors.h"

enum { MAX_DIMS = 2, GRID = QV_CACHE_MAX_TENSORS, TIMES, UNUSED, N_KINDS };
enum {
    HAS_FORMAT = 1,
    HAS_VERSION = 2,
    HAS_SEALED = 4,
    HAS_RECORDS = 8,
    HAS_ALL = 15,
    HAS_READ = 16
};

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

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensor {
    char dtype[16];
    int64_t shape[MAX_DIMS];
    int n_dims;
    int64_t begin, end; /* from the beginning of the data */
};

static bool
read_shape(struct qv_scanner *s, struct qv_cursor *c, struct tensor *t)
{
    t->n_dims = 0;
    if (!qv_cursor_expect(c, '[', "a shape is a list"))
        return false;
    do {
        if (t->n_dims == MAX_DIMS)
            return qv_scan_fail_foreign(s, c, "a shape has one or two sizes");
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
           qv_cursor_fail(c, "data_offsets are not a begin and an end");
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

/* Reads a tensor's entry: each of the three fields once, in any order, and nothing else. */
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
        if (!field)
            return qv_scan_fail_foreign(s, c, "a tensor's entry has a field that is not known");
        if (seen & field)
            return qv_cursor_fail(c, "a tensor's entry has a field twice");
        seen |= field;
        if (!(field == 1   ? read_dtype(s, c, t)
              : field == 2 ? read_shape(s, c, t)
                           : read_offsets(c, t)))
            return false;
    }
    return !c->wrong && (seen == 7 || qv_cursor_fail(c, "a tensor's entry lacks a field"));
}

/* Reads a number such as "0" or "17", without leading zeros; -1: it is none. */
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

/* Returns which tensor of a key a name means: an index of the layout's, GRID or TIMES; -1: none. */
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

/* Checks that dtype, shape and bytes are those of the tensor's kind. */
static bool
check_tensor(struct qv_scanner *s, struct qv_cursor *c, const struct tensor *t, int kind)
{
    const bool rows = kind < GRID;
    const char *dtype = rows            ? qv_cache_dtype_name(s->layout.dtype)
                        : kind == GRID  ? "I64"
                        : kind == TIMES ? "F64"
                                        : "U8";
    int64_t bytes = rows ? (int64_t)qv_dtype_bytes(s->layout.dtype) : kind == UNUSED ? 1 : 8;
    if (!dtype || strcmp(t->dtype, dtype))
        return qv_scan_fail_foreign(s, c, "a tensor's dtype is not that of the cache");
    if (t->n_dims != (rows || kind == GRID ? 2 : 1) ||
        (rows && (t->shape[0] < 1 || t->shape[0] > UINT32_MAX ||
                  t->shape[1] != qv_cache_columns(&s->layout))) ||
        (kind == GRID && (t->shape[0] != 1 || t->shape[1] != 3)) ||
        (kind == TIMES && t->shape[0] > UINT32_MAX))
        return qv_scan_fail_foreign(s, c, "a tensor's shape is not that of the cache");
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
        if (strncmp(name->at, "__unused.", 9) != 0)
            return qv_scan_fail_foreign(
                s, c, "a tensor that begins with \"__\" is not known: it is no __unused.N");
        if (read_number(name->at + 9) != (int64_t)s->n_unused)
            return qv_cursor_fail(c, "a tensor is not the next __unused.N");
        s->n_unused++;
        return read_tensor(s, c, &t) && check_tensor(s, c, &t, UNUSED) && add_range(s, c, &t);
    }
    char *slash = strrchr(name->at, '/');
    const int kind = slash && slash > name->at ? tensor_kind(&s->layout, slash + 1) : -1;
    if (kind < 0)
        return qv_scan_fail_foreign(s, c,
                                    "a tensor's name is not KEY/ and one of the cache's tensors");
    const size_t bytes = (size_t)(slash - name->at);
    if (bytes > QV_CACHE_MAX_KEY)
        return qv_cursor_fail(c, "a key is too long");
    struct qv_scan_item *item = qv_scan_item_of(s, name->at, bytes);
    if (!item)
        return qv_cursor_fail_memory(c);
    return read_tensor(s, c, &t) && check_tensor(s, c, &t, kind) && add_range(s, c, &t) &&
           add_to_key(s, c, item, &t, kind);
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
    if (!field)
        return qv_scan_fail_foreign(s, c, "__metadata__ has a field that is not known");
    if (s->metadata & field)
        return qv_cursor_fail(c, "__metadata__ has a field twice");
    s->metadata |= field;
    if (field == HAS_RECORDS) {
        s->records.n = 0;
        return qv_cursor_string(c, &s->records) && qv_scan_records(s, c);
    }
    if (!qv_scan_text(c, &s->word))
        return false;
    if (field == HAS_FORMAT && strcmp(s->word.at, QV_CACHE_FORMAT))
        return qv_scan_fail_foreign(s, c, "its format is not \"" QV_CACHE_FORMAT "\"");
    if (field == HAS_VERSION && strcmp(s->word.at, QV_CACHE_VERSION))
        return qv_scan_fail_foreign(s, c,
                                    "its version is not \"" QV_CACHE_VERSION
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
    if (!c->wrong && !(s->metadata & HAS_FORMAT))
        return qv_scan_fail_foreign(s, c, "__metadata__ has no format");
    if (c->wrong || s->metadata != HAS_ALL)
        return qv_cursor_fail(c, "__metadata__ lacks format, version, sealed or records");
    s->metadata |= HAS_READ; /* __metadata__ was read to its end */
    return true;
}

static int
by_begin(const void *a, const void *b)
{
    const struct qv_scan_range *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that tensors cover the data without holes or overlaps to the file's last byte. */
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
check_item(struct qv_scanner *s, struct qv_cursor *c, const struct qv_scan_item *item)
{
    const int n = qv_cache_n_tensors(&s->layout);
    const unsigned all = ((1u << n) - 1) | 1u << GRID | 1u << TIMES;
    if (!item->recorded)
        return qv_cursor_fail(c, "a key has tensors and no record");
    if (item->seen != (item->status ? 0 : all))
        return qv_scan_fail_foreign(s, c,
                                    "a key that is ok lacks a tensor, or one that failed has one");
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
        return qv_scan_fail_foreign(s, c, "there is no __metadata__, so it is no part of a cache");
    for (size_t i = 0; i < s->n_items; i++)
        if (!check_item(s, c, &s->items[i]))
            return false;
    return check_cover(s, c);
}

bool
qv_scan_has_records(const struct qv_scanner *s)
{
    return s->metadata == (HAS_ALL | HAS_READ);
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
    s->foreign =
        n > QV_SAFETENSORS_MAX_HEADER && n <= s->size - 8; /* another version's may be so */
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
    s->n_items = s->n_ranges = s->last = 0;
    s->n_unused = 0;
    s->metadata = 0;
    s->foreign = false;
    s->names.n = s->records.n = 0;
    s->names.lost = s->records.lost = false;
    if (s->table)
        memset(s->table, 0, s->table_room * sizeof *s->table);
    qv_status status = qv_file_open(path, &fd, &s->size, err);
    if (status)
        return status;
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
