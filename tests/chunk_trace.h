/* SPDX-License-Identifier: MIT */
#pragma once

enum { CHUNK_TRACE_BITS = 30 };

extern void (*chunk_trace_wait)(void); /* called after each push and pull, if it is not NULL */
/* If this is not NULL, item i's data begins at chunk_trace_items + (i << CHUNK_TRACE_BITS). */
extern char *chunk_trace_items;

/* Writes a line of the caller's own. */
void chunk_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
