/* SPDX-License-Identifier: MIT */
/*
 * YUV images to RGB with the arithmetic of the image libraries behind PIL: libjpeg-turbo's and
 * libwebp's smooth chroma and fixed-point colours. swscale's differ from them by whole levels.
 */
#include <libavutil/pixdesc.h>
#include <stdlib.h>

#include "media.h"

static inline uint8_t
clip(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One line of chroma at full width. `far` is the next line but nearer one, NULL where the image
 * has all lines. Each sample is 3/4 the nearer and 1/4 the farther neighbour, per direction. */
static void
widen(const uint8_t *near, const uint8_t *far, bool half_width, bool webp, int width, uint8_t *out)
{
    const int last = half_width ? (width + 1) / 2 - 1 : width - 1;
    if (!half_width) {
        for (int x = 0; x < width; x++) /* NOLINTNEXTLINE: no `far` does not make `near` NULL */
            out[x] = far ? (uint8_t)((3 * near[x] + far[x] + 2) >> 2) : near[x];
        return;
    }
    for (int x = 0; x < width; x++) {
        const int i = x / 2;
        const int j = x % 2 ? (i < last ? i + 1 : i) : (i > 0 ? i - 1 : i);
        if (far) {
            const int bias = webp || x % 2 == 0 ? 8 : 7;
            const int sum = 3 * (3 * near[i] + far[i]) + 3 * near[j] + far[j];
            out[x] = (uint8_t)((sum + bias) >> 4);
        } else { /* NOLINTNEXTLINE: as above */
            out[x] = (uint8_t)((3 * near[i] + near[j] + 1 + x % 2) >> 2);
        }
    }
}

static void
colour_jpeg(const uint8_t *y, const uint8_t *u, const uint8_t *v, int width, uint8_t *rgb)
{
    const int half = 1 << 15;
    for (int x = 0; x < width; x++) {
        const int cb = u[x] - 128, cr = v[x] - 128;
        rgb[3 * x] = clip(y[x] + ((91881 * cr + half) >> 16));
        rgb[3 * x + 1] = clip(y[x] + ((-22554 * cb - 46802 * cr + half) >> 16));
        rgb[3 * x + 2] = clip(y[x] + ((116130 * cb + half) >> 16));
    }
}

static void
colour_webp(const uint8_t *y, const uint8_t *u, const uint8_t *v, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++) {
        const int luma = (19077 * y[x]) >> 8;
        rgb[3 * x] = clip((luma + ((26149 * v[x]) >> 8) - 14234) >> 6);
        rgb[3 * x + 1] = clip((luma - ((6419 * u[x]) >> 8) - ((13320 * v[x]) >> 8) + 8708) >> 6);
        rgb[3 * x + 2] = clip((luma + ((33050 * u[x]) >> 8) - 17685) >> 6);
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
qvm_image_rgb(const AVFrame *frame, bool webp, uint8_t *rgb, int64_t stride)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const int width = frame->width, height = frame->height;
    const bool half_width = format->log2_chroma_w, half_height = format->log2_chroma_h;
    const int last = half_height ? (height + 1) / 2 - 1 : height - 1;
    uint8_t *lines = malloc(2 * (size_t)width);
    if (!lines)
        return false;
    for (int y = 0; y < height; y++) {
        const int i = half_height ? y / 2 : y;
        const int j = y % 2 ? (i < last ? i + 1 : i) : (i > 0 ? i - 1 : i);
        for (int c = 1; c <= 2; c++) {
            const uint8_t *plane = frame->data[c];
            const int64_t step = frame->linesize[c];
            widen(plane + i * step, half_height ? plane + j * step : NULL, half_width, webp, width,
                  lines + (c - 1) * (size_t)width);
        }
        (webp ? colour_webp : colour_jpeg)(frame->data[0] + (int64_t)y * frame->linesize[0], lines,
                                           lines + width, width, rgb + y * stride);
    }
    free(lines);
    return true;
}
