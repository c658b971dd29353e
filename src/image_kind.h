/* SPDX-License-Identifier: MIT */
/* Decides by a file's first bytes whether it is an image, and of what kind. The decoder program and
 * the server share it. Any other file may be a clip. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { QV_HEAD = 16384 }; /* the number of a file's first bytes that suffices */

typedef enum qv_image_format {
    QV_IMAGE_JPEG,
    QV_IMAGE_PNG,
    QV_IMAGE_GIF,
    QV_IMAGE_WEBP,
    QV_IMAGE_TIFF,
    QV_IMAGE_BMP,
    QV_IMAGE_AVIF,
    QV_IMAGE_HEIF,
    QV_IMAGE_OTHER,
    QV_IMAGE_FORMATS
} qv_image_format;

typedef struct qv_image_kind {
    qv_image_format format;
    bool may_move;     /* it may be read as an animation; otherwise it is one image */
    const char *name;  /* its common name */
    const char *opens; /* FFmpeg's demuxers for it, the usual one first; NULL: not supported */
} qv_image_kind;

/* Returns the kind of an image file that begins with the n bytes of `head`; NULL if it is
 * unknown. */
const qv_image_kind *qv_find_image_kind(const uint8_t *head, size_t n);

#ifdef __cplusplus
}
#endif
