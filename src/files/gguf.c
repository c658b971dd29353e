/* SPDX-License-Identifier: MIT */

#include "gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "json.h"

/* Limits for what is kept in memory. An mmproj file has some 30 keys and 600 tensors. */
enum {
    MOST_TENSORS = 1 << 20,
    MOST_KEYS = 1 << 16,
    MOST_KEY_BYTES = 1024,
    MOST_NAME_BYTES = 127,
    MOST_TEXT_BYTES = 4096,
    MOST_ARRAY = 1024,
    MOST_VALUES = 1 << 16, /* of all arrays together */
    MOST_ALIGNMENT = 1 << 20,
    LEAST_KEY = 8 + 4 + 1,               /* bytes of the shortest entry: an empty key and a byte */
    LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 /* a name of one character, and one dimension */
};

struct qv_gguf {
    char *path;
    int fd;
    uint64_t size;
    json_t *keys;
    struct qv_gguf_tensor *tensors; /* sorted by name */
    size_t n;
};

/* ---- reading the header ---------------------------------------------------------------------- */

/* The position in the header, with some bytes read ahead. After a failure nothing more is read, and
 * values are 0. */
struct cursor {
    const struct qv_gguf *file;
    uint64_t at, begin; /* offset of the next byte; offset of the bytes in memory */
    size_t n, values;   /* bytes in memory; array values kept so far */
    qv_status status;
    qv_error *err;
    uint8_t bytes[1 << 16];
};

#define FAIL(c, code, format, ...)                                                                 \
    ((c)->status = qv_fail((c)->err, code, "%s: " format, (c)->file->path, __VA_ARGS__))

static uint64_t
left(const struct cursor *c)
{
    return c->file->size - c->at;
}

/* Fails if fewer than n bytes of the file are left. */
static bool
has(struct cursor *c, uint64_t n, const char *what)
{
    if (!c->status && n > left(c))
        FAIL(c, QV_EFORMAT,
             "ends inside %s: %llu bytes needed from byte %llu on, %llu left (incomplete "
             "download?)",
             what, (unsigned long long)n, (unsigned long long)c->at, (unsigned long long)left(c));
    return !c->status;
}

static void
skip(struct cursor *c, uint64_t n, const char *what)
{
    if (has(c, n, what))
        c->at += n;
}

/* Takes n bytes, at most as many as the cursor holds. */
static const uint8_t *
take(struct cursor *c, size_t n, const char *what)
{
    static const uint8_t nothing[MOST_TEXT_BYTES];
    if (!has(c, n, what))
        return nothing;
    if (c->at < c->begin || c->at + n > c->begin + c->n) {
        const uint64_t ahead = left(c) < sizeof c->bytes ? left(c) : sizeof c->bytes;
        c->begin = c->at;
        c->n = (size_t)ahead;
        c->status = qv_file_read(c->file->fd, c->file->path, c->at, c->bytes, ahead, c->err);
        if (c->status)
            return nothing;
    }
    c->at += n;
    return c->bytes + (c->at - n - c->begin);
}

static uint64_t
number(struct cursor *c, size_t bytes, const char *what)
{
    const uint8_t *p = take(c, bytes, what);
    uint64_t v = 0;
    for (size_t i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static bool
is_text(const char *text, size_t n)
{
    for (size_t i = 0, step; i < n; i += step)
        if (!text[i] || !(step = qv_utf8_bytes(text + i)) || step > n - i)
            return false;
    return true;
}

/* Reads a name into text[most + 1]. */
static void
read_name(struct cursor *c, const char *what, size_t most, char *text)
{
    const uint64_t n = number(c, 8, what);
    *text = 0;
    if (c->status)
        return;
    if (!n || n > most)
        FAIL(c, QV_EFORMAT, "%s at byte %llu has %llu bytes; it must have 1 to %zu", what,
             (unsigned long long)c->at, (unsigned long long)n, most);
    if (c->status)
        return;
    memcpy(text, take(c, (size_t)n, what), (size_t)n);
    text[n] = 0;
    if (!c->status && !is_text(text, (size_t)n))
        FAIL(c, QV_EFORMAT, "%s before byte %llu is not UTF-8, or contains a NUL", what,
             (unsigned long long)c->at);
}

/* ---- keys ------------------------------------------------------------------------------------ */

enum value_type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    BOOL,
    STRING,
    ARRAY,
    U64,
    I64,
    F64,
    VALUE_TYPES
};

/* The bytes of a value by its type; 0 if the file gives its length. */
static const uint8_t value_bytes[VALUE_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* Returns the shortest decimal that rounds to f, so that 1e-6 equals the number in config.json. */
static double
shortest(float f)
{
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f)
            return strtod(text, NULL);
    }
    return (double)f;
}

/* Turns NaN and infinity into null, because json_real supports neither. */
static json_t *
real(double v)
{
    return v - v == 0 ? json_real(v) : json_null();
}

static json_t *
read_string(struct cursor *c)
{
    const uint64_t n = number(c, 8, "a text's length");
    if (n > MOST_TEXT_BYTES) {
        skip(c, n, "a text");
        return json_null();
    }
    const char *text = (const char *)take(c, (size_t)n, "a text");
    char copy[MOST_TEXT_BYTES + 1];
    memcpy(copy, text, (size_t)n);
    copy[n] = 0;
    return is_text(copy, (size_t)n) ? json_stringn(copy, (size_t)n) : json_null();
}

/* Reads a value that is not an array; NULL if out of memory. */
static json_t *
read_scalar(struct cursor *c, enum value_type type)
{
    if (type == STRING)
        return read_string(c);
    const uint64_t bits = number(c, value_bytes[type], "a value");
    float f;
    double d;
    switch (type) {
    case F32:
        memcpy(&f, &(uint32_t){ (uint32_t)bits }, sizeof f);
        return real(f - f == 0 ? shortest(f) : (double)f);
    case F64: memcpy(&d, &bits, sizeof d); return real(d);
    case BOOL:
        if (bits > 1)
            FAIL(c, QV_EFORMAT, "the boolean before byte %llu is %llu; it must be 0 or 1",
                 (unsigned long long)c->at, (unsigned long long)bits);
        return json_boolean(bits);
    case I8: return json_integer((int8_t)bits);
    case I16: return json_integer((int16_t)bits);
    case I32: return json_integer((int32_t)bits);
    case U64: return bits > INT64_MAX ? real((double)bits) : json_integer((json_int_t)bits);
    case U8:
    case U16:
    case U32:
    case I64: return json_integer((json_int_t)bits);
    case STRING:
    case ARRAY:
    case VALUE_TYPES: break;
    }
    return json_null();
}

static enum value_type
read_type(struct cursor *c, const char *key, enum value_type most)
{
    const uint64_t type = number(c, 4, "a value's type");
    char quoted[QV_QUOTE_SIZE];
    if (c->status || (type < VALUE_TYPES && (type != ARRAY || most == VALUE_TYPES)))
        return (enum value_type)type;
    FAIL(c, QV_EFORMAT,
         "key %s: its type is %llu%s; it must be a number, a boolean, a string or an array of "
         "these (0 to 12)",
         qv_json_quote(key, quoted), (unsigned long long)type,
         type == ARRAY ? " (array) in an array" : "");
    return U8;
}

/* Skips values. */
static void
skip_values(struct cursor *c, enum value_type type, uint64_t n)
{
    if (type == STRING)
        for (uint64_t i = 0; i < n && !c->status; i++)
            skip(c, number(c, 8, "a text's length"), "a text");
    else
        skip(c, n * value_bytes[type], "an array");
}

static json_t *
read_array(struct cursor *c, const char *key, bool keep)
{
    const enum value_type type = read_type(c, key, ARRAY);
    const uint64_t n = number(c, 8, "an array's length");
    const uint64_t least = type == STRING ? 8 : value_bytes[type];
    char quoted[QV_QUOTE_SIZE];
    if (!c->status && n > left(c) / least)
        FAIL(c, QV_EFORMAT,
             "key %s: an array of %llu values, but only %llu bytes of the file are left",
             qv_json_quote(key, quoted), (unsigned long long)n, (unsigned long long)left(c));
    if (c->status)
        return json_null();
    if (!keep || n > MOST_ARRAY) {
        skip_values(c, type, n);
        return json_null();
    }
    c->values += (size_t)n;
    if (c->values > MOST_VALUES)
        FAIL(c, QV_EFORMAT, "key %s: its array and the earlier ones have more than %d values",
             qv_json_quote(key, quoted), (int)MOST_VALUES);
    json_t *array = json_array();
    for (uint64_t i = 0; i < n && !c->status && array; i++)
        if (json_array_append_new(array, read_scalar(c, type)))
            FAIL(c, QV_ENOMEM, "no memory for key %s", qv_json_quote(key, quoted));
    return array;
}

static void
read_key(struct cursor *c)
{
    char key[MOST_KEY_BYTES + 1], quoted[QV_QUOTE_SIZE];
    read_name(c, "a key", MOST_KEY_BYTES, key);
    const enum value_type type = read_type(c, key, VALUE_TYPES);
    const bool keep = !strncmp(key, "general.", 8) || !strncmp(key, "clip.", 5);
    if (c->status)
        return;
    if (keep && json_object_get(c->file->keys, key)) {
        FAIL(c, QV_EFORMAT, "key %s occurs twice", qv_json_quote(key, quoted));
        return;
    }
    if (!keep && type != ARRAY) {
        skip_values(c, type, 1);
        return;
    }
    json_t *value = type == ARRAY ? read_array(c, key, keep) : read_scalar(c, type);
    if (!keep || c->status)
        json_decref(value);
    else if (!value || json_object_set_new(c->file->keys, key, value))
        FAIL(c, QV_ENOMEM, "no memory for key %s", qv_json_quote(key, quoted));
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void
read_shape(struct cursor *c, struct qv_gguf_tensor *t)
{
    char quoted[QV_QUOTE_SIZE];
    uint64_t values = 1;
    qv_json_quote(t->name, quoted);
    const uint64_t n = number(c, 4, "a tensor's number of dimensions");
    if (!c->status && (n < 1 || n > QV_GGUF_MAX_DIMS))
        FAIL(c, QV_EFORMAT, "tensor %s has %llu dimensions; it must have 1 to %d", quoted,
             (unsigned long long)n, QV_GGUF_MAX_DIMS);
    t->n_dims = c->status ? 0 : (int)n;
    for (int i = t->n_dims; i-- > 0 && !c->status;) { /* the innermost comes first in the file */
        const uint64_t dim = number(c, 8, "a tensor's shape");
        t->shape[i] = (int64_t)dim;
        if (!c->status &&
            (dim < 1 || dim > INT64_MAX || __builtin_mul_overflow(values, dim, &values)))
            FAIL(c, QV_EFORMAT,
                 "tensor %s: dimension %d is %llu; all must be positive, and their product "
                 "fit into 64 bits",
                 quoted, t->n_dims - 1 - i, (unsigned long long)dim);
    }
    const uint32_t id = (uint32_t)number(c, 4, "a tensor's type");
    t->type = qv_gguf_type_find(id);
    if (!c->status && !t->type)
        FAIL(c, QV_EUNSUPPORTED, "tensor %s has the unknown ggml type %u; %s can be read", quoted,
             id, qv_gguf_types_read());
    t->offset = number(c, 8, "a tensor's offset");
    if (c->status || !t->type)
        return;
    const uint64_t innermost = (uint64_t)t->shape[t->n_dims - 1];
    if (innermost % (uint64_t)t->type->values)
        FAIL(c, QV_EFORMAT, "tensor %s is %s with rows of %llu values; %s has blocks of %d", quoted,
             t->type->name, (unsigned long long)innermost, t->type->name, t->type->values);
    else if (__builtin_mul_overflow(values / (uint64_t)t->type->values, (uint64_t)t->type->bytes,
                                    &t->bytes))
        FAIL(c, QV_EFORMAT, "tensor %s: its size in bytes overflows 64 bits", quoted);
}

static void
read_tensor(struct cursor *c, struct qv_gguf_tensor *t)
{
    char text[MOST_NAME_BYTES + 1];
    read_name(c, "a tensor's name", MOST_NAME_BYTES, text);
    if (c->status)
        return;
    t->name = strdup(text);
    if (!t->name)
        FAIL(c, QV_ENOMEM, "no memory for tensor %s", text);
    else
        read_shape(c, t);
}

static int
compare_names(const void *a, const void *b)
{
    const struct qv_gguf_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int
compare_offsets(const void *a, const void *b)
{
    const struct qv_gguf_tensor *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Reads general.alignment. Tensors' offsets must be multiples of it, and `data` is rounded up to
 * one. */
static uint64_t
read_alignment(struct cursor *c, uint64_t *data)
{
    const struct qv_json_object keys = { .json = c->file->keys,
                                         .file = c->file->path,
                                         .prefix = "" };
    const json_t *found = qv_json_get(&keys, "general.alignment");
    const json_int_t v = found ? json_integer_value(found) : 32;
    if (v < 8 || v > MOST_ALIGNMENT || (v & (v - 1))) {
        c->status = qv_json_wrong(&keys, "general.alignment", found,
                                  "it must be a power of two from 8 to 1048576", c->err);
        return 8;
    }
    *data = (*data + (uint64_t)v - 1) / (uint64_t)v * (uint64_t)v; /* both are far below 2^63 */
    return (uint64_t)v;
}

/* Checks that every tensor is inside the file, begins at a multiple of the alignment, and shares
 * no byte with another. Offsets become those in the file. */
static void
check_layout(struct cursor *c, struct qv_gguf *f)
{
    uint64_t data = c->at, end = 0;
    const uint64_t alignment = read_alignment(c, &data);
    if (!c->status && f->n && data > f->size)
        FAIL(c, QV_EFORMAT,
             "ends at byte %llu, before the data, which begin at %llu (incomplete download?)",
             (unsigned long long)f->size, (unsigned long long)data);
    if (c->status)
        return;
    qsort(f->tensors, f->n, sizeof *f->tensors, compare_offsets);
    const uint64_t have = f->n ? f->size - data : 0;
    for (size_t i = 0; i < f->n && !c->status; i++) {
        struct qv_gguf_tensor *t = &f->tensors[i];
        char quoted[QV_QUOTE_SIZE];
        qv_json_quote(t->name, quoted);
        if (t->offset % alignment)
            FAIL(c, QV_EFORMAT,
                 "tensor %s: its offset is %llu, not a multiple of the alignment, %llu", quoted,
                 (unsigned long long)t->offset, (unsigned long long)alignment);
        else if (t->offset < end)
            FAIL(c, QV_EFORMAT,
                 "tensor %s: its offset is %llu, but the previous tensor ends at %llu", quoted,
                 (unsigned long long)t->offset, (unsigned long long)end);
        else if (t->offset > have || t->bytes > have - t->offset)
            FAIL(c, QV_EFORMAT,
                 "tensor %s: its %llu bytes from %llu on end past the file's %llu bytes of data "
                 "(incomplete download?)",
                 quoted, (unsigned long long)t->bytes, (unsigned long long)t->offset,
                 (unsigned long long)have);
        end = t->offset + t->bytes; /* end is below `have`; otherwise the loop has ended */
        t->offset += data;
    }
}

static void
check_names(struct cursor *c, struct qv_gguf *f)
{
    qsort(f->tensors, f->n, sizeof *f->tensors, compare_names);
    for (size_t i = 1; i < f->n && !c->status; i++) {
        char quoted[QV_QUOTE_SIZE];
        if (!strcmp(f->tensors[i - 1].name, f->tensors[i].name))
            FAIL(c, QV_EFORMAT, "tensor %s occurs twice",
                 qv_json_quote(f->tensors[i].name, quoted));
    }
}

/* ---- the whole header ------------------------------------------------------------------------ */

static void
read_version(struct cursor *c)
{
    uint8_t magic[4];
    memcpy(magic, take(c, 4, "the magic number"), 4);
    if (!c->status && memcmp(magic, "GGUF", 4))
        FAIL(c, QV_EFORMAT,
             "is not a GGUF file: it begins with %02x %02x %02x %02x, not with \"GGUF\"%s",
             magic[0], magic[1], magic[2], magic[3], qv_file_hint(magic, 4));
    const uint32_t version = (uint32_t)number(c, 4, "the version");
    if (!c->status && version && !(version & 0xffff))
        FAIL(c, QV_EUNSUPPORTED, "version is %u when read backwards: %s", version >> 24,
             "a big-endian file; only little-endian ones can be read");
    else if (!c->status && version != 2 && version != 3)
        FAIL(c, QV_EUNSUPPORTED, "version is %u; 2 and 3 can be read", version);
}

static uint64_t
read_count(struct cursor *c, const char *what, uint64_t most)
{
    const uint64_t n = number(c, 8, what);
    if (!c->status && n > most)
        FAIL(c, QV_EFORMAT, "%s is %llu; at most %llu are allowed", what, (unsigned long long)n,
             (unsigned long long)most);
    return c->status ? 0 : n;
}

static void
check_count(struct cursor *c, const char *what, uint64_t n, uint64_t least)
{
    if (!c->status && n > left(c) / least)
        FAIL(c, QV_EFORMAT, "%s is %llu, but only %llu bytes follow (incomplete download?)", what,
             (unsigned long long)n, (unsigned long long)left(c));
}

static qv_status
read_header(struct qv_gguf *f, struct cursor *c)
{
    read_version(c);
    const uint64_t tensors = read_count(c, "the number of tensors", MOST_TENSORS);
    const uint64_t keys = read_count(c, "the number of keys", MOST_KEYS);
    check_count(c, "the number of keys", keys, LEAST_KEY);
    check_count(c, "the number of tensors", tensors, LEAST_TENSOR);
    for (uint64_t i = 0; i < keys && !c->status; i++)
        read_key(c);
    check_count(c, "the number of tensors", tensors, LEAST_TENSOR);
    if (!c->status) {
        f->tensors = calloc((size_t)tensors + 1, sizeof *f->tensors);
        if (!f->tensors)
            FAIL(c, QV_ENOMEM, "no memory for %llu tensors", (unsigned long long)tensors);
    }
    for (; f->n < tensors && !c->status; f->n++)
        read_tensor(c, &f->tensors[f->n]);
    if (!c->status)
        check_layout(c, f);
    if (!c->status)
        check_names(c, f);
    return c->status;
}

qv_status
qv_gguf_open(const char *path, struct qv_gguf **out, qv_error *err)
{
    struct qv_gguf *f = calloc(1, sizeof *f);
    struct cursor *c = malloc(sizeof *c);
    char *copy = strdup(path);
    json_t *keys = json_object();
    qv_status s = QV_OK;
    if (!f || !c || !copy || !keys) {
        free(f);
        free(copy);
        json_decref(keys);
        free(c);
        return qv_no_memory(path, err);
    }
    *f = (struct qv_gguf){ .path = copy, .fd = -1, .keys = keys };
    s = qv_file_open(path, &f->fd, &f->size, err);
    if (!s) {
        c->file = f;
        c->at = c->begin = 0;
        c->n = c->values = 0;
        c->status = QV_OK;
        c->err = err;
        s = read_header(f, c);
    }
    free(c);
    if (s) {
        qv_gguf_close(&f);
        return s;
    }
    *out = f;
    return QV_OK;
}

void
qv_gguf_close(struct qv_gguf **file)
{
    struct qv_gguf *f = file ? *file : NULL;
    if (!f)
        return;
    for (size_t i = 0; f->tensors && i <= f->n; i++) /* the last tensor may be half read */
        free(f->tensors[i].name);
    free(f->tensors);
    json_decref(f->keys);
    free(f->path);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
    *file = NULL;
}

/* ---- what it has ----------------------------------------------------------------------------- */

const char *
qv_gguf_path(const struct qv_gguf *file)
{
    return file->path;
}

bool
qv_gguf_is(const char *path)
{
    char head[4] = { 0 };
    int fd = -1;
    uint64_t size = 0;
    if (qv_file_open(path, &fd, &size, NULL))
        return false;
    const bool is = size >= sizeof head && !qv_file_read(fd, path, 0, head, sizeof head, NULL) &&
                    !memcmp(head, "GGUF", sizeof head);
    close(fd);
    return is;
}

const json_t *
qv_gguf_keys(const struct qv_gguf *file)
{
    return file->keys;
}

const struct qv_gguf_tensor *
qv_gguf_find(const struct qv_gguf *file, const char *name)
{
    char copy[MOST_NAME_BYTES + 1];
    if (strlen(name) >= sizeof copy)
        return NULL;
    strcpy(copy, name);
    const struct qv_gguf_tensor key = { .name = copy };
    return bsearch(&key, file->tensors, file->n, sizeof key, compare_names);
}

size_t
qv_gguf_count(const struct qv_gguf *file)
{
    return file->n;
}

const struct qv_gguf_tensor *
qv_gguf_at(const struct qv_gguf *file, size_t i)
{
    return i < file->n ? &file->tensors[i] : NULL;
}

qv_status
qv_gguf_read(const struct qv_gguf *file, const struct qv_gguf_tensor *tensor, uint64_t begin,
             void *dst, uint64_t bytes, qv_error *err)
{
    const struct qv_file_part data = { tensor->name, tensor->offset, tensor->bytes };
    return qv_file_read_part(file->fd, file->path, &data, begin, dst, bytes, err);
}
