/* SPDX-License-Identifier: MIT */
/* Shows a result as a line of JSON, or as a text filled in from its fields. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files/outcome_json.h"
#include "tool.h"

struct unit {
    double of; /* its size in the first unit */
    const char *name;
};
static const struct unit
    memory[] = { { 1, "B" },
                 { 0x1p10, "KiB" },
                 { 0x1p20, "MiB" },
                 { 0x1p30, "GiB" },
                 { 0x1p40, "TiB" } },
    files[] = { { 1, "B" }, { 1e3, "KB" }, { 1e6, "MB" }, { 1e9, "GB" }, { 1e12, "TB" } },
    times[] = { { 1e-3, "ms" }, { 1, "s" }, { 60, "min" }, { 3600, "h" }, { 86400, "days" } };
enum { N_UNITS = 5 };

/* Prints a number in the largest unit in which it is at least 1, with three digits (memory: one
 * decimal), and bytes as integers. */
static void
print_in(const struct unit *units, double x)
{
    const struct unit *u = units;
    const double size = fabs(x);
    while (u + 1 < units + N_UNITS && size >= u[1].of * 0.9995)
        u++;
    const double shown = size / u->of;
    const int digits = u->of == 1 && units != times ? 0
                       : units == memory            ? 1
                       : shown < 9.995              ? 2
                                                    : shown < 99.95;
    tool_print("%s%.*f %s", x < 0 && shown >= 0.5 ? "-" : "", digits, shown, u->name);
}

/* Prints a piece of a template, which may contain line ends. */
static void
print_piece(const char *t, size_t n)
{
    for (const char *end = t + n, *line; t < end; t = line + 1) {
        line = memchr(t, '\n', (size_t)(end - t));
        tool_print(line ? "%.*s\n" : "%.*s", (int)((line ? line : end) - t), t);
        line = line ? line : end;
    }
}

/* `how` is what follows | in the template. */
static void
print_value(const json_t *value, const char *how)
{
    const bool is_array = json_is_array(value);
    const double x = is_array ? (double)json_array_size(value) : json_number_value(value);
    char *end;
    if (!strcmp(how, "n"))
        tool_print("%zu", json_array_size(value));
    else if (!strcmp(how, "s"))
        tool_print("%s", x == 1 ? "" : "s");
    else if (is_array)
        for (size_t i = 0; i < json_array_size(value); i++) {
            print_piece(how, i ? strlen(how) : 0);
            print_value(json_array_get(value, i), "");
        }
    else if (json_is_string(value))
        tool_print("%s", json_string_value(value));
    else if (!strcmp(how, "size"))
        print_in(memory, x);
    else if (!strcmp(how, "GB"))
        print_in(files, x);
    else if (!strcmp(how, "time"))
        print_in(times, x);
    else if (json_is_integer(value))
        tool_print("%lld", (long long)json_integer_value(value));
    else if (json_is_real(value)) {
        const int digits = *how ? (int)strtol(how, &end, 10) : 6;
        tool_print(*how && *end == 'f' ? "%.*f" : "%.*g", digits, x);
    }
}

/* Returns the field named by `n` bytes, where A.B is member B of A; NULL: unknown. */
static const json_t *
find_field(const json_t *object, const char *name, size_t n)
{
    char part[32];
    for (size_t bytes = 0; n && object; name += bytes + 1, n -= bytes < n ? bytes + 1 : n) {
        const char *dot = memchr(name, '.', n);
        bytes = dot ? (size_t)(dot - name) : n;
        snprintf(part, sizeof part, "%.*s", (int)bytes, name);
        object = json_object_get(object, part);
    }
    return object;
}

static bool
is_set(const json_t *v)
{
    return json_is_true(v) || json_number_value(v) != 0 || json_string_length(v) ||
           json_array_size(v) || json_object_size(v);
}

/* Prints a template up to its end or to the ] of its part, and returns that position. */
static const char *
print_filled(const char *t, const json_t *object, bool shown)
{
    char how[32];
    while (*t && *t != ']') {
        const size_t plain = strcspn(t, "{[]");
        if (shown)
            print_piece(t, plain);
        if (!t[plain] || t[plain] == ']') {
            t += plain;
            continue;
        }
        const bool is_field = t[plain] == '{', not = t[plain + 1] == '!';
        const size_t name = strcspn(t + plain + 1, "|?}");
        const json_t *value = find_field(object, t + plain + 1 + not, name - not );
        t += plain + 1 + name;
        if (is_field) {
            const size_t n = strcspn(t, "}");
            snprintf(how, sizeof how, "%.*s", n ? (int)n - 1 : 0, t + (n > 0));
            if (shown)
                print_value(value, how);
            t += n + 1;
        } else
            t = print_filled(t + 1, object, shown && is_set(value) != not ) + 1;
    }
    return t;
}

static json_t *
next_value(char kind, va_list *ap)
{
    switch (kind) {
    case 'I': return json_integer(va_arg(*ap, int64_t));
    case 'i': return json_integer(va_arg(*ap, int));
    case 'b': return json_boolean(va_arg(*ap, int));
    case 'f': return json_real(va_arg(*ap, double));
    case 's': return json_string(va_arg(*ap, const char *));
    case 't': return tool_json_text(va_arg(*ap, const char *));
    default: return va_arg(*ap, json_t *);
    }
}

static void
add_fields(json_t **object, const char *fields, va_list *ap)
{
    bool lost = !*object;
    for (size_t n; *fields; fields += n + strspn(fields + n, " ")) {
        char name[64], *dot;
        json_t *to = *object;
        n = strcspn(fields, " ");
        snprintf(name, sizeof name, "%.*s", (int)n - 2, fields);
        if ((dot = strchr(name, '.')) != NULL) {
            *dot = 0;
            to = json_object_get(*object, name);
            if (!to && !json_object_set_new(*object, name, json_object()))
                to = json_object_get(*object, name);
        }
        lost |= json_object_set_new(to, dot ? dot + 1 : name, next_value(fields[n - 1], ap)) != 0;
    }
    if (lost) {
        json_decref(*object);
        *object = NULL;
    }
}

void
tool_json_add(json_t **object, const char *fields, ...)
{
    va_list ap;
    va_start(ap, fields);
    add_fields(object, fields, &ap);
    va_end(ap);
}

json_t *
tool_json(const char *fields, ...)
{
    json_t *object = json_object();
    va_list ap;
    va_start(ap, fields);
    add_fields(&object, fields, &ap);
    va_end(ap);
    return object;
}

void
tool_json_add_outcome(json_t **object, const qv_outcome *o, unsigned reader)
{
    if (!*object || !qv_outcome_json(*object, o, reader))
        return;
    json_decref(*object);
    *object = NULL;
}

json_t *
tool_json_grid(const int64_t thw[3])
{
    return json_pack("[I,I,I]", (json_int_t)thw[0], (json_int_t)thw[1], (json_int_t)thw[2]);
}

qv_status
tool_show(const struct tool_results *to, json_t *object, const char *text, qv_error *err)
{
    if (!object)
        return qv_fail(err, QV_ENOMEM, "no memory for a result");
    if (!to->json)
        print_filled(text, object, true);
    json_object_del(object, "text");
    if (to->json)
        return tool_emit_json(to, object, err);
    json_decref(object);
    return QV_OK;
}
