/* SPDX-License-Identifier: MIT */

#include "safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dtype.h"
#include "error.h"
#include "json.h"

#define MAX_TENSORS ((size_t)1 << 20)
#define MAX_BRACKETS (4 * MAX_TENSORS) /* an entry needs three; unknown fields may need more */

struct qv_safetensors {
    char *path;
    int fd;
    uint64_t size;
    struct qv_safetensor *tensors; /* in the order of their data in the file */
    const struct qv_safetensor **by_name;
    size_t n;
    json_t *metadata; /* NULL: it has none */
};

/* The format's dtypes: name and bits. */
static const struct qv_safetensors_dtype dtypes[] = {
    { "BOOL", 8 }, { "F4", 4 },      { "F6_E2M3", 6 },     { "F6_E3M2", 6 },     { "U8", 8 },
    { "I8", 8 },   { "F8_E5M2", 8 }, { "F8_E4M3", 8 },     { "F8_E8M0", 8 },     { "I16", 16 },
    { "U16", 16 }, { "F16", 16 },    { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "BF16", 16 },
    { "I32", 32 }, { "U32", 32 },    { "F32", 32 },        { "C64", 64 },        { "F64", 64 },
    { "I64", 64 }, { "U64", 64 },
};

const struct qv_safetensors_dtype *
qv_safetensors_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name))
            return &dtypes[i];
    return NULL;
}

/* A header entry being read. Error texts name its fields like `tensor "NAME": dtype`. */
struct entry {
    struct qv_json_object object;
    char prefix[QV_QUOTE_SIZE + 16];
};

static qv_status
read_dtype(const struct entry *e, struct qv_safetensor *t, unsigned *bits, qv_error *err)
{
    const json_t *json = qv_json_get(&e->object, "dtype");
    const char *name = json_string_value(json);
    const struct qv_safetensors_dtype *found = name ? qv_safetensors_dtype(name) : NULL;
    if (!found)
        return qv_json_wrong(&e->object, "dtype", json,
                             "it must be a safetensors dtype, such as \"BF16\" or \"F32\"", err);
    strcpy(t->dtype_name, found->name);
    if (!qv_dtype_parse_file(name, &t->dtype))
        t->dtype = QV_DTYPE_AUTO;
    *bits = found->bits;
    return QV_OK;
}

/* Reads the shape and computes the size of the data from it. */
static qv_status
read_shape(const struct entry *e, unsigned bits, struct qv_safetensor *t, qv_error *err)
{
    const json_t *json = qv_json_get(&e->object, "shape");
    const size_t n = json_array_size(json);
    if (!json_is_array(json) || n > QV_SAFETENSORS_MAX_DIMS)
        return qv_json_wrong(&e->object, "shape", json, "it must be an array of at most 8 sizes",
                             err);

    uint64_t size = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(json, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return qv_json_wrong(&e->object, "shape", json,
                                 "each size must be an integer of at least 0", err);
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(size, (uint64_t)t->shape[i], &size))
            return qv_json_wrong(&e->object, "shape", json,
                                 "the product of the sizes overflows 64 bits", err);
    }
    if (__builtin_mul_overflow(size, (uint64_t)bits, &size))
        return qv_json_wrong(&e->object, "shape", json, "the size in bits overflows 64 bits", err);
    if (size % 8)
        return qv_json_wrong(&e->object, "shape", json,
                             "with this dtype the data are not a whole number of bytes", err);
    t->n_dims = (int)n;
    t->bytes = size / 8;
    return QV_OK;
}

/* Reads the offsets, which are relative to the beginning of the data. */
static qv_status
read_offsets(const struct entry *e, struct qv_safetensor *t, qv_error *err)
{
    const json_t *json = qv_json_get(&e->object, "data_offsets");
    const json_t *begin = json_array_get(json, 0), *end = json_array_get(json, 1);
    const json_int_t b = json_integer_value(begin), z = json_integer_value(end);
    if (json_array_size(json) != 2 || !json_is_integer(begin) || !json_is_integer(end) || b < 0 ||
        z < b)
        return qv_json_wrong(&e->object, "data_offsets", json,
                             "it must be [begin, end], integers with 0 <= begin <= end", err);
    if ((uint64_t)(z - b) != t->bytes) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "dtype and shape need %llu bytes, not %llu",
                 (unsigned long long)t->bytes, (unsigned long long)(z - b));
        return qv_json_wrong(&e->object, "data_offsets", json, wanted, err);
    }
    t->offset = (uint64_t)b;
    return QV_OK;
}

static qv_status
read_entry(const char *path, const char *name, const json_t *json, struct qv_safetensor *t,
           qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    struct entry e = { .object = { .json = json, .file = path } };
    snprintf(e.prefix, sizeof e.prefix, "tensor %s: ", qv_json_quote(name, quoted));
    e.object.prefix = e.prefix;
    if (!json_is_object(json))
        return qv_json_wrong(&e.object, "its entry", json,
                             "it must be an object with dtype, shape and data_offsets", err);

    unsigned bits = 0;
    qv_status s = read_dtype(&e, t, &bits, err);
    if (!s)
        s = read_shape(&e, bits, t, err);
    if (!s)
        s = read_offsets(&e, t, err);
    if (s)
        return s;

    t->name = strdup(name);
    if (!t->name)
        return qv_no_memory(path, err);
    return QV_OK;
}

static qv_status
check_metadata(const char *path, json_t *metadata, qv_error *err)
{
    const struct qv_json_object top = { .json = NULL, .file = path, .prefix = "" };
    if (!metadata || json_is_null(metadata))
        return QV_OK;
    if (!json_is_object(metadata))
        return qv_json_wrong(&top, "__metadata__", metadata, "it must be an object of strings",
                             err);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            char quoted[QV_QUOTE_SIZE];
            const struct qv_json_object in = { .file = path, .prefix = "__metadata__ " };
            return qv_json_wrong(&in, qv_json_quote(key, quoted), value, "it must be a string",
                                 err);
        }
    }
    return QV_OK;
}

static qv_status
read_entries(struct qv_safetensors *f, json_t *root, qv_error *err)
{
    qv_status s = check_metadata(f->path, json_object_get(root, "__metadata__"), err);
    if (s)
        return s;
    f->metadata = json_incref(json_object_get(root, "__metadata__"));
    const size_t n = json_object_size(root);
    if (n > MAX_TENSORS)
        return qv_fail(err, QV_EFORMAT, "%s: the header has %zu tensors; at most %zu are allowed",
                       f->path, n, MAX_TENSORS);
    f->tensors = calloc(n + 1, sizeof *f->tensors);
    f->by_name = calloc(n + 1, sizeof *f->by_name);
    if (!f->tensors || !f->by_name)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %zu tensors", f->path, n);

    const char *name;
    json_t *json;
    json_object_foreach(root, name, json)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        s = read_entry(f->path, name, json, &f->tensors[f->n], err);
        if (s)
            return s;
        f->n++;
    }
    return QV_OK;
}

static int
compare_offsets(const void *a, const void *b)
{
    const struct qv_safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int
compare_names(const void *a, const void *b)
{
    const struct qv_safetensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int
compare_key(const void *key, const void *b)
{
    const struct qv_safetensor *const *y = b;
    return strcmp(key, (*y)->name);
}

/* Checks that tensors cover the data to the file's last byte, without holes or overlaps. Otherwise
 * bytes could be hidden in the file, or a small file could fill much memory. Converts offsets to
 * file offsets. */
static qv_status
check_layout(struct qv_safetensors *f, uint64_t data, qv_error *err)
{
    qsort(f->tensors, f->n, sizeof *f->tensors, compare_offsets);

    uint64_t end = 0;
    for (size_t i = 0; i < f->n; i++) {
        struct qv_safetensor *t = &f->tensors[i];
        if (t->offset != end) {
            char quoted[QV_QUOTE_SIZE];
            return qv_fail(err, QV_EFORMAT,
                           "%s: tensor %s: data_offsets begin at %llu, but the previous tensor "
                           "ends at %llu; %s between tensors are not allowed",
                           f->path, qv_json_quote(t->name, quoted), (unsigned long long)t->offset,
                           (unsigned long long)end, t->offset < end ? "overlaps" : "holes");
        }
        /* This cannot wrap, because read_offsets accepts signed numbers only. */
        if (__builtin_add_overflow(end, t->bytes, &end) ||
            __builtin_add_overflow(data, t->offset, &t->offset))
            return qv_fail(err, QV_EFORMAT, "%s: the data's size overflows 64 bits", f->path);
    }

    const uint64_t have = f->size - data;
    if (end > have)
        return qv_fail(err, QV_EFORMAT,
                       "%s: the header describes %llu bytes of data, but the file has %llu: %llu "
                       "are missing (incomplete download?)",
                       f->path, (unsigned long long)end, (unsigned long long)have,
                       (unsigned long long)(end - have));
    if (end < have)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %llu bytes follow the last tensor's data; the file must end there",
                       f->path, (unsigned long long)(have - end));
    return QV_OK;
}

/* Reads the 8 bytes in front of the header. If they are invalid, the file usually has another
 * format, which its first bytes reveal. */
static qv_status
read_header_length(const struct qv_safetensors *f, uint64_t *n, qv_error *err)
{
    unsigned char head[32] = { 0 };
    const uint64_t got = f->size < sizeof head ? f->size : sizeof head;
    const char *path = f->path;
    const qv_status s = qv_file_read(f->fd, f->path, 0, head, got, err);
    if (s)
        return s;

    const char *hint = qv_file_hint(head, (size_t)got);
    if (f->size < 8)
        return qv_fail(err, QV_EFORMAT,
                       "%s: has %llu bytes; a safetensors file begins with a header length of 8 "
                       "bytes%s",
                       path, (unsigned long long)f->size, hint);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | head[i];
    if (length > QV_SAFETENSORS_MAX_HEADER)
        return qv_fail(err, QV_EFORMAT,
                       "%s: header length is %llu, above the limit of %u: this is not a "
                       "safetensors file, or it is damaged%s",
                       path, (unsigned long long)length, QV_SAFETENSORS_MAX_HEADER, hint);
    if (length > f->size - 8)
        return qv_fail(
            err, QV_EFORMAT,
            "%s: header length is %llu, but only %llu bytes follow (incomplete download?)%s", path,
            (unsigned long long)length, (unsigned long long)(f->size - 8), hint);
    *n = length;
    return QV_OK;
}

static qv_status
read_header(struct qv_safetensors *f, qv_error *err)
{
    uint64_t n = 0;
    qv_status s = read_header_length(f, &n, err);
    if (s)
        return s;

    json_t *root = NULL;
    char *text = malloc((size_t)n + 1);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a header of %llu bytes", f->path,
                       (unsigned long long)n);
    s = qv_file_read(f->fd, f->path, 8, text, n, err);
    if (!s)
        s = qv_json_parse(f->path, text, (size_t)n, MAX_BRACKETS, &root, err);
    free(text);
    if (!s)
        s = read_entries(f, root, err);
    if (!s)
        s = check_layout(f, 8 + n, err);
    for (size_t i = 0; i < f->n && !s; i++)
        f->by_name[i] = &f->tensors[i];
    if (!s)
        qsort(f->by_name, f->n, sizeof *f->by_name, compare_names);
    json_decref(root);
    return s;
}

qv_status
qv_safetensors_open(const char *path, struct qv_safetensors **out, qv_error *err)
{
    struct qv_safetensors *f = calloc(1, sizeof *f);
    if (f)
        f->path = strdup(path);
    if (!f || !f->path) {
        free(f);
        return qv_no_memory(path, err);
    }
    f->fd = -1;
    qv_status s = qv_file_open(path, &f->fd, &f->size, err);
    if (!s)
        s = read_header(f, err);
    if (s) {
        qv_safetensors_close(&f);
        return s;
    }
    *out = f;
    return QV_OK;
}

void
qv_safetensors_close(struct qv_safetensors **file)
{
    struct qv_safetensors *f = file ? *file : NULL;
    if (!f)
        return;
    if (f->tensors)
        for (size_t i = 0; i < f->n; i++)
            free(f->tensors[i].name);
    free(f->tensors);
    free(f->by_name);
    json_decref(f->metadata);
    free(f->path);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
    *file = NULL;
}

const char *
qv_safetensors_path(const struct qv_safetensors *file)
{
    return file->path;
}

const char *
qv_safetensors_metadata(const struct qv_safetensors *file, const char *name)
{
    return json_string_value(json_object_get(file->metadata, name));
}

const struct qv_safetensor *
qv_safetensors_find(const struct qv_safetensors *file, const char *name)
{
    const struct qv_safetensor *const *found =
        bsearch(name, file->by_name, file->n, sizeof *file->by_name, compare_key);
    return found ? *found : NULL;
}

const char *
qv_safetensors_print_shape(const int64_t *shape, int n_dims, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    return text;
}

size_t
qv_safetensors_count(const struct qv_safetensors *file)
{
    return file->n;
}

const struct qv_safetensor *
qv_safetensors_at(const struct qv_safetensors *file, size_t i)
{
    return i < file->n ? &file->tensors[i] : NULL;
}

qv_status
qv_safetensors_read(const struct qv_safetensors *file, const struct qv_safetensor *tensor,
                    uint64_t begin, void *dst, uint64_t bytes, qv_error *err)
{
    const struct qv_file_part data = { tensor->name, tensor->offset, tensor->bytes };
    return qv_file_read_part(file->fd, file->path, &data, begin, dst, bytes, err);
}
