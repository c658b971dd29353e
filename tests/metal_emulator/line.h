/* SPDX-License-Identifier: MIT */
#ifndef QV_METAL_LINE_H
#define QV_METAL_LINE_H

#include <stddef.h>

/* Writes "line N" of a kernel's source for an address in its code, by addr2line; "" if there is
 * none. */
void line_of_code(const void *code, char *out, size_t size);

#endif
