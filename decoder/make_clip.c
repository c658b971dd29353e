/* SPDX-License-Identifier: MIT */
/* Makes clips to try on, for `synth --clip`, `bench job` and `bench start`: discs that move before
 * a gradient or a detailed surface. No other program of ours links FFmpeg. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

/* side of the surface that a filmed clip pans over, in pixels; a power of 2 */
enum { SURFACE = 1024 };

struct recorder {
    struct qvm_clip_shape shape;
    int8_t *surface;  /* [SURFACE, SURFACE] added to luma; NULL: nothing is added */
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

static uint32_t
next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Makes detail of all sizes: noise on grids from 64 pixels to 2, each at half strength. */
static int8_t *
make_surface(void)
{
    int8_t *surface = calloc(SURFACE, SURFACE);
    int8_t *grid = malloc(SURFACE * SURFACE / 4);
    uint32_t random = 1;
    for (int step = 64, strength = 48; surface && grid && step > 1; step /= 2, strength /= 2) {
        const int side = SURFACE / step;
        for (int i = 0; i < side * side; i++)
            grid[i] = (int8_t)((int)(next_random(&random) % 97) - 48);
        for (int y = 0; y < SURFACE; y++)
            for (int x = 0; x < SURFACE; x++) {
                const int gx = x / step, gy = y / step, fx = x % step, fy = y % step;
                const int8_t *top = grid + gy * side, *low = grid + (gy + 1) % side * side;
                const int right = (gx + 1) % side;
                const int above = top[gx] * (step - fx) + top[right] * fx;
                const int below = low[gx] * (step - fx) + low[right] * fx;
                const int value = (above * (step - fy) + below * fy) / (step * step);
                surface[y * SURFACE + x] =
                    (int8_t)(surface[y * SURFACE + x] + value * strength / 96);
            }
    }
    free(grid);
    return surface;
}

/* Adds the surface, panned by 40 pixels per second, and grain that differs in each frame. */
static void
add_detail(AVFrame *f, const int8_t *surface, double t, uint32_t random)
{
    const int dx = (int)(40 * t), dy = (int)(12 * t);
    for (int y = 0; y < f->height; y++) {
        uint8_t *row = f->data[0] + (ptrdiff_t)y * f->linesize[0];
        const int8_t *detail = surface + (y + dy) % SURFACE * SURFACE;
        for (int x = 0; x < f->width; x++) {
            const int grain = (int)(next_random(&random) % 5) - 2;
            const int luma = row[x] + detail[(x + dx) % SURFACE] + grain;
            row[x] = (uint8_t)(luma < 16 ? 16 : luma > 235 ? 235 : luma);
        }
    }
}

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

/* libx264 keeps its defaults: groups of 250 frames, three B-pictures in a row, constant quality. */
static const AVCodec *
find_encoder(const struct qvm_clip_shape *shape)
{
    const AVCodec *x264 = shape->is_filmed ? avcodec_find_encoder_by_name("libx264") : NULL;
    return x264 ? x264 : avcodec_find_encoder(AV_CODEC_ID_MPEG4);
}

static int
open_recorder(struct recorder *r)
{
    const AVCodec *codec = find_encoder(&r->shape);
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
    if (codec->id == AV_CODEC_ID_MPEG4)
        r->codec->bit_rate = r->shape.is_filmed ? 4000000 : 1500000;
    if (codec->id == AV_CODEC_ID_MPEG4 && r->shape.is_filmed) {
        r->codec->max_b_frames = 2;
        r->codec->gop_size = 250;
    }
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

/* Closing reports errors of earlier writes too. Returns `e`, or such an error. */
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
        const double t = (double)i / r->shape.fps;
        e = av_frame_make_writable(r->frame);
        if (e < 0)
            break;
        draw(r->frame, t);
        if (r->surface)
            add_detail(r->frame, r->surface, t + 7 * r->shape.number, (uint32_t)i);
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
    r.surface = shape->is_filmed ? make_surface() : NULL;
    int e = shape->is_filmed && !r.surface ? AVERROR(ENOMEM) : record(&r);
    free(r.surface);
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
    signal(SIGXFSZ, SIG_IGN);       /* so a file above the limit is an error */
    av_log_set_level(AV_LOG_ERROR); /* libx264 logs a line for each clip */
    if (/* NOLINTNEXTLINE(cert-err34-c): the command wrote the numbers */
        sscanf(arguments[1], QVM_CLIP_SHAPE, &s.width, &s.height, &s.fps, &s.frames, &s.is_filmed,
               &s.number) == 6)
        e = make_clip(path, &s);
    if (e < 0)
        av_make_error_string(text, sizeof text, e);
    return !qvm_send(socket, text, strlen(text)) || e < 0;
}
