/* SPDX-License-Identifier: MIT */
/* Tests the frames of small clips in all codecs and containers that this FFmpeg writes: each
 * requested frame equals the one that FFmpeg decodes by itself. */
#include "test.h"

#include <unistd.h>

#include "compare_frames.h"
#include "ffmpeg_write.h"
#include "make_clips.h"
#include "make_streams.h"

/* Pairs of a codec, in a pixel format, and a container, below which something is missing in the
 * test or in FFmpeg. */
enum { LEAST_PAIRS = 300, FRAMES = 8 };

/* The muxers of formats that are read. */
static const char *const muxers[] = {
    "mov",      "mp4",  "3gp", "3g2",     "ipod",       "ismv",       "f4v",          "psp",
    "matroska", "webm", "avi", "m4v",     "mpeg1video", "mpeg2video", "flv",          "ogg",
    "ogv",      "asf",  "gif", "apng",    "mjpeg",      "h264",       "hevc",         "ivf",
    "obu",      "nut",  "mxf", "mxf_d10", "mxf_opatom", "dv",         "yuv4mpegpipe",
};
/* These muxers write any codec, but their demuxer knows only MPEG's: it would search packets of
 * other codecs in vain. */
static const char *const muxers_of_mpeg[] = { "mpegts", "mpeg", "vob", "dvd", "svcd", "vcd" };

/* Sizes to try, in this order: some codecs take only their own. */
static const struct {
    int width, height;
} sizes[] = { { 96, 64 }, { 176, 144 }, { 256, 128 }, { 48, 48 }, { 720, 576 } };

static const struct {
    const char *encoder, *options;
} with[] = {
    { "dnxhd", "profile=dnxhr_lb" },
    { "libaom-av1", "cpu-used=8:lag-in-frames=4" },
    { "librav1e", "speed=10" },
    { "libsvtav1", "preset=12" },
    { "libvpx", "cpu-used=8:deadline=realtime" },
    { "libvpx-vp9", "cpu-used=8:deadline=realtime" },
    { "libx264", "threads=1:bf=2" },
    { "libx264rgb", "threads=1" },
    { "libx265", "x265-params=log-level=none\\:pools=1\\:frame-threads=1\\:bframes=2" },
    { "mpeg2video", "bf=2" },
    { "mpeg4", "bf=2" },
};

static const char *
find_options(const char *encoder)
{
    EACH (c, with)
        if (!strcmp(c->encoder, encoder))
            return c->options;
    return NULL;
}

/* Encoders that need a device, or whose packets hold frames of this process. */
static bool
is_usable(const AVCodec *codec)
{
    static const char *const not_alone[] = { "_nvenc",   "_qsv",          "_vaapi",
                                             "_v4l2m2m", "_omx",          "_amf",
                                             "_mf",      "_videotoolbox", "wrapped_avframe" };
    EACH (c, not_alone)
        if (strstr(codec->name, *c))
            return false;
    return av_codec_is_encoder(codec) && codec->type == AVMEDIA_TYPE_VIDEO &&
           avcodec_find_decoder(codec->id);
}

static stream *
encode(const AVCodec *codec, enum AVPixelFormat format)
{
    stream *s = NULL;
    for (size_t i = 0; !s && i < LENGTH(sizes); i++)
        s = stream_encode(&(stream_recipe){ .encoder = codec->name,
                                            .options = find_options(codec->name),
                                            .frames = FRAMES,
                                            .group = 4,
                                            .width = sizes[i].width,
                                            .height = sizes[i].height,
                                            .format = format });
    return s;
}

static struct {
    int pairs, wrong, refused;
} found;

static bool
is_of_mpeg(enum AVCodecID codec)
{
    static const enum AVCodecID known[] = { AV_CODEC_ID_MPEG1VIDEO, AV_CODEC_ID_MPEG2VIDEO,
                                            AV_CODEC_ID_MPEG4,      AV_CODEC_ID_H264,
                                            AV_CODEC_ID_HEVC,       AV_CODEC_ID_DIRAC };
    EACH (c, known)
        if (*c == codec)
            return true;
    return false;
}

static void
check_pair(const stream *s, const char *encoder, const char *muxer)
{
    const char *name = "written";
    const AVOutputFormat *to = av_guess_format(muxer, NULL, NULL);
    if (to && to->flags & AVFMT_NOTIMESTAMPS && to->video_codec != s->par->codec_id)
        return; /* a bare stream of another codec */
    if (!to || !avformat_query_codec(to, s->par->codec_id, FF_COMPLIANCE_EXPERIMENTAL) ||
        !stream_write(s, muxer, NULL, name))
        return;
    const compared c = compare_frames(name, COMPARE_FEW);
    if (c.n < 2 || c.is_image)
        return;
    if (c.refused || *c.wrong)
        print_message("%s in %s: %s%s%s\n", encoder, muxer, *c.wrong ? "WRONG: " : "", c.wrong,
                      c.refused ? c.why : "");
    found.refused += c.refused;
    found.wrong += *c.wrong != 0;
    found.pairs += !c.refused && !*c.wrong;
}

static void
check_codec(const AVCodec *codec, enum AVPixelFormat format)
{
    stream *s = encode(codec, format);
    if (!s)
        print_message("%s: nothing is encoded\n", codec->name);
    for (size_t m = 0; s && m < LENGTH(muxers); m++)
        check_pair(s, codec->name, muxers[m]);
    for (size_t m = 0; s && is_of_mpeg(codec->id) && m < LENGTH(muxers_of_mpeg); m++)
        check_pair(s, codec->name, muxers_of_mpeg[m]);
}

TEST(codecs_and_containers)
{
    void *at = NULL;
    for (const AVCodec *codec; (codec = av_codec_iterate(&at));) {
        if (!is_usable(codec))
            continue;
        check_codec(codec, AV_PIX_FMT_NONE);
        bool palette = codec->id == AV_CODEC_ID_RAWVIDEO;
        const enum AVPixelFormat *formats = pixel_formats(codec);
        for (int i = 1; formats && formats[i] != AV_PIX_FMT_NONE; i++)
            palette = palette || formats[i] == AV_PIX_FMT_PAL8;
        if (palette)
            check_codec(codec, AV_PIX_FMT_PAL8);
    }
    print_message("%d pairs are equal, %d differ; %d are refused\n", found.pairs, found.wrong,
                  found.refused);
    assert_int_equal(found.wrong, 0);
    assert_true(found.pairs >= LEAST_PAIRS);
}

TEST_GROUP(clips_enter_folder, clips_leave_folder);
