/* SPDX-License-Identifier: MIT */
#include "dtype.h"

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
    return "no qv_dtype";
}

bool
qv_dtype_parse(const char *text, qv_dtype *out)
{
#define VALUE(name, text) QV_##name,
    static const qv_dtype all[] = { QV_DTYPE_LIST(VALUE) };
#undef VALUE
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(text, qv_dtype_name(all[i]))) {
            *out = all[i];
            return true;
        }
    return false;
}
