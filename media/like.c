/* SPDX-License-Identifier: MIT */
/* What `like` is called. Caches write it too, and stand beside media, not above it. */
#include <string.h>

#include "qwenvit_media.h"

static const char *const names[] = {
    [QV_LIKE_TRANSFORMERS] = "transformers", [QV_LIKE_QWEN_VL_UTILS] = "qwen-vl-utils"
};
enum { N_NAMES = sizeof names / sizeof *names };

const char *
qv_like_name(qv_like like)
{
    return (size_t)like < N_NAMES ? names[like] : "no qv_like";
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

bool
qv_like_parse(const char *name, qv_like *out)
{
    for (int i = 0; i < N_NAMES; i++)
        if (!strcmp(name, names[i])) {
            *out = (qv_like)i;
            return true;
        }
    return false;
}
