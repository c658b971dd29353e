/* SPDX-License-Identifier: MIT */
/* Converts decoded frames to upright RGB bytes. */
#include <libavutil/display.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ffmpeg_compat.h"
#include "decoder.h"

/* ---- display rotation ------------------------------------------------------------------------ */

qvm_turn
qvm_exif_turn(int orientation)
{
    static const qvm_turn turns[9] = {
        [2] = { false, true, false }, [3] = { false, true, true }, [4] = { false, false, true },
        [5] = { true, false, false }, [6] = { true, true, false }, [7] = { true, true, true },
        [8] = { true, false, true },
    };
    return turns[orientation >= 1 && orientation <= 8 ? orientation : 0];
}

/* Uses only the matrix's angle, rounded to quarter turns. Mirroring is ignored. */
qvm_turn
qvm_find_turn(const AVStream *stream)
{
    static const int orientations[4] = { 1, 6, 3, 8 }; /* by clockwise quarters */
    const uint8_t *matrix =
        stream ? qvm_stream_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, 9 * sizeof(int32_t))
               : NULL;
    const double degrees =
        matrix ? av_display_rotation_get((const int32_t *)(const void *)matrix) : NAN;
    const int quarters = isnan(degrees) ? 0 : (int)round(-degrees / 90);
    return qvm_exif_turn(orientations[(quarters + 4) % 4]);
}

int
qvm_turn_degrees(qvm_turn turn)
{
    if (turn.transpose)
        return turn.flip_y ? 270 : 90;
    return turn.flip_y ? 180 : 0;
}

/* Transposes in tiles, which keep both sides in the cache. */
static void
turn_rgb(const qvm_image *src, qvm_turn turn, uint8_t *dst)
{
    enum { TILE = 32 };
    const int width = turn.transpose ? src->height : src->width;
    const int height = turn.transpose ? src->width : src->height;
    const int64_t step_x = turn.transpose ? src->stride : 3;
    const int64_t step_y = turn.transpose ? 3 : src->stride;
    for (int y0 = 0; y0 < height; y0 += TILE)
        for (int x0 = 0; x0 < width; x0 += TILE)
            for (int y = y0; y < height && y < y0 + TILE; y++)
                for (int x = x0; x < width && x < x0 + TILE; x++) {
                    const int from_x = turn.flip_x ? width - 1 - x : x;
                    const int from_y = turn.flip_y ? height - 1 - y : y;
                    memcpy(dst + 3 * ((int64_t)y * width + x),
                           src->rgb + from_x * step_x + from_y * step_y, 3);
                }
}

/* ---- colour ---------------------------------------------------------------------------------- */

bool
qvm_is_full_range(const AVFrame *frame)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    return frame->color_range != AVCOL_RANGE_UNSPECIFIED
               ? frame->color_range == AVCOL_RANGE_JPEG
               : !strncmp(format->name, "yuvj", 4) || format->nb_components < 3; /* gray */
}

/* The numbers are those of swscale's yuv2rgb.c. */
void
qvm_find_colours(int space, bool full_range, qvm_colours *out)
{
    const int *c = sws_getCoefficients(space);
    const int64_t across = full_range ? 224 : 255, half = 1 << 2;
#define ROUNDED(value) (int32_t)(((int64_t)(value)*across / 255 + half) >> 3)
    *out = (qvm_colours){ .y_zero = full_range ? 0 : 128,
                          .y = full_range ? 8192 : 9539,
                          .v_red = ROUNDED(c[0]),
                          .u_blue = ROUNDED(c[1]),
                          .u_green = ROUNDED(-c[2]),
                          .v_green = ROUNDED(-c[3]) };
#undef ROUNDED
}

static void
drop_context(qvm_converter *c)
{
    sws_freeContext(c->sws);
    c->sws = NULL;
    av_frame_free(&c->rgb);
}

/* Clips are converted with swscale's default flags, as torchcodec and plain ffmpeg do. With the
 * accurate flags, pixels differ by up to 183 levels. */
static struct SwsContext *
new_context(const qvm_converter *c, const AVFrame *frame)
{
    const int flags =
        c->colour == QVM_CLIP ? 0 : SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT;
    const int *matrix = sws_getCoefficients(frame->colorspace);
    struct SwsContext *sws =
        sws_getContext(frame->width, frame->height, frame->format, frame->width, frame->height,
                       AV_PIX_FMT_RGB24, flags, NULL, NULL, NULL);
    if (sws)
        sws_setColorspaceDetails(sws, matrix, qvm_is_full_range(frame), matrix, 1, 0, 1 << 16,
                                 1 << 16);
    return sws;
}

/* Prepares the conversion of this kind of frame, and keeps it for later frames of the same kind. */
static qv_status
prepare(qvm_converter *c, const AVFrame *frame, qv_error *err)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    if (!format || format->flags & AV_PIX_FMT_FLAG_HWACCEL)
        return qv_fail(err, QV_EFORMAT, "frames of pixel format %d cannot be converted",
                       frame->format);
    const int kind[] = { frame->width, frame->height, frame->format, frame->color_range,
                         frame->colorspace };
    _Static_assert(sizeof kind == sizeof c->kind, "a member for each");
    if (c->rgb && !memcmp(c->kind, kind, sizeof kind))
        return QV_OK;

    drop_context(c);
    c->sws = new_context(c, frame);
    if (!c->sws)
        return qv_fail(err, QV_EFORMAT,
                       "%dx%d frames of pixel format '%s' cannot be converted to RGB", frame->width,
                       frame->height, format->name);
    c->rgb = av_frame_alloc();
    if (!c->rgb)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame");
    c->rgb->format = AV_PIX_FMT_RGB24;
    c->rgb->width = frame->width;
    c->rgb->height = frame->height;
    /* Rows must be padded as FFmpeg pads its own: swscale's vector and plain code round
     * differently, and the padding after a row decides which of them computes its last pixels. */
    if (av_frame_get_buffer(c->rgb, 0) < 0) {
        av_frame_free(&c->rgb);
        return qv_fail(err, QV_ENOMEM, "no memory for %dx%d RGB", frame->width, frame->height);
    }
    memcpy(c->kind, kind, sizeof kind);
    return QV_OK;
}

static qv_status
scale(const qvm_converter *c, const AVFrame *frame, qv_error *err)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const bool of_library = c->colour >= QVM_JPEG && c->colour <= QVM_RAW_TIFF;
    if (of_library && qvm_is_plain_yuv(format))
        return qvm_image_rgb(frame, c->colour, c->levels, c->rgb->data[0], c->rgb->linesize[0])
                   ? QV_OK
                   : qv_fail(err, QV_ENOMEM, "no memory for a row of an image");
    if (c->colour != QVM_CLIP && qvm_is_wide(format)) {
        qvm_wide_rgb(frame, c->colour == QVM_NETPBM, c->rgb->data[0], c->rgb->linesize[0]);
        return QV_OK;
    }
    return sws_scale(c->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height,
                     c->rgb->data, c->rgb->linesize) >= 0
               ? QV_OK
               : qv_fail(err, QV_EFORMAT, "a frame cannot be converted to RGB");
}

/* Returns the alpha channel. PIL treats palettes, and gray of fewer than 16 bits, differently. */
static const AVComponentDescriptor *
find_alpha(const AVPixFmtDescriptor *format)
{
    const int n = format ? format->nb_components : 0;
    const bool alpha = format && format->flags & AV_PIX_FMT_FLAG_ALPHA &&
                       !(format->flags & AV_PIX_FMT_FLAG_PAL) &&
                       (n == 4 || (n == 2 && format->comp[0].depth == 16));
    return alpha ? &format->comp[n - 1] : NULL;
}

/* Pastes an image onto white with its alpha as the mask, as PIL's paste does. */
static void
put_on_white(const AVFrame *frame, uint8_t *rgb, int64_t stride)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const AVComponentDescriptor *alpha = find_alpha(format);
    if (!alpha || !frame->data[alpha->plane])
        return;
    const bool wide = alpha->depth > 8; /* only the upper byte is used */
    const int upper = wide && !(format->flags & AV_PIX_FMT_FLAG_BE) ? 1 : 0;
    for (int y = 0; y < frame->height; y++) {
        const uint8_t *a = frame->data[alpha->plane] + (int64_t)y * frame->linesize[alpha->plane] +
                           alpha->offset + upper;
        uint8_t *to = rgb + y * stride;
        for (int i = 0; i < 3 * frame->width; i++) {
            const int opaque = a[(int64_t)(i / 3) * alpha->step];
            const int sum = 255 * (255 - opaque) + to[i] * opaque + 128;
            to[i] = (uint8_t)(((sum >> 8) + sum) >> 8);
        }
    }
}

qv_status
qvm_convert(qvm_converter *c, const AVFrame *frame, qvm_turn turn, qvm_image *out, qv_error *err)
{
    if (frame->width < 1 || frame->height < 1 ||
        (int64_t)frame->width * frame->height > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EFORMAT, "frames of %dx%d; at most 16384x16384 pixels are supported",
                       frame->width, frame->height);
    /* it is already upright RGB */
    if (c->colour != QVM_CLIP && frame->format == AV_PIX_FMT_RGB24) {
        *out = (qvm_image){ frame->data[0], frame->linesize[0], frame->width, frame->height };
    } else {
        qv_status status = prepare(c, frame, err);
        if (!status)
            status = scale(c, frame, err);
        if (status)
            return status;
        if (c->on_white)
            put_on_white(frame, c->rgb->data[0], c->rgb->linesize[0]);
        *out = (qvm_image){ c->rgb->data[0], c->rgb->linesize[0], frame->width, frame->height };
    }
    if (!turn.transpose && !turn.flip_x && !turn.flip_y)
        return QV_OK;

    const size_t bytes = 3 * (size_t)frame->width * (size_t)frame->height;
    if (c->turned_bytes < bytes) {
        uint8_t *grown = realloc(c->turned, bytes);
        if (!grown)
            return qv_fail(err, QV_ENOMEM, "no memory to rotate %dx%d", frame->width,
                           frame->height);
        c->turned = grown;
        c->turned_bytes = bytes;
    }
    turn_rgb(out, turn, c->turned);
    const int width = turn.transpose ? frame->height : frame->width;
    const int height = turn.transpose ? frame->width : frame->height;
    *out = (qvm_image){ c->turned, 3 * (int64_t)width, width, height };
    return QV_OK;
}

void
qvm_converter_close(qvm_converter *c)
{
    drop_context(c);
    free(c->turned);
}
