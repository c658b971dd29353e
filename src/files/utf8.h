/* SPDX-License-Identifier: MIT */
#ifndef QV_FILES_UTF8_H
#define QV_FILES_UTF8_H

#include <stddef.h>

/* Returns how many bytes the UTF-8 character at the beginning of a text has; 0 if there is none.
 * The text must not be empty. */
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

/* Returns a file's name as text, for free(); bytes that are not UTF-8 become %XX. NULL if out of
 * memory. */
char *qv_utf8_text(const char *bytes);

#endif
