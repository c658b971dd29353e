/* SPDX-License-Identifier: MIT */
#include "test.h"

#include "make_streams.h"

#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "ffmpeg_write.h"
#include "make_clips.h"

static void
need(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "make_streams: %s\n", what);
    abort();
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* Draws slopes that move with the frame's number, with hard edges and some noise between them. */
static void
draw_rgb(AVFrame *rgb, int number)
{
    unsigned noise = 12345U + (unsigned)number;
    for (int y = 0; y < rgb->height; y++) {
        uint8_t *row = rgb->data[0] + (int64_t)y * rgb->linesize[0];
        for (int x = 0; x < rgb->width; x++) {
            noise = noise * 1664525U + 1013904223U;
            const int spot = ((x + 3 * number) / 8 + (y + number) / 8) % 2 * 60;
            row[3 * x] = (uint8_t)(2 * x + 9 * number + spot);
            row[3 * x + 1] = (uint8_t)(3 * y + 5 * number + (int)(noise >> 29));
            row[3 * x + 2] = (uint8_t)(x + y + 40 * (number % 5) + spot / 2);
        }
    }
}

/* swscale makes no palettes. This one changes every four frames. */
static void
draw_palette(AVFrame *frame, int number)
{
    for (int y = 0; y < frame->height; y++)
        for (int x = 0; x < frame->width; x++)
            frame->data[0][y * frame->linesize[0] + x] = (uint8_t)(x + 5 * y + 7 * number);
    for (int i = 0; i < 256; i++) {
        const uint32_t grey = (uint32_t)(i + 50 * (number / 4)) & 255;
        const uint32_t colour = 0xff000000U | grey << 16 | (uint32_t)i << 8 | (255 - grey);
        memcpy(frame->data[1] + 4 * (size_t)i, &colour, 4);
    }
}

static AVFrame *
draw(const AVCodecContext *encoder, int number)
{
    const int width = encoder->width, height = encoder->height;
    AVFrame *frame = new_frame(width, height, encoder->pix_fmt);
    if (!frame)
        return NULL;
    frame->color_range = encoder->color_range;
    if (encoder->pix_fmt == AV_PIX_FMT_PAL8) {
        draw_palette(frame, number);
        return frame;
    }
    AVFrame *rgb = new_frame(width, height, AV_PIX_FMT_RGB24);
    struct SwsContext *sws = sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height,
                                            encoder->pix_fmt, SWS_POINT, NULL, NULL, NULL);
    need(rgb, "no memory for a frame");
    if (sws) {
        draw_rgb(rgb, number);
        sws_scale(sws, (const uint8_t *const *)rgb->data, rgb->linesize, 0, height, frame->data,
                  frame->linesize);
    } else {
        av_frame_free(&frame);
    }
    sws_freeContext(sws);
    av_frame_free(&rgb);
    return frame;
}

/* ---- streams --------------------------------------------------------------------------------- */

static void
stream_free(void *stream_)
{
    stream *s = stream_;
    avcodec_parameters_free(&s->par);
    for (int i = 0; i < s->n; i++)
        av_packet_free(&s->packets[i]);
    free(s);
}

stream *
stream_new(const AVCodecParameters *par, AVRational time_base)
{
    stream *s = calloc(1, sizeof *s);
    need(s, "no memory for a stream");
    s->par = avcodec_parameters_alloc();
    need(s->par && avcodec_parameters_copy(s->par, par) >= 0, "no memory for parameters");
    s->time_base = time_base;
    return test_ends(s, stream_free);
}

static AVPacket *
append(stream *to)
{
    AVPacket *packet = av_packet_alloc();
    need(packet && to->n < STREAM_MOST_PACKETS, "too many packets");
    return to->packets[to->n++] = packet;
}

void
stream_append(stream *to, const stream *from, int first, int n, int64_t later)
{
    for (int i = first; i < first + n && i < from->n; i++) {
        AVPacket *packet = append(to);
        need(av_packet_ref(packet, from->packets[i]) >= 0 && av_packet_make_writable(packet) >= 0,
             "no memory for a packet");
        packet->pts += later;
        packet->dts += later;
    }
}

void
stream_add(stream *to, const uint8_t *bytes, size_t n, int64_t pts, int64_t dts, bool key)
{
    AVPacket *packet = append(to);
    need(av_new_packet(packet, (int)n) >= 0, "no memory for a packet");
    memcpy(packet->data, bytes, n);
    packet->pts = pts;
    packet->dts = dts;
    packet->duration = 1;
    packet->flags = key ? AV_PKT_FLAG_KEY : 0;
}

static AVCodecContext *
open_encoder(const stream_recipe *r)
{
    const AVCodec *codec = avcodec_find_encoder_by_name(r->encoder);
    AVCodecContext *encoder = codec ? avcodec_alloc_context3(codec) : NULL;
    if (!encoder)
        return NULL;
    encoder->width = r->width ? r->width : CLIP_WIDTH;
    encoder->height = r->height ? r->height : CLIP_HEIGHT;
    const enum AVPixelFormat *formats = pixel_formats(codec);
    encoder->pix_fmt = r->format != AV_PIX_FMT_NONE ? r->format
                       : formats                    ? formats[0]
                                                    : AV_PIX_FMT_YUV420P;
    encoder->time_base = (AVRational){ 1, 25 };
    encoder->framerate = (AVRational){ 25, 1 };
    encoder->gop_size = r->group ? r->group : 5;
    encoder->thread_count = 1;
    encoder->strict_std_compliance = FF_COMPLIANCE_EXPERIMENTAL;
    encoder->flags =
        AV_CODEC_FLAG_BITEXACT | (r->headers_in_packets ? 0 : AV_CODEC_FLAG_GLOBAL_HEADER);
    const char *name = av_get_pix_fmt_name(encoder->pix_fmt);
    if (name && !strncmp(name, "yuvj", 4))
        encoder->color_range = AVCOL_RANGE_JPEG;
    AVDictionary *options = NULL;
    av_dict_parse_string(&options, r->options, "=", ":", 0);
    if (avcodec_open2(encoder, codec, &options) < 0)
        avcodec_free_context(&encoder);
    av_dict_free(&options);
    return encoder;
}

static bool
take_packets(stream *s, AVCodecContext *encoder)
{
    for (;;) {
        AVPacket *packet = av_packet_alloc();
        const int code = avcodec_receive_packet(encoder, packet);
        if (code < 0 || s->n == STREAM_MOST_PACKETS) {
            av_packet_free(&packet);
            return code == AVERROR(EAGAIN) || code == AVERROR_EOF;
        }
        packet->duration = 1;
        s->packets[s->n++] = packet;
    }
}

static bool
encode_frames(stream *s, AVCodecContext *encoder, const stream_recipe *r)
{
    for (int i = 0; i < r->frames; i++) {
        AVFrame *frame = draw(encoder, r->first + (r->still ? i / r->still * r->still : i));
        if (!frame)
            return false;
        frame->pts = i;
        frame->quality = encoder->global_quality;
        const int code = avcodec_send_frame(encoder, frame);
        av_frame_free(&frame);
        if (code < 0 || !take_packets(s, encoder))
            return false;
    }
    avcodec_send_frame(encoder, NULL);
    return take_packets(s, encoder) && s->n;
}

stream *
stream_encode(const stream_recipe *recipe)
{
    AVCodecContext *encoder = open_encoder(recipe);
    AVCodecParameters *par = avcodec_parameters_alloc();
    if (!encoder || !par) {
        avcodec_parameters_free(&par);
        return NULL;
    }
    stream *s = stream_new(par, encoder->time_base);
    if (!encode_frames(s, encoder, recipe) || avcodec_parameters_from_context(s->par, encoder) < 0)
        s = NULL;
    avcodec_parameters_free(&par);
    avcodec_free_context(&encoder);
    return s;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool
write_packets(const stream *s, AVFormatContext *mux, const AVStream *to)
{
    bool done = true;
    for (int i = 0; done && i < s->n; i++) {
        AVPacket *packet = av_packet_clone(s->packets[i]);
        need(packet, "no memory for a packet");
        av_packet_rescale_ts(packet, s->time_base, to->time_base);
        packet->stream_index = 0;
        done = av_write_frame(mux, packet) >= 0;
        av_packet_free(&packet);
    }
    return done;
}

bool
stream_write(const stream *s, const char *muxer, const char *options, const char *name)
{
    AVFormatContext *mux = NULL;
    AVDictionary *dict = NULL;
    av_dict_parse_string(&dict, options, "=", ":", 0);
    bool done = avformat_alloc_output_context2(&mux, NULL, muxer, name) >= 0;
    if (done) {
        AVStream *to = avformat_new_stream(mux, NULL);
        need(to && avcodec_parameters_copy(to->codecpar, s->par) >= 0, "no memory for a stream");
        to->codecpar->codec_tag = 0;
        to->time_base = s->time_base;
        to->avg_frame_rate = to->r_frame_rate = av_inv_q(s->time_base);
        mux->flags |= AVFMT_FLAG_BITEXACT;
        mux->strict_std_compliance = FF_COMPLIANCE_EXPERIMENTAL;
        need(avio_open(&mux->pb, name, AVIO_FLAG_WRITE) >= 0, name);
        done = avformat_write_header(mux, &dict) >= 0 && write_packets(s, mux, to) &&
               av_write_trailer(mux) >= 0;
        avio_closep(&mux->pb);
        avformat_free_context(mux);
        if (!done)
            remove(name);
    }
    av_dict_free(&dict);
    return done;
}

/* ---- surgery --------------------------------------------------------------------------------- */

static int
find_start_code(const AVPacket *packet, int at)
{
    for (; at + 3 < packet->size; at++)
        if (!packet->data[at] && !packet->data[at + 1] && packet->data[at + 2] == 1)
            return at;
    return packet->size;
}

void
stream_cut_units(AVPacket *packet, bool (*out)(int head))
{
    int to = 0;
    for (int at = find_start_code(packet, 0), end; at < packet->size; at = end) {
        end = find_start_code(packet, at + 3);
        if (out(packet->data[at + 3]))
            continue;
        memmove(packet->data + to, packet->data + at, (size_t)(end - at));
        to += end - at;
    }
    av_shrink_packet(packet, to);
}
