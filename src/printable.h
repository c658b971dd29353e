/* SPDX-License-Identifier: MIT */
/* Makes texts that quote untrusted bytes (file names, keys, metadata) safe to display. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns the length in bytes of the UTF-8 character at the beginning of a text; 0 if it is not
 * valid UTF-8. The text must not be empty. */
static inline size_t
qv_utf8_bytes(const char *text)
{
    static const unsigned least[] = { 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)text;
    const int more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
    if ((*p & 0xc0) == 0x80 || *p > 0xf7)
        return 0;
    unsigned code = *p & (more ? 0x3fu >> more : 0x7fu);
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    const int right = code >= least[more] && code <= 0x10ffff && (code < 0xd800 || code >= 0xe000);
    return right ? (size_t)more + 1 : 0;
}

/* Returns the code of the control character at the beginning of a text that is not empty, in UTF-8
 * of n bytes (qv_utf8_bytes); 0 if the character may be shown. Terminals act on control characters
 * (U+0000 to U+001F, U+007F to U+009F). Bidirectional controls and line and paragraph separators
 * make a name look like a different name, or like two lines. */
static inline unsigned
qv_control_code(const char *text, size_t n)
{
    static const struct {
        unsigned first, last;
    } controls[] = { { 0x00, 0x1f },     { 0x7f, 0x9f },     { 0x61c, 0x61c },
                     { 0x200e, 0x200f }, { 0x2028, 0x202e }, { 0x2066, 0x2069 } };
    const unsigned char *p = (const unsigned char *)text;
    const unsigned code = n == 1   ? p[0]
                          : n == 2 ? (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu)
                          : n == 3 ? (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu)
                                   : 0;
    for (size_t i = 0; n && n < 4 && i < sizeof controls / sizeof *controls; i++)
        if (code >= controls[i].first && code <= controls[i].last)
            return code;
    return 0;
}

/* Replaces each byte of a control character, and each byte that is not UTF-8, with '?'. */
static inline void
qv_make_printable(char *text)
{
    while (*text) {
        const size_t n = qv_utf8_bytes(text), wrong = !n ? 1 : qv_control_code(text, n) ? n : 0;
        memset(text, '?', wrong);
        text += n ? n : 1;
    }
}

/* Returns whether qv_make_printable would leave the text unchanged. */
static inline bool
qv_is_printable(const char *text)
{
    while (*text) {
        const size_t n = qv_utf8_bytes(text);
        if (!n || qv_control_code(text, n))
            return false;
        text += n;
    }
    return true;
}
