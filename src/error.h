/* SPDX-License-Identifier: MIT */
/* Makes error texts. Each is written once, where the failure is known, into the caller's
 * qv_error. */
#ifndef QV_ERROR_H
#define QV_ERROR_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "printable.h"
#include "qwenvit.h"

/* Makes an error text, which may quote files and arguments: what a terminal would obey becomes
 * '?'. */
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
        qv_make_printable(err->text);
        err->status = status;
    }
    return status;
}

/* Returns true for a failure of the device, of memory or of the caller, which every further item
 * would meet; false for a failure of the one item or file at hand. */
static inline bool
qv_ends_all(qv_status status)
{
    switch (status) {
    case QV_OK:
    case QV_EINVAL:
    case QV_EIO:
    case QV_EFORMAT:
    case QV_EUNSUPPORTED: return false;
    case QV_ENOMEM:
    case QV_ENODEVICE:
    case QV_EBACKEND:
    case QV_ESTATE:
    case QV_STATUS_MAX: break;
    }
    return true;
}

/* The analyzer does not look into functions with "...", so it would assume that code goes on after
 * a failure. */
#ifdef __clang_analyzer__
#define qv_fail(err, status, ...) (qv_fail(err, status, __VA_ARGS__), (status))
#endif

#define QV_MAX_PATH_SHOWN 160

/* Returns the end of a path, short enough for an error text that has other things to say. */
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
