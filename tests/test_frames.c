/* SPDX-License-Identifier: MIT */
/* Tests the frames of odd clips: each requested frame equals the one that FFmpeg decodes by itself,
 * whatever was skipped before it. Arguments name files to compare instead. */
#include "test.h"

#include <fcntl.h>
#include <unistd.h>

#include "../decoder/decoder.h"
#include "compare_frames.h"
#include "h264_writer.h"
#include "make_clips.h"
#include "make_streams.h"
#include "tempdir.h"

/* What is known about a clip besides its frames. */
typedef enum expectation {
    ANY,
    LEFT_OUT, /* packets are left out, and nothing unforeseen is met */
    WHOLE     /* everything is decoded */
} expectation;

static int n_wrong; /* clips of the running test that are not as they should be */

static void
check(const char *name, expectation expected)
{
    const compared c = compare_frames(name, expected == ANY ? COMPARE_SOME : COMPARE_MANY);
    const bool as_expected =
        expected == ANY || (!c.refused && c.n > 0 && c.left_out == (expected == LEFT_OUT));
    const bool wrong = *c.wrong || !as_expected;
    print_message("%s%-28s %3d frames%s%s%s%s\n", wrong ? "WRONG: " : "", name, (int)c.n,
                  *c.why ? ": " : "", c.why, *c.wrong ? ": other than FFmpeg's: " : "", c.wrong);
    n_wrong += wrong;
}

static void
ignore(void *user)
{
}

static int
begin(void)
{
    n_wrong = 0;
    return 0;
}

static int
end(void)
{
    if (n_wrong)
        print_message("%d clips are wrong\n", n_wrong);
    return n_wrong;
}

/* Writes a stream to each of the containers, "mkv mp4 ..", and checks the files. */
static void
check_in(const stream *s, const char *name, const char *endings, expectation expected)
{
    char ending[8], file[96];
    for (int n = 0; sscanf(endings, " %7s%n", ending, &n) == 1; endings += n) {
        snprintf(file, sizeof file, "%s.%s", name, ending);
        if (!stream_write(s, NULL, NULL, file))
            fail_msg("%s cannot be written", file);
        check(file, expected);
    }
}

TEST(odd_clips)
{
    for (size_t i = 0; clip_name(i); i++) {
        const bool long_one =
            !strcmp(clip_name(i), "often.mp4") || !strcmp(clip_name(i), "millions.mp4");
        if (!clip_is_possible(clip_name(i)) || long_one)
            continue;
        clip_write(clip_name(i));
        check(clip_name(i), ANY);
    }
}

/* ---- parameter sets -------------------------------------------------------------------------- */

static bool
is_h264_set(int head)
{
    return (head & 31) == 7 || (head & 31) == 8;
}

static bool
is_no_h264_set(int head)
{
    return !is_h264_set(head);
}

static bool
is_hevc_set(int head)
{
    return (head >> 1 & 63) >= 32 && (head >> 1 & 63) <= 34;
}

static bool
is_hevc_pps(int head)
{
    return (head >> 1 & 63) == 34;
}

static bool
is_no_hevc_set(int head)
{
    return !is_hevc_set(head);
}

/* Puts the first packet's parameter sets into the codec's parameters. */
static void
set_parameters(stream *s, bool (*is_other)(int head))
{
    AVPacket *packet = av_packet_clone(s->packets[0]);
    assert_non_null(packet);
    assert_true(av_packet_make_writable(packet) >= 0);
    stream_cut_units(packet, is_other);
    av_freep(&s->par->extradata);
    s->par->extradata = av_mallocz((size_t)packet->size + AV_INPUT_BUFFER_PADDING_SIZE);
    assert_non_null(s->par->extradata);
    memcpy(s->par->extradata, packet->data, (size_t)packet->size);
    s->par->extradata_size = packet->size;
    av_packet_free(&packet);
}

/* Joins segments of several groups of pictures, of two encoders in turn, with parameter sets of the
 * same numbers. Only the first group of a segment brings the sets, so that a frame of another group
 * depends on those of the segment's beginning, which need not be decoded otherwise. */
static stream *
join_segments(const stream_recipe kinds[2], int n, bool (*is_set)(int head),
              bool (*is_other)(int head))
{
    stream *joined = NULL;
    for (int i = 0; i < n; i++) {
        stream_recipe r = kinds[i % 2];
        r.first = i * r.frames;
        r.headers_in_packets = true;
        stream *s = stream_encode(&r);
        if (!s)
            return NULL;
        for (int k = 1; k < s->n; k++)
            stream_cut_units(s->packets[k], is_set);
        if (!joined) {
            joined = stream_new(s->par, s->time_base);
            if (is_other) {
                set_parameters(s, is_other);
                avcodec_parameters_copy(joined->par, s->par);
            }
        }
        stream_append(joined, s, 0, s->n, i * r.frames);
    }
    return joined;
}

#define X264 "threads=1:x264-params=keyint=5\\:min-keyint=5\\:scenecut=0\\:bframes=2\\:"
#define X265                                                                                       \
    "x265-params=log-level=none\\:pools=1\\:frame-threads=1\\:open-gop=0\\:keyint=5\\:"            \
    "min-keyint=5\\:scenecut=0\\:bframes=2\\:qp=24\\:"

/* A GPU's parser, which begins anew at keyframes, has the container's sets then. */
static void
check_left_to_cpu(const char *name)
{
    atomic_bool stop;
    atomic_init(&stop, false);
    const qvm_watch watch = { .stop = &stop, .alive = ignore, .asked.threads = 1 };
    qv_outcome info;
    qvm_reader r;
    const int fd = open(name, O_RDONLY);
    assert_int_equal(qvm_reader_open(&r, fd, &watch, &info, NULL), QV_OK);
    assert_int_equal(qvm_reader_plane_bytes(&r), 0);
    assert_string_equal(r.not_gpu, "its parameter sets change");
    qvm_reader_close(&r);
    close(fd);
}

TEST(parameter_sets_that_return)
{
    static const stream_recipe h264[2] = {
        { .encoder = "libx264", .frames = 15, .options = X264 "cabac=0\\:level=30\\:qp=14" },
        { .encoder = "libx264", .frames = 15, .options = X264 "cabac=0\\:level=31\\:qp=34" },
    };
    static const stream_recipe hevc[2] = {
        { .encoder = "libx265", .frames = 15, .options = X265 "cbqpoffs=10:" },
        { .encoder = "libx265", .frames = 15, .options = X265 "cbqpoffs=-10" },
    };
    static const stream_recipe sequences[2] = {
        { .encoder = "libx265", .frames = 15, .options = X265 "cbqpoffs=10" },
        { .encoder = "libx265", .frames = 15, .options = X265 "cbqpoffs=-10\\:sao=0" },
    };
    stream *s = join_segments(h264, 5, is_h264_set, is_no_h264_set);
    if (s)
        check_in(s, "h264-sets", "mkv mp4 ts", LEFT_OUT);
    if (s && stream_write(s, NULL, NULL, "sets.mkv"))
        check_left_to_cpu("sets.mkv");
    s = join_segments(hevc, 5, is_hevc_set, is_no_hevc_set);
    if (s)
        check_in(s, "hevc-sets", "mkv mp4 ts", LEFT_OUT);
    /* sequence parameter sets that come again, without a picture parameter set after them */
    s = join_segments(sequences, 5, is_hevc_pps, is_no_hevc_set);
    if (s)
        check_in(s, "hevc-again", "mkv mp4", LEFT_OUT);
}

static bool
is_mpeg4_header(int code)
{
    return code <= 0x2f || code == 0xb0 || code == 0xb5;
}

/* MPEG-4 has its parameters in a header, which may stand in a segment's first picture alone. */
TEST(headers_that_return)
{
    static const stream_recipe kinds[][2] = {
        { { .encoder = "mpeg4", .frames = 15, .options = "mpeg_quant=1" },
          { .encoder = "mpeg4", .frames = 15 } },
        { { .encoder = "mpeg4", .frames = 15, .options = "flags=+qpel" },
          { .encoder = "mpeg4", .frames = 15 } },
    };
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        char name[32];
        stream *s = join_segments(kinds[i], 5, is_mpeg4_header, NULL);
        assert_non_null(s);
        snprintf(name, sizeof name, "mpeg4-headers-%d", (int)i);
        check_in(s, name, "mkv avi ts", WHOLE);
    }
}

/* Takes the sequence headers out of a packet of AV1, each of whose units (5.3) has a size. */
static void
cut_av1_headers(AVPacket *packet)
{
    int to = 0;
    for (int at = 0, end; at < packet->size; at = end) {
        const bool is_header = (packet->data[at] >> 3 & 15) == 1;
        int n = 0, shift = 0;
        end = at + 1;
        do
            n |= (packet->data[end] & 127) << shift;
        while (shift += 7, packet->data[end++] >> 7);
        end += n;
        memmove(packet->data + to, packet->data + at, (size_t)(end - at));
        to += is_header ? 0 : end - at;
    }
    av_shrink_packet(packet, to);
}

/* AV1 has its parameters in a sequence header, which may stand in a segment's first group alone.
 * libdav1d notices that later keyframes lack it; libaom's decoder would go on with an earlier one,
 * in another range of colours. */
TEST(headers_of_av1)
{
    stream *joined = NULL;
    for (int i = 0; i < 5; i++) {
        stream *s = stream_encode(
            &(stream_recipe){ .encoder = "libaom-av1",
                              .frames = 15,
                              .first = 15 * i,
                              .options = i % 2 ? "cpu-used=8:lag-in-frames=0:color_range=pc"
                                               : "cpu-used=8:lag-in-frames=0:color_range=tv" });
        if (!s)
            return;
        for (int k = 1; k < s->n; k++)
            cut_av1_headers(s->packets[k]);
        joined = joined ? joined : stream_new(s->par, s->time_base);
        stream_append(joined, s, 0, s->n, 15 * i);
    }
    check_in(joined, "av1-headers", "mkv mp4", WHOLE);
}

static void
put_bits(uint8_t *to, size_t *at, unsigned value, int n)
{
    for (int k = n - 1; k >= 0; k--, ++*at)
        to[*at / 8] |= (uint8_t)((value >> k & 1) << (7 - *at % 8));
}

/* Inserts bytes into a packet. */
static void
insert(AVPacket *packet, int at, const uint8_t *bytes, int n)
{
    assert_true(av_grow_packet(packet, n) >= 0);
    memmove(packet->data + at + n, packet->data + at, (size_t)(packet->size - n - at));
    memcpy(packet->data + at, bytes, (size_t)n);
}

/* Puts a quantiser matrix extension (6.2.3.2) in front of the slices of an MPEG-2 picture: both
 * matrices, of one number. */
static void
give_matrices(AVPacket *packet, unsigned number)
{
    uint8_t bytes[133] = { 0, 0, 1, 0xb5 };
    size_t bit = 32;
    put_bits(bytes, &bit, 3, 4);
    for (int m = 0; m < 2; m++) {
        put_bits(bytes, &bit, 1, 1);
        for (int i = 0; i < 64; i++)
            put_bits(bytes, &bit, i || m ? number : 8, 8);
    }
    int at = 0;
    while (at + 4 <= packet->size && memcmp(packet->data + at, "\x00\x00\x01\x01", 4) != 0)
        at++;
    insert(packet, at, bytes, sizeof bytes);
}

/* MPEG-2's matrices hold for later pictures too, even if a B-picture brings them. */
TEST(matrices_of_b_pictures)
{
    stream *s = stream_encode(
        &(stream_recipe){ .encoder = "mpeg2video", .options = "bf=2", .frames = 60, .group = 15 });
    assert_non_null(s);
    for (int i = 3; i < s->n; i += 15) /* I P B B P .. */
        give_matrices(s->packets[i], 20 + 7 * (unsigned)(i / 15));
    check_in(s, "mpeg2-matrices", "mkv ts", LEFT_OUT);
}

/* ---- pictures that decoders drop ------------------------------------------------------------- */

/* HEVC in open groups. Some pictures that lead a keyframe (RASL) are dropped, as the keyframe is
 * made a BLA picture, or as the sequence ends in front of it. */
TEST(dropped_pictures)
{
    enum { CRA = 21, BLA = 16 };
    static const uint8_t ends[] = { 0, 0, 1, 36 << 1, 1 };
    for (int broken = 0; broken < 2; broken++) {
        int n = 0;
        stream *s = stream_encode(&(stream_recipe){
            .encoder = "libx265",
            .frames = 60,
            .headers_in_packets = true,
            .options =
                "x265-params=log-level=none\\:pools=1\\:frame-threads=1\\:open-gop=1\\:keyint=10\\:"
                "min-keyint=10\\:scenecut=0\\:bframes=3\\:b-adapt=0" });
        if (!s)
            return;
        set_parameters(s, is_no_hevc_set);
        for (int i = 0; i < s->n; i++) {
            AVPacket *packet = s->packets[i];
            for (int at = 0; at + 4 < packet->size; at++)
                if (!memcmp(packet->data + at, "\x00\x00\x01", 3) &&
                    packet->data[at + 3] >> 1 == CRA && n++ % 3 == 1) {
                    if (broken)
                        packet->data[at + 3] = BLA << 1;
                    else
                        insert(s->packets[i - 1], s->packets[i - 1]->size, ends, sizeof ends);
                }
        }
        assert_true(n > 3);
        check_in(s, broken ? "hevc-bla" : "hevc-ends", "mkv mp4 ts", WHOLE);
    }
}

/* ---- references ------------------------------------------------------------------------------ */

/* Gives a stream three temporal layers by its headers. Pictures that others refer to are in the
 * middle layer, if they are B, and are no references in their own layer (TRAIL_N, RASL_N), as
 * pictures of the highest layer alone refer to them. */
static void
give_layers(AVPacket *packet)
{
    for (int i = 0; i + 6 < packet->size; i++) {
        uint8_t *unit = packet->data + i + 3;
        const int type = unit[0] >> 1;
        if (unit[-3] || unit[-2] || unit[-1] != 1 || type > 9)
            continue;
        const bool is_p = packet->pts - packet->dts > 2;
        if (type % 2 && !is_p) {
            unit[0] = (uint8_t)((type - 1) << 1);
            unit[1] = 2;
        } else if (type % 2 == 0) {
            unit[1] = 3;
        }
    }
}

/* HEVC whose middle layer has pictures to which only a higher layer refers. */
TEST(layers)
{
    static const stream_recipe hevc = {
        .encoder = "libx265",
        .frames = 60,
        .group = 20,
        .headers_in_packets = true,
        .options = "x265-params=log-level=none\\:pools=1\\:frame-threads=1\\:open-gop=0\\:"
                   "bframes=3\\:b-adapt=0\\:b-pyramid=1\\:ref=1\\:scenecut=0\\:keyint=20"
    };
    stream *s = stream_encode(&hevc);
    if (!s)
        return;
    set_parameters(s, is_no_hevc_set);
    for (int i = 0; i < s->n; i++)
        give_layers(s->packets[i]);
    check_in(s, "hevc-layers", "mkv mp4 ts", LEFT_OUT);
}

/* H.264 in groups that begin with a recovery point R. The picture L after it is shown before it,
 * and takes the first place in the list of references of what follows: R L p p .., where the first
 * p is predicted from L. */
TEST(lists_of_leading_pictures)
{
    enum { GROUPS = 6, GROUP = 8 };
    uint8_t bytes[3 * H264_MOST_BYTES];
    AVCodecParameters *par = avcodec_parameters_alloc();
    assert_non_null(par);
    par->codec_type = AVMEDIA_TYPE_VIDEO;
    par->codec_id = AV_CODEC_ID_H264;
    par->width = par->height = H264_SIDE;
    par->format = AV_PIX_FMT_YUV420P;
    par->video_delay = 1;
    stream *s = stream_new(par, (AVRational){ 1, 25 });
    avcodec_parameters_free(&par);
    for (int i = 0; i < GROUPS * GROUP; i++) {
        const int k = i % GROUP;
        h264_picture p = { .shows = i, .frame_num = i % 16, .referred = true };
        p.idr = i == 0;
        p.recovery = i && k == 0;
        /* R and L change places */
        p.place = i == 0 ? 0 : i < 2 ? i : k == 0 ? i + 1 : k == 1 ? i - 1 : i;
        size_t n = i ? 0 : h264_write_parameters(bytes);
        n += h264_write_picture(bytes + n, &p);
        stream_add(s, bytes, n, p.place + 1, i, p.idr || p.recovery);
    }
    set_parameters(s, is_no_h264_set);
    check_in(s, "h264-lists", "mkv mp4 ts", LEFT_OUT);
}

/* No packet is left out that is needed where groups begin with pictures which are shown before
 * their keyframe, and to which others refer. */
TEST(pyramids_of_leading_pictures)
{
    static const stream_recipe h264 = {
        .encoder = "libx264",
        .frames = 30,
        .group = 3,
        .options = "threads=1:x264-params=open-gop=1\\:bframes=2\\:b-adapt=0\\:"
                   "b-pyramid=strict\\:"
                   "ref=2\\:scenecut=0\\:min-keyint=1"
    };
    stream *s = stream_encode(&h264);
    if (!s)
        return;
    check_in(s, "h264-pyramids", "mkv mp4", LEFT_OUT);
}

/* ---- codecs of key frames alone -------------------------------------------------------------- */

static void
cut_segments(AVPacket *packet, int least, int most)
{
    int at = 2, to = 2;
    while (at + 4 <= packet->size && packet->data[at] == 0xff) {
        const int marker = packet->data[at + 1];
        const int n = 2 + (packet->data[at + 2] << 8 | packet->data[at + 3]);
        if (marker == 0xda)
            break;
        if (marker < least || marker > most) {
            memmove(packet->data + to, packet->data + at, (size_t)n);
            to += n;
        }
        at += n;
    }
    memmove(packet->data + to, packet->data + at, (size_t)(packet->size - at));
    av_shrink_packet(packet, packet->size - at + to);
}

enum { DHT = 0xc4, DQT = 0xdb, NO_MARKER = 0x100 };

/* Motion JPEG in which only every fifth frame, or no frame, contains the tables of markers least ..
 * most. */
static void
check_jpeg(const char *name, int least, int most, bool every_fifth, expectation expected)
{
    stream *all = NULL;
    for (int i = 0; i < 8; i++) {
        char options[64];
        snprintf(options, sizeof options, "flags=+qscale:global_quality=%d:huffman=%s",
                 118 * (2 + 9 * (i % 3)), every_fifth ? "optimal" : "default");
        stream *s = stream_encode(&(stream_recipe){ .encoder = "mjpeg",
                                                    .options = options,
                                                    .frames = 5,
                                                    .still = 5,
                                                    .first = 5 * i,
                                                    .format = AV_PIX_FMT_YUVJ420P });
        assert_non_null(s);
        all = all ? all : stream_new(s->par, s->time_base);
        for (int k = every_fifth; k < s->n; k++)
            cut_segments(s->packets[k], least, most);
        stream_append(all, s, 0, s->n, 5 * i);
    }
    check_in(all, name, "mov avi mkv", expected);
}

TEST(tables_of_jpeg)
{
    check_jpeg("jpeg-whole", NO_MARKER, NO_MARKER, true, LEFT_OUT);
    check_jpeg("jpeg-standard", DHT, DHT, false, LEFT_OUT); /* Huffman tables that all know */
    check_jpeg("jpeg-dht", DHT, DHT, true, WHOLE);
    check_jpeg("jpeg-dqt", DQT, DQT, true, WHOLE);
    check_jpeg("jpeg-tables", DHT, DQT, true, WHOLE);
}

/* Palettes come once, with the packet from which on they hold. */
TEST(palettes)
{
    static const struct {
        const char *encoder, *endings;
    } kinds[] = { { "rawvideo", "avi mov nut" },
                  { "smc", "mov avi mkv" },
                  { "zmbv", "avi mkv" },
                  { "qtrle", "mov" } };
    EACH (c, kinds) {
        char name[32];
        stream *s = stream_encode(
            &(stream_recipe){ .encoder = c->encoder, .frames = 40, .format = AV_PIX_FMT_PAL8 });
        if (!s)
            continue;
        snprintf(name, sizeof name, "palette-%s", c->encoder);
        check_in(s, name, c->endings, ANY);
    }
}

/* ---- clips that begin or end anywhere -------------------------------------------------------- */

static const stream_recipe usual[] = {
    { .encoder = "mpeg4", .options = "bf=2" },
    { .encoder = "mpeg4" },
    { .encoder = "mpeg2video", .options = "bf=2" },
    { .encoder = "libx264", .options = "threads=1:bf=2" },
    { .encoder = "libx264", .options = "threads=1:x264-params=open-gop=1\\:bframes=3" },
    { .encoder = "libx265", .options = "x265-params=log-level=none\\:pools=1\\:bframes=2" },
    { .encoder = "libvpx", .options = "cpu-used=8:deadline=realtime" },
    { .encoder = "libvpx-vp9", .options = "cpu-used=8:deadline=realtime" },
};

static stream *
encode_usual(size_t i, int frames, int group)
{
    stream_recipe r = usual[i];
    r.frames = frames;
    r.group = group;
    return stream_encode(&r);
}

/* Matroska that begins with any packet, as stream copies do; and two of these in a row. */
TEST(begins_anywhere)
{
    static const int firsts[] = { 1, 2, 3, 5, 7, 9 };
    for (size_t i = 0; i < LENGTH(usual); i++) {
        stream *s = encode_usual(i, 30, 8);
        for (size_t k = 0; s && k < LENGTH(firsts); k++) {
            char name[64];
            stream *cut = stream_new(s->par, s->time_base);
            stream_append(cut, s, firsts[k], s->n, k % 2 ? -firsts[k] : 0);
            snprintf(name, sizeof name, "cut-%d-%s-%d", (int)i, usual[i].encoder, firsts[k]);
            check_in(cut, name, k % 2 ? "mkv" : "mkv ts", ANY);
            if (k % 3 == 1) {
                stream_append(cut, s, 5, s->n, s->n);
                snprintf(name, sizeof name, "joined-%d-%s-%d", (int)i, usual[i].encoder, firsts[k]);
                check_in(cut, name, "mkv", ANY);
            }
        }
    }
}

/* Matroska that ends at any byte, and so has no list of its keyframes. */
TEST(ends_anywhere)
{
    for (size_t i = 0; i < LENGTH(usual); i += 2) {
        stream *s = encode_usual(i, 40, 12);
        if (!s)
            continue;
        assert_true(stream_write(s, NULL, "cluster_time_limit=300", "all.mkv"));
        const struct file all = read_file("all.mkv");
        for (size_t part = 3; part < 8; part++) {
            put_file("cut-end.mkv", all.data, all.bytes * part / 8 + part);
            check("cut-end.mkv", ANY);
        }
    }
}

/* Finds bytes in front of `end`; NULL if they are not there. */
static uint8_t *
find_bytes(uint8_t *from, const uint8_t *end, const void *what, size_t n)
{
    for (; from + n <= end; from++)
        if (!memcmp(from, what, n))
            return from;
    return NULL;
}

/* Finds the time (identifier b3) or the position (f1) of the index's entry number i, as its size
 * followed by its bytes. The index is the last element of the file. */
static uint8_t *
find_entry(uint8_t *cues, uint8_t *end, int i, uint8_t identifier)
{
    uint8_t *at = cues + 5;
    for (int k = 0; k <= i; k++) {
        at = find_bytes(at, end, "\xbb", 1);
        assert_non_null(at);
        at = find_bytes(at, end, "\xb3", 1);
        assert_non_null(at);
        if (k == i && identifier == 0xb3)
            return at + 1;
        at = find_bytes(at, end, "\xf1", 1);
        assert_non_null(at);
        if (k == i)
            return at + 1;
        at++;
    }
    return NULL;
}

/* Writes Matroska whose first index entry leads to the second one's place (fault 0), or says a
 * later time (1). Returns false if entries are of other sizes. */
static bool
write_wrong_entry(const stream *s, int fault, const char *name)
{
    assert_true(stream_write(s, NULL, "cluster_time_limit=300", "all.mkv"));
    const struct file all = read_file("all.mkv");
    uint8_t *begin = (uint8_t *)all.data, *end = begin + all.bytes, *cues = begin;
    for (uint8_t *at = begin; (at = find_bytes(at, end, "\x1c\x53\xbb\x6b", 4)); at++)
        cues = at;
    if (fault) {
        uint8_t *time = find_entry(cues, end, 0, 0xb3);
        assert_int_equal(time[0], 0x81);
        time[1] = 250;
    } else {
        uint8_t *first = find_entry(cues, end, 0, 0xf1);
        const uint8_t *second = find_entry(cues, end, 3, 0xf1);
        if (first[0] > second[0])
            return false;
        const int bytes = second[0] & 7, skipped = bytes - (first[0] & 7);
        if (skipped)
            return false;
        memcpy(first + 1, second + 1, (size_t)bytes);
    }
    put_file(name, all.data, all.bytes);
    return true;
}

TEST(first_entry_is_wrong)
{
    int n_written = 0;
    for (size_t i = 0; i < LENGTH(usual); i++)
        for (int fault = 0; fault < 2; fault++) {
            char name[64];
            stream *s = encode_usual(i, 75, 15);
            snprintf(name, sizeof name, "index-%d-%s-%d.mkv", (int)i, usual[i].encoder, fault);
            if (s && write_wrong_entry(s, fault, name)) {
                check(name, ANY);
                n_written++;
            }
        }
    print_message("%d files with a wrong entry\n", n_written);
}

/* ---- packets without a frame ----------------------------------------------------------------- */

/* MPEG-4 with some packets that hold an uncoded picture or nothing. */
TEST(nothing_shown)
{
    /* a P-VOP with vop_coded 0 */
    static const uint8_t not_coded[] = { 0, 0, 1, 0xb6, 0x50, 0x4f };
    for (int empty = 0; empty < 2; empty++) {
        stream *s =
            stream_encode(&(stream_recipe){ .encoder = "mpeg4", .frames = 60, .group = 10 });
        assert_non_null(s);
        for (int i = 7; i < s->n; i += 20) { /* a group that is only partly requested */
            if (!empty)
                memcpy(s->packets[i]->data, not_coded, sizeof not_coded);
            av_shrink_packet(s->packets[i], empty ? 0 : sizeof not_coded);
        }
        check_in(s, empty ? "empty" : "not-coded", "avi mp4 mkv", ANY);
    }
}

/* ---- joined clips ---------------------------------------------------------------------------- */

TEST(concatenations)
{
    /* The second of two kinds has the other options and format, and may be smaller. */
    static const struct {
        const char *name, *endings, *encoder, *options[2];
        enum AVPixelFormat formats[2];
        bool smaller;
    } joins[] = {
        { "mpeg4-matrix", "mkv avi mp4", "mpeg4", .options = { "mpeg_quant=1" } },
        { "mpeg4-delays", "mkv mp4", "mpeg4", .options = { "bf=2" } },
        { "mpeg4-qpel", "mkv avi mp4", "mpeg4", .options = { "flags=+qpel" } },
        { "mpeg4-sizes", "mkv avi", "mpeg4", .smaller = true },
        { "mpeg2", "mkv ts avi", "mpeg2video",
          .options = { "bf=2:intra_matrix=8,16,19,22,26,27,29,34,16,16,22,24,27,29,34,37,19,22,26,"
                       "27,29,"
                       "34,34,38,22,22,26,27,29,34,37,40,22,26,27,29,32,35,40,48,26,27,29,32,35,40,"
                       "48,"
                       "58,26,27,29,34,38,46,56,69,27,29,35,38,46,56,69,83" } },
        { "h264", "mkv mp4 ts avi", "libx264",
          .options = { "threads=1:bf=2:qp=20", "threads=1:bf=0:x264-params=ref=4\\:cabac=0" } },
        { "h264-sizes", "mkv mp4 ts", "libx264", .options = { "threads=1:bf=2", "threads=1:bf=2" },
          .smaller = true },
        { "h264-pyramids", "mkv mp4 ts", "libx264",
          .options = { "threads=1:bf=0",
                       "threads=1:x264-params=bframes=5\\:b-pyramid=normal\\:b-adapt=0" } },
        { "hevc", "mkv mp4 ts", "libx265", .options = { X265 "cbqpoffs=6", X265 "signhide=0" } },
        { "hevc-sizes", "mkv mp4 ts", "libx265", .options = { X265 "ref=2", X265 "ref=1" },
          .smaller = true },
        { "vp8", "mkv", "libvpx", .options = { "cpu-used=8", "cpu-used=8" }, .smaller = true },
        { "vp9", "mkv mp4", "libvpx-vp9", .options = { "cpu-used=8", "cpu-used=8" },
          .smaller = true },
        { "av1", "mkv mp4", "libaom-av1",
          .options = { "cpu-used=8:crf=40", "cpu-used=8:crf=20:enable-cdef=0" }, .smaller = true },
        { "mjpeg", "mkv avi mov", "mjpeg",
          .formats = { AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUVJ422P } },
        { "prores", "mov mkv", "prores", .formats = { AV_PIX_FMT_YUV422P10, AV_PIX_FMT_YUV422P10 },
          .smaller = true },
        { "huffyuv", "avi mkv", "ffvhuff", .formats = { AV_PIX_FMT_YUV420P, AV_PIX_FMT_YUV420P } },
    };
    EACH (c, joins) {
        stream *all = NULL;
        for (int k = 0; k < 4; k++) {
            char name[64];
            const int side = k % 2 && c->smaller ? 64 : 0;
            stream_recipe r = { .encoder = c->encoder,
                                .options = c->options[k % 2],
                                .frames = 10,
                                .first = 10 * k,
                                .width = side,
                                .height = side,
                                .format = c->formats[k % 2] };
            r.headers_in_packets = strncmp(c->name, "av1", 3) != 0; /* they are in both */
            stream *s = stream_encode(&r);
            if (!s)
                break;
            if (!all) {
                all = stream_new(s->par, s->time_base);
                if (strstr(r.encoder, "x26")) {
                    set_parameters(s, strchr(r.encoder, '5') ? is_no_hevc_set : is_no_h264_set);
                    avcodec_parameters_copy(all->par, s->par);
                }
            }
            stream_append(all, s, 0, s->n, 14 * k); /* room for other delays */
            snprintf(name, sizeof name, "joined-%s-%d", c->name, k);
            if (k % 2)
                check_in(all, name, c->endings, ANY);
        }
    }
}

TEST_EACH(begin, end);
TEST_GROUP(clips_enter_folder, clips_leave_folder);

/* test_frames FILE... compares these clips with FFmpeg. */
TEST_MAIN(argc, argv)
{
    for (int i = 1; i < argc; i++) {
        const compared c = compare_frames(argv[i], COMPARE_MANY);
        print_message("%s: %d frames%s%s%s%s\n", argv[i], (int)c.n, *c.why ? ": " : "", c.why,
                      *c.wrong ? ": other than FFmpeg's: " : "", c.wrong);
        n_wrong += *c.wrong != 0;
    }
    return argc > 1 ? n_wrong > 0 : TEST_GO_ON;
}
