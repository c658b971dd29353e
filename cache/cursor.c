/* SPDX-License-Identifier: MIT */
#include "cursor.h"

#include <stdlib.h>
#include <string.h>

#include "files/utf8.h"

enum { MOST_DEEP = 64 };

bool
qv_cursor_fail(struct qv_cursor *c, const char *wrong)
{
    if (!c->wrong)
        c->wrong = wrong;
    return false;
}

bool
qv_cursor_fail_memory(struct qv_cursor *c)
{
    c->lost = true;
    return qv_cursor_fail(c, "out of memory");
}

static void
skip_space(struct qv_cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

bool
qv_cursor_take(struct qv_cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

bool
qv_cursor_expect(struct qv_cursor *c, char wanted, const char *wrong)
{
    return qv_cursor_take(c, wanted) || qv_cursor_fail(c, wrong);
}

/* ---- strings --------------------------------------------------------------------------------- */

static int
hex_value(char h)
{
    return h >= '0' && h <= '9'   ? h - '0'
           : h >= 'a' && h <= 'f' ? h - 'a' + 10
           : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                  : -1;
}

static bool
read_hex(struct qv_cursor *c, unsigned *out)
{
    *out = 0;
    if (c->end - c->at < 4)
        return qv_cursor_fail(c, "a \\u has four hexadecimal digits");
    for (int i = 0; i < 4; i++, c->at++) {
        const int v = hex_value(*c->at);
        if (v < 0)
            return qv_cursor_fail(c, "a \\u has four hexadecimal digits");
        *out = *out << 4 | (unsigned)v;
    }
    return true;
}

/* Reads what follows "\u": a character of the basic plane, or a pair of surrogates. Returns how
 * many bytes of UTF-8 it takes; 0: it is wrong. */
static size_t
read_escaped_character(struct qv_cursor *c, char out[4])
{
    unsigned code = 0, low = 0;
    if (!read_hex(c, &code))
        return 0;
    if (code >= 0xd800 && code < 0xdc00 && c->end - c->at >= 6 && c->at[0] == '\\' &&
        c->at[1] == 'u') {
        c->at += 2;
        if (!read_hex(c, &low))
            return 0;
        if (low < 0xdc00 || low > 0xdfff) {
            qv_cursor_fail(c, "a surrogate has no second half");
            return 0;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (!code || (code >= 0xd800 && code <= 0xdfff)) {
        qv_cursor_fail(c, code ? "a surrogate stands alone" : "a string has a NUL");
        return 0;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | code);
    return n;
}

/* Reads what follows a backslash. */
static bool
read_escape(struct qv_cursor *c, struct qv_text *to)
{
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char bytes[4];
    size_t n = 1;
    const char *known = c->at < c->end && *c->at ? strchr(from, *c->at) : NULL;
    if (known) {
        bytes[0] = means[known - from];
        c->at++;
    } else if (c->at < c->end && *c->at == 'u') {
        c->at++;
        n = read_escaped_character(c, bytes);
    } else {
        return qv_cursor_fail(c, "no such escape in a string");
    }
    if (n)
        qv_text_add(to, bytes, n);
    return n > 0;
}

static bool
is_plain(unsigned char b)
{
    return b >= 0x20 && b < 0x80 && b != '"' && b != '\\';
}

bool
qv_cursor_string(struct qv_cursor *c, struct qv_text *to)
{
    if (!qv_cursor_expect(c, '"', "a string is needed"))
        return false;
    for (;;) {
        const char *from = c->at;
        while (c->at < c->end && is_plain((unsigned char)*c->at))
            c->at++;
        qv_text_add(to, from, (size_t)(c->at - from));
        if (c->at == c->end)
            return qv_cursor_fail(c, "a string does not end");
        if (*c->at == '"')
            break;
        if (*c->at == '\\') {
            c->at++;
            if (!read_escape(c, to))
                return false;
            continue;
        }
        const size_t n = (unsigned char)*c->at < 0x20 ? 0 : qv_utf8_bytes(c->at);
        if (!n || n > (size_t)(c->end - c->at))
            return qv_cursor_fail(c,
                                  "a string has bytes that are not UTF-8, or control characters");
        qv_text_add(to, c->at, n);
        c->at += n;
    }
    c->at++;
    qv_text_add(to, "", 1);
    if (to->lost)
        return qv_cursor_fail_memory(c);
    to->n--;
    return true;
}

/* ---- numbers and the rest -------------------------------------------------------------------- */

static bool
skip_digits(struct qv_cursor *c)
{
    const char *from = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        c->at++;
    return c->at > from;
}

static bool
skip_number(struct qv_cursor *c)
{
    if (c->at < c->end && *c->at == '-')
        c->at++;
    const bool zero = c->at < c->end && *c->at == '0';
    if (zero)
        c->at++;
    else if (!skip_digits(c))
        return qv_cursor_fail(c, "a number is needed");
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!skip_digits(c))
            return qv_cursor_fail(c, "a number has no digit behind its point");
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-'))
            c->at++;
        if (!skip_digits(c))
            return qv_cursor_fail(c, "a number has no digit in its exponent");
    }
    return true;
}

bool
qv_cursor_number(struct qv_cursor *c, char *out, size_t size)
{
    skip_space(c);
    const char *from = c->at;
    if (!skip_number(c))
        return false;
    const size_t n = (size_t)(c->at - from);
    if (n >= size)
        return qv_cursor_fail(c, "a number is too long");
    memcpy(out, from, n);
    out[n] = 0;
    return true;
}

bool
qv_cursor_int(struct qv_cursor *c, int64_t *out)
{
    char text[24];
    if (!qv_cursor_number(c, text, sizeof text))
        return false;
    const bool negative = *text == '-';
    int64_t v = 0;
    for (const char *p = text + negative; *p; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, *p - '0', &v))
            return qv_cursor_fail(c, "an integer of 64 bits is needed");
    if (!negative && v == INT64_MIN)
        return qv_cursor_fail(c, "an integer of 64 bits is needed");
    *out = negative ? v : -v;
    return true;
}

bool
qv_cursor_member(struct qv_cursor *c, bool *first, struct qv_text *name)
{
    if (*first && qv_cursor_take(c, '}'))
        return false;
    if (!*first && !qv_cursor_take(c, ','))
        return qv_cursor_expect(c, '}', "a comma or the object's end is needed") && false;
    *first = false;
    name->n = 0;
    return qv_cursor_string(c, name) && qv_cursor_expect(c, ':', "a colon is needed");
}

static bool
skip_word(struct qv_cursor *c)
{
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(c->end - c->at) >= n && !memcmp(c->at, words[i], n)) {
            c->at += n;
            return true;
        }
    }
    return skip_number(c);
}

bool
qv_cursor_bool(struct qv_cursor *c, bool *out, const char *wrong)
{
    skip_space(c);
    const bool is_there = c->at < c->end;
    *out = is_there && *c->at == 't';
    return *out || (is_there && *c->at == 'f') ? skip_word(c) : qv_cursor_fail(c, wrong);
}

static bool
skip_value(struct qv_cursor *c, struct qv_text *scratch, int deep)
{
    if (deep > MOST_DEEP)
        return qv_cursor_fail(c, "values lie too deep in one another");
    skip_space(c);
    if (c->at == c->end)
        return qv_cursor_fail(c, "a value is needed");
    if (*c->at == '"') {
        scratch->n = 0;
        return qv_cursor_string(c, scratch);
    }
    if (qv_cursor_take(c, '{')) {
        bool first = true;
        while (qv_cursor_member(c, &first, scratch))
            if (!skip_value(c, scratch, deep + 1))
                return false;
        return !c->wrong;
    }
    if (!qv_cursor_take(c, '['))
        return skip_word(c);
    if (qv_cursor_take(c, ']'))
        return true;
    do
        if (!skip_value(c, scratch, deep + 1))
            return false;
    while (qv_cursor_take(c, ','));
    return qv_cursor_expect(c, ']', "a comma or the list's end is needed");
}

bool
qv_cursor_skip(struct qv_cursor *c)
{
    struct qv_text scratch = { 0 };
    const bool good = skip_value(c, &scratch, 0);
    free(scratch.at);
    return good;
}
