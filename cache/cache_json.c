/* SPDX-License-Identifier: MIT */
/* qwenvit-cache.json: writes it, reads it, and reports how a run differs from it. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "dtype.h"
#include "error.h"
#include "files/json.h"
#include "path.h"

enum { MAX_WIDTH = 1 << 20 };

qv_status
qv_cache_describe(const qv_cache_layout *l, const char *made_by, json_t **out, qv_error *err)
{
    if (!qv_cache_dtype_name(l->dtype) || l->width < 1 || l->width > MAX_WIDTH ||
        l->n_deepstack < 0 || l->n_deepstack > QV_MAX_DEEPSTACK)
        return qv_fail(err, QV_EINVAL,
                       "a cache holds f32 or bf16 [n, 1 to %d] and 0 to %d DeepStack outputs, "
                       "not %s [n, %lld] and %d",
                       MAX_WIDTH, QV_MAX_DEEPSTACK, qv_dtype_name(l->dtype), (long long)l->width,
                       l->n_deepstack);
    json_t *more = NULL;
    const qv_status s =
        qv_json_parse("the cache's made_by", made_by ? made_by : "{}",
                      strlen(made_by ? made_by : "{}"), QV_JSON_MAX_BRACKETS, &more, err);
    if (s)
        return s;
    json_t *j = json_pack("{s:s, s:s}", "format", QV_CACHE_FORMAT, "version", QV_CACHE_VERSION);
    json_t *tokens = json_pack("{s:s, s:I, s:i, s:b}", "dtype", qv_dtype_name(l->dtype), "width",
                               (json_int_t)l->width, "n_deepstack", l->n_deepstack, "packed", 0);
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

/* Checks that a text field has the given value. */
static qv_status
check_text(const struct qv_json_object *top, const char *key, const char *wanted, const char *why,
           qv_error *err)
{
    const json_t *found = qv_json_get(top, key);
    const char *text = json_string_value(found);
    return text && !strcmp(text, wanted) ? QV_OK : qv_json_wrong(top, key, found, why, err);
}

#define OLD_LAYOUT "versions up to 0.4.0 wrote this format; fill the cache again"

static qv_status
read_layout(const struct qv_json_object *top, qv_cache_layout *l, qv_error *err)
{
    struct qv_json_object tokens = { .json = NULL };
    const char *dtype = NULL;
    int64_t n_deepstack = 0;
    qv_status s = qv_json_child(top, "tokens", "tokens.", &tokens, err);
    if (!s && !tokens.json)
        s = qv_json_wrong(top, "tokens", NULL, "it must describe the cache's tensors", err);
    if (!s && json_is_true(qv_json_get(&tokens, "packed")))
        s = qv_json_wrong(&tokens, "packed", qv_json_get(&tokens, "packed"), OLD_LAYOUT, err);
    *l = (qv_cache_layout){ .width = 0 };
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
                             dtype && !strcmp(dtype, "f16") ? OLD_LAYOUT
                                                            : "it must be \"bf16\" or \"f32\"",
                             err);
    return l->width
               ? QV_OK
               : qv_json_wrong(&tokens, "width", NULL, "it must be the width of the tokens", err);
}

qv_status
qv_cache_description(const char *dir, bool *there, json_t **root, qv_cache_layout *l, qv_error *err)
{
    char *path = qv_path_join(dir, QV_CACHE_DESCRIPTION);
    if (!path)
        return qv_no_memory(dir, err);
    json_t *json = NULL;
    qv_status s = QV_OK;
    *there = qv_path_exists(path);
    if (*there)
        s = qv_json_read(path, QV_JSON_MAX_CONFIG, &json, err);
    if (*there && !s) {
        const struct qv_json_object top = { .json = json, .file = path, .prefix = "" };
        s = check_text(&top, "format", QV_CACHE_FORMAT, "this is not a qwenvit cache", err);
        if (!s)
            s = check_text(&top, "version", QV_CACHE_VERSION, QV_CACHE_OTHER, err);
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

/* Finds the first place where two values differ, such as "a.b.c"; false if they are equal. */
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

/* Writes " (the cache's model is .., folder ..; the run's .., folder ..)"; "": neither is known. */
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
                                  : "unknown";
        }
    *text = 0;
    if (sides[0] || sides[1])
        snprintf(text, size, " (the cache's model is %s, folder %s; the run's %s, folder %s)",
                 words[0][0], words[0][1], words[1][0], words[1][1]);
}

/* Returns advice for the user on a difference. */
static const char *
advice(const char *name)
{
    return !strcmp(name, "frames") ? "another version chose different frames or pixels for some "
                                     "clips; continue with that version or use another folder"
           : strcmp(name, "packing")
               ? "use the cache's value or another folder"
               : "another version packed frame pairs differently, so this version's tokens could "
                 "have different bits; continue with that version or use another folder";
}

/* Lists the fields that a run records and an older cache does not. */
static bool
list_missing(const json_t *there, const json_t *run, char *text, size_t size)
{
    const char *key;
    json_t *unused;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)run, key, unused)
    {
        if (!json_object_get(there, key) && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s\"%s\"", n ? ", " : "", key);
    }
    return n > 0;
}

qv_status
qv_cache_same(const char *dir, const json_t *there, const json_t *run, qv_error *err)
{
    char name[MAX_NAME] = "", quoted[QV_QUOTE_SIZE], has[QV_QUOTE_SIZE], would[QV_QUOTE_SIZE];
    char models[5 * QV_QUOTE_SIZE];
    const json_t *x = NULL, *y = NULL;
    json_t *a = qv_cache_resolved(there), *b = qv_cache_resolved(run);
    qv_status s = a && b ? QV_OK : qv_no_memory(dir, err);
    if (!s && list_missing(a, b, models, sizeof models))
        s = qv_fail(err, QV_EFORMAT,
                    "%s: this cache does not record %s, which its tokens depend on: another "
                    "version made it; continue with that version or use another folder",
                    dir, models);
    if (!s && find_difference(a, b, name, &x, &y)) {
        name_models(there, run, models, sizeof models);
        s = qv_fail(err, QV_EFORMAT, "%s: this cache has %s %s, but the run has %s%s; %s", dir,
                    qv_json_quote(name, quoted), x ? qv_json_show(x, has) : "none",
                    y ? qv_json_show(y, would) : "none", models, advice(name));
    }
    json_decref(a);
    json_decref(b);
    return s;
}
