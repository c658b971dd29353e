/* SPDX-License-Identifier: MIT */
/* Decoded frames to upright RGB bytes. */
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "media.h"

/* ---- display rotation ------------------------------------------------------------------------- */

static const int32_t *
stream_matrix(const AVStream *stream)
{
    size_t size = 0;
    const uint8_t *data = NULL;
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 31, 100)
    const AVPacketSideData *side = av_packet_side_data_get(stream->codecpar->coded_side_data,
                                                           stream->codecpar->nb_coded_side_data,
                                                           AV_PKT_DATA_DISPLAYMATRIX);
    if (side) {
        data = side->data;
        size = side->size;
    }
#else
    data = av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
#endif
    return data && size >= 9 * sizeof(int32_t) ? (const int32_t *)(const void *)data : NULL;
}

qvm_turn
qvm_find_turn(const AVFrame *frame, const AVStream *stream)
{
    const AVFrameSideData *side = av_frame_get_side_data(frame, AV_FRAME_DATA_DISPLAYMATRIX);
    const int32_t *matrix = side && side->size >= 9 * sizeof(int32_t)
                          ? (const int32_t *)(const void *)side->data
                          : stream_matrix(stream);
    qvm_turn turn = {false, false, false};
    if (!matrix)
        return turn;
    /* x' = a x + c y, y' = b x + d y: right angles have one of the two pairs near zero */
    const double a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
    const double straight = fmin(fabs(a), fabs(d)), crossed = fmin(fabs(b), fabs(c));
    const double near_zero = 0.0175; /* one degree, as FFmpeg's own tools allow */
    if (straight > 0 && fmax(fabs(b), fabs(c)) < near_zero * straight) {
        turn.flip_x = a < 0;
        turn.flip_y = d < 0;
    } else if (crossed > 0 && fmax(fabs(a), fabs(d)) < near_zero * crossed) {
        turn.transpose = true;
        turn.flip_x = c < 0;
        turn.flip_y = b < 0;
    }
    return turn;
}

int
qvm_turn_degrees(qvm_turn turn)
{
    if (turn.transpose)
        return turn.flip_y ? 270 : 90;
    return turn.flip_y ? 180 : 0;
}

/* Tiles keep both sides of a transposition in the cache. */
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

/* ---- colour ----------------------------------------------------------------------------------- */

static bool
is_full_range(const AVFrame *frame, const AVPixFmtDescriptor *format)
{
    switch (frame->format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ444P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ411P:
        return true;
    default:
        break;
    }
    return frame->color_range == AVCOL_RANGE_JPEG || format->nb_components < 3; /* gray */
}

/* Clips: swscale's defaults, as PyAV's to_ndarray(format="rgb24") has them. The accurate flags
 * differ by up to 183 levels from these. */
static qv_status
prepare(qvm_converter *c, const AVFrame *frame, const char *path, qv_error *err)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    if (!format || format->flags & AV_PIX_FMT_FLAG_HWACCEL)
        return qv_fail(err, QV_EFORMAT, "%s: frames of pixel format %d cannot be converted", path,
                       frame->format);
    if (c->sws && c->width == frame->width && c->height == frame->height
        && c->format == frame->format && c->range == (int)frame->color_range
        && c->colorspace == (int)frame->colorspace)
        return QV_OK;

    sws_freeContext(c->sws);
    av_frame_free(&c->rgb);
    const int flags = c->picture ? SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT
                                 : SWS_BILINEAR;
    c->sws = sws_getContext(frame->width, frame->height, frame->format, frame->width,
                            frame->height, AV_PIX_FMT_RGB24, flags, NULL, NULL, NULL);
    c->rgb = av_frame_alloc();
    if (!c->sws || !c->rgb)
        return qv_fail(err, QV_EFORMAT, "%s: %dx%d frames of pixel format '%s' cannot be converted "
                       "to RGB", path, frame->width, frame->height, format->name);
    c->rgb->format = AV_PIX_FMT_RGB24;
    c->rgb->width = frame->width;
    c->rgb->height = frame->height;
    /* The alignment matters: swscale's vector and plain code round differently, and the room
     * behind a row decides which of them makes its last pixels. PyAV has 16. */
    if (av_frame_get_buffer(c->rgb, 16) < 0)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %dx%d RGB", path, frame->width,
                       frame->height);
    const int *from = sws_getCoefficients(frame->colorspace);
    const int *to = sws_getCoefficients(SWS_CS_DEFAULT);
    sws_setColorspaceDetails(c->sws, from, is_full_range(frame, format), to, 1, 0, 1 << 16,
                             1 << 16);
    c->width = frame->width;
    c->height = frame->height;
    c->format = frame->format;
    c->range = (int)frame->color_range;
    c->colorspace = (int)frame->colorspace;
    return QV_OK;
}

qv_status
qvm_convert(qvm_converter *c, const AVFrame *frame, qvm_turn turn, const char *path,
            qvm_image *out, qv_error *err)
{
    if (frame->width < 1 || frame->height < 1
        || (int64_t)frame->width * frame->height > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EFORMAT, "%s: a frame of %dx%d; at most 16384x16384 pixels are read",
                       path, frame->width, frame->height);
    qv_status status = prepare(c, frame, path, err);
    if (status)
        return status;
    if (sws_scale(c->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height,
                  c->rgb->data, c->rgb->linesize) < 0)
        return qv_fail(err, QV_EFORMAT, "%s: a frame cannot be converted to RGB", path);
    *out = (qvm_image){c->rgb->data[0], c->rgb->linesize[0], frame->width, frame->height};
    if (!turn.transpose && !turn.flip_x && !turn.flip_y)
        return QV_OK;

    const size_t bytes = 3 * (size_t)frame->width * (size_t)frame->height;
    if (c->turned_bytes < bytes) {
        uint8_t *grown = realloc(c->turned, bytes);
        if (!grown)
            return qv_fail(err, QV_ENOMEM, "%s: no memory to turn %dx%d", path, frame->width,
                           frame->height);
        c->turned = grown;
        c->turned_bytes = bytes;
    }
    turn_rgb(out, turn, c->turned);
    if (turn.transpose)
        *out = (qvm_image){c->turned, 3 * (int64_t)frame->height, frame->height, frame->width};
    else
        *out = (qvm_image){c->turned, 3 * (int64_t)frame->width, frame->width, frame->height};
    return QV_OK;
}

void
qvm_converter_close(qvm_converter *c)
{
    sws_freeContext(c->sws);
    av_frame_free(&c->rgb);
    free(c->turned);
    *c = (qvm_converter){.picture = c->picture};
}
