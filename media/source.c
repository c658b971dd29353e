/* SPDX-License-Identifier: MIT */
/* One file's frames through FFmpeg, with nothing but that file ever opened. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <libavutil/avstring.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ffmpeg_compat.h"
#include "media.h"

#define IO_BYTES 65536
#define MAX_BAD_READS 64    /* in a row, before the rest of a file is given up */
#define MAX_STREAMS 100     /* each that is looked into may take a decoder */
#define MAX_BAD_FRAMES 1024 /* in a row, while the decoder is emptied */

/* No playlists, no text formats, nothing that names other files. */
static const char allowed_formats[] =
    "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,ogg,asf,gif,apng,mjpeg,h264,hevc,"
    "ivf,obu,nut,mxf,dv,yuv4mpegpipe,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,"
    "jpegxl_pipe,j2k_pipe,ppm_pipe,pgm_pipe,pbm_pipe,pam_pipe,qoi_pipe";

/* Chooses as FFmpeg does by default; hear_log knows our codec contexts by it. */
static enum AVPixelFormat
choose_format(AVCodecContext *codec, const enum AVPixelFormat *formats)
{
    return avcodec_default_get_format(codec, formats);
}

/* Keeps the first complaint, without the end of its line. */
static void
keep_words(qvm_source *source, const char *format, va_list args)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&source->has_words, &none, 1))
        return;
    vsnprintf(source->words, sizeof source->words, format, args);
    source->words[strcspn(source->words, "\r\n")] = 0;
    atomic_store(&source->has_words, 2);
}

/* Says nothing, but counts errors: most decoders conceal damage and tell of it only here, the
 * H.264 decoder at times with this one message alone. What refuses a size speaks in a decoder's name. */
static void
hear_log(void *who, int level, const char *format, va_list args)
{
    const bool serious = level <= AV_LOG_ERROR || !strncmp(format, "concealing", 10);
    if (!serious || !who || !*(const AVClass *const *)who)
        return;
    const int parent_at = (*(const AVClass *const *)who)->parent_log_context_offset;
    const void *speaker =
        parent_at ? *(void *const *)(const void *)((const char *)who + parent_at) : who;
    if (!speaker || *(const AVClass *const *)speaker != avcodec_get_class())
        return;
    const AVCodecContext *codec = speaker;
    if (codec->get_format != choose_format)
        return;
    qvm_source *source = codec->opaque;
    keep_words(source, format, args);
    if (speaker == who)
        atomic_fetch_add(&source->complaints, 1);
}

static void
quiet_once(void)
{
    av_log_set_callback(hear_log);
}

void
qvm_quiet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, quiet_once);
}

void
qvm_warm_up(void)
{
    static const enum AVCodecID usual[] = { AV_CODEC_ID_H264,  AV_CODEC_ID_HEVC,  AV_CODEC_ID_VP9,
                                            AV_CODEC_ID_MPEG4, AV_CODEC_ID_MJPEG, AV_CODEC_ID_PNG };
    qvm_quiet();
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        const AVCodec *codec = avcodec_find_decoder(usual[i]);
        AVCodecContext *context = codec ? avcodec_alloc_context3(codec) : NULL;
        if (context) {
            context->thread_count = 1;
            avcodec_open2(context, codec, NULL);
        }
        avcodec_free_context(&context);
    }
}

/* ---- reading the file ------------------------------------------------------------------------ */

static bool
is_stopped(const qvm_source *source)
{
    return atomic_load_explicit(source->watch->stop, memory_order_relaxed);
}

static int
io_read(void *opaque, uint8_t *buffer, int size)
{
    qvm_source *source = opaque;
    if (is_stopped(source))
        return AVERROR_EXIT;
    const qvm_watch *w = source->watch;
    ssize_t n;
    if (w->length && size > w->length - source->at)
        size = source->at < w->length ? (int)(w->length - source->at) : 0;
    if (!size)
        return AVERROR_EOF;
    do
        n = pread(source->fd, buffer, (size_t)size, (off_t)(w->offset + source->at));
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        source->io_errno = errno;
        return AVERROR(errno);
    }
    source->at += n;
    return n ? (int)n : AVERROR_EOF;
}

static int64_t
io_seek(void *opaque, int64_t offset, int whence)
{
    qvm_source *source = opaque;
    struct stat info;
    if (fstat(source->fd, &info))
        return AVERROR(errno);
    const qvm_watch *w = source->watch;
    const int64_t bytes = w->length ? w->length : (int64_t)info.st_size - w->offset;
    whence &= ~AVSEEK_FORCE;
    if (whence & AVSEEK_SIZE)
        return bytes;
    const int64_t from = whence == SEEK_END ? bytes : whence == SEEK_CUR ? source->at : 0;
    int64_t to;
    if (__builtin_add_overflow(from, offset, &to) || to < 0)
        return AVERROR(EINVAL);
    return source->at = to;
}

/* Containers may name other files (mov data references, playlists): none is opened. */
static int
io_refuse(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
          AVDictionary **options)
{
    (void)format;
    (void)io;
    (void)url;
    (void)flags;
    (void)options;
    return AVERROR(EPERM);
}

static qv_status
open_file(qvm_source *source, qv_error *err)
{
    uint8_t *buffer = av_malloc(IO_BYTES);
    source->io =
        buffer ? avio_alloc_context(buffer, IO_BYTES, 0, source, io_read, NULL, io_seek) : NULL;
    if (source->io)
        return QV_OK;
    av_free(buffer);
    return qv_fail(err, QV_ENOMEM, "no memory for reading");
}

/* A failure of FFmpeg while opening, in words. */
static qv_status
fail_av(const qvm_source *source, int code, const char *what, qv_error *err)
{
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (source->io_errno)
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(source->io_errno));
    if (code == AVERROR(ENOMEM))
        return qv_fail(err, QV_ENOMEM, "no memory while %s", what);
    av_strerror(code, text, sizeof text);
    return qv_fail(err, QV_EFORMAT, "%s failed: %s", what, text);
}

/* ---- demuxer --------------------------------------------------------------------------------- */

static qv_status
open_format(qvm_source *source, qv_error *err)
{
    /* FFmpeg is told no name, by which it would guess: the content decides. */
    const AVInputFormat *found = NULL;
    int code = av_probe_input_buffer2(source->io, &found, "", NULL, 0, 0);
    if ((code < 0 && source->io_errno) || code == AVERROR(ENOMEM))
        return fail_av(source, code, "reading", err);
    if (code < 0 || !found)
        return qv_fail(err, QV_EFORMAT, "not a clip or image of a known format");
    if (av_match_list(found->name, allowed_formats, ',') <= 0)
        return qv_fail(err, QV_EFORMAT,
                       "the content is '%s', which is not read; an ordinary clip or image "
                       "file is expected",
                       found->name);

    AVDictionary *options = NULL;
    source->format = avformat_alloc_context();
    if (!source->format || av_dict_set(&options, "format_whitelist", allowed_formats, 0) < 0 ||
        av_dict_set(&options, "protocol_whitelist", "file", 0) < 0) {
        av_dict_free(&options);
        return qv_fail(err, QV_ENOMEM, "no memory to open it");
    }
    source->format->pb = source->io;
    source->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    source->format->io_open = io_refuse;
    code = avformat_open_input(&source->format, "", found, &options);
    av_dict_free(&options);
    if (code == AVERROR(ENOMEM) && !source->io_errno) /* nearly always the file's doing */
        return qv_fail(err, QV_EFORMAT,
                       "what the container says of itself (streams, tables) takes more memory "
                       "than there is, or than FFmpeg takes");
    return code < 0 ? fail_av(source, code, "opening the container", err) : QV_OK;
}

/* Looks into the streams. A decoder used for that obeys the pixel cap too. */
static qv_status
probe_streams(qvm_source *source, qv_error *err)
{
    const unsigned n = source->format->nb_streams;
    if (n > MAX_STREAMS)
        return qv_fail(err, QV_EFORMAT, "%u streams; at most %d are read", n, MAX_STREAMS);
    AVDictionary **options = calloc(n + 1, sizeof *options);
    int code = options ? 0 : AVERROR(ENOMEM);
    for (unsigned i = 0; code >= 0 && i < n; i++)
        code = av_dict_set_int(&options[i], "max_pixels", QVM_MAX_PIXELS, 0);
    if (code >= 0)
        code = avformat_find_stream_info(source->format, options);
    for (unsigned i = 0; options && i < n; i++)
        av_dict_free(&options[i]);
    free(options);
    return code < 0 ? fail_av(source, code, "looking into the streams", err) : QV_OK;
}

static qv_status
check_count(int64_t n, qv_error *err)
{
    return n > QVM_MAX_FRAMES ? qv_fail(err, QV_EFORMAT, "%lld frames or more; at most %d are read",
                                        (long long)n, QVM_MAX_FRAMES)
                              : QV_OK;
}

/* transformers takes the first video; qwen-vl-utils' readers what FFmpeg takes for the best. */
static bool
is_wanted(const qvm_source *source, int best, unsigned i)
{
    return best >= 0 ? i == (unsigned)best : !source->stream;
}

static qv_status
choose_stream(qvm_source *source, qv_error *err)
{
    AVFormatContext *format = source->format;
    const int best = source->watch->like == QV_LIKE_QWEN_VL_UTILS
                         ? av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0)
                         : -1;
    bool cover = false;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        AVStream *stream = format->streams[i];
        const bool video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO;
        cover = cover || (video && (stream->disposition & AV_DISPOSITION_ATTACHED_PIC));
        if (is_wanted(source, best, i) && video &&
            !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC))
            source->stream = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    if (qvm_is_tiled(format))
        return qv_fail(
            err, QV_EFORMAT,
            "an image of tiles (HEIC, AVIF), which are not put together here; as JPEG or "
            "PNG it can be read");
    if (!source->stream)
        return qv_fail(err, QV_EFORMAT, "no video stream among %u streams of '%s'%s",
                       format->nb_streams, format->iformat->name,
                       cover ? " but an attached cover picture" : "");
    const AVCodecParameters *par = source->stream->codecpar;
    if ((int64_t)par->width * par->height > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EFORMAT, "frames of %dx%d; at most 16384x16384 pixels are read",
                       par->width, par->height);
    return check_count(avformat_index_get_entries_count(source->stream), err);
}

/* Of damaged data these decoders make other frames with several threads than with one, at times
 * from run to run, and do not report it. */
static bool
do_threads_differ(enum AVCodecID codec)
{
    switch (codec) {
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO:
    case AV_CODEC_ID_MPEG4:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_PNG:
    case AV_CODEC_ID_APNG: return true;
    default: return false;
    }
}

/* HEVC's differ too, but gain much: they are used where the caller asks for them. */
static int
choose_threads(enum AVCodecID codec, int asked)
{
    return do_threads_differ(codec) || (codec == AV_CODEC_ID_HEVC && !asked) ? 1 : asked;
}

static qv_status
open_codec(qvm_source *source, int threads, qv_error *err)
{
    const AVCodecParameters *par = source->stream->codecpar;
    const AVCodec *codec = avcodec_find_decoder(par->codec_id);
    if (!codec)
        return qv_fail(err, QV_EFORMAT, "codec '%s' has no decoder in this FFmpeg",
                       avcodec_get_name(par->codec_id));
    source->codec = avcodec_alloc_context3(codec);
    if (!source->codec)
        return qv_fail(err, QV_ENOMEM, "no memory for the decoder");
    int code = avcodec_parameters_to_context(source->codec, par);
    source->codec->thread_count = choose_threads(par->codec_id, threads);
    source->codec->pkt_timebase = source->stream->time_base;
    source->codec->max_pixels = QVM_MAX_PIXELS;
    source->codec->opaque = source;
    source->codec->get_format = choose_format;
    if (code >= 0)
        code = avcodec_open2(source->codec, codec, NULL);
    return code < 0 ? fail_av(source, code, "opening the decoder", err) : QV_OK;
}

qv_status
qvm_source_open(qvm_source *source, int fd, int threads, const qvm_watch *watch, qv_error *err)
{
    qvm_quiet();
    *source = (qvm_source){ .fd = fd, .watch = watch };
    qv_status status = open_file(source, err);
    if (!status)
        status = open_format(source, err);
    if (!status)
        status = probe_streams(source, err);
    if (!status)
        status = choose_stream(source, err);
    if (!status && threads >= 0)
        status = open_codec(source, threads, err);
    const char *why = status == QV_EFORMAT ? qvm_why_unread(source) : NULL;
    if (why)
        status = qv_fail(err, status, "%s", why);
    if (!status) {
        source->packet = av_packet_alloc();
        if (!source->packet)
            status = qv_fail(err, QV_ENOMEM, "no memory for packets");
    }
    if (status)
        qvm_source_close(source);
    return status;
}

void
qvm_source_close(qvm_source *source)
{
    av_packet_free(&source->packet);
    avcodec_free_context(&source->codec);
    avformat_close_input(&source->format);
    if (source->io)
        av_freep(&source->io->buffer);
    avio_context_free(&source->io);
    source->stream = NULL;
}

bool
qvm_source_is_image(const qvm_source *source)
{
    const char *name = source->format->iformat->name;
    const size_t n = strlen(name);
    const AVDictionaryEntry *brand = av_dict_get(source->format->metadata, "major_brand", NULL, 0);
    if (brand && !strcmp(brand->value, "avif"))
        return true;
    return n > 5 && !strcmp(name + n - 5, "_pipe");
}

/* ---- packets and frames ---------------------------------------------------------------------- */

/* The next packet of the stream; *got is false at the end of what can be read. */
static qv_status
read_packet(qvm_source *source, bool *got, qv_error *err)
{
    *got = false;
    for (int bad = 0; bad < MAX_BAD_READS;) {
        if (is_stopped(source))
            return QV_OK;
        source->watch->alive(source->watch->user);
        const int code = av_read_frame(source->format, source->packet);
        if (source->io_errno)
            return fail_av(source, code, "reading", err);
        if (code == AVERROR(ENOMEM))
            return fail_av(source, code, "reading", err);
        if (code == AVERROR_EOF || code == AVERROR_EXIT)
            return QV_OK;
        if (code < 0) {
            source->errors++;
            bad++;
            continue;
        }
        if (source->packet->stream_index != source->stream->index) {
            av_packet_unref(source->packet);
            continue;
        }
        if (av_packet_get_side_data(source->packet, AV_PKT_DATA_ENCRYPTION_INFO, NULL)) {
            av_packet_unref(source->packet);
            return qv_fail(err, QV_EFORMAT,
                           "the video is encrypted; an unencrypted file is "
                           "needed");
        }
        *got = true;
        return QV_OK;
    }
    return QV_OK;
}

/* Whether the decoder has complained since the last question. */
static bool
complained(qvm_source *source)
{
    const int now = atomic_load(&source->complaints);
    const bool grown = now != source->heard;
    source->heard = now;
    return grown;
}

static qv_status
feed_decoder(qvm_source *source, qv_error *err)
{
    bool got;
    qv_status status = read_packet(source, &got, err);
    if (status)
        return status;
    source->draining = !got;
    const int code = avcodec_send_packet(source->codec, got ? source->packet : NULL);
    av_packet_unref(source->packet);
    if (code == AVERROR(ENOMEM))
        return fail_av(source, code, "decoding", err);
    if ((code < 0 && code != AVERROR_EOF) | complained(source))
        source->errors++;
    return QV_OK;
}

qv_status
qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err)
{
    int bad = 0;
    *got = false;
    while (!is_stopped(source)) {
        const int code = avcodec_receive_frame(source->codec, frame);
        const bool error = code < 0 && code != AVERROR_EOF && code != AVERROR(EAGAIN);
        if (error | complained(source))
            source->errors++;
        if (code == 0) {
            *got = true;
            return QV_OK;
        }
        if (code == AVERROR_EOF)
            return QV_OK;
        if (code == AVERROR(ENOMEM))
            return fail_av(source, code, "decoding", err);
        if (error) {
            if (++bad > MAX_BAD_FRAMES)
                return QV_OK;
            continue;
        }
        if (source->draining)
            return QV_OK;
        qv_status status = feed_decoder(source, err);
        if (status)
            return status;
    }
    return QV_OK;
}

bool
qvm_source_seek(qvm_source *source, int64_t pts)
{
    if (av_seek_frame(source->format, source->stream->index, pts, AVSEEK_FLAG_BACKWARD) < 0)
        return false;
    avcodec_flush_buffers(source->codec);
    source->draining = false;
    return true;
}

/* ---- counting -------------------------------------------------------------------------------- */

static qv_status
count_packets(qvm_source *source, qvm_times *times, int64_t *n, qv_error *err)
{
    for (;;) {
        bool got;
        qv_status status = read_packet(source, &got, err);
        if (status || !got)
            return status;
        if (!(source->packet->flags & AV_PKT_FLAG_DISCARD))
            ++*n;
        const bool noted = !times || qvm_times_add(times, source->packet);
        av_packet_unref(source->packet);
        status = noted ? check_count(*n, err) : qv_fail(err, QV_ENOMEM, "no memory for times");
        if (status)
            return status;
    }
}

static qv_status
count_decoded(int fd, int threads, const qvm_watch *watch, int64_t *n, int64_t *errors,
              qv_error *err)
{
    qvm_source source;
    AVFrame *frame = av_frame_alloc();
    if (!frame)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame");
    qv_status status = qvm_source_open(&source, fd, threads, watch, err);
    if (!status) {
        /* the number of frames does not depend on their last filter */
        source.codec->skip_loop_filter = AVDISCARD_ALL;
        bool got = true;
        *n = 0;
        while (!status && got) {
            status = qvm_source_next(&source, frame, &got, err);
            *n += !status && got;
            av_frame_unref(frame);
        }
        *errors = source.errors;
        qvm_source_close(&source);
    }
    av_frame_free(&frame);
    return status;
}

qv_status
qvm_count_frames(int fd, int threads, const qvm_watch *watch, qvm_times *times, int64_t *n,
                 qv_error *err)
{
    qvm_source source;
    int64_t packets = 0, errors = 0;
    qv_status status = qvm_source_open(&source, fd, -1, watch, err);
    if (status)
        return status;
    status = count_packets(&source, times, &packets, err);
    *n = packets;
    const bool agreed = packets > 0 && packets == source.stream->nb_frames;
    if (!status && !agreed)
        status = count_decoded(fd, threads, watch, n, &errors, err);
    if (!status && errors && threads != 1) /* threads may lose other frames each time */
        status = count_decoded(fd, 1, watch, n, &errors, err);
    if (!status && times)
        qvm_times_finish(times, source.format, source.stream, errors || source.errors ? 0 : *n);
    qvm_source_close(&source);
    return status;
}

const char *
qv_ffmpeg_version(void)
{
    return av_version_info();
}
