/* SPDX-License-Identifier: MIT */
/* Names of the values that the public headers list. The libraries of clips and of caches have a copy of
 * this file each, so it stands alone. */
#include <string.h>

#include "qwenvit_media.h"

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

static const char *const likes[] = {
    [QV_LIKE_TRANSFORMERS] = "transformers", [QV_LIKE_QWEN_VL_UTILS] = "qwen-vl-utils"
};
enum { N_LIKES = sizeof likes / sizeof *likes };

const char *
qv_like_name(qv_like like)
{
    return (size_t)like < N_LIKES ? likes[like] : "no qv_like";
}

const char *
qv_remark_text(qv_remark remark)
{
    switch (remark) {
    case QV_REMARK_GRAY16:
        return "its gray of 16 bits is white from level 255 up, as transformers reads it";
    case QV_REMARK_JPEG:
        return "its pixels are FFmpeg's, not Pillow's: libjpeg-turbo was not built in, or cannot "
               "read it";
    case QV_REMARK_AVIF:
        return "its colours are some levels away from Pillow's: it has more than 8 bits";
    default: return "";
    }
}

static bool
parse(const char *name, const char *const *all, int n, int *out)
{
    for (int i = 0; i < n && name; i++)
        if (!strcmp(name, all[i])) {
            *out = i;
            return true;
        }
    return false;
}

bool
qv_like_parse(const char *name, qv_like *out)
{
    int found;
    const bool is_one = out && parse(name, likes, N_LIKES, &found);
    if (is_one)
        *out = (qv_like)found;
    return is_one;
}

static const char *const decoders[] = {
    [QV_DECODE_AUTO] = "auto", [QV_DECODE_CPU] = "cpu", [QV_DECODE_GPU] = "gpu"
};
enum { N_DECODERS = sizeof decoders / sizeof *decoders };

const char *
qv_decode_name(qv_decode decode)
{
    return (size_t)decode < N_DECODERS ? decoders[decode] : "no qv_decode";
}

bool
qv_decode_parse(const char *name, qv_decode *out)
{
    int found;
    const bool is_one = out && parse(name, decoders, N_DECODERS, &found);
    if (is_one)
        *out = (qv_decode)found;
    return is_one;
}
