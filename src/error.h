/* SPDX-License-Identifier: MIT */
/* Error texts: written once where the failure is known, kept in the caller's qv_error. */
#ifndef QV_ERROR_H
#define QV_ERROR_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "qwenvit.h"

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline qv_status
qv_fail(qv_error *err, qv_status status, const char *format, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(err->text, sizeof err->text, format, ap);
        va_end(ap);
        err->status = status;
    }
    return status;
}

/* The analyzer does not look into functions with "...": without this it goes on after a failure. */
#ifdef __clang_analyzer__
#define qv_fail(err, status, ...) (qv_fail(err, status, __VA_ARGS__), (status))
#endif

#define QV_MAX_PATH_SHOWN 160

/* The end of a path, short enough for an error text that has other things to say. */
static inline const char *
qv_path_tail(const char *path)
{
    const size_t n = strlen(path);
    if (n <= QV_MAX_PATH_SHOWN)
        return path;
    const char *tail = path + n - QV_MAX_PATH_SHOWN;
    const char *slash = strchr(tail, '/');
    return slash && slash[1] ? slash + 1 : tail;
}

#endif
