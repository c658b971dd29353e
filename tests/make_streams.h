/* SPDX-License-Identifier: MIT */
/*
 * Makes streams of packets with FFmpeg's encoders, to be changed, joined and written to any of
 * FFmpeg's containers. Where FFmpeg lacks the encoder, or the container refuses the codec, the
 * result is NULL or false. Streams are freed when the test is over. Frames show a pattern of many
 * grey levels and colours that moves, so that no two frames, and no two ways of decoding one, are
 * alike.
 */
#pragma once

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <stdbool.h>

enum { STREAM_MOST_PACKETS = 512 };

typedef struct stream {
    AVCodecParameters *par;
    AVRational time_base;
    AVPacket *packets[STREAM_MOST_PACKETS]; /* [n] */
    int n;
} stream;

typedef struct stream_recipe {
    const char *encoder, *options;
    int frames, group;         /* group: 0 for 5 */
    int first;                 /* number of the first frame, which decides what the frames show */
    int still;                 /* this many frames in a row show the same; 0: all differ */
    int width, height;         /* 0: 96x64 */
    enum AVPixelFormat format; /* AV_PIX_FMT_NONE: the encoder's first one; 0: yuv420p */
    bool headers_in_packets;   /* headers are in packets, and not in the codec's parameters */
} stream_recipe;

stream *stream_encode(const stream_recipe *recipe);

/* Makes an empty stream of copies of the parameters. */
stream *stream_new(const AVCodecParameters *par, AVRational time_base);
/* Appends copies of packets first .. first + n - 1 of another stream, which are shown `later` ticks
 * later than there. */
void stream_append(stream *to, const stream *from, int first, int n, int64_t later);
/* Appends a packet of these bytes. */
void stream_add(stream *to, const uint8_t *bytes, size_t n, int64_t pts, int64_t dts, bool key);

/* Writes the stream to a file; false, without a file, if the muxer refuses it. */
bool stream_write(const stream *s, const char *muxer, const char *options, const char *name);

/* For H.264 and HEVC with start codes: removes the NAL units for which `out` returns true from a
 * packet or from the parameters; its argument is the unit's first byte. */
void stream_cut_units(AVPacket *packet, bool (*out)(int head));
