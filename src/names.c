/* SPDX-License-Identifier: MIT */
/* Names of the values that the public headers list. The clip library and the cache library each
 * contain a copy of this file, so it has no dependencies. */
#include "qwenvit_clips.h"

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
    return "unknown qv_status";
}

/* Defines qv_TYPE_name. */
#define NAMES(type, ...)                                                                           \
    const char *type##_name(type value)                                                            \
    {                                                                                              \
        static const char *const names[] = { __VA_ARGS__ };                                        \
        return (size_t)value < sizeof names / sizeof *names ? names[value] : "unknown " #type;     \
    }

NAMES(qv_like, [QV_LIKE_TRANSFORMERS] = "transformers", [QV_LIKE_QWEN_VL_UTILS] = "qwen-vl-utils")
NAMES(qv_decode, [QV_DECODE_AUTO] = "auto", [QV_DECODE_CPU] = "cpu", [QV_DECODE_GPU] = "gpu")

const char *
qv_remark_text(qv_remark remark)
{
    switch (remark) {
    case QV_REMARK_GRAY16: return "its 16-bit gray levels above 255 are white, as in transformers";
    case QV_REMARK_JPEG:
        return "its pixels are FFmpeg's, not Pillow's: libjpeg-turbo was not built in, or cannot "
               "read it";
    case QV_REMARK_AVIF:
        return "its colours differ from Pillow's by a few levels: it has more than 8 bits per "
               "sample";
    case QV_REMARK_MORE_JPEGS:
        return "only its first JPEG is read, as in transformers; more of the same size follow";
    default: return "";
    }
}
