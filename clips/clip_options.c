/* SPDX-License-Identifier: MIT */
/* Sets options of a clip by name, and checks their bounds and combinations. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "option_list.h"

static const char *const wanted[QVM_KINDS] = {
    [QVM_A_FLAG] = "true or false",
    [QVM_A_COUNT] = "an integer of at least 1",
    [QVM_A_PLACE] = "an integer of at least 0",
    [QVM_A_ABOVE_0] = "a number above 0",
    [QVM_A_FROM_0] = "a number of at least 0",
    [QVM_A_LIKE] = "transformers or qwen-vl-utils",
    [QVM_A_DECODE] = "auto, cpu or gpu",
};

/* Returns what an option must be, in a text that is valid until the thread's next call. */
static const char *
range(const struct qvm_option *p)
{
    static _Thread_local char text[64];
    const bool is_name = p->kind == QVM_A_LIKE || p->kind == QVM_A_DECODE || p->kind == QVM_A_FLAG;
    if (is_name || p->most >= (double)INT64_MAX)
        return wanted[p->kind];
    snprintf(text, sizeof text, "%s and at most %.15g", wanted[p->kind], p->most);
    return text;
}

/* Returns the index of a name, or a number above p->most if it is unknown. */
static int64_t
find_name(const struct qvm_option *p, const char *name)
{
    int64_t i = 0;
    while (i <= (int64_t)p->most &&
           strcmp(name, p->kind == QVM_A_LIKE ? qv_like_name((qv_like)i)
                                              : qv_decode_name((qv_decode)i)) != 0)
        i++;
    return i;
}

const char *
qvm_option_take(const struct qvm_option *p, qv_clip_options *o, const qv_value *value, bool strict)
{
    const bool is_integer = value->type == QV_VALUE_INTEGER;
    const double real = is_integer ? (double)value->integer : value->real;
    int64_t integer = value->integer;
    bool good;
    switch (p->kind) {
    case QVM_A_FLAG: good = value->type == QV_VALUE_FLAG; break;
    case QVM_A_COUNT:
    case QVM_A_PLACE: good = is_integer && integer >= (strict && p->kind == QVM_A_COUNT); break;
    case QVM_A_ABOVE_0:
    case QVM_A_FROM_0:
        good = (is_integer || value->type == QV_VALUE_REAL) && isfinite(real) && real >= 0 &&
               (real > 0 || !strict || p->kind == QVM_A_FROM_0);
        break;
    default:
        good = value->type == QV_VALUE_TEXT && value->text;
        integer = good ? find_name(p, value->text) : 0;
        good = good && integer <= (int64_t)p->most;
    }
    if (good)
        qvm_option_put(p, o, integer, real);
    return good ? NULL : range(p);
}

const char *
qv_clip_options_set(qv_clip_options *options, const char *name, bool row, const qv_value *value)
{
    QV_NEED_OR("", options, name, value);
    QVM_EACH_OPTION (p) {
        const char *its_name = row ? p->row : p->name;
        if (its_name && !strcmp(its_name, name))
            return qvm_option_take(p, options, value, row);
    }
    return "";
}

qv_status
qvm_check_row(const qv_clip_options *own, qv_error *err)
{
    return own->end_s > 0 && own->end_s <= own->start_s
               ? qv_fail(err, QV_EINVAL, "\"end\" (%.15g) must be greater than \"start\" (%.15g)",
                         own->end_s, own->start_s)
               : QV_OK;
}

/* Returns an option's name, as a field or as typed on the command line. */
static const char *
spelled(const struct qvm_option *p, bool flags)
{
    return flags ? p->flag : p->name;
}

/* Does that for the option whose member is at this offset. */
static const char *
spelled_at(size_t at, bool flags)
{
    const struct qvm_option *p = qvm_options;
    while (p->at != at)
        p++;
    return spelled(p, flags);
}
#define SPELLED(member) spelled_at(offsetof(qv_clip_options, member), flags)

static qv_status
check_bounds(const char *path, bool flags, const qv_clip_options *o, qv_error *err)
{
    QVM_EACH_OPTION (p) {
        const double v = qvm_option_real(p, o);
        if (v >= 0 && v <= p->most && isfinite(v))
            continue;
        return qv_fail(err, QV_EINVAL, "%s: %s is %.15g; it must be %s", path, spelled(p, flags), v,
                       range(p));
    }
    return QV_OK;
}

qv_status
qvm_check_options(const char *path, bool flags, const qv_clip_options *o, qv_error *err)
{
    const qv_status status = check_bounds(path, flags, o, err);
    if (status)
        return status;
    if (o->fps != 0.0 && o->num_frames != 0)
        return qv_fail(err, QV_EINVAL, "%s: %s (%g) and %s (%lld) cannot be used together", path,
                       SPELLED(fps), o->fps, SPELLED(num_frames), (long long)o->num_frames);
    QVM_EACH_OPTION (p)
        if (p->scopes & QVM_UTILS && qvm_option_real(p, o) != 0 && o->like != QV_LIKE_QWEN_VL_UTILS)
            return qv_fail(err, QV_EINVAL, "%s: %s is only for the rules of qwen-vl-utils", path,
                           spelled(p, flags));
    if (o->like == QV_LIKE_QWEN_VL_UTILS && o->cap_pixels)
        return qv_fail(err, QV_EINVAL,
                       "%s: %s is only for transformers' rules; qwen-vl-utils always caps", path,
                       SPELLED(cap_pixels));
    if (o->bytes && (o->offset || o->length))
        return qv_fail(
            err, QV_EINVAL,
            "%s: offset %lld, length %lld; both are only for files, not for bytes in memory", path,
            (long long)o->offset, (long long)o->length);
    if (!o->bytes != !o->n_bytes)
        return qv_fail(err, QV_EINVAL, "%s: n_bytes is %zu, but bytes is %s", path, o->n_bytes,
                       o->bytes ? "not NULL" : "NULL");
    if (o->end_s > 0.0 && o->end_s <= o->start_s)
        return qv_fail(err, QV_EINVAL, "%s: %s (%.15g) must be greater than %s (%.15g)", path,
                       SPELLED(end_s), o->end_s, SPELLED(start_s), o->start_s);
    return QV_OK;
}
