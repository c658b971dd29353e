/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L /* for clock_gettime */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "files/token_file.h"
#include "files/utf8.h"

/* ---- texts ----------------------------------------------------------------------------------- */

static char *
make_room(struct qv_text *t, size_t n)
{
    if (t->lost || n > SIZE_MAX / 4 - t->n) {
        t->lost = true;
        return NULL;
    }
    if (t->n + n > t->room) {
        const size_t room = (t->n + n) * 3 / 2 + 256;
        char *at = realloc(t->at, room);
        if (!at) {
            t->lost = true;
            return NULL;
        }
        t->at = at;
        t->room = room;
    }
    return t->at + t->n;
}

void
qv_text_add(struct qv_text *t, const char *bytes, size_t n)
{
    char *to = n ? make_room(t, n) : NULL;
    if (to) {
        memcpy(to, bytes, n);
        t->n += n;
    }
}

void
qv_text_say(struct qv_text *t, const char *format, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, format);
    const int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line)
        t->lost = true;
    else
        qv_text_add(t, line, (size_t)n);
}

static size_t
escaped_bytes(unsigned char c)
{
    return c < 0x20 || c == 0x7f ? 6 : c == '"' || c == '\\' ? 2 : 1;
}

size_t
qv_text_escaped(const char *bytes, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += escaped_bytes((unsigned char)bytes[i]);
    return sum;
}

void
qv_text_escape(struct qv_text *t, const char *bytes, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    char *to = make_room(t, qv_text_escaped(bytes, n));
    if (!to)
        return;
    const char *begin = to;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        const size_t width = escaped_bytes(c);
        if (width == 6) {
            memcpy(to, "\\u00", 4);
            to[4] = hex[c >> 4];
            to[5] = hex[c & 15];
        } else {
            to[0] = '\\';
            to[width - 1] = (char)c;
        }
        to += width;
    }
    t->n += (size_t)(to - begin);
}

void
qv_text_seconds(struct qv_text *t, double seconds)
{
    const int64_t ns = seconds > 0 && seconds < 1e9 ? llround(seconds * 1e9) : 0;
    char line[40];
    int n = snprintf(line, sizeof line, "%" PRId64 ".%09" PRId64, ns / 1000000000, ns % 1000000000);
    while (n > 2 && line[n - 1] == '0' && line[n - 2] != '.')
        n--;
    qv_text_add(t, line, (size_t)n);
}

int64_t
qv_cache_latest_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((int64_t)now.tv_sec + (int64_t)36525 * 24 * 3600) * 1000000000;
}

/* ---- keys and tensors ------------------------------------------------------------------------ */

qv_status
qv_cache_key(const char *bytes, char *out, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    if (!bytes || !out)
        return qv_fail(err, QV_EINVAL, "key: bytes or out is NULL");
    if (!*bytes)
        return qv_fail(err, QV_EFORMAT, "the key is empty; a text is needed");
    if (!strncmp(bytes, "__", 2))
        return qv_fail(err, QV_EFORMAT,
                       "the key %s begins with \"__\", which caches keep for "
                       "themselves",
                       qv_json_quote(bytes, quoted));
    char *text = qv_utf8_text(bytes);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "no memory for a key");
    const size_t n = strlen(text);
    if (n <= QV_CACHE_MAX_KEY)
        memcpy(out, text, n + 1);
    free(text);
    return n <= QV_CACHE_MAX_KEY
               ? QV_OK
               : qv_fail(err, QV_EFORMAT, "the key %s has %zu bytes; at most %d are kept",
                         qv_json_quote(bytes, quoted), n, QV_CACHE_MAX_KEY);
}

uint64_t
qv_cache_key_hash(const char *key)
{
    return key ? XXH3_64bits(key, strlen(key)) : 0;
}

uint64_t
qv_cache_asked_hash(const char *start, const char *end, const char *options)
{
    const char *const texts[] = { start, end, options };
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++)
        hashes[i] = texts[i] ? XXH3_64bits(texts[i], strlen(texts[i])) : 0;
    return XXH3_64bits(hashes, sizeof hashes);
}

int
qv_cache_n_tensors(const qv_cache_layout *l)
{
    return qv_token_file_matrices(l->packed, l->n_deepstack);
}

int64_t
qv_cache_columns(const qv_cache_layout *l)
{
    return qv_token_file_columns(l->packed, l->n_deepstack, l->width);
}

size_t
qv_cache_row_bytes(const qv_cache_layout *l)
{
    return (size_t)qv_cache_columns(l) * qv_dtype_bytes(l->dtype);
}

const char *
qv_cache_dtype_name(qv_dtype dtype)
{
    switch (dtype) {
    case QV_F32:
    case QV_BF16:
    case QV_F16: return qv_dtype_file_name(dtype);
    case QV_U8:
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    return NULL;
}

void
qv_cache_tensor_name(const qv_cache_layout *l, int i, char out[24])
{
    qv_token_file_name(l->packed, i, out);
}

/* ---- qwenvit-cache.json ---------------------------------------------------------------------- */

enum { MAX_WIDTH = 1 << 20 };

qv_status
qv_cache_describe(const qv_cache_layout *l, const char *made_by, json_t **out, qv_error *err)
{
    if (!qv_cache_dtype_name(l->dtype) || l->width < 1 || l->width > MAX_WIDTH ||
        l->n_deepstack < 0 || l->n_deepstack > QV_MAX_DEEPSTACK)
        return qv_fail(err, QV_EINVAL,
                       "a cache holds f32, bf16 or f16 [n, 1 to %d] and 0 to %d DeepStack outputs, "
                       "not %s [n, %lld] and %d",
                       MAX_WIDTH, QV_MAX_DEEPSTACK, qv_dtype_name(l->dtype), (long long)l->width,
                       l->n_deepstack);
    json_t *more = NULL;
    const qv_status s =
        qv_json_parse("what the cache is made by", made_by ? made_by : "{}",
                      strlen(made_by ? made_by : "{}"), QV_JSON_MAX_BRACKETS, &more, err);
    if (s)
        return s;
    json_t *j = json_pack("{s:s, s:s}", "format", QV_CACHE_FORMAT, "version", QV_CACHE_VERSION);
    json_t *tokens =
        json_pack("{s:s, s:I, s:i, s:b}", "dtype", qv_dtype_name(l->dtype), "width",
                  (json_int_t)l->width, "n_deepstack", l->n_deepstack, "packed", l->packed);
    const bool bad =
        json_object_update_missing(j, more) || json_object_set_new(j, "tokens", tokens);
    json_decref(more);
    if (bad) {
        json_decref(j);
        return qv_fail(err, QV_ENOMEM, "no memory for %s", QV_CACHE_DESCRIPTION);
    }
    *out = j;
    return QV_OK;
}

/* Checks a text field that must have one given value. */
static qv_status
check_text(const struct qv_json_object *top, const char *key, const char *wanted, const char *why,
           qv_error *err)
{
    const json_t *found = qv_json_get(top, key);
    const char *text = json_string_value(found);
    return text && !strcmp(text, wanted) ? QV_OK : qv_json_wrong(top, key, found, why, err);
}

static qv_status
read_layout(const struct qv_json_object *top, qv_cache_layout *l, qv_error *err)
{
    struct qv_json_object tokens = { .json = NULL };
    const char *dtype = NULL;
    int64_t n_deepstack = 0;
    qv_status s = qv_json_child(top, "tokens", "tokens.", &tokens, err);
    if (!s && !tokens.json)
        s = qv_json_wrong(top, "tokens", NULL, "it must say what tensors there are", err);
    *l = (qv_cache_layout){ .packed = json_is_true(qv_json_get(&tokens, "packed")) };
    if (!s)
        s = qv_json_string(&tokens, "dtype", &dtype, err);
    if (!s)
        s = qv_json_int(&tokens, "width", 1, MAX_WIDTH, &l->width, err);
    if (!s)
        s = qv_json_int(&tokens, "n_deepstack", 0, QV_MAX_DEEPSTACK, &n_deepstack, err);
    if (s)
        return s;
    l->n_deepstack = (int)n_deepstack;
    if (!dtype || !qv_dtype_parse(dtype, &l->dtype) || !qv_cache_dtype_name(l->dtype))
        return qv_json_wrong(&tokens, "dtype", qv_json_get(&tokens, "dtype"),
                             "it must be \"bf16\", \"f16\" or \"f32\"", err);
    return l->width
               ? QV_OK
               : qv_json_wrong(&tokens, "width", NULL, "it must be the columns of tokens", err);
}

qv_status
qv_cache_description(const char *dir, bool *there, json_t **root, qv_cache_layout *l, qv_error *err)
{
    char *path = qv_path_join(dir, QV_CACHE_DESCRIPTION);
    if (!path)
        return qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    json_t *json = NULL;
    qv_status s = QV_OK;
    *there = qv_path_exists(path);
    if (*there)
        s = qv_json_read(path, QV_JSON_MAX_CONFIG, &json, err);
    if (*there && !s) {
        const struct qv_json_object top = { .json = json, .file = path, .prefix = "" };
        s = check_text(&top, "format", QV_CACHE_FORMAT, "this is no cache of qwenvit", err);
        if (!s)
            s = check_text(&top, "version", QV_CACHE_VERSION,
                           "this build reads and writes version \"" QV_CACHE_VERSION "\"", err);
        if (!s)
            s = read_layout(&top, l, err);
    }
    free(path);
    if (s)
        json_decref(json);
    else
        *root = json;
    return s;
}

enum { MAX_NAME = 120 };

/* Finds the first place where two values differ, and names it as "a.b.c"; returns false if they are
 * equal. */
static bool
find_difference(const json_t *a, const json_t *b, char name[MAX_NAME], const json_t **x,
                const json_t **y)
{
    if (json_equal(a, b))
        return false;
    *x = a;
    *y = b;
    if (!json_is_object(a) || !json_is_object(b))
        return true;
    const json_t *sides[2] = { a, b };
    for (int side = 0; side < 2; side++) {
        const char *key;
        json_t *unused;
        json_object_foreach((json_t *)(uintptr_t)sides[side], key, unused)
        {
            const json_t *of_a = json_object_get(a, key), *of_b = json_object_get(b, key);
            if (json_equal(of_a, of_b))
                continue;
            const size_t n = strlen(name);
            snprintf(name + n, MAX_NAME - n, "%s%.40s", n ? "." : "", key);
            return find_difference(of_a, of_b, name, x, y) || true;
        }
    }
    return true;
}

/* Writes " (the cache's model is .., folder ..; the run's .., folder ..)"; "" if neither is
 * known. */
static void
name_models(const json_t *there, const json_t *run, char *text, size_t size)
{
    const json_t *const sides[2] = { json_object_get(there, "model"),
                                     json_object_get(run, "model") };
    const char *words[2][2];
    char name[2][QV_QUOTE_SIZE] = { "" }, folder[2][QV_QUOTE_SIZE] = { "" };
    static const char *const fields[2] = { "name", "folder" };
    for (int i = 0; i < 2; i++)
        for (int field = 0; field < 2; field++) {
            const json_t *value = json_object_get(sides[i], fields[field]);
            words[i][field] = json_is_string(value)
                                  ? qv_json_show(value, field ? folder[i] : name[i])
                                  : "not told";
        }
    *text = 0;
    if (sides[0] || sides[1])
        snprintf(text, size, " (the cache's model is %s, folder %s; the run's %s, folder %s)",
                 words[0][0], words[0][1], words[1][0], words[1][1]);
}

/* Returns what follows from a difference, for people. */
static const char *
advice(const char *name, const json_t *there)
{
    if (strcmp(name, "packing") != 0)
        return "give the run what the cache has, or another --out";
    return there ? "another version packed frame pairs by another rule, and by this one clips that "
                   "it lacks "
                   "could have other bits; go on with that version, or give another --out"
                 : "qwenvit 0.2.0 and before packed whole clips, and frame pairs packed by this "
                   "run could "
                   "have other bits; go on with that version, or give another --out";
}

qv_status
qv_cache_same(const char *dir, const json_t *there, const json_t *run, qv_error *err)
{
    char name[MAX_NAME] = "", quoted[QV_QUOTE_SIZE], has[QV_QUOTE_SIZE], would[QV_QUOTE_SIZE];
    char models[5 * QV_QUOTE_SIZE];
    const json_t *x = NULL, *y = NULL;
    json_t *a = qv_cache_resolved(there), *b = qv_cache_resolved(run);
    qv_status s = a && b ? QV_OK : qv_fail(err, QV_ENOMEM, "%s: out of memory", qv_path_tail(dir));
    if (!s && find_difference(a, b, name, &x, &y)) {
        name_models(there, run, models, sizeof models);
        s = qv_fail(err, QV_EFORMAT, "%s: this cache has %s %s, and the run %s%s; %s",
                    qv_path_tail(dir), qv_json_quote(name, quoted),
                    x ? qv_json_show(x, has) : "none", y ? qv_json_show(y, would) : "none", models,
                    advice(name, x));
    }
    json_decref(a);
    json_decref(b);
    return s;
}
