/* SPDX-License-Identifier: MIT */
/* Growing texts, and escaping for JSON. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A text that grows. When memory for it runs out, `lost` is set and nothing more is added. */
struct qv_text {
    char *at; /* free() */
    size_t n, room;
    bool lost;
};
void qv_text_add(struct qv_text *t, const char *bytes, size_t n);
void qv_text_pad(struct qv_text *t, char byte, size_t n); /* appends n of these bytes */
void qv_text_say(struct qv_text *t, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* Appends text escaped for a JSON string. UTF-8 is unchanged. */
void qv_text_escape(struct qv_text *t, const char *bytes, size_t n);
size_t qv_text_escaped(const char *bytes, size_t n); /* how many bytes qv_text_escape adds */
