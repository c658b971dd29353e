/* SPDX-License-Identifier: MIT */
/* Makes test clips for `synth --clip`: discs that move in front of a gradient. It is here because
 * no other program links FFmpeg. */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "decoder.h"

struct recorder {
    struct qvm_clip_shape shape;
    const char *path; /* the temporary file's */
    AVFormatContext *file;
    AVCodecContext *codec;
    AVStream *stream;
    AVFrame *frame;
    AVPacket *packet;
};

static const struct {
    double radius, speed, phase; /* radius: in an image of 240 rows */
    uint8_t yuv[3];
} discs[] = { { 46, 0.9, 0.0, { 200, 90, 190 } },
              { 34, 1.7, 2.1, { 120, 200, 90 } },
              { 26, 2.6, 4.2, { 80, 110, 210 } } };
enum { N_DISCS = sizeof discs / sizeof *discs };

/* Draws the scene at time t, in seconds. */
static void
draw(AVFrame *f, double t)
{
    const int width = f->width, height = f->height;
    double x_of[N_DISCS], y_of[N_DISCS], square[N_DISCS]; /* centres; squared radii */
    for (int i = 0; i < N_DISCS; i++) {
        const double radius = discs[i].radius * height / 240;
        x_of[i] = width * (0.5 + 0.36 * cos(discs[i].speed * t + discs[i].phase));
        y_of[i] = height * (0.5 + 0.32 * sin(1.3 * discs[i].speed * t + discs[i].phase));
        square[i] = radius * radius;
    }
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            uint8_t yuv[3] = { (uint8_t)(40 + 120 * x / width + 40 * y / height),
                               (uint8_t)(150 - 50 * y / height), 118 };
            for (int i = 0; i < N_DISCS; i++)
                if ((x - x_of[i]) * (x - x_of[i]) + (y - y_of[i]) * (y - y_of[i]) < square[i])
                    memcpy(yuv, discs[i].yuv, 3);
            f->data[0][y * f->linesize[0] + x] = yuv[0];
            for (int p = 1; p < 3 && x % 2 == 0 && y % 2 == 0; p++)
                f->data[p][y / 2 * f->linesize[p] + x / 2] = yuv[p];
        }
}

static int
open_recorder(struct recorder *r)
{
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_MPEG4);
    if (!codec)
        return AVERROR_ENCODER_NOT_FOUND;
    int e = avformat_alloc_output_context2(&r->file, NULL, "mp4", r->path);
    if (e < 0)
        return e;
    r->codec = avcodec_alloc_context3(codec);
    r->stream = avformat_new_stream(r->file, NULL);
    r->frame = av_frame_alloc();
    r->packet = av_packet_alloc();
    if (!r->codec || !r->stream || !r->frame || !r->packet)
        return AVERROR(ENOMEM);
    r->codec->width = r->frame->width = r->shape.width;
    r->codec->height = r->frame->height = r->shape.height;
    r->codec->pix_fmt = AV_PIX_FMT_YUV420P;
    r->frame->format = AV_PIX_FMT_YUV420P;
    r->codec->time_base = (AVRational){ 1, r->shape.fps };
    r->codec->framerate = (AVRational){ r->shape.fps, 1 };
    r->codec->bit_rate = 1500000;
    r->codec->flags |= AV_CODEC_FLAG_BITEXACT;
    r->file->flags |= AVFMT_FLAG_BITEXACT;
    if (r->file->oformat->flags & AVFMT_GLOBALHEADER)
        r->codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    r->stream->time_base = r->codec->time_base;
    r->stream->avg_frame_rate = r->codec->framerate;
    if ((e = avcodec_open2(r->codec, codec, NULL)) < 0 ||
        (e = avcodec_parameters_from_context(r->stream->codecpar, r->codec)) < 0 ||
        (e = av_frame_get_buffer(r->frame, 0)) < 0 ||
        (e = avio_open(&r->file->pb, r->path, AVIO_FLAG_WRITE)) < 0)
        return e;
    return avformat_write_header(r->file, NULL);
}

/* A NULL frame flushes the encoder. */
static int
encode_frame(struct recorder *r, const AVFrame *frame)
{
    int e = avcodec_send_frame(r->codec, frame);
    while (e >= 0) {
        e = avcodec_receive_packet(r->codec, r->packet);
        if (e == AVERROR(EAGAIN) || e == AVERROR_EOF)
            return 0;
        if (e < 0)
            return e;
        av_packet_rescale_ts(r->packet, r->codec->time_base, r->stream->time_base);
        r->packet->stream_index = r->stream->index;
        e = av_interleaved_write_frame(r->file, r->packet);
    }
    return e;
}

/* Closing also reports errors of earlier writes. Returns `e`, or such an error. */
static int
close_file(AVFormatContext *file, int e)
{
    const int closed = file && file->pb ? avio_closep(&file->pb) : 0;
    return e < 0 ? e : closed;
}

static int
record(struct recorder *r)
{
    int e = open_recorder(r);
    for (int i = 0; i < r->shape.frames && e >= 0; i++) {
        e = av_frame_make_writable(r->frame);
        if (e < 0)
            break;
        draw(r->frame, (double)i / r->shape.fps);
        r->frame->pts = i;
        e = encode_frame(r, r->frame);
    }
    if (e >= 0)
        e = encode_frame(r, NULL);
    return e < 0 ? e : av_write_trailer(r->file);
}

static int
make_clip(const char *path, const struct qvm_clip_shape *shape)
{
    struct recorder r = { .path = path, .shape = *shape };
    int e = record(&r);
    av_packet_free(&r.packet);
    av_frame_free(&r.frame);
    avcodec_free_context(&r.codec);
    e = close_file(r.file, e);
    avformat_free_context(r.file);
    return e;
}

int
qvm_make_clip(int socket, char **arguments)
{
    const char *path = arguments[0];
    struct qvm_clip_shape s;
    char text[AV_ERROR_MAX_STRING_SIZE] = QVM_MADE;
    int e = AVERROR(EINVAL);
    qvm_end_with(qvm_caller(socket));
    signal(SIGXFSZ, SIG_IGN); /* so a file above the limit is an error */
    /* NOLINTNEXTLINE(cert-err34-c): the command wrote the numbers */
    if (sscanf(arguments[1], QVM_CLIP_SHAPE, &s.width, &s.height, &s.fps, &s.frames) == 4)
        e = make_clip(path, &s);
    if (e < 0)
        av_make_error_string(text, sizeof text, e);
    return !qvm_send(socket, text, strlen(text)) || e < 0;
}
