/* SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>

/* Writes "line N" of a kernel's source for an address in its code, by addr2line; "" if there is
 * none. */
void line_of_code(const void *code, char *out, size_t size);
