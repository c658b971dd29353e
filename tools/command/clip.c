/* SPDX-License-Identifier: MIT */
/* qwenvit synth --clip, bench job, bench start: discs that move before a gradient, as MPEG-4, to try on. */
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <math.h>
#include <string.h>

#include "error.h"
#include "tool.h"
#include "files/atomic_file.h"

const struct tool_clip_shape tool_clip_shape = {
    .width = 320, .height = 240, .fps = 25, .frames = 100
};

struct recorder {
    struct tool_clip_shape shape;
    const char *path; /* of the temporary file */
    AVFormatContext *file;
    AVCodecContext *codec;
    AVStream *stream;
    AVFrame *frame;
    AVPacket *packet;
};

static const struct {
    double radius, speed, phase; /* radius: of an image of 240 rows */
    uint8_t yuv[3];
} discs[] = { { 46, 0.9, 0.0, { 200, 90, 190 } },
              { 34, 1.7, 2.1, { 120, 200, 90 } },
              { 26, 2.6, 4.2, { 80, 110, 210 } } };
enum { N_DISCS = sizeof discs / sizeof *discs };

struct scene {
    int width, height;
    double x[N_DISCS], y[N_DISCS], square[N_DISCS]; /* where discs are, and their radius squared */
};

/* At time t (seconds). */
static struct scene
scene_at(const struct tool_clip_shape *shape, double t)
{
    struct scene s = { .width = shape->width, .height = shape->height };
    for (int i = 0; i < N_DISCS; i++) {
        const double radius = discs[i].radius * s.height / 240;
        s.x[i] = s.width * (0.5 + 0.36 * cos(discs[i].speed * t + discs[i].phase));
        s.y[i] = s.height * (0.5 + 0.32 * sin(1.3 * discs[i].speed * t + discs[i].phase));
        s.square[i] = radius * radius;
    }
    return s;
}

/* Luma and chroma of one pixel. */
static void
look(const struct scene *s, int x, int y, uint8_t yuv[3])
{
    yuv[0] = (uint8_t)(40 + 120 * x / s->width + 40 * y / s->height);
    yuv[1] = (uint8_t)(150 - 50 * y / s->height);
    yuv[2] = 118;
    for (int i = 0; i < N_DISCS; i++)
        if ((x - s->x[i]) * (x - s->x[i]) + (y - s->y[i]) * (y - s->y[i]) < s->square[i])
            memcpy(yuv, discs[i].yuv, 3);
}

static void
draw(AVFrame *f, const struct scene *s)
{
    uint8_t yuv[3];
    for (int y = 0; y < s->height; y++)
        for (int x = 0; x < s->width; x++) {
            look(s, x, y, yuv);
            f->data[0][y * f->linesize[0] + x] = yuv[0];
            if (x % 2 == 0 && y % 2 == 0) {
                f->data[1][y / 2 * f->linesize[1] + x / 2] = yuv[1];
                f->data[2][y / 2 * f->linesize[2] + x / 2] = yuv[2];
            }
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

/* frame NULL: flush. */
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

static int
record(struct recorder *r)
{
    int e = open_recorder(r);
    for (int i = 0; i < r->shape.frames && e >= 0; i++) {
        const struct scene scene = scene_at(&r->shape, (double)i / r->shape.fps);
        e = av_frame_make_writable(r->frame);
        if (e < 0)
            break;
        draw(r->frame, &scene);
        r->frame->pts = i;
        e = encode_frame(r, r->frame);
    }
    if (e >= 0)
        e = encode_frame(r, NULL);
    return e < 0 ? e : av_write_trailer(r->file);
}

static int
make_clip(const char *path, const struct tool_clip_shape *shape)
{
    struct recorder r = { .path = path, .shape = *shape };
    int e = record(&r);
    av_packet_free(&r.packet);
    av_frame_free(&r.frame);
    avcodec_free_context(&r.codec);
    if (r.file && r.file->pb) {
        int closed = avio_closep(&r.file->pb); /* reports errors of earlier writes too */
        e = e < 0 ? e : closed;
    }
    avformat_free_context(r.file);
    return e;
}

qv_status
tool_make_clip(const char *path, const struct tool_clip_shape *shape, qv_error *err)
{
    struct qv_atomic_file file = { 0 };
    qv_status status = qv_atomic_file_open(path, &file, err);
    int e = status ? 0 : make_clip(file.temporary ? file.temporary : file.path, shape);
    if (e < 0) {
        char text[AV_ERROR_MAX_STRING_SIZE];
        status = qv_fail(err, QV_EIO, "%s: the clip cannot be made: %s", path,
                         av_make_error_string(text, sizeof text, e));
    }
    if (!status)
        status = qv_atomic_file_commit(&file, err);
    qv_atomic_file_abort(&file);
    return status;
}
