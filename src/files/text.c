/* SPDX-License-Identifier: MIT */
#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
qv_text_pad(struct qv_text *t, char byte, size_t n)
{
    char *to = n ? make_room(t, n) : NULL;
    if (to) {
        memset(to, byte, n);
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
