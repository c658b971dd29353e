/* SPDX-License-Identifier: MIT */
#include "dtype.h"

#define VALUE(name, text) QV_##name,
static const qv_dtype all[] = { QV_DTYPE_LIST(VALUE) };
#undef VALUE

const char *
qv_dtype_name(qv_dtype dtype)
{
    switch (dtype) {
#define NAME(name, text)                                                                           \
    case QV_##name: return text;
        QV_DTYPE_LIST(NAME)
#undef NAME
    case QV_DTYPE_MAX: break;
    }
    return "unknown qv_dtype";
}

const char *
qv_dtype_file_name(qv_dtype dtype)
{
    switch (dtype) {
    case QV_F32: return "F32";
    case QV_BF16: return "BF16";
    case QV_F16: return "F16";
    case QV_U8: return "U8";
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    return NULL;
}

static bool
parse(const char *text, const char *name_of(qv_dtype), qv_dtype *out)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *name = name_of(all[i]);
        if (name && !strcmp(text, name)) {
            *out = all[i];
            return true;
        }
    }
    return false;
}

bool
qv_dtype_parse(const char *text, qv_dtype *out)
{
    return parse(text, qv_dtype_name, out);
}

bool
qv_dtype_parse_file(const char *name, qv_dtype *out)
{
    return parse(name, qv_dtype_file_name, out);
}
