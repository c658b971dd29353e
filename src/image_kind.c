/* SPDX-License-Identifier: MIT */
#include "image_kind.h"

#include <string.h>

enum { SIGNATURE = 32 }; /* the first bytes that identify all but PNG */

static bool
has_netpbm_size(const uint8_t *head, size_t n)
{
    (void)n;
    static const char space[] = { ' ', '\t', '\r', '\n' };
    return memchr(space, head[2], sizeof space) &&
           (memchr(space, head[3], sizeof space) || head[3] == '#' ||
            (head[3] >= '0' && head[3] <= '9'));
}

/* A BMP's second header begins with its length. */
static bool
has_bmp_length(const uint8_t *head, size_t n)
{
    (void)n;
    return head[14] >= 12 && !head[15] && !head[16] && !head[17];
}

/* Returns whether a PNG is not an animation: an animation has acTL before its pixels (IDAT). */
static bool
is_still_png(const uint8_t *head, size_t n)
{
    for (size_t at = 8; at + 8 <= n;) {
        const uint8_t *p = head + at;
        if (!memcmp(p + 4, "IDAT", 4))
            return true;
        if (!memcmp(p + 4, "acTL", 4))
            return false;
        at += 12 + ((size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3]);
    }
    return false;
}

static bool
is_avif(const uint8_t *head, size_t n)
{
    (void)n;
    return !memcmp(head + 16, "avif", 4) || !memcmp(head + 20, "avif", 4);
}

static bool
is_not_avif(const uint8_t *head, size_t n)
{
    return !is_avif(head, n);
}

/* TGA has no signature: whether there is a palette, the type, the palette's range and depth, the
 * origin, the size, the depth, and flags whose upper two bits are unused. */
static bool
is_tga(const uint8_t *head, size_t n)
{
    (void)n;
    static const char plain[] = { 2, 3, 10, 11 }, mapped[] = { 1, 9 }, depths[] = { 8, 16, 24, 32 };
    static const uint8_t no_palette[5];
    const bool type = head[1] == 0 ? memchr(plain, head[2], sizeof plain) &&
                                         !memcmp(head + 3, no_palette, sizeof no_palette)
                                   : head[1] == 1 && memchr(mapped, head[2], sizeof mapped) &&
                                         memchr(depths, head[7], sizeof depths);
    return type && head[12] + head[13] && head[14] + head[15] &&
           memchr(depths, head[16], sizeof depths) && !(head[17] & 0xc0);
}

#define BYTES(text) text, sizeof text - 1

/* In a signature a dot matches any byte. The first matching row is used. */
static const struct {
    const char *signature;
    size_t n;
    bool (*fits)(const uint8_t *head, size_t n); /* NULL: the signature is enough */
    qv_image_kind kind;
} kinds[] = {
    { BYTES("\xff\xd8\xff"), NULL, { QV_IMAGE_JPEG, false, "JPEG", "jpeg_pipe" } },
    { BYTES("\x89PNG\r\n\x1a\n"), is_still_png, { QV_IMAGE_PNG, false, "PNG", "png_pipe" } },
    { BYTES("\x89PNG\r\n\x1a\n"), NULL, { QV_IMAGE_PNG, true, "PNG", "png_pipe,apng" } },
    { BYTES("GIF87a"), NULL, { QV_IMAGE_GIF, true, "GIF", "gif" } },
    { BYTES("GIF89a"), NULL, { QV_IMAGE_GIF, true, "GIF", "gif" } },
    { BYTES("RIFF....WEBP"), NULL, { QV_IMAGE_WEBP, false, "WebP", "webp_pipe" } },
    { BYTES("II*\0"), NULL, { QV_IMAGE_TIFF, false, "TIFF", "tiff_pipe" } },
    { BYTES("MM\0*"), NULL, { QV_IMAGE_TIFF, false, "TIFF", "tiff_pipe" } },
    { BYTES("BM"), has_bmp_length, { QV_IMAGE_BMP, false, "BMP", "bmp_pipe" } },
    { BYTES("....ftypavif"), NULL, { QV_IMAGE_AVIF, false, "AVIF", "mov" } },
    { BYTES("....ftypmif1"), is_avif, { QV_IMAGE_AVIF, false, "AVIF", "mov" } },
    { BYTES("....ftypmif1"), NULL, { QV_IMAGE_HEIF, false, "HEIF", "mov" } },
    { BYTES("....ftypmsf1"), is_not_avif, { QV_IMAGE_HEIF, false, "HEIF", "mov" } },
    { BYTES("....ftyphei"), is_not_avif, { QV_IMAGE_HEIF, false, "HEIF", "mov" } },
    { BYTES("....ftyphev"), is_not_avif, { QV_IMAGE_HEIF, false, "HEIF", "mov" } },
    { BYTES("\0\0\0\x0cjP  \r\n\x87\n"), NULL, { QV_IMAGE_OTHER, false, "JPEG 2000", "j2k_pipe" } },
    { BYTES("\xff\x4f\xff\x51"), NULL, { QV_IMAGE_OTHER, false, "JPEG 2000", "j2k_pipe" } },
    { BYTES("\0\0\0\x0cJXL \r\n\x87\n"),
      NULL,
      { QV_IMAGE_OTHER, true, "JPEG XL", "jpegxl_pipe,jpegxl_anim" } },
    { BYTES("\xff\x0a"), NULL, { QV_IMAGE_OTHER, true, "JPEG XL", "jpegxl_pipe,jpegxl_anim" } },
    { BYTES("qoif"), NULL, { QV_IMAGE_OTHER, false, "QOI", "qoi_pipe" } },
    { BYTES("P1"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PBM", "pbm_pipe" } },
    { BYTES("P4"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PBM", "pbm_pipe" } },
    { BYTES("P2"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PGM", "pgm_pipe" } },
    { BYTES("P5"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PGM", "pgm_pipe" } },
    { BYTES("P3"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PPM", "ppm_pipe" } },
    { BYTES("P6"), has_netpbm_size, { QV_IMAGE_OTHER, false, "PPM", "ppm_pipe" } },
    { BYTES("P7\n"), NULL, { QV_IMAGE_OTHER, false, "PAM", "pam_pipe" } },
    { BYTES("II+\0"), NULL, { QV_IMAGE_OTHER, false, "BigTIFF", NULL } },
    { BYTES("MM\0+"), NULL, { QV_IMAGE_OTHER, false, "BigTIFF", NULL } },
    { BYTES("icns"), NULL, { QV_IMAGE_OTHER, false, "ICNS", NULL } },
    { BYTES("Image type:"), NULL, { QV_IMAGE_OTHER, false, "IM", NULL } },
    { BYTES(""), is_tga, { QV_IMAGE_OTHER, false, "TGA", NULL } },
};

const qv_image_kind *
qv_find_image_kind(const uint8_t *head, size_t n)
{
    uint8_t padded[SIGNATURE] = { 0 };
    if (n < sizeof padded)
        head = memcpy(padded, head, n);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t same = 0;
        while (same < kinds[i].n && same < n &&
               (kinds[i].signature[same] == '.' || (uint8_t)kinds[i].signature[same] == head[same]))
            same++;
        if (same == kinds[i].n && (!kinds[i].fits || kinds[i].fits(head, n)))
            return &kinds[i].kind;
    }
    return NULL;
}
