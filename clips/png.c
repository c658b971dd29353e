/* SPDX-License-Identifier: MIT */
/* Writes PNG files with FFmpeg's encoder. */
#include <libavcodec/avcodec.h>
#include <string.h>

#include "files/atomic_file.h"
#include "clips.h"

static AVFrame *
wrap(const uint8_t *rgb, int height, int width)
{
    AVFrame *frame = av_frame_alloc();
    if (!frame)
        return NULL;
    frame->format = AV_PIX_FMT_RGB24;
    frame->width = width;
    frame->height = height;
    if (av_frame_get_buffer(frame, 0) < 0) {
        av_frame_free(&frame);
        return NULL;
    }
    for (int y = 0; y < height; y++)
        memcpy(frame->data[0] + (int64_t)y * frame->linesize[0], rgb + 3 * (int64_t)y * width,
               3 * (size_t)width);
    return frame;
}

/* Encodes the whole PNG file as one packet. Returns NULL if memory or an encoder is missing. */
static AVPacket *
encode(const uint8_t *rgb, int height, int width)
{
    AVPacket *packet = NULL;
    AVFrame *frame = NULL;
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    AVCodecContext *ctx = codec ? avcodec_alloc_context3(codec) : NULL;
    if (!ctx)
        return NULL;
    ctx->width = width;
    ctx->height = height;
    ctx->pix_fmt = AV_PIX_FMT_RGB24;
    ctx->time_base = (AVRational){ 1, 1 };
    ctx->thread_count = 1;
    if (avcodec_open2(ctx, codec, NULL) < 0)
        goto done;
    frame = wrap(rgb, height, width);
    packet = av_packet_alloc();
    if (!frame || !packet || avcodec_send_frame(ctx, frame) < 0 ||
        avcodec_send_frame(ctx, NULL) < 0 || avcodec_receive_packet(ctx, packet) < 0)
        av_packet_free(&packet);
done:
    av_frame_free(&frame);
    avcodec_free_context(&ctx);
    return packet;
}

qv_status
qv_write_png(const char *path, const uint8_t *rgb, int height, int width, qv_error *err)
{
    if (!path || !rgb)
        return qv_fail(err, QV_EINVAL, "write PNG: %s is NULL", path ? "rgb" : "path");
    if (height < 1 || width < 1 || height > QVM_MAX_SIDE || width > QVM_MAX_SIDE ||
        (int64_t)height * width > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EINVAL, "%s: cannot write %dx%d; 1x1 to 16384x16384 pixels", path,
                       width, height);
    qvm_quiet();
    AVPacket *packet = encode(rgb, height, width);
    if (!packet)
        return qv_fail(err, QV_ENOMEM, "%s: the PNG encoder failed at %dx%d", path, width, height);

    const qv_status status = qv_atomic_file_put(path, packet->data, (uint64_t)packet->size, err);
    av_packet_free(&packet);
    return status;
}
