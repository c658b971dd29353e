/* SPDX-License-Identifier: MIT */
/* Tests that pixels of files are what the Python libraries make, where those choose their way by
 * what the file is: JPEG's colours, the range of a clip, where in a file a clip ends, EXIF's eight
 * orientations, and the stream and the filter of qwen-vl-utils. Everything is small enough to be
 * worked out by hand. */

#include "test.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "../decoder/decoder.h"
#include "read_clip.h"
#include "tempdir.h"

enum { SIDE = 64 };

/* The first frame, [height, width, 3]. 64x64 pixels are left as they are unless max_pixels says
 * otherwise. */
static uint8_t *
first_frame(const char *path, qv_clip_options o, qv_outcome *info)
{
    int64_t n = 0;
    o.min_pixels = o.min_pixels ? o.min_pixels : 1024;
    qv_clip *clip = open_clip(path, &o);
    *info = clip_info(clip);
    uint8_t *rgb = test_alloc((size_t)info->height * (size_t)info->width * 3);
    assert_ok(qv_clip_read(clip, rgb, 1, &n, NULL, ERR));
    assert_int_equal(n, 1);
    return rgb;
}

/* ---- colours --------------------------------------------------------------------------------- */

/* Writes an image of one colour. Its blocks are multiples of what the finest quantiser keeps. */
static void
write_jpeg(const char *path, const uint8_t yuv[3])
{
    AVCodecContext *c = avcodec_alloc_context3(avcodec_find_encoder(AV_CODEC_ID_MJPEG));
    AVFrame *frame = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    assert_true(c && frame && packet);
    c->width = c->height = frame->width = frame->height = SIDE;
    c->pix_fmt = AV_PIX_FMT_YUVJ420P;
    frame->format = AV_PIX_FMT_YUVJ420P;
    c->time_base = (AVRational){ 1, 25 };
    c->flags |= AV_CODEC_FLAG_QSCALE;
    c->global_quality = frame->quality = FF_QP2LAMBDA;
    c->qmin = 1;
    assert_true(avcodec_open2(c, c->codec, NULL) >= 0 && av_frame_get_buffer(frame, 0) >= 0);
    for (int p = 0; p < 3; p++)
        memset(frame->data[p], yuv[p], (size_t)(SIDE / (p ? 2 : 1) * frame->linesize[p]));
    assert_true(avcodec_send_frame(c, frame) >= 0 && avcodec_receive_packet(c, packet) >= 0);
    temp_file(path, packet->data, (size_t)packet->size);
    av_packet_free(&packet);
    av_frame_free(&frame);
    avcodec_free_context(&c);
}

/* JFIF's formula, R = Y + 1.402 Cr and so on, rounded to the nearest level, as in libjpeg. */
TEST(a_jpeg_has_libjpegs_colours)
{
    static const struct {
        uint8_t yuv[3], rgb[3];
    } cases[] = {
        { { 100, 90, 200 }, { 201, 62, 33 } }, { { 128, 128, 128 }, { 128, 128, 128 } },
        { { 60, 180, 100 }, { 21, 62, 152 } }, { { 200, 100, 60 }, { 105, 255, 150 } },
        { { 37, 140, 120 }, { 26, 39, 58 } },  { { 222, 127, 131 }, { 226, 220, 220 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qv_outcome info;
        write_jpeg("colour.jpg", cases[i].yuv);
        uint8_t *rgb = first_frame(temp_path("colour.jpg"), (qv_clip_options){ 0 }, &info);
        assert_true(info.is_image && info.width == SIDE && info.height == SIDE);
        for (int k = 0; k < SIDE * SIDE * 3; k++)
            if (rgb[k] != cases[i].rgb[k % 3])
                fail_msg("colour %d: channel %d is %d, not %d", (int)i, k % 3, rgb[k],
                         cases[i].rgb[k % 3]);
    }
}

/* Writes a clip of grey noise, or of one grey. `words` are added to the header. */
static void
write_grey(const char *name, const char *words, int level)
{
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path(name));
    FILE *f = fopen(path, "wb");
    uint32_t seed = 5;
    assert_non_null(f);
    fprintf(f, "YUV4MPEG2 W%d H%d F4:1 Ip A1:1 C420jpeg%s\n", SIDE, SIDE, words);
    for (int n = 0; n < 4; n++) {
        fprintf(f, "FRAME\n");
        for (int i = 0; i < SIDE * SIDE; i++)
            fputc(level < 0 ? (int)(test_random(&seed) >> 24) : level, f);
        for (int i = 0; i < SIDE * SIDE / 2; i++)
            fputc(128, f);
    }
    assert_int_equal(fclose(f), 0);
}

TEST(a_clips_range_is_what_it_says)
{
    static const struct {
        const char *words;
        int level, rgb;
    } cases[] = { { " XCOLORRANGE=LIMITED", 16, 0 },
                  { " XCOLORRANGE=LIMITED", 235, 255 },
                  { " XCOLORRANGE=FULL", 16, 16 },
                  { " XCOLORRANGE=FULL", 235, 235 } };
    EACH (c, cases) {
        qv_outcome info;
        write_grey("grey.y4m", c->words, c->level);
        uint8_t *rgb = first_frame(temp_path("grey.y4m"), (qv_clip_options){ 0 }, &info);
        for (int k = 0; k < SIDE * SIDE * 3; k++)
            if (rgb[k] != c->rgb)
                fail_msg("%s, level %d: %d, not %d", c->words, c->level, rgb[k], c->rgb);
    }
}

/* Writes a clip of one frame with planes of 4:2:0. */
static const char *
write_planes(const char *name, const char *words, const void *samples, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path(name));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "YUV4MPEG2 W%d H%d F4:1 A1:1 %s\nFRAME\n", SIDE, SIDE, words);
    assert_int_equal(fwrite(samples, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return temp_path(name);
}

/* torchcodec does not look at the fields of interlaced frames. */
TEST(an_interlaced_frame_is_converted_whole)
{
    static const char *const orders[] = { "C420jpeg It", "C420jpeg Ib" };
    enum { BYTES = SIDE * SIDE * 3 };
    qv_outcome info;
    uint8_t samples[SIDE * SIDE * 3 / 2];
    uint32_t seed = 9;
    for (size_t i = 0; i < sizeof samples; i++)
        samples[i] = (uint8_t)(test_random(&seed) >> 24);
    const uint8_t *whole =
        first_frame(write_planes("whole.y4m", "C420jpeg Ip", samples, sizeof samples),
                    (qv_clip_options){ 0 }, &info);
    EACH (order, orders) {
        const uint8_t *fields =
            first_frame(write_planes("fields.y4m", *order, samples, sizeof samples),
                        (qv_clip_options){ 0 }, &info);
        assert_memory_equal(fields, whole, BYTES);
    }
}

/* Chroma of 10 bits is interpolated with a bicubic filter, which overshoots on both sides of an
 * edge. A bilinear one does not. */
TEST(chroma_of_10_bits_is_bicubic)
{
    enum { LUMA = SIDE * SIDE, CHROMA = LUMA / 4 };
    qv_outcome info;
    uint16_t samples[LUMA + 2 * CHROMA];
    for (int i = 0; i < LUMA + CHROMA; i++)
        samples[i] = 512;
    for (int i = 0; i < CHROMA; i++) /* V of the upper half, and of the lower one */
        samples[LUMA + CHROMA + i] = i < CHROMA / 2 ? 400 : 624;
    const uint8_t *rgb =
        first_frame(write_planes("deep.y4m", "C420p10 XYSCSS=420P10", samples, sizeof samples),
                    (qv_clip_options){ 0 }, &info);
    int least = 255, most = 0;
    for (int y = 0; y < SIDE; y++) {
        const int red = rgb[3 * y * SIDE];
        least = red < least ? red : least;
        most = red > most ? red : most;
    }
    const int above = rgb[0], below = rgb[3 * (SIDE - 1) * SIDE];
    if (least >= above || most <= below)
        fail_msg("red is %d and %d, and between them %d to %d", above, below, least, most);
}

/* The container does not give a length. Bytes after the clip, as in a tar file, are not part of
 * it. */
TEST(a_clip_inside_of_a_file_ends_where_it_is_said)
{
    qv_outcome info;
    write_grey("one.y4m", "", 100);
    const struct file one = read_file(temp_path("one.y4m"));
    char *bytes = test_alloc(2 * one.bytes);
    memcpy(bytes, one.data, one.bytes);
    const char *frames = strchr(bytes, '\n') + 1; /* Another four frames follow. */
    const size_t head = (size_t)(frames - bytes), more = one.bytes - head;
    memcpy(bytes + one.bytes, frames, more);
    const char *path = temp_file("two.y4m", bytes, one.bytes + more);
    first_frame(path, (qv_clip_options){ 0 }, &info);
    assert_int_equal(info.source_frames, 8);
    first_frame(path, (qv_clip_options){ .length = (int64_t)one.bytes }, &info);
    assert_int_equal(info.source_frames, 4);
}

/* ---- orientations ---------------------------------------------------------------------------- */

/* EXIF says for each orientation where the corner of the first row and column is seen, and in which
 * direction the first row runs from there. */
TEST(exif_turns_a_image)
{
    enum { W = 8, H = 4 };
    static const struct {
        bool transposed, right, below; /* The place of the corner. */
    } seen[9] = {
        [1] = { false, false, false }, [2] = { false, true, false }, [3] = { false, true, true },
        [4] = { false, false, true },  [5] = { true, false, false }, [6] = { true, true, false },
        [7] = { true, true, true },    [8] = { true, false, true }
    };
    for (int orientation = 1; orientation <= 8; orientation++) {
        const bool transposed = seen[orientation].transposed;
        const int width = transposed ? H : W, height = transposed ? W : H;
        const int x = seen[orientation].right ? width - 1 : 0;
        const int y = seen[orientation].below ? height - 1 : 0;
        const int dx = transposed ? 0 : seen[orientation].right ? -1 : 1;
        const int dy = !transposed ? 0 : seen[orientation].below ? -1 : 1;
        qvm_converter converter = { .colour = QVM_IMAGE };
        qvm_image image;
        AVFrame *frame = av_frame_alloc();
        frame->format = AV_PIX_FMT_RGB24;
        frame->width = W;
        frame->height = H;
        assert_true(av_frame_get_buffer(frame, 0) >= 0);
        for (int i = 0; i < H; i++)
            memset(frame->data[0] + i * frame->linesize[0], 0, (size_t)W * 3);
        memset(frame->data[0], 255, 3);
        memset(frame->data[0] + 3, 100, 3);
        assert_int_equal(qvm_convert(&converter, frame, qvm_exif_turn(orientation), &image, NULL),
                         QV_OK);
        assert_true(image.width == width && image.height == height);
        if (image.rgb[y * image.stride + 3 * x] != 255 ||
            image.rgb[(y + dy) * image.stride + 3 * (x + dx)] != 100)
            fail_msg("orientation %d: the corner is not at %d,%d, or its row runs elsewhere",
                     orientation, x, y);
        qvm_converter_close(&converter);
        av_frame_free(&frame);
    }
}

/* ---- qwen-vl-utils --------------------------------------------------------------------------- */

/* Clips are resized by torch's arithmetic, images by PIL's. */
TEST(each_has_the_arithmetic_of_its_kind)
{
    enum { SMALL = 32 };
    const qv_clip_options whole = { .like = QV_LIKE_QWEN_VL_UTILS, .max_pixels = SIDE * SIDE };
    const qv_clip_options half = { .like = QV_LIKE_QWEN_VL_UTILS, .max_pixels = SMALL * SMALL };
    for (int is_image = 0; is_image < 2; is_image++) {
        qv_outcome info;
        uint8_t expected[2][SMALL * SMALL * 3];
        write_grey("noise.y4m", " XCOLORRANGE=FULL", -1);
        const char *path = temp_path("noise.y4m");
        uint8_t *from = first_frame(path, whole, &info);
        assert_true(info.width == SIDE && info.height == SIDE);
        if (is_image) {
            path = temp_path("noise.ppm");
            FILE *f = fopen(path, "wb");
            assert_non_null(f);
            fprintf(f, "P6\n%d %d\n255\n", SIDE, SIDE);
            assert_int_equal(fwrite(from, 3, SIDE * SIDE, f), SIDE * SIDE);
            fclose(f);
        }
        uint8_t *found = first_frame(path, half, &info);
        assert_true(info.width == SMALL && info.height == SMALL &&
                    info.is_image == (is_image == 1));
        for (int a = 0; a < 2; a++) {
            qvm_resampler *r = NULL;
            const qvm_arithmetic arithmetic =
                a == is_image ? QVM_TORCH_FLOAT : QVM_PIL; /* [0] has its own arithmetic. */
            assert_int_equal(qvm_resampler_create(SIDE, SIDE, SMALL, SMALL, arithmetic, &r, NULL),
                             QV_OK);
            qvm_resampler_run(r, from, 3 * SIDE, expected[a]);
            qvm_resampler_free(&r);
        }
        assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
        assert_memory_equal(found, expected[0], sizeof expected[0]);
    }
}

/* Writes two streams of raw frames. The second is marked as the default. */
static void
write_two_streams(const char *path)
{
    AVFormatContext *mux = NULL;
    AVDictionary *options = NULL;
    assert_true(avformat_alloc_output_context2(&mux, NULL, "matroska", path) >= 0);
    assert_true(av_dict_set(&options, "default_mode", "passthrough", 0) >= 0);
    for (int i = 0; i < 2; i++) {
        AVStream *stream = avformat_new_stream(mux, NULL);
        AVCodecParameters *par = stream->codecpar;
        par->codec_type = AVMEDIA_TYPE_VIDEO;
        par->codec_id = AV_CODEC_ID_RAWVIDEO;
        par->format = AV_PIX_FMT_YUV420P;
        par->codec_tag = MKTAG('I', '4', '2', '0');
        par->width = par->height = SIDE * (i + 1);
        stream->time_base = (AVRational){ 1, 4 };
        stream->avg_frame_rate = (AVRational){ 4, 1 };
        stream->disposition = i ? AV_DISPOSITION_DEFAULT : 0;
    }
    assert_true(avio_open(&mux->pb, path, AVIO_FLAG_WRITE) >= 0);
    assert_true(avformat_write_header(mux, &options) >= 0);
    for (int n = 0; n < 8; n++) {
        const int i = n % 2, side = SIDE * (i + 1);
        AVPacket *packet = av_packet_alloc();
        assert_int_equal(av_new_packet(packet, side * side * 3 / 2), 0);
        memset(packet->data, 128, (size_t)packet->size);
        packet->stream_index = i;
        packet->pts = packet->dts =
            av_rescale_q(n / 2, (AVRational){ 1, 4 }, mux->streams[i]->time_base);
        packet->flags |= AV_PKT_FLAG_KEY;
        assert_true(av_interleaved_write_frame(mux, packet) >= 0);
        av_packet_free(&packet);
    }
    assert_true(av_write_trailer(mux) >= 0);
    avio_closep(&mux->pb);
    av_dict_free(&options);
    avformat_free_context(mux);
}

/* Both take the best, by torchcodec. */
TEST(each_has_the_stream_of_its_readers)
{
    qv_outcome info;
    const char *path = temp_path("two.mkv");
    write_two_streams(path);
    first_frame(path, (qv_clip_options){ 0 }, &info);
    assert_int_equal(info.source_width, 2 * SIDE);
    first_frame(path, (qv_clip_options){ .like = QV_LIKE_QWEN_VL_UTILS }, &info);
    assert_int_equal(info.source_width, 2 * SIDE);
}

TEST_EACH(tempdir_make, tempdir_remove);
