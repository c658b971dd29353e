/* SPDX-License-Identifier: MIT */
#include "judge.h"

#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#include <string.h>

/* Hashes eight bytes at once, and then the remaining bytes. */
static uint64_t
hash_bytes(uint64_t hash, const uint8_t *at, size_t n)
{
    uint64_t word;
    for (; n >= sizeof word; at += sizeof word, n -= sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (; n; at++, n--)
        hash = (hash ^ *at) * 0x100000001b3u;
    return hash;
}

uint64_t
judge_hash_rows(const uint8_t *at, int64_t stride, size_t bytes, int rows)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int y = 0; y < rows; y++)
        hash = hash_bytes(hash, at + y * stride, bytes);
    return hash;
}

uint64_t
judge_hash(const AVFrame *frame)
{
    const int about[] = { frame->width, frame->height, frame->format, frame->color_range,
                          frame->colorspace };
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, (const uint8_t *)about, sizeof about);
    const bool has_palette = format->flags & AV_PIX_FMT_FLAG_PAL;
    for (int plane = 0; plane < 4 && frame->data[plane]; plane++) {
        const bool palette = has_palette && plane == 1;
        const bool chroma = !has_palette && (plane == 1 || plane == 2);
        const int row =
            palette ? AVPALETTE_SIZE : av_image_get_linesize(frame->format, frame->width, plane);
        const int rows = palette  ? 1
                         : chroma ? AV_CEIL_RSHIFT(frame->height, format->log2_chroma_h)
                                  : frame->height;
        for (int y = 0; y < rows; y++)
            hash = hash_bytes(hash, frame->data[plane] + (int64_t)y * frame->linesize[plane],
                              (size_t)row);
    }
    return hash;
}

/* Sets the matrix and the range; everything else keeps swscale's defaults. */
static bool
set_colours(struct SwsContext *sws, const AVFrame *frame)
{
    const int *matrix = sws_getCoefficients(frame->colorspace);
    int *inverse, *table, from_full, to_full, brightness, contrast, saturation;
    if (sws_getColorspaceDetails(sws, &inverse, &from_full, &table, &to_full, &brightness,
                                 &contrast, &saturation) < 0)
        return true; /* it needs none */
    if (frame->color_range != AVCOL_RANGE_UNSPECIFIED)
        from_full = frame->color_range == AVCOL_RANGE_JPEG;
    return sws_setColorspaceDetails(sws, matrix, from_full, matrix, to_full, brightness, contrast,
                                    saturation) >= 0;
}

AVFrame *
judge_rgb(const AVFrame *frame)
{
    struct SwsContext *sws =
        sws_getContext(frame->width, frame->height, frame->format, frame->width, frame->height,
                       AV_PIX_FMT_RGB24, 0, NULL, NULL, NULL);
    AVFrame *rgb = av_frame_alloc();
    bool done = sws && rgb && set_colours(sws, frame);
    if (done) {
        rgb->format = AV_PIX_FMT_RGB24;
        rgb->width = frame->width;
        rgb->height = frame->height;
        done = av_frame_get_buffer(rgb, 0) >= 0 &&
               sws_scale(sws, (const uint8_t *const *)frame->data, frame->linesize, 0,
                         frame->height, rgb->data, rgb->linesize) == frame->height;
    }
    sws_freeContext(sws);
    if (!done)
        av_frame_free(&rgb);
    return rgb;
}

struct judge {
    AVFormatContext *format;
    AVCodecContext *codec;
    AVPacket *packet;
    AVFrame *frame;
    int stream;
    int64_t n;
    bool sound;
    judge_sink *sink;
    void *user;
};

static bool
open_file(struct judge *j, const char *path)
{
    const AVCodec *found = NULL;
    if (avformat_open_input(&j->format, path, NULL, NULL) < 0 ||
        avformat_find_stream_info(j->format, NULL) < 0)
        return false;
    j->stream = av_find_best_stream(j->format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    if (j->stream < 0)
        return false;
    const AVStream *stream = j->format->streams[j->stream];
    found = avcodec_find_decoder(stream->codecpar->codec_id);
    j->codec = found ? avcodec_alloc_context3(found) : NULL;
    if (!j->codec || avcodec_parameters_to_context(j->codec, stream->codecpar) < 0)
        return false;
    j->codec->thread_count = 1;
    j->codec->pkt_timebase = stream->time_base;
    return avcodec_open2(j->codec, found, NULL) >= 0;
}

static void
take_frames(struct judge *j)
{
    for (;;) {
        const int code = avcodec_receive_frame(j->codec, j->frame);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF)
            return;
        if (code < 0) {
            j->sound = false;
            return;
        }
        j->sound =
            j->sound && !j->frame->decode_error_flags && !(j->frame->flags & AV_FRAME_FLAG_CORRUPT);
        j->sink(j->user, j->n++, j->frame);
        av_frame_unref(j->frame);
    }
}

static void
decode(struct judge *j)
{
    int code;
    while ((code = av_read_frame(j->format, j->packet)) >= 0) {
        if (j->packet->stream_index == j->stream) {
            if (avcodec_send_packet(j->codec, j->packet) < 0)
                j->sound = false;
            take_frames(j);
        }
        av_packet_unref(j->packet);
    }
    j->sound = j->sound && code == AVERROR_EOF;
    avcodec_send_packet(j->codec, NULL);
    take_frames(j);
}

int64_t
judge_decode(const char *path, judge_sink *sink, void *user, bool *sound)
{
    struct judge j = { .sink = sink,
                       .user = user,
                       .sound = true,
                       .packet = av_packet_alloc(),
                       .frame = av_frame_alloc() };
    const bool opened = j.packet && j.frame && open_file(&j, path);
    if (opened)
        decode(&j);
    *sound = j.sound;
    av_packet_free(&j.packet);
    av_frame_free(&j.frame);
    avcodec_free_context(&j.codec);
    avformat_close_input(&j.format);
    return opened ? j.n : -1;
}
