/* SPDX-License-Identifier: MIT */
/* Names the values of `like` and `decode`. Caches write these names too; they may not include
 * anything else of media, so this file stands alone. */
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

static const char *const decoders[] = {
    [QV_DECODE_AUTO] = "auto", [QV_DECODE_CPU] = "cpu", [QV_DECODE_GPU] = "gpu"
};
enum { N_DECODERS = sizeof decoders / sizeof *decoders };

const char *
qv_decode_name(qv_decode decode)
{
    return (size_t)decode < N_DECODERS ? decoders[decode] : "no qv_decode";
}
