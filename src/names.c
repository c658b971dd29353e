/* SPDX-License-Identifier: MIT */
/* Names of the values that the public header lists. */
#include "qwenvit.h"

const char *
qv_version(void)
{
    return QV_VERSION;
}

const char *
qv_status_name(qv_status s)
{
    switch (s) {
#define NAME(name, text)                                                                           \
    case QV_##name: return "QV_" #name;
        QV_STATUS_LIST(NAME)
#undef NAME
    case QV_STATUS_MAX: break;
    }
    return "no qv_status";
}
