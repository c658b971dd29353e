/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "list.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "tool.h"

/* Where in which list; for error texts. */
struct place {
    const char *file;
    size_t line;
};

#define BAD(place, status, format, ...)                                                            \
    qv_fail(err, status, "%s:%zu: " format, qv_path_tail((place)->file), (place)->line, __VA_ARGS__)

/* ---- a line ---------------------------------------------------------------------------------- */

enum field_kind { TEXT, RATE, START, COUNT, PLACE };

static const struct {
    const char *name;
    enum field_kind kind;
    size_t at;
} fields[] = {
    { "path", TEXT, offsetof(struct tool_entry, path) },
    { "key", TEXT, offsetof(struct tool_entry, key) },
    { "fps", RATE, offsetof(struct tool_entry, fps) },
    { "max_frames", COUNT, offsetof(struct tool_entry, max_frames) },
    { "max_pixels", COUNT, offsetof(struct tool_entry, max_pixels) },
    { "start", START, offsetof(struct tool_entry, start_s) },
    { "end", RATE, offsetof(struct tool_entry, end_s) },
    { "offset", PLACE, offsetof(struct tool_entry, offset) },
    { "bytes", COUNT, offsetof(struct tool_entry, bytes) },
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* NULL, or what the value must be. */
static const char *
set_field(struct tool_entry *entry, size_t i, const json_t *value, bool *memory)
{
    char *field = (char *)entry + fields[i].at;
    switch (fields[i].kind) {
    case TEXT:
        if (!json_is_string(value) || !*json_string_value(value))
            return "a text that is not empty";
        *(char **)(void *)field = strdup(json_string_value(value));
        *memory = *(char **)(void *)field != NULL;
        return NULL;
    case RATE:
    case START:
        if (!json_is_number(value) || json_number_value(value) < 0 ||
            (fields[i].kind == RATE && json_number_value(value) == 0))
            return fields[i].kind == RATE ? "a number above 0" : "a number from 0 up";
        *(double *)(void *)field = json_number_value(value);
        return NULL;
    case COUNT:
    case PLACE:
        if (!json_is_integer(value) || json_integer_value(value) < (fields[i].kind == COUNT))
            return fields[i].kind == COUNT ? "an integer from 1 up" : "an integer from 0 up";
        *(int64_t *)(void *)field = json_integer_value(value);
        return NULL;
    }
    return NULL;
}

static qv_status
read_object(const struct place *p, json_t *object, struct tool_entry *entry, qv_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        size_t i = 0;
        bool memory = true;
        while (i < N_FIELDS && strcmp(fields[i].name, name) != 0)
            i++;
        if (i == N_FIELDS)
            return BAD(p, QV_EFORMAT, "there is no field \"%s\"", qv_path_tail(name));
        const char *wanted = set_field(entry, i, value, &memory);
        if (wanted)
            return BAD(p, QV_EFORMAT, "\"%s\" must be %s", name, wanted);
        if (!memory)
            return BAD(p, QV_ENOMEM, "no memory for \"%s\"", name);
    }
    if (entry->end_s > 0 && entry->end_s <= entry->start_s)
        return BAD(p, QV_EFORMAT, "\"end\" is %.15g; above \"start\", %.15g", entry->end_s,
                   entry->start_s);
    return entry->path ? QV_OK : BAD(p, QV_EFORMAT, "no \"%s\"", "path");
}

static qv_status
read_json(const struct place *p, const char *text, size_t n, struct tool_entry *entry,
          qv_error *err)
{
    json_error_t why;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return BAD(p, QV_EFORMAT, "neither a path nor a JSON object: %s", why.text);
    qv_status status = read_object(p, object, entry, err);
    json_decref(object);
    return status;
}

static qv_status
read_line(const struct place *p, const char *text, size_t n, struct tool_entry *entry,
          qv_error *err)
{
    if (memchr(text, 0, n))
        return BAD(p, QV_EFORMAT, "a NUL byte, number %zu of the line", strlen(text) + 1);
    qv_status status = QV_OK;
    entry->line = p->line;
    if (*text == '{')
        status = read_json(p, text, n, entry, err);
    else if (!(entry->path = strdup(text)))
        status = BAD(p, QV_ENOMEM, "no memory for a path of %zu bytes", n);
    if (!status && !entry->key && !(entry->key = tool_utf8(entry->path)))
        status = BAD(p, QV_ENOMEM, "no memory for a key of %zu bytes", strlen(entry->path));
    if (!status && !strncmp(entry->key, "__", 2))
        status = BAD(p, QV_EFORMAT, "key \"%s\": one must not begin with \"__\"",
                     qv_path_tail(entry->key));
    return status;
}

/* ---- all lines ------------------------------------------------------------------------------- */

static struct tool_entry *
add_entry(struct tool_list *list)
{
    if (list->n == list->room) {
        const size_t room = list->room ? 2 * list->room : 64;
        struct tool_entry *at = realloc(list->at, room * sizeof *at);
        if (!at)
            return NULL;
        list->at = at;
        list->room = room;
    }
    struct tool_entry *entry = &list->at[list->n++];
    *entry = (struct tool_entry){ 0 };
    return entry;
}

static qv_status
read_lines(const char *file, FILE *from, struct tool_list *list, qv_error *err)
{
    struct place p = { file, 0 };
    char *text = NULL;
    size_t room = 0;
    qv_status status = QV_OK;
    for (ssize_t n; !status && (n = getline(&text, &room, from)) >= 0;) {
        p.line++;
        if (n && text[n - 1] == '\n')
            text[--n] = 0;
        if (!n)
            continue;
        struct tool_entry *entry = add_entry(list);
        status = entry ? read_line(&p, text, (size_t)n, entry, err)
                       : BAD(&p, QV_ENOMEM, "no memory for %zu lines", list->n);
    }
    if (!status && ferror(from))
        status = qv_fail(err, QV_EIO, "%s: cannot be read: %s", file, strerror(errno));
    if (!status && !feof(from))
        status = qv_fail(err, QV_ENOMEM, "%s: no memory for a line", file);
    free(text);
    return status;
}

/* ---- twice ----------------------------------------------------------------------------------- */

struct named {
    const char *name;
    size_t line;
};

static int
by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* names[n] are sorted. The line that is the first of the file to say what was said before. */
static qv_status
check_once(const char *file, struct named *names, size_t n, const char *what, qv_error *err)
{
    const struct named *first = NULL, *again = NULL;
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1].name, names[i].name) && (!again || names[i].line < again->line)) {
            first = &names[i - 1];
            again = &names[i];
        }
    if (!again)
        return QV_OK;
    const struct place p = { file, again->line };
    return BAD(&p, QV_EFORMAT, "%s \"%s\" was in line %zu before", what, qv_path_tail(again->name),
               first->line);
}

static qv_status
check_keys(const struct tool_list *list, const char *file, qv_error *err)
{
    struct named *names = calloc(list->n + 1, sizeof *names);
    if (!names)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %zu keys", file, list->n);
    for (size_t i = 0; i < list->n; i++)
        names[i] = (struct named){ list->at[i].key, list->at[i].line };
    qv_status status = check_once(file, names, list->n, "key", err);
    free(names);
    return status;
}

qv_status
tool_list_read(const char *file, struct tool_list *out, qv_error *err)
{
    const bool standard = !strcmp(file, "-");
    FILE *from = standard ? stdin : fopen(file, "r");
    if (!from)
        return qv_fail(err, QV_EIO, "%s: cannot be opened: %s", file, strerror(errno));
    qv_status status = read_lines(file, from, out, err);
    if (!standard)
        fclose(from);
    return status ? status : check_keys(out, file, err);
}

void
tool_list_free(struct tool_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->at[i].path);
        free(list->at[i].key);
    }
    free(list->at);
    *list = (struct tool_list){ 0 };
}

/* ---- keys as names of files ------------------------------------------------------------------ */

/* The key without what changes no path: "." and empty names. False for "..", or where it ends so. */
static bool
make_plain(const char *key, char *plain)
{
    const char *slash = strrchr(key, '/'), *last = slash ? slash + 1 : key;
    char *to = plain;
    if (!*last || !strcmp(last, "."))
        return false;
    while (*key) {
        const size_t n = strcspn(key, "/");
        if (n == 2 && !strncmp(key, "..", 2))
            return false;
        if (n && !(n == 1 && *key == '.')) {
            if (to != plain)
                *to++ = '/';
            memcpy(to, key, n);
            to += n;
        }
        key += n + (key[n] == '/');
    }
    *to = 0;
    return true;
}

static qv_status
plain_names(const struct tool_list *list, const char *file, struct named *names, char **texts,
            qv_error *err)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct tool_entry *entry = &list->at[i];
        const struct place p = { file, entry->line };
        texts[i] = malloc(strlen(entry->key) + 1);
        if (!texts[i])
            return BAD(&p, QV_ENOMEM, "no memory for a name of %zu bytes", strlen(entry->key));
        if (!make_plain(entry->key, texts[i]))
            return BAD(&p, QV_EFORMAT, "key \"%s\": a file is to be named by it, without \"..\"",
                       qv_path_tail(entry->key));
        names[i] = (struct named){ texts[i], entry->line };
    }
    return check_once(file, names, list->n, "the file of key", err);
}

qv_status
tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err)
{
    struct named *names = calloc(list->n + 1, sizeof *names);
    char **texts = calloc(list->n + 1, sizeof *texts);
    qv_status status = names && texts
                           ? plain_names(list, file, names, texts, err)
                           : qv_fail(err, QV_ENOMEM, "%s: no memory for %zu names", file, list->n);
    for (size_t i = 0; texts && i < list->n; i++)
        free(texts[i]);
    free(texts);
    free(names);
    return status;
}

qv_clip_options
tool_entry_options(const struct tool_entry *entry, const qv_clip_options *all)
{
    qv_clip_options o = *all;
    if (entry->fps > 0) {
        o.fps = entry->fps;
        o.num_frames = 0;
    }
    o.max_frames = entry->max_frames ? entry->max_frames : o.max_frames;
    o.start_s = entry->start_s;
    o.end_s = entry->end_s;
    o.offset = entry->offset;
    o.length = entry->bytes;
    o.max_pixels = entry->max_pixels ? entry->max_pixels : o.max_pixels;
    return o;
}
