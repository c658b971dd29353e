/* SPDX-License-Identifier: MIT */
#ifndef QV_FILES_UTF8_H
#define QV_FILES_UTF8_H

#include "printable.h" /* for qv_utf8_bytes */

/* Returns a file's name as text, for free(); bytes that are not UTF-8 become %XX. NULL if out of
 * memory. */
char *qv_utf8_text(const char *bytes);

#endif
