/* SPDX-License-Identifier: MIT */
/* Converts YUV images to RGB exactly as PIL's libraries do, with smooth chroma and fixed-point
 * colours. swscale's results differ from libjpeg-turbo's and libwebp's by whole levels. */
#include <libavutil/pixdesc.h>
#include <stdlib.h>

#include "decoder.h"

static inline uint8_t
clip(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* Widens a line of chroma to full width. `near` is the nearest line of chroma, `far` the second
 * nearest, or NULL if each line of the image has its own chroma. A sample is 3/4 the nearer
 * neighbour and 1/4 the farther one. In libyuv a line's last sample has no neighbour. */
static void
widen(const uint8_t *near, const uint8_t *far, bool half_width, qvm_colour colour, int width,
      uint8_t *out)
{
    const bool jpeg = colour == QVM_JPEG;
    const int last = half_width ? (width + 1) / 2 - 1 : width - 1;
    if (!half_width) {
        for (int x = 0; x < width; x++) /* NOLINTNEXTLINE: `near` is not NULL even where `far` is */
            out[x] = far ? (uint8_t)((3 * near[x] + far[x] + 2) >> 2) : near[x];
        return;
    }
    for (int x = 0; x < width; x++) {
        const int i = x / 2;
        const bool alone = colour == QVM_AVIF && x == width - 1;
        const int j = alone ? i : x % 2 ? (i < last ? i + 1 : i) : (i > 0 ? i - 1 : i);
        if (far) {
            const int bias = jpeg && x % 2 ? 7 : 8;
            const int sum = 3 * (3 * near[i] + far[i]) + 3 * near[j] + far[j];
            out[x] = (uint8_t)((sum + bias) >> 4);
        } else { /* NOLINTNEXTLINE: as above */
            out[x] = (uint8_t)((3 * near[i] + near[j] + (jpeg ? 1 + x % 2 : 2)) >> 2);
        }
    }
}

/* Repeats the nearest sample, as libtiff does. */
static void
repeat(const uint8_t *near, bool half_width, int width, uint8_t *out)
{
    for (int x = 0; x < width; x++)
        out[x] = near[half_width ? x / 2 : x];
}

/* An image row with chroma at full width. */
typedef struct row {
    const uint8_t *y, *u, *v;
    int width;
    const struct yuv_numbers *numbers;
    const float *levels; /* [6] */
} row;

static void
colour_jpeg(row r, uint8_t *rgb)
{
    const int half = 1 << 15;
    for (int x = 0; x < r.width; x++) {
        const int y = r.y[x], cb = r.u[x] - 128, cr = r.v[x] - 128;
        *rgb++ = clip(y + ((91881 * cr + half) >> 16));
        *rgb++ = clip(y + ((-22554 * cb - 46802 * cr + half) >> 16));
        *rgb++ = clip(y + ((116130 * cb + half) >> 16));
    }
}

/* Returns libtiff's level for a code, given the codes of black and white. */
static int
level(int code, float black, float white, float range)
{
    const float span = white - black;
    const float value = (float)(code - (int)black) * range / (span != 0 ? span : 1);
    return (int)(value < -4096 ? -4096 : value > 4096 ? 4096 : value);
}

static void
colour_tiff(row r, uint8_t *rgb)
{
    const int half = 1 << 15;
    const float *l = r.levels;
    for (int x = 0; x < r.width; x++) {
        const int y = level(r.y[x], l[0], l[1], 255);
        const int cb = level(r.u[x] - 128, l[2] - 128, l[3] - 128, 127);
        const int cr = level(r.v[x] - 128, l[4] - 128, l[5] - 128, 127);
        *rgb++ = clip(y + ((91881 * cr + half) >> 16));
        *rgb++ = clip(y + ((-22553 * cb - 46802 * cr + half) >> 16));
        *rgb++ = clip(y + ((116130 * cb + half) >> 16));
    }
}

/* Returns what Pillow adds for a chroma code, in 64ths of a level; the factor is in
 * hundred-thousandths. It rounds by adding a half and truncating towards zero. */
static int
sixty_fourths(int factor, int code)
{
    return (factor * 64 * (code - 128) + 50000) / 100000;
}

static void
colour_raw_tiff(row r, uint8_t *rgb)
{
    for (int x = 0; x < r.width; x++) {
        const int y = r.y[x], cb = r.u[x], cr = r.v[x];
        *rgb++ = clip(y + (sixty_fourths(140200, cr) >> 6));
        *rgb++ = clip(y + ((sixty_fourths(-34414, cb) + sixty_fourths(-71414, cr)) >> 6));
        *rgb++ = clip(y + (sixty_fourths(177200, cb) >> 6));
    }
}

static void
colour_webp(row r, uint8_t *rgb)
{
    for (int x = 0; x < r.width; x++) {
        const int luma = (19077 * r.y[x]) >> 8, u = r.u[x], v = r.v[x];
        *rgb++ = clip((luma + ((26149 * v) >> 8) - 14234) >> 6);
        *rgb++ = clip((luma - ((6419 * u) >> 8) - ((13320 * v) >> 8) + 8708) >> 6);
        *rgb++ = clip((luma + ((33050 * u) >> 8) - 17685) >> 6);
    }
}

/* libyuv's constants, in 64ths: U to blue, U and V from green, V to red; Y's factor and summand. */
static const struct yuv_numbers {
    int space, ub, ug, vg, vr, yg, yb;
    bool full;
} yuv_numbers[] = {
    /* BT.601, also for unknown colour spaces */
    { AVCOL_SPC_UNSPECIFIED, 113, 22, 46, 90, 16320, 32, true },
    { AVCOL_SPC_UNSPECIFIED, 128, 25, 52, 102, 18997, -1160, false },
    { AVCOL_SPC_BT709, 119, 12, 30, 101, 16320, 32, true },
    { AVCOL_SPC_BT709, 128, 14, 34, 115, 18997, -1160, false },
};

static const struct yuv_numbers *
find_numbers(const AVFrame *frame)
{
    const bool full = frame->color_range == AVCOL_RANGE_JPEG;
    const struct yuv_numbers *found = &yuv_numbers[full ? 0 : 1];
    for (size_t i = 2; i < sizeof yuv_numbers / sizeof *yuv_numbers; i++)
        if (yuv_numbers[i].full == full && yuv_numbers[i].space == (int)frame->colorspace)
            found = &yuv_numbers[i];
    return found;
}

static void
colour_avif(row r, uint8_t *rgb)
{
    const struct yuv_numbers *n = r.numbers;
    for (int x = 0; x < r.width; x++) {
        const int u = r.u[x] - 128, v = r.v[x] - 128;
        const int y = (int)((uint32_t)(r.y[x] * 257 * n->yg) >> 16) + n->yb;
        *rgb++ = clip((y + v * n->vr) >> 6);
        *rgb++ = clip((y - u * n->ug - v * n->vg) >> 6);
        *rgb++ = clip((y + u * n->ub) >> 6);
    }
}

bool
qvm_is_plain_yuv(const AVPixFmtDescriptor *format)
{
    return !(format->flags & (AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BE)) &&
           (format->flags & AV_PIX_FMT_FLAG_PLANAR) && format->nb_components >= 3 &&
           format->comp[0].depth == 8 && format->comp[1].step == 1 && format->log2_chroma_w <= 1 &&
           format->log2_chroma_h <= 1;
}

bool
qvm_image_rgb(const AVFrame *frame, qvm_colour colour, const float levels[6], uint8_t *rgb,
              int64_t stride)
{
    static void (*const colours[])(row, uint8_t *) = { [QVM_JPEG] = colour_jpeg,
                                                       [QVM_TIFF] = colour_tiff,
                                                       [QVM_RAW_TIFF] = colour_raw_tiff,
                                                       [QVM_WEBP] = colour_webp,
                                                       [QVM_AVIF] = colour_avif };
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const int width = frame->width, height = frame->height;
    const bool half_width = format->log2_chroma_w, half_height = format->log2_chroma_h;
    const int last = half_height ? (height + 1) / 2 - 1 : height - 1;
    uint8_t *lines = malloc(2 * (size_t)width);
    if (!lines)
        return false;
    row r = { .u = lines,
              .v = lines + width,
              .width = width,
              .numbers = find_numbers(frame),
              .levels = levels };
    for (int y = 0; y < height; y++) {
        const int i = half_height ? y / 2 : y;
        const int j = y % 2 ? (i < last ? i + 1 : i) : (i > 0 ? i - 1 : i);
        for (int c = 1; c <= 2; c++) {
            const uint8_t *plane = frame->data[c];
            const int64_t step = frame->linesize[c];
            uint8_t *line = lines + (c - 1) * (size_t)width;
            if (colour == QVM_TIFF || colour == QVM_RAW_TIFF)
                repeat(plane + i * step, half_width, width, line);
            else
                widen(plane + i * step, half_height ? plane + j * step : NULL, half_width, colour,
                      width, line);
        }
        r.y = frame->data[0] + (int64_t)y * frame->linesize[0];
        colours[colour](r, rgb + y * stride);
    }
    free(lines);
    return true;
}

/* ---- samples of more than 8 bits ------------------------------------------------------------- */

bool
qvm_is_wide(const AVPixFmtDescriptor *format)
{
    const bool gray = format->nb_components < 3;
    return !(format->flags & (AV_PIX_FMT_FLAG_PLANAR | AV_PIX_FMT_FLAG_FLOAT)) &&
           (gray || format->flags & AV_PIX_FMT_FLAG_RGB) && format->comp[0].depth > 8 &&
           (gray ? format->comp[0].depth <= 16 : format->comp[0].depth == 16);
}

/* Reduces 16 bits to 8 as Pillow does: to the upper byte, or rounded for netpbm. Pillow keeps gray
 * without alpha at 16 bits, and clips it at white. */
void
qvm_wide_rgb(const AVFrame *frame, bool netpbm, uint8_t *rgb, int64_t stride)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const bool gray = format->nb_components == 1, big = format->flags & AV_PIX_FMT_FLAG_BE;
    for (int y = 0; y < frame->height; y++)
        for (int x = 0; x < frame->width; x++)
            for (int c = 0; c < 3; c++) {
                const AVComponentDescriptor *d = &format->comp[format->nb_components < 3 ? 0 : c];
                const uint8_t *at = frame->data[d->plane] + (int64_t)y * frame->linesize[d->plane] +
                                    (int64_t)x * d->step + d->offset;
                const int value = big ? at[0] << 8 | at[1] : at[1] << 8 | at[0];
                rgb[y * stride + 3 * x + c] = gray     ? clip(value)
                                              : netpbm ? (uint8_t)((value + 128) / 257)
                                                       : (uint8_t)(value >> 8);
            }
}
