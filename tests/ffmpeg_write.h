/* SPDX-License-Identifier: MIT */
/* Shared by tests that write clips and images with FFmpeg, with the differences between FFmpeg 5.1,
 * 6.1 and later. */
#pragma once

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

/* Makes room for a stream's side data, which is kept with its codec parameters since 6.1. NULL if
 * there is no memory. */
static inline uint8_t *
stream_new_side_data(AVStream *to, enum AVPacketSideDataType type, size_t bytes)
{
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 31, 100)
    AVCodecParameters *par = to->codecpar;
    AVPacketSideData *side =
        av_packet_side_data_new(&par->coded_side_data, &par->nb_coded_side_data, type, bytes, 0);
    return side ? side->data : NULL;
#else
    return av_stream_new_side_data(to, type, bytes);
#endif
}

/* Returns NULL if there is no memory. */
static inline AVFrame *
new_frame(int width, int height, int format)
{
    AVFrame *frame = av_frame_alloc();
    if (!frame)
        return NULL;
    frame->width = width;
    frame->height = height;
    frame->format = format;
    if (av_frame_get_buffer(frame, 0) < 0)
        av_frame_free(&frame);
    return frame;
}

static inline void
set_interlaced(AVFrame *frame)
{
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 7, 100)
    frame->flags |= AV_FRAME_FLAG_INTERLACED | AV_FRAME_FLAG_TOP_FIELD_FIRST;
#else
    frame->interlaced_frame = frame->top_field_first = 1;
#endif
}

/* Returns the pixel formats that an encoder accepts, which end with AV_PIX_FMT_NONE; NULL if it
 * lists none. Since 7.1 a function returns them. */
static inline const enum AVPixelFormat *
pixel_formats(const AVCodec *codec)
{
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(61, 19, 100)
    const void *formats = NULL;
    avcodec_get_supported_config(NULL, codec, AV_CODEC_CONFIG_PIX_FORMAT, 0, &formats, NULL);
    return formats;
#else
    return codec->pix_fmts;
#endif
}
