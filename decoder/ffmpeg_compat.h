/* SPDX-License-Identifier: MIT */
/* Everything that must be written twice because FFmpeg 5.1 to 9 differ. For code used only by tests
 * see tests/ffmpeg_write.h. */
#pragma once

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <stdbool.h>

/* Since 6.1 a stream's side data is in its codec parameters. */
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 31, 100)

/* Returns a stream's side data of a type; NULL if it has none, or fewer bytes than `size`. */
static inline const uint8_t *
qvm_stream_side_data(const AVStream *stream, enum AVPacketSideDataType type, size_t bytes)
{
    const AVCodecParameters *par = stream->codecpar;
    const AVPacketSideData *side =
        av_packet_side_data_get(par->coded_side_data, par->nb_coded_side_data, type);
    return side && side->size >= bytes ? side->data : NULL;
}

#else

static inline const uint8_t *
qvm_stream_side_data(const AVStream *stream, enum AVPacketSideDataType type, size_t bytes)
{
    size_t size = 0;
    const uint8_t *data = av_stream_get_side_data(stream, type, &size);
    return size >= bytes ? data : NULL;
}

#endif

/* Since 6.1 these fields of a frame are flags. */
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 7, 100)

static inline bool
qvm_is_interlaced(const AVFrame *frame)
{
    return frame->flags & AV_FRAME_FLAG_INTERLACED;
}

#else

static inline bool
qvm_is_interlaced(const AVFrame *frame)
{
    return frame->interlaced_frame;
}

#endif

/* Since 7.1 HEIF images made of tiles are opened, with a stream for each tile. */
#if LIBAVFORMAT_VERSION_MAJOR >= 61

static inline bool
qvm_is_tiled(const AVFormatContext *format)
{
    for (unsigned i = 0; i < format->nb_stream_groups; i++)
        if (format->stream_groups[i]->type == AV_STREAM_GROUP_PARAMS_TILE_GRID)
            return true;
    return false;
}

#else

static inline bool
qvm_is_tiled(const AVFormatContext *format)
{
    (void)format;
    return false;
}

#endif

/* Codecs of raw frames. 7 replaced AYUV by RAWVIDEO, and 9 the following three. */
#if LIBAVCODEC_VERSION_MAJOR >= 63
#define QVM_RAW_CODECS AV_CODEC_ID_RAWVIDEO
#elif LIBAVCODEC_VERSION_MAJOR >= 61
#define QVM_RAW_CODECS AV_CODEC_ID_RAWVIDEO, AV_CODEC_ID_V308, AV_CODEC_ID_V408, AV_CODEC_ID_V410
#else
#define QVM_RAW_CODECS                                                                             \
    AV_CODEC_ID_RAWVIDEO, AV_CODEC_ID_AYUV, AV_CODEC_ID_V308, AV_CODEC_ID_V408, AV_CODEC_ID_V410
#endif
