/* SPDX-License-Identifier: MIT */
#include "make_clips.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/crc.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ffmpeg_write.h"
#include "h264_writer.h"
#include "remove_tree.h"

static void
need(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "make_clips: %s\n", what);
    abort();
}

/* ---- where clips are made -------------------------------------------------------------------- */

static char folder[256];

int
clips_enter_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/qv_clips_XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(folder) && !chdir(folder) ? 0 : -1;
}

int
clips_leave_folder(void)
{
    return remove_tree(folder);
}

/* ---- how a clip is made ---------------------------------------------------------------------- */

/* What frames look like. A clip that changes in the middle has several looks, each beginning with a
 * key frame. */
typedef struct look {
    int width, height;         /* 0: the usual size */
    enum AVPixelFormat format; /* 0: yuv420p */
    bool full_range;
} look;

/* Numbers of 32 bits become the body of the box with this path, or are written this many bytes
 * after the first occurrence of a name. */
typedef struct change {
    const char *at;
    int behind; /* 0: the box's body */
    const uint32_t *numbers;
    size_t n;
    bool little; /* endian */
} change;

typedef struct recipe {
    const char *name; /* the ending gives the container, unless `muxer` does */
    int frames;
    const char *muxer, *encoder; /* NULL: the muxer by the name, and the encoder mpeg4 */
    const char *muxer_options, *encoder_options;
    look looks[4];
    bool corners, interlaced, sample_aspect;
    const int32_t *matrix; /* [9], the stream's display matrix */
    int streams;           /* how many streams there are, which all get every packet; 0: one */
    int64_t (*when)(int frame);
    void (*packet)(AVPacket *packet, int number);
    /* B-pictures are in the packet of the picture that they precede (MPEG-4, as DivX 5 wrote it) */
    bool packed;
    change changes[4];
    void (*edit)(clip_bytes *file);
    /* one of these makes the file instead of the members above */
    clip_bytes (*make)(const struct recipe *r);
    clip_bytes bytes;
    /* for `make` */
    const struct fields *fields;
    const uint32_t *levels;
} recipe;

/* ---- frames ---------------------------------------------------------------------------------- */

const uint8_t clip_corners[4] = { 40, 100, 160, 220 };

static void
draw_rgb(AVFrame *rgb, const recipe *r, int number)
{
    for (int y = 0; y < rgb->height; y++)
        for (int x = 0; x < rgb->width; x++) {
            const int bar = x * CLIP_BARS / rgb->width;
            const int corner = 2 * (2 * y >= rgb->height) + (2 * x >= rgb->width);
            const int grey = r->corners ? clip_corners[corner] : number >> bar & 1 ? 255 : 0;
            memset(rgb->data[0] + y * rgb->linesize[0] + 3 * x, grey, 3);
        }
}

static AVFrame *
draw(const recipe *r, const AVCodecContext *encoder, int number)
{
    const int width = encoder->width, height = encoder->height;
    const bool full = encoder->color_range == AVCOL_RANGE_JPEG;
    AVFrame *rgb = new_frame(width, height, AV_PIX_FMT_RGB24);
    AVFrame *frame = new_frame(width, height, encoder->pix_fmt);
    need(rgb && frame, "no memory for a frame");
    draw_rgb(rgb, r, number);
    struct SwsContext *sws = sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height,
                                            encoder->pix_fmt, SWS_POINT, NULL, NULL, NULL);
    need(sws, "no way to this pixel format");
    const int *table = sws_getCoefficients(SWS_CS_DEFAULT);
    sws_setColorspaceDetails(sws, table, 1, table, full, 0, 1 << 16, 1 << 16);
    sws_scale(sws, (const uint8_t *const *)rgb->data, rgb->linesize, 0, height, frame->data,
              frame->linesize);
    sws_freeContext(sws);
    av_frame_free(&rgb);
    frame->color_range = encoder->color_range;
    frame->pts = r->when ? r->when(number) : number;
    if (r->interlaced)
        set_interlaced(frame);
    return frame;
}

/* ---- streams --------------------------------------------------------------------------------- */

static AVCodecContext *
open_encoder(const recipe *r, const look *l, bool global_header)
{
    const AVCodec *codec = avcodec_find_encoder_by_name(r->encoder ? r->encoder : "mpeg4");
    need(codec, r->name);
    AVCodecContext *encoder = avcodec_alloc_context3(codec);
    need(encoder, "no memory");
    encoder->width = l->width ? l->width : CLIP_WIDTH;
    encoder->height = l->height ? l->height : CLIP_HEIGHT;
    encoder->pix_fmt = l->format;
    encoder->color_range = l->full_range ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    encoder->time_base = (AVRational){ 1, CLIP_FPS };
    encoder->framerate = (AVRational){ CLIP_FPS, 1 };
    encoder->gop_size = 5;
    encoder->thread_count = 1;
    encoder->strict_std_compliance = FF_COMPLIANCE_UNOFFICIAL; /* for mjpeg of limited range */
    encoder->flags = AV_CODEC_FLAG_BITEXACT | AV_CODEC_FLAG_QSCALE;
    encoder->global_quality = 2 * FF_QP2LAMBDA;
    if (r->sample_aspect)
        encoder->sample_aspect_ratio = (AVRational){ 3, 1 };
    if (r->interlaced)
        encoder->flags |= AV_CODEC_FLAG_INTERLACED_DCT | AV_CODEC_FLAG_INTERLACED_ME;
    if (global_header)
        encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    AVDictionary *options = NULL;
    av_dict_parse_string(&options, r->encoder_options, "=", ":", 0);
    need(avcodec_open2(encoder, codec, &options) >= 0, r->name);
    av_dict_free(&options);
    return encoder;
}

static void
set_matrix(AVStream *stream, const int32_t *matrix)
{
    const size_t n = 9 * sizeof *matrix;
    uint8_t *data = stream_new_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, n);
    need(data, "no memory for a matrix");
    memcpy(data, matrix, n);
}

static AVFormatContext *
open_muxer(const char *name, const char *muxer)
{
    AVFormatContext *mux = NULL;
    need(avformat_alloc_output_context2(&mux, NULL, muxer, name) >= 0, name);
    mux->flags |= AVFMT_FLAG_BITEXACT;
    need(avio_open(&mux->pb, name, AVIO_FLAG_WRITE) >= 0, name);
    return mux;
}

static void
begin_file(AVFormatContext *mux, const char *muxer_options)
{
    AVDictionary *options = NULL;
    av_dict_parse_string(&options, muxer_options, "=", ":", 0);
    need(avformat_write_header(mux, &options) >= 0, mux->url);
    av_dict_free(&options);
}

static clip_bytes
read_file(const char *name)
{
    FILE *file = fopen(name, "rb");
    need(file && !fseek(file, 0, SEEK_END), name);
    const size_t n = (size_t)ftell(file);
    clip_bytes bytes = { malloc(n + 1), n };
    rewind(file);
    need(bytes.data && fread(bytes.data, 1, n, file) == n, name);
    fclose(file);
    return bytes;
}

/* Writes through a file, because some muxers fill gaps in FFmpeg's memory files with zeros. */
static clip_bytes
end_file(AVFormatContext *mux)
{
    need(av_write_trailer(mux) >= 0 && avio_closep(&mux->pb) >= 0, mux->url);
    const clip_bytes bytes = read_file(mux->url);
    remove(mux->url);
    avformat_free_context(mux);
    return bytes;
}

/* Finds the position of `what`, at least `after` bytes from the start. */
static uint8_t *
find(const clip_bytes *file, const void *what, size_t n, size_t after)
{
    for (size_t at = after; at + n <= file->n; at++)
        if (!memcmp(file->data + at, what, n))
            return file->data + at;
    need(false, "the bytes to change are not there");
    return NULL;
}

static void
write_packet(const recipe *r, AVFormatContext *mux, const AVCodecContext *encoder, AVPacket *packet)
{
    packet->duration = 1;
    for (unsigned i = 0; i < mux->nb_streams; i++) {
        AVPacket *copy = av_packet_clone(packet);
        av_packet_rescale_ts(copy, encoder->time_base, mux->streams[i]->time_base);
        copy->stream_index = (int)i;
        need(av_write_frame(mux, copy) >= 0, r->name);
        av_packet_free(&copy);
    }
    av_packet_unref(packet);
}

static void
put_behind(AVPacket *packet, const void *bytes, int n)
{
    const int at = packet->size;
    need(av_grow_packet(packet, n) >= 0, "no memory for a packet");
    memcpy(packet->data + at, bytes, (size_t)n);
}

/* Moves a B-picture into the packet before it, and puts an uncoded picture in its place; the first
 * packet names the encoder known for this. `held` is the previous packet, which is not written
 * yet. */
static void
pack(AVPacket *held, AVPacket *packet)
{
    static const uint8_t divx[] = "\0\0\1\xb2"
                                  "DivX503b1393p",
                         vop[] = { 0, 0, 1, 0xb6 };
    static const uint8_t not_coded[] = { 0, 0, 1, 0xb6, 0x50, 0x9f }; /* a P-VOP with vop_coded 0 */
    const clip_bytes bytes = { packet->data, (size_t)packet->size };
    if (!held->data) {
        const int n = (int)sizeof divx - 1;
        put_behind(packet, divx, n);
        memmove(packet->data + n, packet->data, (size_t)packet->size - (size_t)n);
        memcpy(packet->data, divx, (size_t)n);
    } else if (find(&bytes, vop, sizeof vop, 0)[4] >> 6 == 2) {
        put_behind(held, packet->data, packet->size);
        memcpy(packet->data, not_coded, sizeof not_coded);
        av_shrink_packet(packet, sizeof not_coded);
    }
}

static void
write_packets(const recipe *r, AVFormatContext *mux, AVCodecContext *encoder, AVPacket *held,
              int *number)
{
    AVPacket *packet = av_packet_alloc();
    while (avcodec_receive_packet(encoder, packet) == 0) {
        if (r->packet)
            r->packet(packet, *number);
        ++*number;
        if (r->packed) {
            pack(held, packet);
            if (held->data)
                write_packet(r, mux, encoder, held);
            av_packet_move_ref(held, packet);
        } else {
            write_packet(r, mux, encoder, packet);
        }
    }
    av_packet_free(&packet);
}

static void
add_streams(const recipe *r, AVFormatContext *mux, const AVCodecContext *encoder)
{
    for (int i = 0; i < (r->streams ? r->streams : 1); i++) {
        AVStream *stream = avformat_new_stream(mux, NULL);
        need(stream, "no memory for a stream");
        stream->time_base = encoder->time_base;
        stream->avg_frame_rate = encoder->framerate;
        avcodec_parameters_from_context(stream->codecpar, encoder);
        if (r->matrix)
            set_matrix(stream, r->matrix);
    }
}

static clip_bytes
encode(const recipe *r)
{
    AVFormatContext *mux = open_muxer(r->name, r->muxer);
    AVPacket *held = av_packet_alloc();
    int n_looks = 1, number = 0;
    while (n_looks < 4 && r->looks[n_looks].width)
        n_looks++;
    for (int part = 0; part < n_looks; part++) {
        AVCodecContext *encoder =
            open_encoder(r, &r->looks[part],
                         n_looks == 1 && mux->oformat->flags & AVFMT_GLOBALHEADER);
        if (part == 0) {
            add_streams(r, mux, encoder);
            begin_file(mux, r->muxer_options);
        }
        for (int i = r->frames * part / n_looks; i < r->frames * (part + 1) / n_looks; i++) {
            AVFrame *frame = draw(r, encoder, i);
            need(avcodec_send_frame(encoder, frame) >= 0, r->name);
            av_frame_free(&frame);
            write_packets(r, mux, encoder, held, &number);
        }
        avcodec_send_frame(encoder, NULL);
        write_packets(r, mux, encoder, held, &number);
        if (held->data)
            write_packet(r, mux, encoder, held);
        avcodec_free_context(&encoder);
    }
    av_packet_free(&held);
    return end_file(mux);
}

/* ---- surgery --------------------------------------------------------------------------------- */

static uint32_t
get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void
put16(uint8_t *p, unsigned value)
{
    p[0] = (uint8_t)(value >> 8);
    p[1] = (uint8_t)value;
}

static void
put32(uint8_t *p, uint32_t value)
{
    put16(p, value >> 16);
    put16(p + 2, value & 0xffff);
}

static void
put32_le(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> 8 * i);
}

static uint8_t *
find_name(const clip_bytes *file, const char *fourcc)
{
    return find(file, fourcc, 4, 0);
}

/* Replaces the body of an MP4 file's box, given by its path. Offsets in the file stay right as long
 * as the box follows the frames, where the muxer puts it. */
static void
replace_box(clip_bytes *file, const char *path, const void *body, size_t n)
{
    size_t parents[8], depth = 0, at = 0, end = file->n;
    for (const char *name = path; *name; name += name[4] ? 5 : 4) {
        while (at + 8 <= end && memcmp(file->data + at + 4, name, 4))
            at += get32(file->data + at);
        need(at + 8 <= end && depth < 8, path);
        parents[depth++] = at;
        end = at + get32(file->data + at);
        at += 8;
    }
    const size_t old = end - at, rest = file->n - end;
    if (n > old) {
        file->data = realloc(file->data, file->n + n - old);
        need(file->data, "no memory");
    }
    memmove(file->data + at + n, file->data + end, rest);
    memcpy(file->data + at, body, n);
    file->n = file->n - old + n;
    for (size_t i = 0; i < depth; i++) {
        uint8_t *size = file->data + parents[i];
        put32(size, (uint32_t)(get32(size) - old + n));
    }
}

static void
make_change(clip_bytes *file, const change *c)
{
    uint8_t *body = malloc(4 * c->n);
    need(body, "no memory");
    for (size_t i = 0; i < c->n; i++)
        (c->little ? put32_le : put32)(body + 4 * i, c->numbers[i]);
    if (c->behind)
        memcpy(find_name(file, c->at) + c->behind, body, 4 * c->n);
    else
        replace_box(file, c->at, body, 4 * c->n);
    free(body);
}

#define TABLE "moov/trak/mdia/minf/stbl/"
#define NUMBERS(...)                                                                               \
    .numbers = (const uint32_t[]){ __VA_ARGS__ }, .n = sizeof((const uint32_t[]){ __VA_ARGS__ }) / 4
/* The two kinds of changes. */
#define BOX(path, ...)                                                                             \
    {                                                                                              \
        .at = path, NUMBERS(__VA_ARGS__)                                                           \
    }
#define AT(name, bytes, ...)                                                                       \
    {                                                                                              \
        .at = name, .behind = bytes, NUMBERS(__VA_ARGS__)                                          \
    }

/* ---- T16: hardly a clip ---------------------------------------------------------------------- */

static clip_bytes
copy_bytes(const void *data, size_t n)
{
    clip_bytes bytes = { malloc(n + 1), n };
    need(bytes.data, "no memory");
    memcpy(bytes.data, data, n);
    return bytes;
}

/* Makes one second of silence as PCM, the only stream; in Matroska with a picture attached. */
static clip_bytes
make_audio(const recipe *r)
{
    static uint8_t silence[16000];
    AVFormatContext *mux = open_muxer(r->name, NULL);
    AVStream *stream = avformat_new_stream(mux, NULL);
    AVCodecParameters *par = stream->codecpar;
    par->codec_type = AVMEDIA_TYPE_AUDIO;
    par->codec_id = AV_CODEC_ID_PCM_S16LE;
    par->sample_rate = 8000;
    par->bits_per_coded_sample = 16;
    par->block_align = 2;
    av_channel_layout_default(&par->ch_layout, 1);
    if (strstr(r->name, ".mkv")) {
        const clip_bytes cover = clip_make("image.mp4");
        AVStream *attached = avformat_new_stream(mux, NULL);
        attached->codecpar->codec_type = AVMEDIA_TYPE_ATTACHMENT;
        attached->codecpar->codec_id = AV_CODEC_ID_PNG;
        attached->codecpar->extradata = av_mallocz(cover.n + AV_INPUT_BUFFER_PADDING_SIZE);
        attached->codecpar->extradata_size = (int)cover.n;
        need(attached->codecpar->extradata, "no memory");
        memcpy(attached->codecpar->extradata, cover.data, cover.n);
        av_dict_set(&attached->metadata, "filename", "cover.png", 0);
        av_dict_set(&attached->metadata, "mimetype", "image/png", 0);
        free(cover.data);
    }
    begin_file(mux, NULL);
    AVPacket *packet = av_packet_alloc();
    packet->data = silence;
    packet->size = sizeof silence;
    packet->pts = packet->dts = 0;
    packet->duration = av_rescale_q(1, (AVRational){ 1, 1 }, stream->time_base);
    packet->flags = AV_PKT_FLAG_KEY;
    need(av_write_frame(mux, packet) >= 0, r->name);
    av_packet_free(&packet);
    return end_file(mux);
}

/* ---- T17, T18: damaged, and counts that are not so ------------------------------------------- */

static void
drop_moov(clip_bytes *file)
{
    file->n = (size_t)(find_name(file, "moov") - 4 - file->data);
}

static void
say_431_in_apng(clip_bytes *file)
{
    uint8_t *chunk = find_name(file, "acTL");
    put32(chunk + 4, 431);
    put32(chunk + 12, ~av_crc(av_crc_get_table(AV_CRC_32_IEEE_LE), ~0u, chunk, 12));
}

/* ---- T19: time ------------------------------------------------------------------------------- */

static int64_t
when_squared(int frame)
{
    return (int64_t)frame * frame;
}

static int64_t
when_gaps(int frame)
{
    return frame + frame / 5 * 1000000;
}

static int64_t
when_negative(int frame)
{
    return frame - 20;
}

/* ---- T20: shapes ----------------------------------------------------------------------------- */

/* A display matrix: (x, y) becomes a x + c y, b x + d y. */
#define MATRIX(a, b, c, d)                                                                         \
    {                                                                                              \
        (a) * 65536, (b)*65536, 0, (c)*65536, (d)*65536, 0, 0, 0, 1 << 30                          \
    }
static const int32_t turn_90[9] = MATRIX(0, 1, -1, 0);
static const int32_t turn_180[9] = MATRIX(-1, 0, 0, -1);
static const int32_t turn_270[9] = MATRIX(0, -1, 1, 0);
static const int32_t mirror[9] = MATRIX(-1, 0, 0, 1);
static const int32_t upside_down[9] = MATRIX(1, 0, 0, -1);
static const int32_t transpose[9] = MATRIX(0, 1, 1, 0);
static const int32_t transverse[9] = MATRIX(0, -1, -1, 0);

/* Sets EXIF's orientation 6, a quarter turn clockwise, in a JPEG packet. */
static void
orient(AVPacket *packet, int number)
{
    static const uint8_t exif[] = { 0xff, 0xe1, 0, 34, 'E', 'x', 'i', 'f', 0, 0,  'M', 'M',
                                    0,    42,   0, 0,  0,   8,   0,   1,   1, 18, 0,   3,
                                    0,    0,    0, 1,  0,   6,   0,   0,   0, 0,  0,   0 };
    const int n = packet->size;
    need(av_grow_packet(packet, sizeof exif) >= 0, "no memory");
    memmove(packet->data + 2 + sizeof exif, packet->data + 2, (size_t)n - 2);
    memcpy(packet->data + 2, exif, sizeof exif);
}

static void
orient_late(AVPacket *packet, int number)
{
    if (number >= 10)
        orient(packet, number);
}

/* ---- T22: bombs ------------------------------------------------------------------------------ */

static void
huge_png(clip_bytes *file)
{
    for (size_t at = 0; at + 21 < file->n; at++) {
        uint8_t *chunk = file->data + at;
        if (memcmp(chunk, "IHDR", 4))
            continue;
        put32(chunk + 4, 65535);
        put32(chunk + 8, 65535);
        put32(chunk + 17, ~av_crc(av_crc_get_table(AV_CRC_32_IEEE_LE), ~0u, chunk, 17));
    }
}

/* ---- images that cannot be read -------------------------------------------------------------- */

static void
cut_half(clip_bytes *file)
{
    file->n /= 2;
}

/* Makes a TIFF file of 2 x 2 pixels, each one float. */
static clip_bytes
make_float_tiff(const recipe *r)
{
    enum { ENTRIES = 10, DATA = 8 + 2 + 12 * ENTRIES + 4, BYTES = DATA + 16 };
    static const uint16_t entries[ENTRIES][2] = { { 256, 2 }, { 257, 2 }, { 258, 32 },
                                                  { 259, 1 }, { 262, 1 }, { 273, DATA },
                                                  { 277, 1 }, { 278, 2 }, { 279, 16 },
                                                  { 339, 3 } };
    uint8_t file[BYTES] = { 'M', 'M', 0, '*', 0, 0, 0, 8, 0, ENTRIES };
    for (int i = 0; i < ENTRIES; i++) {
        uint8_t *entry = file + 10 + 12 * i;
        put16(entry, entries[i][0]);
        put16(entry + 2, 3); /* of 16 bits */
        put32(entry + 4, 1);
        put16(entry + 8, entries[i][1]);
    }
    return copy_bytes(file, sizeof file);
}

/* Makes a TIFF file of YCbCr pixels, with these codes of black and white (ReferenceBlackWhite: six
 * rationals, for Y, Cb and Cr). */
static clip_bytes
make_levels_tiff(const recipe *r)
{
    enum { SIDE = 32, ENTRIES = 11, DATA = 8 + 2 + 12 * ENTRIES + 4, LEVELS = DATA + 6 };
    enum { PIXELS = LEVELS + 48, BYTES = PIXELS + 3 * SIDE * SIDE, SHORT = 3, RATIONAL = 5 };
    static const struct {
        uint16_t tag, type, n, value; /* of more values than fit, the value is where they lie */
    } entries[ENTRIES] = {
        { 256, SHORT, 1, SIDE }, { 257, SHORT, 1, SIDE },      { 258, SHORT, 3, DATA },
        { 259, SHORT, 1, 1 },    { 262, SHORT, 1, 6 },         { 273, SHORT, 1, PIXELS },
        { 277, SHORT, 1, 3 },    { 278, SHORT, 1, SIDE },      { 279, SHORT, 1, 3 * SIDE * SIDE },
        { 530, SHORT, 2, 1 },    { 532, RATIONAL, 6, LEVELS },
    };
    uint8_t file[BYTES] = { 'M', 'M', 0, '*', 0, 0, 0, 8, 0, ENTRIES };
    for (int i = 0; i < ENTRIES; i++) {
        uint8_t *entry = file + 10 + 12 * i;
        put16(entry, entries[i].tag);
        put16(entry + 2, entries[i].type);
        put32(entry + 4, entries[i].n);
        put16(entry + (entries[i].n > 2 ? 10 : 8), entries[i].value);
        if (entries[i].n == 2)
            put16(entry + 10, entries[i].value);
    }
    for (int i = 0; i < 3; i++)
        put16(file + DATA + 2 * i, 8);
    for (int i = 0; i < 12; i++)
        put32(file + LEVELS + 4 * i, r->levels[i]);
    for (int i = 0; i < 3 * SIDE * SIDE; i++)
        file[PIXELS + i] = (uint8_t)(i * 7);
    return copy_bytes(file, sizeof file);
}

static void
huge_jpeg(clip_bytes *file)
{
    for (size_t at = 0; at + 9 < file->n; at++)
        if (!memcmp(file->data + at, "\xff\xc0\0\x11\x08", 5)) {
            put16(file->data + at + 5, 65500);
            put16(file->data + at + 7, 65500);
        }
}

/* Makes a JPEG file of 4096 x 4096 gray with the given number of scans of 40 bytes. Each scan needs
 * a pass over all blocks, in runs of 16384 blocks without a value. */
static clip_bytes
make_scans_jpeg(const recipe *r)
{
    enum { SCANS = 2000, SCAN = 40 };
    static const uint8_t frame[] = { 0xff, 0xc2, 0, 11, 8, 16, 0, 16, 0, 1, 1, 0x11, 0 };
    static const uint8_t codes[] = { 0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0,
                                     0,    0,    0, 0,  0,    0, 0, 0, 0, 0, 0xe0 };
    static const uint8_t scan[SCAN] = { 0xff, 0xda, 0, 8, 1, 1, 0, 1, 63 };
    uint8_t table[69] = { 0xff, 0xdb, 0, 67 };
    clip_bytes file = { malloc(256 + SCANS * SCAN), 0 };
    need(file.data != NULL, "no memory");
#define APPEND(bytes) (memcpy(file.data + file.n, bytes, sizeof(bytes)), file.n += sizeof(bytes))
    memset(table + 5, 1, 64);
    APPEND(((const uint8_t[]){ 0xff, 0xd8 }));
    APPEND(table);
    APPEND(frame);
    APPEND(codes);
    for (int i = 0; i < SCANS; i++)
        APPEND(scan);
    APPEND(((const uint8_t[]){ 0xff, 0xd9 }));
#undef APPEND
    return file;
}

/* Makes millions of frames that exist: all chunks are the same bytes. */
static void
have_millions(clip_bytes *file)
{
    enum { CHUNKS = 4400, EACH = 1000 };
    uint32_t *chunks = calloc(2 + CHUNKS, sizeof *chunks);
    need(chunks, "no memory");
    chunks[1] = CHUNKS;
    for (int i = 0; i < CHUNKS; i++)
        chunks[2 + i] = 48;
    const change changes[] = {
        BOX(TABLE "stsz", 0, 1, CHUNKS * EACH),
        BOX(TABLE "stts", 0, 1, CHUNKS * EACH, 1),
        BOX(TABLE "stsc", 0, 1, 1, EACH, 1),
        { .at = TABLE "stco", .numbers = chunks, .n = 2 + CHUNKS },
    };
    for (int i = 0; i < 4; i++)
        make_change(file, &changes[i]);
    free(chunks);
}

/* Shows the same frames again and again by an edit list. */
static void
show_often(clip_bytes *file)
{
    enum { EDITS = 110000 };
    uint32_t *list = calloc(2 + 5 * EDITS, sizeof *list);
    need(list, "no memory");
    list[0] = 1 << 24;
    list[1] = EDITS;
    for (int i = 0; i < EDITS; i++) {
        list[2 + 5 * i + 1] = 4000;
        list[2 + 5 * i + 4] = 1 << 16;
    }
    make_change(file, &(change){ "moov/trak/edts/elst", .numbers = list, .n = 2 + 5 * EDITS });
    free(list);
}

/* ---- T23: what names other files ------------------------------------------------------------- */

/* Refers to the frames in one.mp4. */
static void
lie_elsewhere_by_url(clip_bytes *file)
{
    static const uint8_t dref[] = "\0\0\0\0\0\0\0\1\0\0\0\x14url \0\0\0\0one.mp4";
    replace_box(file, "moov/trak/mdia/minf/dinf/dref", dref, sizeof dref);
}

/* Refers to them by a Macintosh alias: 150 bytes in fixed places, then tagged paths. */
static void
lie_elsewhere_by_alias(clip_bytes *file)
{
    uint8_t dref[8 + 12 + 150 + 16 + 4] = { 0 };
    uint8_t *box = dref + 8, *tags = box + 12 + 150;
    put32(dref + 4, 1);
    put32(box, sizeof dref - 8);
    memcpy(box + 4, "alis", 4);
    box[12 + 10] = 3;
    memcpy(box + 12 + 11, "vol", 3);
    box[12 + 50] = 7;
    memcpy(box + 12 + 51, "one.mp4", 7);
    put16(box + 12 + 130, 1); /* one folder below a common one */
    put16(box + 12 + 132, 1);
    put16(tags, 2); /* an absolute path */
    put16(tags + 2, 8);
    memcpy(tags + 4, "/one.mp4", 8);
    put16(tags + 12, 0xffff);
    replace_box(file, "moov/trak/mdia/minf/dinf/dref", dref, sizeof dref);
}

/* ---- the clips ------------------------------------------------------------------------------- */

#define SIZE(w, h)                                                                                 \
    {                                                                                              \
        .width = w, .height = h                                                                    \
    }
#define KIND(f, full)                                                                              \
    {                                                                                              \
        .width = CLIP_WIDTH, .height = CLIP_HEIGHT, .format = AV_PIX_FMT_##f, .full_range = full   \
    }
#define CENC                                                                                       \
    "encryption_scheme=cenc-aes-ctr:encryption_key=000102030405060708090a0b0c0d0e0f:"              \
    "encryption_kid=101112131415161718191a1b1c1d1e1f"

/* ---- keyframes ------------------------------------------------------------------------------- */

static void
hide_key(AVPacket *packet, int number)
{
    if (number)
        packet->flags &= ~AV_PKT_FLAG_KEY;
}

/* Marks every fifth packet as independent of earlier ones, which is true only of the first. */
static void
claim_key(AVPacket *packet, int number)
{
    if (number % 5 == 0)
        packet->flags |= AV_PKT_FLAG_KEY;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* A clip of frames and fields. It is coded in the order 0 3 1 2 6 4 5 9 7 8, and every third is
 * referred to. */
struct fields {
    bool all;        /* there are only fields */
    bool half;       /* of some pairs only one field is referred to */
    bool each_alone; /* each field is a packet */
};

static void
write_coded(AVFormatContext *mux, clip_bytes picture, int64_t pts, int64_t dts, bool key)
{
    AVPacket *packet = av_packet_alloc();
    need(packet && av_new_packet(packet, (int)picture.n) >= 0, "no memory for a packet");
    memcpy(packet->data, picture.data, picture.n);
    packet->pts = pts;
    packet->dts = dts;
    packet->duration = 1;
    packet->flags = key ? AV_PKT_FLAG_KEY : 0;
    av_packet_rescale_ts(packet, (AVRational){ 1, 2 * CLIP_FPS }, mux->streams[0]->time_base);
    need(av_write_frame(mux, packet) >= 0, mux->url);
    av_packet_free(&packet);
}

static AVFormatContext *
open_h264(const char *name)
{
    AVFormatContext *mux = open_muxer(name, NULL);
    AVStream *stream = avformat_new_stream(mux, NULL);
    AVCodecParameters *par = stream->codecpar;
    par->codec_type = AVMEDIA_TYPE_VIDEO;
    par->codec_id = AV_CODEC_ID_H264;
    par->width = par->height = H264_SIDE;
    par->format = AV_PIX_FMT_YUV420P;
    par->video_delay = 1;
    par->extradata = av_mallocz(H264_MOST_BYTES + AV_INPUT_BUFFER_PADDING_SIZE);
    need(par->extradata, "no memory for parameter sets");
    par->extradata_size = (int)h264_write_parameters(par->extradata);
    stream->time_base = (AVRational){ 1, 2 * CLIP_FPS };
    stream->avg_frame_rate = (AVRational){ CLIP_FPS, 1 };
    begin_file(mux, NULL);
    return mux;
}

static clip_bytes
make_fields(const recipe *r)
{
    static const int order[10] = { 0, 3, 1, 2, 6, 4, 5, 9, 7, 8 };
    const struct fields *f = r->fields;
    AVFormatContext *mux = open_h264(r->name);
    int frame_num = 0;
    for (int i = 0; i < 40; i++) {
        uint8_t bytes[3 * H264_MOST_BYTES];
        const int place = order[i % 10], pts = 2 * (i / 10 * 10 + place + 2);
        const bool referred = place % 3 == 0, pair = f->all || i % 3 != 1;
        h264_picture p = { .shows = i, .place = place, .is_field = pair };
        p.idr = place == 0;
        p.referred = referred;
        p.frame_num = p.idr ? 0 : frame_num % 16;
        size_t n = p.idr ? h264_write_parameters(bytes) : 0;
        n += h264_write_picture(bytes + n, &p);
        if (pair && f->each_alone) {
            write_coded(mux, (clip_bytes){ bytes, n }, pts, 2 * i, p.idr);
            n = 0;
        }
        if (pair) {
            p.is_bottom = true;
            p.referred = referred != (f->half && i % 10 == 5);
            n += h264_write_picture(bytes + n, &p);
        }
        write_coded(mux, (clip_bytes){ bytes, n }, pts + (pair && f->each_alone),
                    2 * i + (pair && f->each_alone), p.idr);
        frame_num = referred ? p.frame_num + 1 : frame_num;
    }
    return end_file(mux);
}

#define OF(f, full) .looks = { KIND(f, full) }
#define STILL_PNG .frames = 1, .muxer = "image2pipe", .encoder = "png", OF(RGB24, false)
#define STILL_JPEG .frames = 1, .muxer = "image2pipe", .encoder = "mjpeg", OF(YUVJ420P, true)
#define ENCODER(name, options) .encoder = name, .encoder_options = options
#define X264(options) ENCODER("libx264", "threads=1" options)
#define FIELDS(...)                                                                                \
    .make = make_fields, .fields = &(const struct fields)                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define LEVELS(...)                                                                                \
    .make = make_levels_tiff, .levels = (const uint32_t[12])                                       \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define MATRIX_OF(...) .corners = true, .changes = { AT("tkhd", 44, __VA_ARGS__) }
/* The two places where an AVI file states its number of frames. */
#define AVI_SAYS(frames)                                                                           \
    .changes = { { "avih", 24, NUMBERS(frames), .little = true },                                  \
                 { "strh", 40, NUMBERS(frames), .little = true } }
#define BYTES(text) .bytes = { (uint8_t[]){ text }, sizeof(text) - 1 }
/* An edit list of version 1: each entry is a duration (of the movie), a beginning (in the medium)
 * and a rate. */
#define EDITS(n, ...) .changes = { BOX("moov/trak/edts/elst", 1 << 24, n, __VA_ARGS__) }

enum { NAN_BITS = 0x7fc00000 };

static const recipe recipes[] = {
    /* files that are not a clip, or not the clip that they seem to be */
    { "empty.mp4", BYTES("") },
    { "text.mp4", BYTES("This is a text file and no clip at all.\n") },
    { "audio.mov", .make = make_audio },
    { "cover.mkv", .make = make_audio },
    { "image.mp4", STILL_PNG },
    { "cut.png", STILL_PNG, .edit = cut_half },
    { "still.jpg", STILL_JPEG },
    { "photo.jpg", STILL_JPEG, .packet = orient },
    { "huge.jpg", STILL_JPEG, .edit = huge_jpeg },
    { "scans.jpg", .make = make_scans_jpeg },
    { "cut.gif", 1, .encoder = "gif", OF(GRAY8, false), .edit = cut_half },
    /* its header promises 4 KiB */
    { "cut.webp", BYTES("RIFF\0\x10\0\0WEBPVP8L\x20\0\0\0\x2f") },
    { "animated.webp",
      BYTES("RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0\2\0\0\0\x5f\0\0\x3f\0\0ANIM\6\0\0\0\0\0\0\0\0\0") },
    { "float.tiff", .make = make_float_tiff },
    { "levels.tiff", LEVELS(0, 1, 255, 1, 128, 1, 255, 1, 128, 1, 255, 1) },
    { "huge-levels.tiff", LEVELS(~0u, 1, 255, 1, 128, 1, 255, 1, 0x80000000, 1, ~0u, 1) },
    { "image.heic", BYTES("\0\0\0\x18"
                          "ftypheic\0\0\0\0mif1heic\0\0\0\x0cmeta\0\0\0\0") },
    { "nothing.mp4", 0, .muxer_options = "movflags=empty_moov+frag_keyframe" },
    { .name = "nothing.avi", .frames = 0 },
    { .name = "one.mp4", .frames = 1 },
    { .name = "two.mp4", .frames = 2 },
    { .name = "three.mp4", .frames = 3 },
    { "encrypted.mp4", 10, .muxer_options = CENC },

    /* whole clips, for tests that cut parts off */
    { .name = "back.mp4", .frames = 40 },
    { "front.mp4", 40, .muxer_options = "moov_size=1800" },
    { "pieces.mp4", 40, .muxer_options = "movflags=empty_moov+frag_keyframe" },
    { .name = "whole.mkv", .frames = 40 },
    { .name = "whole.avi", .frames = 40 },
    { "whole.ts", 40, .encoder = "mpeg2video" },
    { "whole.m4v", 40, .muxer = "m4v" },
    { "whole.gif", 20, .encoder = "gif", OF(GRAY8, false) },
    { "jpegs.mov", 4, .encoder = "mjpeg", OF(YUVJ420P, true) },
    /* parameter sets before each group of three: dropping some leaves others */
    { "x264-sets.ts", 8, X264(":g=3:bf=0") },
    { "x264.mp4", 40, X264(""), .muxer_options = "moov_size=1800" },
    { "vp8.webm", 20, ENCODER("libvpx", "cpu-used=8:deadline=realtime") },
    { "x265.mp4", 40, ENCODER("libx265", "x265-params=log-level=none:bf=2"),
      .muxer_options = "moov_size=4000" },
    { "vp9.webm", 20, ENCODER("libvpx-vp9", "cpu-used=8:deadline=realtime") },
    { .name = "long.avi", .frames = 300 },
    { .name = "long.mp4", .frames = 300 },
    { .name = "long.mkv", .frames = 300 },
    { "long-reordered.mp4", 300, .encoder_options = "bf=2" },
    { "reordered.mkv", 40, .encoder_options = "bf=2" },
    { "x264-open.mkv", 40, X264(":x264-params=open-gop=1") },
    /* clips whose packets tell which pictures no other refers to */
    { "x264-pyramid.mkv", 60, X264(":g=20:x264-params=bframes=5\\:b-pyramid=normal\\:b-adapt=0") },
    { "x264-pyramid.ts", 60, X264(":g=20:x264-params=bframes=5\\:b-pyramid=normal\\:b-adapt=0") },
    { "x264-refresh.mkv", 60, X264(":g=20:x264-params=intra-refresh=1\\:bframes=2") },
    /* the decoder's picture is cropped on all four sides */
    { "x264-cropped.mp4", 20, X264(":x264-params=crop-rect=64,4,2,8") },
    { "x264-full.mp4", 20, X264(""), .looks = { { 90, 50, AV_PIX_FMT_YUVJ420P, true } } },
    { "x264-fields.mkv", 40, X264(":g=20:x264-params=tff=1\\:bframes=2") },
    { "packed.avi", 40, .encoder_options = "bf=1", .packed = true },
    { "packed.mkv", 40, .encoder_options = "bf=1", .packed = true },
    { "x264-edit.mp4", 40, X264(":g=10"), EDITS(1, 0, 3500, 0, 5 * 1024, 1 << 16) },
    { "x264-negative.mp4", 40, X264(":g=10"), .when = when_negative },
    { "paff.mkv", FIELDS(.all = false) },
    { "paff.mp4", FIELDS(.all = false) },
    { "paff.ts", FIELDS(.all = false) },
    { "paff-all.mkv", FIELDS(.all = true) },
    { "paff-half.mkv", FIELDS(.half = true) },
    { "paff-alone.mkv", FIELDS(.each_alone = true) },
    { "x265-deep.mp4", 20, ENCODER("libx265", "x265-params=log-level=none\\:bframes=3"),
      .looks = { { 100, 52, AV_PIX_FMT_YUV420P10, false } } },
    { "x265-layers.mkv", 60,
      ENCODER("libx265",
              "g=20:x265-params=log-level=none\\:temporal-layers=1\\:bframes=4\\:b-adapt=0") },
    { "x265-leading.ts", 60,
      ENCODER("libx265", "g=20:x265-params=log-level=none\\:open-gop=1\\:bframes=4") },
    { "vp8-hidden.webm", 60, ENCODER("libvpx", "g=30:cpu-used=4:lag-in-frames=12:auto-alt-ref=1") },
    { "vp9-hidden.webm", 60,
      ENCODER("libvpx-vp9", "g=30:cpu-used=4:lag-in-frames=12:auto-alt-ref=1") },
    { "av1.mkv", 60, ENCODER("libaom-av1", "g=20:cpu-used=8:lag-in-frames=12:crf=40") },
    { "no-keys.mkv", 300, .encoder_options = "g=600", .packet = hide_key },
    { "false-keys.mp4", 300, .encoder_options = "g=600", .packet = claim_key },
    { "no-moov.mp4", 10, .edit = drop_moov },

    /* clips that state a wrong number of frames */
    { "over.mp4", 40, .changes = { BOX(TABLE "stts", 0, 1, 431, 1024) } },
    { "under.mp4", 40, .changes = { BOX(TABLE "stts", 0, 1, 7, 1024) } },
    { "over.avi", 40, AVI_SAYS(431) },
    { "under.avi", 40, AVI_SAYS(7) },
    { "over.apng", 10, .encoder = "apng", OF(RGB24, false), .edit = say_431_in_apng },

    /* clips with odd times */
    { "vfr.mp4", 40, .when = when_squared },
    { "vfr.mkv", 40, .when = when_squared },
    { "gaps.mp4", 40, .when = when_gaps },
    { "negative.mp4", 40, .when = when_negative },
    { "negative.nut", 40, .when = when_negative },
    { "at-once.mp4", 40, .changes = { BOX(TABLE "stts", 0, 1, 40, 0) } },
    { "huge-steps.mp4", 40, .changes = { BOX(TABLE "stts", 0, 1, 40, 0x7fffffff) } },
    { "backwards.mp4", 40,
      .changes = { BOX(TABLE "stts", 0, 3, 10, 1024, 10, 0xffffff00, 20, 0x80000000) } },
    /* the least and the greatest composition offsets */
    { "wild-offsets.mp4", 40, .encoder_options = "bf=2",
      .changes = { BOX(TABLE "ctts", 0, 4, 10, 0x7fffffff, 10, 0x80000001, 10, 0xffffffff, 10,
                       0) } },
    { "no-timescale.mp4", 40, .changes = { AT("mdhd", 16, 0) } },
    { "last-day.mp4", 40, .muxer_options = "movflags=empty_moov+frag_keyframe",
      .changes = { AT("tfdt", 8, 0x40000000, 0) } },
    { "start-at-5.mp4", 40, EDITS(1, 0, 3500, 0, 5 * 1024, 1 << 16) },
    { "wait-long.mp4", 40, EDITS(2, 0x40000000, 0, ~0u, ~0u, 1 << 16, 0, 4000, 0, 0, 1 << 16) },
    { "show-twice.mp4", 40, EDITS(2, 0, 4000, 0, 0, 1 << 16, 0, 4000, 0, 0, 1 << 16) },
    { "past-the-end.mp4", 40, EDITS(1, 0x7fffffff, ~0u, 0x7fffffff, ~0u, 1 << 16) },

    /* clips that are turned and mirrored */
    { "upright.mp4", 4, .corners = true },
    { "turned-90.mp4", 4, .corners = true, .matrix = turn_90 },
    { "turned-180.mp4", 4, .corners = true, .matrix = turn_180 },
    { "turned-270.mp4", 4, .corners = true, .matrix = turn_270 },
    { "mirror.mp4", 4, .corners = true, .matrix = mirror },
    { "upside-down.mp4", 4, .corners = true, .matrix = upside_down },
    { "transpose.mp4", 4, .corners = true, .matrix = transpose },
    { "transverse.mp4", 4, .corners = true, .matrix = transverse },
    { "zero-matrix.mp4", 4, MATRIX_OF(0, 0, 0, 0, 0, 0, 0, 0, 0) },
    { "extreme-matrix.mp4", 4,
      MATRIX_OF(1u << 31, 0x7fffffff, 1u << 31, 0x7fffffff, 1u << 31, ~0u, 1u << 31, 0x7fffffff,
                1u << 31) },
    /* the bits of an IEEE NaN in each place */
    { "nan-matrix.mp4", 4,
      MATRIX_OF(NAN_BITS, NAN_BITS, NAN_BITS, NAN_BITS, NAN_BITS, NAN_BITS, NAN_BITS, NAN_BITS,
                NAN_BITS) },
    { "frames-turned.avi", 4, .encoder = "mjpeg", .corners = true, .packet = orient },
    { "turned-late.avi", 20, .encoder = "mjpeg", .packet = orient_late },
    { "anamorphic.mp4", 4, .sample_aspect = true },
    { "thin.mkv", 4, .encoder = "ffv1", .looks = { SIZE(402, 2) } },
    { "too-thin.mkv", /* FFmpeg 9 makes no clip so thin */ .frames = 4, .encoder = "ffv1",
      .encoder_options = "level=1", .looks = { SIZE(2, 402) } },
    { "dot.mkv", 4, .encoder = "ffv1", .looks = { SIZE(1, 1) } },
    { "odd.mp4", 10, .looks = { SIZE(97, 63) } },
    { "odd.mkv", 10, .encoder = "ffv1", .looks = { SIZE(33, 1) } },
    { "wide.avi", 3, .encoder = "mjpeg", .looks = { SIZE(16384, 88) } },

    /* clips whose size or format changes on the way */
    { "sizes.avi", 40, .looks = { SIZE(96, 64), SIZE(192, 128), SIZE(64, 96), SIZE(48, 32) } },
    { "sizes.ts", 40, .encoder = "mpeg2video",
      .looks = { SIZE(96, 64), SIZE(192, 128), SIZE(64, 96) } },
    { "formats.avi", 40, .encoder = "mjpeg",
      .looks = { KIND(YUVJ420P, true), KIND(YUVJ444P, true), KIND(YUVJ422P, true) } },
    { "formats.mov", 40, .encoder = "png",
      .looks = { KIND(RGB24, false), KIND(GRAY16BE, false), KIND(RGBA, false),
                 KIND(MONOBLACK, false) } },
    { "ranges.avi", 8, .encoder = "mjpeg", .corners = true,
      .looks = { KIND(YUVJ420P, true), KIND(YUV420P, false) } },
    { "yuv444.mkv", 10, .encoder = "ffv1", OF(YUV444P, false) },
    { "ten-bits.mkv", 10, .encoder = "ffv1", OF(YUV420P10, false) },
    { "sixteen-bits.mkv", 10, .encoder = "ffv1", OF(YUV444P16, false) },
    { "grey.mkv", 10, .encoder = "ffv1", OF(GRAY8, false) },
    { "alpha.mkv", 10, .encoder = "ffv1", OF(YUVA420P, false) },
    { "palette.mov", 10, .encoder = "qtrle", OF(RGB555BE, false) },
    { "interlaced.mp4", 10, .interlaced = true },
    { "interlaced.ts", 10, .encoder = "mpeg2video", .interlaced = true },
    { "reordered.mp4", 12, .encoder_options = "bf=2" },
    { "reordered-13.mp4", 13, .encoder_options = "bf=2" },
    { "reordered.ts", 14, .encoder = "mpeg2video", .encoder_options = "bf=2" },

    /* clips that claim much data in few bytes */
    { "huge.png", STILL_PNG, .edit = huge_png },
    { "huge-png.mp4", 4, .encoder = "png", OF(RGB24, false), .edit = huge_png },
    { "huge-jpeg.avi", 4, .encoder = "mjpeg", OF(YUVJ420P, true), .edit = huge_jpeg },
    { "huge-raw.mov", 2, .encoder = "rawvideo", OF(UYVY422, false),
      .changes = { AT("2vuy", 28, ~0u) } },
    { "huge-entry.mp4", 4, .changes = { AT("mp4v", 28, ~0u) } }, /* 65535 by 65535 */
    /* as many samples as the field can hold, of one byte, in one chunk: gigabytes of a table */
    { "billions.mp4", 4,
      .changes = { BOX(TABLE "stsz", 0, 1, 0x7fffffff), BOX(TABLE "stts", 0, 1, 0x7fffffff, 1),
                   BOX(TABLE "stsc", 0, 1, 1, 0x7fffffff, 1), BOX(TABLE "stco", 0, 1, 48) } },
    /* a table that no memory could hold */
    { "too-many.mp4", 4, .changes = { BOX(TABLE "stts", 0, 0x80000001, 1, 1024) } },
    { "millions.mp4", 4, .edit = have_millions },
    { "often.mp4", 40, .edit = show_often },
    { "streams-1000.mkv", 2, .streams = 1000 },
    { "lasts-2-31.mp4", 40, .changes = { AT("mvhd", 20, 1u << 31), AT("mdhd", 20, 1u << 31) } },
    { "lasts-2-63.mp4", 40,
      .changes = { BOX("moov/trak/mdia/mdhd", 1 << 24, 0, 0, 0, 0, 10240, 0x7fffffff, ~0u, 0) } },

    /* files that name other files */
    { "hls.mp4", BYTES("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\none.mp4\n#EXTINF:4,\n"
                       "http://127.0.0.1:9/two.ts\n#EXT-X-ENDLIST\n") },
    { "hls-master.mp4",
      BYTES("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nhttp://127.0.0.1:9/a.m3u8\n") },
    { "dash.mp4",
      BYTES("<?xml version=\"1.0\"?>\n<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" "
            "type=\"static\" mediaPresentationDuration=\"PT4S\" profiles="
            "\"urn:mpeg:dash:profile:isoff-on-demand:2011\"><Period><AdaptationSet mimeType="
            "\"video/mp4\"><Representation id=\"1\" bandwidth=\"1\"><BaseURL>one.mp4</BaseURL>"
            "</Representation></AdaptationSet></Period></MPD>\n") },
    { "concat.mp4",
      BYTES("ffconcat version 1.0\nfile one.mp4\nfile http://127.0.0.1:9/two.mp4\n") },
    { "sdp.mp4", BYTES("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
                       "m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n") },
    { "subfile.mp4", BYTES("subfile,,start,0,end,900,,:one.mp4\n") },
    { "http.mp4", BYTES("http://127.0.0.1:9/one.mp4\n") },
    { "rtsp.mp4", BYTES("rtsp://127.0.0.1:9/one.mp4\n") },
    { "reference.mp4", BYTES("[Reference]\nRef1=http://127.0.0.1:9/one.asf?MSWMExt=.asf\n") },
    { "imf.mp4", BYTES("<?xml version=\"1.0\"?>\n<CompositionPlaylist xmlns="
                       "\"http://www.smpte-ra.org/schemas/2067-3/2016\"><Id>urn:uuid:0</Id>"
                       "</CompositionPlaylist>\n") },
    { "elsewhere-url.mov", 4, .edit = lie_elsewhere_by_url },
    { "elsewhere-alias.mov", 4, .edit = lie_elsewhere_by_alias },
};

const char *
clip_name(size_t i)
{
    return i < sizeof recipes / sizeof *recipes ? recipes[i].name : NULL;
}

static const recipe *
find_recipe(const char *name)
{
    for (size_t i = 0; clip_name(i); i++)
        if (!strcmp(recipes[i].name, name))
            return &recipes[i];
    need(false, name);
    return NULL;
}

bool
clip_is_possible(const char *name)
{
    const char *encoder = find_recipe(name)->encoder;
    return !encoder || avcodec_find_encoder_by_name(encoder);
}

clip_bytes
clip_make(const char *name)
{
    const recipe *r = find_recipe(name);
    av_log_set_level(AV_LOG_QUIET);
    if (r->make)
        return r->make(r);
    if (r->bytes.data)
        return copy_bytes(r->bytes.data, r->bytes.n);
    clip_bytes file = encode(r);
    for (const change *c = r->changes; c < r->changes + 4 && c->at; c++)
        make_change(&file, c);
    if (r->edit)
        r->edit(&file);
    return file;
}

void
clip_write_bytes(const char *name, clip_bytes bytes)
{
    FILE *file = fopen(name, "wb");
    need(file && fwrite(bytes.data, 1, bytes.n, file) == bytes.n && fclose(file) == 0, name);
}

void
clip_write(const char *name)
{
    clip_bytes bytes = clip_make(name);
    clip_write_bytes(name, bytes);
    free(bytes.data);
}

void
clip_write_frames(const char *path, int n)
{
    av_log_set_level(AV_LOG_QUIET);
    clip_bytes bytes = encode(&(recipe){ .name = path, .frames = n });
    clip_write_bytes(path, bytes);
    free(bytes.data);
}

void
clip_write_slow(const char *path, int width, int height, int n)
{
    const recipe r = { .name = path, .encoder_options = "g=600" };
    AVFormatContext *mux = open_muxer(path, NULL);
    AVCodecContext *encoder = open_encoder(&r, &(look){ .width = width, .height = height },
                                           mux->oformat->flags & AVFMT_GLOBALHEADER);
    AVPacket *seconds[2 * CLIP_FPS]; /* later seconds have the second one's packets */
    add_streams(&r, mux, encoder);
    begin_file(mux, NULL);
    for (int i = 0; i < 2 * CLIP_FPS; i++) {
        AVFrame *frame = draw(&r, encoder, 0);
        frame->pts = i;
        need(avcodec_send_frame(encoder, frame) >= 0, path);
        av_frame_free(&frame);
        seconds[i] = av_packet_alloc();
        need(avcodec_receive_packet(encoder, seconds[i]) >= 0, path);
        need(!i == !!(seconds[i]->flags & AV_PKT_FLAG_KEY), "more than one key frame");
    }
    for (int i = 0; i < n; i++) {
        AVPacket *packet = av_packet_clone(seconds[i < CLIP_FPS ? i : CLIP_FPS + i % CLIP_FPS]);
        packet->pts = packet->dts = i;
        write_packet(&r, mux, encoder, packet);
        av_packet_free(&packet);
    }
    for (int i = 0; i < 2 * CLIP_FPS; i++)
        av_packet_free(&seconds[i]);
    avcodec_free_context(&encoder);
    need(av_write_trailer(mux) >= 0 && avio_closep(&mux->pb) >= 0, path);
    avformat_free_context(mux);
}
