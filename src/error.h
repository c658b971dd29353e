/* SPDX-License-Identifier: MIT */
/* Makes error texts. Each is written once, where the failure is detected, to the caller's
 * qv_error. */
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "printable.h"
#include "qwenvit.h"

/* Copies a text that is too long to to[size], without the middle of its longest part (parts end in
 * ": "), usually a path with the reason after it. If no part is long enough, the middle of the
 * whole text is dropped. */
static inline void
qv_shorten(char *to, size_t size, const char *text)
{
    static const char mark[] = " .. ";
    const size_t n = strlen(text), excess = n + sizeof mark - size;
    const char *longest = text, *end;
    size_t most = 0;
    for (const char *part = text; *part; part = *end ? end + 2 : end) {
        end = strstr(part, ": ");
        end = end ? end : text + n;
        if ((size_t)(end - part) > most) {
            longest = part;
            most = (size_t)(end - part);
        }
    }
    if (most <= excess) {
        longest = text;
        most = n;
    }
    /* a path's end is more informative than its beginning; UTF-8 characters stay whole */
    size_t from = (size_t)(longest - text) + (most - excess) / 4, until = from + excess;
    while (from && (text[from] & 0xc0) == 0x80)
        from--;
    while ((text[until] & 0xc0) == 0x80)
        until++;
    snprintf(to, size, "%.*s%s%s", (int)from, text, mark, text + until);
}

/* Makes an error text. It may quote files and arguments, so control characters become '?'. */
static inline qv_status
qv_fail_list(qv_error *err, qv_status status, const char *format, va_list ap)
{
    if (!err)
        return status;
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(err->text, sizeof err->text, format, ap);
    char *whole = n >= (int)sizeof err->text ? (char *)malloc((size_t)n + 1) : NULL;
    if (whole) { /* out of memory: the end is cut off */
        vsnprintf(whole, (size_t)n + 1, format, again);
        qv_shorten(err->text, sizeof err->text, whole);
        free(whole);
    }
    va_end(again);
    qv_make_printable(err->text);
    err->status = status;
    return status;
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline qv_status
qv_fail(qv_error *err, qv_status status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    qv_fail_list(err, status, format, ap);
    va_end(ap);
    return status;
}

/* Adds a name to a list of names for an error, "a, b, c" in text[size]; what does not fit is cut
 * off. */
static inline void
qv_list_name(char *text, size_t size, const char *name)
{
    const size_t n = strlen(text);
    snprintf(text + n, size - n, "%s%s", n ? ", " : "", name);
}

/* Returns QV_EINVAL, naming the first NULL among n arguments; `names` has their names. */
static inline qv_status
qv_find_null(qv_error *err, const char *function, const char *names, const void *const *arguments,
             size_t n)
{
    for (; n && *arguments; n--, arguments++) {
        names += strcspn(names, ",");
        names += strspn(names, ", ");
    }
    if (n)
        qv_fail(err, QV_EINVAL, "%s: %.*s is NULL", function, (int)strcspn(names, ","), names);
    return n ? QV_EINVAL : QV_OK;
}

/* Begins a public function, which returns here if one of its arguments is NULL: QV_EINVAL or, if it
 * returns no status, its empty result. Internal functions do not check again. */
#define QV_NEED(err, ...)                                                                          \
    do {                                                                                           \
        const void *const need_[] = { __VA_ARGS__ };                                               \
        const qv_status null_ =                                                                    \
            qv_find_null(err, __func__, #__VA_ARGS__, need_, sizeof need_ / sizeof *need_);        \
        if (null_)                                                                                 \
            return null_;                                                                          \
    } while (0)
#define QV_NEED_OR(answer, ...)                                                                    \
    do {                                                                                           \
        const void *const need_[] = { __VA_ARGS__ };                                               \
        if (qv_find_null(NULL, "", #__VA_ARGS__, need_, sizeof need_ / sizeof *need_))             \
            return answer;                                                                         \
    } while (0)

/* Returns whether a call failed because this process or machine ran out of a resource, so that the
 * next file would fail too. */
static inline bool
qv_is_scarcity(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/* Returns the status for a file that cannot be opened or read: QV_ENOMEM if this process or machine
 * ran out of a resource, QV_EBACKEND if a file system or its network is unreachable. Both would
 * make the next file fail too. Any other error, such as ENOENT, EACCES, ENAMETOOLONG or EIO, counts
 * as the file's own, so that an error not listed here never ends a run of many files. */
static inline qv_status
qv_status_of_errno(int error)
{
    static const int gone[] = { ENOTCONN,  ESTALE,       ENODEV,       ETIMEDOUT,
                                EHOSTDOWN, EHOSTUNREACH, ENETDOWN,     ENETUNREACH,
                                ESHUTDOWN, ECONNREFUSED, ECONNABORTED, ECONNRESET };
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (error == gone[i])
            return QV_EBACKEND;
    return qv_is_scarcity(error) ? QV_ENOMEM : QV_EIO;
}

/* Returns true for a failure of the device, of memory or of the caller, which would affect every
 * further item; false for a failure of one item or file. */
static inline bool
qv_ends_all(qv_status status)
{
    switch (status) {
    case QV_OK:
    case QV_EINVAL:
    case QV_EIO:
    case QV_EFORMAT:
    case QV_EUNSUPPORTED:
    case QV_EFULL: return false;
    case QV_ENOMEM:
    case QV_ENODEVICE:
    case QV_EBACKEND:
    case QV_ESTATE:
    case QV_STATUS_MAX: break;
    }
    return true;
}

/* The analyzer does not look into variadic functions, so it would assume that execution continues
 * after a failure. */
#ifdef __clang_analyzer__
#define qv_fail(err, status, ...) (qv_fail(err, status, __VA_ARGS__), (status))
#endif

/* Fails with `message`, which names the failed action, followed by the text of errno e. */
static inline qv_status
qv_fail_errno(const char *path, const char *message, int e, qv_error *err)
{
    return qv_fail(err, qv_is_scarcity(e) ? QV_ENOMEM : QV_EIO, "%s: %s: %s", path, message,
                   strerror(e));
}

/* Fails because memory ran out while handling a file or folder. */
static inline qv_status
qv_no_memory(const char *path, qv_error *err)
{
    return qv_fail(err, QV_ENOMEM, "%s: out of memory", path);
}
