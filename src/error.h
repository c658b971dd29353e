/* SPDX-License-Identifier: MIT */
/* Makes error texts. Each is written once, where the failure is known, into the caller's
 * qv_error. */
#ifndef QV_ERROR_H
#define QV_ERROR_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "qwenvit.h"

/* Error texts quote files and arguments, and a terminal obeys control characters in them: each
 * becomes '?'. Those from U+0080 to U+009F are two bytes in UTF-8. */
static inline void
qv_make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < ' ' || *c == 127)
            *c = '?';
        else if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = '?';
}

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

/* Returns whether a call failed for what this process or machine lacks, and not for what is wrong
 * with the file: the next file would fail in the same way. */
static inline bool
qv_is_scarcity(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
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
