/* SPDX-License-Identifier: MIT */
/* image_write ENCODER PIXELS WIDTH HEIGHT encodes RGB from stdin by one of FFmpeg's encoders, in
 * one of FFmpeg's pixel formats, and writes the file to stdout. Exit code 4: this FFmpeg lacks
 * one of them. media_parity.py runs it. */
#include <libavcodec/avcodec.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "ffmpeg_write.h"

static bool
convert(const AVFrame *rgb, AVFrame *out)
{
    struct SwsContext *sws = sws_getContext(rgb->width, rgb->height, AV_PIX_FMT_RGB24, rgb->width,
                                            rgb->height, out->format, SWS_POINT, NULL, NULL, NULL);
    const int *table = sws_getCoefficients(SWS_CS_DEFAULT);
    if (sws)
        sws_setColorspaceDetails(sws, table, 1, table, 1, 0, 1 << 16, 1 << 16);
    const bool done = sws && sws_scale(sws, (const uint8_t *const *)rgb->data, rgb->linesize, 0,
                                       rgb->height, out->data, out->linesize) >= 0;
    sws_freeContext(sws);
    return done;
}

static bool
encode(AVCodecContext *encoder, const AVFrame *frame)
{
    AVPacket *packet = av_packet_alloc();
    const bool done = packet && avcodec_send_frame(encoder, frame) >= 0 &&
                      avcodec_send_frame(encoder, NULL) >= 0 &&
                      avcodec_receive_packet(encoder, packet) >= 0 &&
                      fwrite(packet->data, (size_t)packet->size, 1, stdout) == 1;
    av_packet_free(&packet);
    return done;
}

int
main(int argc, char **argv)
{
    enum { BAD = 1, LACKING = 4 };
    const AVCodec *codec = argc == 5 ? avcodec_find_encoder_by_name(argv[1]) : NULL;
    const enum AVPixelFormat format = argc == 5 ? av_get_pix_fmt(argv[2]) : AV_PIX_FMT_NONE;
    if (!codec || format == AV_PIX_FMT_NONE)
        return LACKING;
    const int width = (int)strtol(argv[3], NULL, 10), height = (int)strtol(argv[4], NULL, 10);
    AVCodecContext *encoder = avcodec_alloc_context3(codec);
    AVFrame *rgb = new_frame(width, height, AV_PIX_FMT_RGB24);
    AVFrame *frame = new_frame(width, height, format);
    if (!encoder || !rgb || !frame)
        return BAD;
    for (int y = 0; y < height; y++)
        if (fread(rgb->data[0] + y * rgb->linesize[0], 3 * (size_t)width, 1, stdin) != 1)
            return BAD;
    encoder->width = width;
    encoder->height = height;
    encoder->pix_fmt = format;
    encoder->color_range = frame->color_range = AVCOL_RANGE_JPEG;
    encoder->time_base = (AVRational){ 1, 1 };
    encoder->thread_count = 1;
    encoder->flags |= AV_CODEC_FLAG_QSCALE;
    encoder->global_quality = frame->quality = 3 * FF_QP2LAMBDA;
    const bool done = avcodec_open2(encoder, codec, NULL) >= 0 && convert(rgb, frame);
    const int code = !done ? LACKING : encode(encoder, frame) ? 0 : BAD;
    avcodec_free_context(&encoder);
    av_frame_free(&frame);
    av_frame_free(&rgb);
    return code;
}
