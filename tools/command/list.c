/* SPDX-License-Identifier: MIT */
#include "list.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "error.h"
#include "files/json.h"
#include "grow.h"
#include "path.h"
#include "tool.h"

/* The file and line that an error message names. */
struct place {
    const char *file;
    size_t line;
};

#define BAD(place, status, format, ...)                                                            \
    qv_fail(err, status, "%s:%zu: " format, (place)->file, (place)->line, __VA_ARGS__)

enum { MOST_LINE = 1 << 20 }; /* a line of /dev/zero never ends */

/* ---- memory ---------------------------------------------------------------------------------- */

/* Entries and texts are allocated in blocks: a million lines, each with its own allocations, would
 * need three times as much memory. */
struct tool_block {
    struct tool_block *next;
    size_t n, room;
    _Alignas(max_align_t) char at[];
};

static void *
take(struct tool_list *list, size_t bytes, size_t align)
{
    enum { ROOM = 1 << 18 };
    struct tool_block *b = list->blocks;
    size_t begin = b ? (b->n + align - 1) / align * align : 0;
    if (!b || begin > b->room || bytes > b->room - begin) {
        const size_t room = bytes > ROOM ? bytes : ROOM;
        b = malloc(sizeof *b + room);
        if (!b)
            return NULL;
        *b = (struct tool_block){ .next = list->blocks, .room = room };
        list->blocks = b;
        begin = 0;
    }
    b->n = begin + bytes;
    return b->at + begin;
}

static const char *
keep_text(struct tool_list *list, const char *text)
{
    const size_t n = strlen(text) + 1;
    char *to = take(list, n, 1);
    return to ? memcpy(to, text, n) : NULL;
}

/* Returns a path unchanged, or the path of a file:// address, decoding %XX. Other addresses stay as
 * they are, for the code that opens them. */
static const char *
path_of(struct tool_list *list, const char *text)
{
    static const char scheme[] = "file://";
    const size_t n = sizeof scheme - 1;
    const bool is_local = !strncmp(text, scheme, n) && text[n] == '/';
    char *path = take(list, strlen(text) + 1, 1), *to = path;
    for (const char *from = is_local ? text + n : text; path; from++) {
        char hex[3] = "", *end = hex;
        if (is_local && *from == '%')
            snprintf(hex, sizeof hex, "%.2s", from + 1);
        const unsigned long byte = isxdigit((unsigned char)*hex) ? strtoul(hex, &end, 16) : 0;
        if (byte && end == hex + 2) {
            *to++ = (char)byte;
            from += 2;
        } else if (!(*to++ = *from))
            break;
    }
    return path;
}

/* Returns the key for a path: the path itself if it is UTF-8. */
static const char *
key_of(struct tool_list *list, const char *path)
{
    char *text = qv_utf8_text(path);
    const char *key = text && strcmp(text, path) ? keep_text(list, text) : text ? path : NULL;
    free(text);
    return key;
}

/* ---- a line ---------------------------------------------------------------------------------- */

/* The contents of a line. The reader owns the texts. */
struct line {
    const char *path, *key; /* key NULL: not given */
    qv_clip_options own;
    bool asks; /* whether the line sets any option */
};

static qv_value
value_of(const json_t *value)
{
    return json_is_string(value)
               ? (qv_value){ .type = QV_VALUE_TEXT, .text = json_string_value(value) }
           : json_is_integer(value)
               ? (qv_value){ .type = QV_VALUE_INTEGER, .integer = json_integer_value(value) }
           : json_is_real(value)
               ? (qv_value){ .type = QV_VALUE_REAL, .real = json_real_value(value) }
           : json_is_boolean(value)
               ? (qv_value){ .type = QV_VALUE_FLAG, .integer = json_is_true(value) }
               : (qv_value){ .type = QV_VALUE_OTHER };
}

/* Sets a field. Returns NULL, or what its value must be; "": unknown field. */
static const char *
set_field(struct line *line, const char *name, const json_t *value)
{
    const bool is_path = !strcmp(name, "path");
    const qv_value v = value_of(value);
    if (!is_path && strcmp(name, "key") != 0) {
        line->asks = true;
        return qv_clip_options_set(&line->own, name, true, &v);
    }
    *(is_path ? &line->path : &line->key) = v.text;
    return v.text && *v.text ? NULL : "a non-empty string";
}

static qv_status
read_object(const struct place *p, json_t *object, struct line *line, qv_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const char *wanted = set_field(line, name, value);
        if (wanted && !*wanted) {
            char fields[160] = "path, key";
            QVM_EACH_OPTION (o)
                if (o->row)
                    snprintf(fields + strlen(fields), sizeof fields - strlen(fields), ", %s",
                             o->row);
            return BAD(p, QV_EFORMAT, "unknown field \"%s\"; the fields are %s", name, fields);
        }
        if (wanted)
            return BAD(p, QV_EFORMAT, "\"%s\" must be %s", name, wanted);
    }
    qv_error why = { 0 };
    if (qvm_check_row(&line->own, &why))
        return BAD(p, QV_EFORMAT, "%s", why.text);
    return line->path ? QV_OK : BAD(p, QV_EFORMAT, "missing %s", "\"path\"");
}

static qv_status
keep_line(const struct place *p, const struct line *line, struct tool_list *list,
          struct tool_entry *entry, qv_error *err)
{
    const char *path = path_of(list, line->path), *key = NULL;
    qv_clip_options *own = NULL;
    if (path)
        key = line->key ? keep_text(list, line->key) : key_of(list, path);
    if (line->asks) {
        own = take(list, sizeof *own, _Alignof(qv_clip_options));
        if (own)
            *own = line->own;
    }
    if (!key || (line->asks && !own))
        return BAD(p, QV_ENOMEM, "no memory for path \"%s\"", line->path);
    *entry = (struct tool_entry){ .path = path, .key = key, .own = own, .line = p->line };
    return strncmp(key, "__", 2)
               ? QV_OK
               : BAD(p, QV_EFORMAT, "key \"%s\": a key must not begin with \"__\"", key);
}

static qv_status
read_json(const struct place *p, const char *text, size_t n, struct tool_list *list,
          struct tool_entry *entry, qv_error *err)
{
    struct line line = { .path = NULL };
    json_error_t why;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return BAD(p, QV_EFORMAT, "neither a path nor a JSON object: %s", why.text);
    qv_status status = read_object(p, object, &line, err);
    if (!status)
        status = keep_line(p, &line, list, entry, err);
    json_decref(object);
    return status;
}

/* Returns whether a line looks like the header of a table, with a column for the path. */
static bool
is_header(const char *text)
{
    static const char *const names[] = { "path",  "file",  "filename", "file_name",
                                         "video", "image", "clip" };
    bool found = false;
    for (size_t n; *text; text += n + (text[n] != 0)) {
        n = strcspn(text, ",;\t");
        if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ \"") < n)
            return false;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            found = found || (strlen(names[i]) == n && !strncasecmp(text, names[i], n));
    }
    return found;
}

/* Returns why a line looks like part of another kind of list; NULL: it does not. A file may really
 * have such a name, so the line is an error, not skipped; JSON can name that file. */
static const char *
find_foreign(const struct place *p, const char *text)
{
    if (*text == '#')
        return "is a comment, which lists do not allow: remove it";
    if (!strcmp(text, "[") || !strncmp(text, "[{", 2) || !strncmp(text, "[\"", 2))
        return "begins a JSON array: write one object per line, without brackets and commas";
    return p->line == 1 && is_header(text)
               ? "names a table's columns: write one path per line, or one object per line, "
                 "{\"path\": .., \"key\": ..}"
               : NULL;
}

static qv_status
read_line(const struct place *p, const char *text, size_t n, struct tool_list *list,
          struct tool_entry *entry, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    const struct line line = { .path = text };
    const char *foreign = find_foreign(p, text);
    if (memchr(text, 0, n))
        return BAD(p, QV_EFORMAT, "byte %zu of the line is NUL", strlen(text) + 1);
    if (foreign)
        return BAD(p, QV_EFORMAT, "%s %s (for a file of this name write {\"path\": %s})",
                   qv_json_quote(text, quoted), foreign, quoted);
    return text[strspn(text, " \t")] == '{' ? read_json(p, text, n, list, entry, err)
                                            : keep_line(p, &line, list, entry, err);
}

/* ---- all lines ------------------------------------------------------------------------------- */

static struct tool_entry *
add_entry(struct tool_list *list)
{
    struct tool_entry *at = qv_grown(list->at, list->n, &list->room, sizeof *at);
    if (!at)
        return NULL;
    list->at = at;
    struct tool_entry *entry = &list->at[list->n++];
    *entry = (struct tool_entry){ 0 };
    return entry;
}

/* Reads a line without its line end into text[MOST_LINE + 1]. Returns its length in bytes;
 * MOST_LINE: too long; -1: end of the file. */
static int
next_line(FILE *from, char *text)
{
    int n = 0, c = getc(from);
    if (c == EOF)
        return -1;
    for (; c != EOF && c != '\n' && n < MOST_LINE; c = getc(from))
        text[n++] = (char)c;
    n -= n && n < MOST_LINE && text[n - 1] == '\r'; /* Windows line ends */
    text[n] = 0;
    return n;
}

static qv_status
read_lines(const char *file, FILE *from, struct tool_list *list, qv_error *err)
{
    struct place p = { file, 0 };
    char *text = calloc(1, MOST_LINE + 1);
    qv_status status = text ? QV_OK : qv_fail(err, QV_ENOMEM, "%s: no memory for a line", file);
    for (int n; !status && (n = next_line(from, text)) >= 0;) {
        p.line++;
        if (n == MOST_LINE) {
            status = BAD(&p, QV_EFORMAT, "longer than %d bytes", MOST_LINE - 1);
            break;
        }
        /* Windows editors write a byte order mark first */
        const int mark = p.line == 1 && !strncmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
        const char *line = text + mark;
        if (strspn(line, " \t") == (size_t)(n - mark))
            continue;
        struct tool_entry *entry = add_entry(list);
        status = entry ? read_line(&p, line, (size_t)(n - mark), list, entry, err)
                       : BAD(&p, QV_ENOMEM, "no memory for %zu lines", list->n);
    }
    if (!status && ferror(from))
        status = qv_fail(err, QV_EIO, "%s: cannot be read: %s", file, strerror(errno));
    free(text);
    return status;
}

/* ---- duplicates ------------------------------------------------------------------------------ */

static int
by_key(const void *a, const void *b)
{
    const struct tool_entry *x = *(const struct tool_entry *const *)a;
    const struct tool_entry *y = *(const struct tool_entry *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

qv_status
tool_list_check_once(const struct tool_list *list, const char *file, const char *what,
                     qv_error *err)
{
    const struct tool_entry *first = NULL, *again = NULL;
    const struct tool_entry **sorted = calloc(list->n + 1, sizeof *sorted);
    if (!sorted)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %zu keys", file, list->n);
    for (size_t i = 0; i < list->n; i++)
        sorted[i] = &list->at[i];
    qsort(sorted, list->n, sizeof *sorted, by_key);
    for (size_t i = 1; i < list->n; i++)
        if (!strcmp(sorted[i - 1]->key, sorted[i]->key) &&
            (!again || sorted[i]->line < again->line)) {
            first = sorted[i - 1];
            again = sorted[i];
        }
    free(sorted);
    if (!again)
        return QV_OK;
    if (!file)
        return strcmp(what, "key") && strcmp(first->path, again->path)
                   ? qv_fail(
                         err, QV_EINVAL,
                         "%s and %s would both be written to %s.safetensors: encode one of them "
                         "into another folder, or encode their common folder",
                         first->path, again->path, again->key)
                   : qv_fail(err, QV_EINVAL, "%s is given twice", again->path);
    const struct place p = { file, again->line };
    return BAD(&p, QV_EFORMAT, "%s \"%s\" is already used in line %zu", what, again->key,
               first->line);
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
    return status ? status : tool_list_check_once(out, file, "key", err);
}

qv_status
tool_list_add_file(struct tool_list *list, const char *path, const char *key, qv_error *err)
{
    struct tool_entry *entry = add_entry(list);
    const char *kept = entry ? keep_text(list, path) : NULL,
               *name = kept ? keep_text(list, key) : NULL;
    name = name ? key_of(list, name) : NULL;
    if (!name)
        return qv_no_memory(path, err);
    *entry = (struct tool_entry){ .path = kept, .key = name, .line = list->n };
    return QV_OK;
}

void
tool_list_free(struct tool_list *list)
{
    for (struct tool_block *b = list->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(list->at);
    *list = (struct tool_list){ 0 };
}

/* ---- keys as names of files ------------------------------------------------------------------ */

bool
tool_list_file_of(const char *key, char *plain)
{
    const char *last = qv_path_name(key);
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
add_plain(const struct tool_entry *entry, const char *file, struct tool_list *plain, qv_error *err)
{
    const struct place p = { file ? file : "argument", entry->line };
    const size_t bytes = strlen(entry->key) + 1;
    struct tool_entry *to = add_entry(plain);
    char *name = to ? take(plain, bytes, 1) : NULL;
    if (!name)
        return BAD(&p, QV_ENOMEM, "no memory for a name of %zu bytes", bytes - 1);
    if (!tool_list_file_of(entry->key, name))
        return BAD(&p, QV_EFORMAT, "key \"%s\": the key must be a valid file name without \"..\"",
                   entry->key);
    *to = (struct tool_entry){ .path = entry->path, .key = name, .line = entry->line };
    return QV_OK;
}

qv_status
tool_list_check_files(const struct tool_list *list, const char *file, qv_error *err)
{
    struct tool_list plain = { 0 };
    qv_status status = QV_OK;
    for (size_t i = 0; i < list->n && !status; i++)
        status = add_plain(&list->at[i], file, &plain, err);
    if (!status)
        status = tool_list_check_once(&plain, file, "the file for key", err);
    tool_list_free(&plain);
    return status;
}
