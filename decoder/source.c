/* SPDX-License-Identifier: MIT */
/* Reads one file's frames through FFmpeg, and never opens any other file. */
#include <errno.h>
#include <fcntl.h>
#include <libavutil/avstring.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ffmpeg_compat.h"
#include "gpu_decoder.h"

#define IO_BYTES 65536
#define MAX_BAD_READS                                                                              \
    64                            /* consecutive failed reads after which the rest of a file is
                             * abandoned */
#define MAX_STREAMS 100           /* a limit, because probing a stream may open a decoder */
#define FAR_PACKETS 48            /* seek to a keyframe this far ahead; read on to a closer one */
#define MAX_BAD_FRAMES 1024       /* consecutive errors after which a decoder counts as drained */
#define GUESS AVPROBE_SCORE_RETRY /* the highest score that FFmpeg itself considers doubtful */
#define M4V_GUESS 5               /* the score of a few start codes, which many files have */

/* The supported formats. None is a playlist or a text, and none names other files. Raw Motion JPEG
 * is absent, because FFmpeg finds it in any file that contains a JPEG, such as a PDF. */
static const char allowed_formats[] =
    "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,ogg,asf,gif,apng,h264,hevc,"
    "ivf,obu,nut,mxf,dv,yuv4mpegpipe,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,"
    "jpegxl_pipe,j2k_pipe,ppm_pipe,pgm_pipe,pbm_pipe,pam_pipe,qoi_pipe";

/* The decoders of usual_codecs: for common clips and for images. */
static const char usual_decoders[] =
    "h264,hevc,vp8,vp9,libdav1d,libaom-av1,av1,mpeg1video,mpeg2video,mpeg4,mjpeg,prores,"
    "png,apng,gif,webp,tiff,bmp,jpeg2000,libjxl,libjxl_anim,qoi,ppm,pgm,pbm,pam";

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
    const int64_t n = qvm_source_read(source, source->at, buffer, (size_t)size);
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
    const off_t end = lseek(source->fd, 0, SEEK_END); /* the lock may refuse fstat */
    if (end < 0)
        return AVERROR(errno);
    const qvm_watch *w = source->watch;
    const int64_t bytes = w->asked.length ? w->asked.length : (int64_t)end - w->asked.offset;
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

/* Fails with a message for an FFmpeg error during opening. */
static qv_status
fail_av(const qvm_source *source, int code, const char *what, qv_error *err)
{
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (source->io_errno)
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(source->io_errno));
    if (code == AVERROR(ENOMEM))
        return qv_fail(err, QV_ENOMEM, "no memory while %s", what);
    av_strerror(code, text, sizeof text);
    return qv_fail(err, QV_EFORMAT, "%s failed: %s%s", what, text,
                   code == AVERROR_INVALIDDATA ? " (incomplete file?)" : "");
}

/* ---- demuxer --------------------------------------------------------------------------------- */

/* Lets FFmpeg guess the format from the content. It is not passed the file's name, which would
 * influence the guess. *found is NULL if no format matches. */
static qv_status
probe(qvm_source *source, const AVInputFormat **found, int *score, qv_error *err)
{
    *score = av_probe_input_buffer2(source->io, found, "", NULL, 0, 0);
    if ((*score < 0 && source->io_errno) || *score == AVERROR(ENOMEM))
        return fail_av(source, *score, "reading", err);
    if (*score < 0)
        *found = NULL;
    return QV_OK;
}

/* Returns whether the file has a frame of raw DV, which consists of 80-byte blocks: a header, two
 * blocks of subcode and three auxiliary ones. FFmpeg would accept a header alone. */
static bool
has_dv_frame(const qvm_source *source)
{
    enum { BLOCK = 80, AUXILIARY = 3 * BLOCK, MOST = 1 << 20 };
    qvm_pages pages = { .source = source };
    uint8_t b[AUXILIARY + 1];
    for (int64_t at = 0; at < MOST && qvm_pages_read(&pages, at, b, 4) == 4; at++)
        if (!memcmp(b, "\x1f\x07\0", 3) && (b[3] & 0x7f) == 0x3f)
            return qvm_pages_read(&pages, at, b, sizeof b) == sizeof b && b[BLOCK] >> 5 == 1 &&
                   b[AUXILIARY] >> 5 == 2;
    return false;
}

static qv_status
find_clip_format(qvm_source *source, const AVInputFormat **found, qv_error *err)
{
    int score;
    const qv_status status = probe(source, found, &score, err);
    if (status)
        return status;
    const bool allowed = *found && av_match_list((*found)->name, allowed_formats, ',') > 0;
    if (!*found || (!allowed && score <= GUESS) ||
        (score <= M4V_GUESS && !strcmp((*found)->name, "m4v")) ||
        (!strcmp((*found)->name, "dv") && !has_dv_frame(source)))
        return qv_fail(err, QV_EFORMAT, "not a clip or image of a known format");
    return allowed ? QV_OK
                   : qv_fail(err, QV_EFORMAT,
                             "the content is '%s', which is not supported; an ordinary clip or "
                             "image file is expected",
                             (*found)->name);
}

/* Finds the format of an image of known kind. Only formats that can be animations are probed, and
 * then only the image's own formats are accepted, because its metadata may contain anything. */
static qv_status
find_image_format(qvm_source *source, const AVInputFormat **found, qv_error *err)
{
    const char *opens = source->kind->opens;
    if (!opens)
        return qv_fail(err, QV_EFORMAT, "%s images are not supported; convert them to PNG or JPEG",
                       source->kind->name);
    const size_t usual = strcspn(opens, ",");
    int score;
    const qv_status status = opens[usual] ? probe(source, found, &score, err) : QV_OK;
    if (status)
        return status;
    if (!*found || av_match_list((*found)->name, opens, ',') <= 0) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)usual, opens);
        *found = av_find_input_format(name);
    }
    source->is_jpeg = source->kind->format == QV_IMAGE_JPEG && qvm_jpeg_is_readable(source);
    return *found
               ? QV_OK
               : qv_fail(err, QV_EFORMAT, "this FFmpeg cannot read %s images", source->kind->name);
}

static qv_status
find_format(qvm_source *source, const AVInputFormat **found, qv_error *err)
{
    *found = NULL;
    if (!qvm_source_find_kind(source))
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(errno));
    return source->kind ? find_image_format(source, found, err)
                        : find_clip_format(source, found, err);
}

static qv_status
open_format(qvm_source *source, const AVInputFormat *found, qv_error *err)
{
    AVDictionary *options = NULL;
    source->format = avformat_alloc_context();
    if (!source->format || av_dict_set(&options, "format_whitelist", allowed_formats, 0) < 0 ||
        av_dict_set(&options, "protocol_whitelist", "file", 0) < 0 ||
        (source->watch->asked.usual_codecs &&
         av_dict_set(&options, "codec_whitelist", usual_decoders, 0) < 0)) {
        av_dict_free(&options);
        return qv_fail(err, QV_ENOMEM, "no memory to open it");
    }
    source->format->pb = source->io;
    source->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    source->format->io_open = io_refuse;
    const int code = avformat_open_input(&source->format, "", found, &options);
    av_dict_free(&options);
    if (code == AVERROR(ENOMEM) && !source->io_errno) /* nearly always caused by the file */
        return qv_fail(
            err, QV_EFORMAT,
            "the container's tables need more memory than is available, or than FFmpeg allows");
    return code < 0 ? fail_av(source, code, "opening the container", err) : QV_OK;
}

/* Probes the streams. The decoders used for probing obey the pixel limit too. */
static qv_status
probe_streams(qvm_source *source, qv_error *err)
{
    const unsigned n = source->format->nb_streams;
    if (n > MAX_STREAMS)
        return qv_fail(err, QV_EFORMAT, "%u streams; at most %d are supported", n, MAX_STREAMS);
    AVDictionary **options = calloc(n + 1, sizeof *options);
    int code = options ? 0 : AVERROR(ENOMEM);
    for (unsigned i = 0; code >= 0 && i < n; i++)
        code = av_dict_set_int(&options[i], "max_pixels", QVM_MAX_PIXELS, 0);
    if (code >= 0)
        code = avformat_find_stream_info(source->format, options);
    for (unsigned i = 0; options && i < n; i++)
        av_dict_free(&options[i]);
    free(options);
    return code < 0 ? fail_av(source, code, "probing the streams", err) : QV_OK;
}

qv_status
qvm_check_count(int64_t n, qv_error *err)
{
    return n > QVM_MAX_FRAMES
               ? qv_fail(err, QV_EFORMAT, "%lld frames or more; at most %d are supported",
                         (long long)n, QVM_MAX_FRAMES)
               : QV_OK;
}

/* Fails if any video stream has an unusual codec, whichever stream will be read. */
static qv_status
check_codecs(const qvm_source *source, qv_error *err)
{
    for (unsigned i = 0; source->watch->asked.usual_codecs && i < source->format->nb_streams; i++) {
        const AVCodecParameters *par = source->format->streams[i]->codecpar;
        const AVCodec *codec = avcodec_find_decoder(par->codec_id);
        if (par->codec_type == AVMEDIA_TYPE_VIDEO &&
            (!codec || av_match_list(codec->name, usual_decoders, ',') <= 0))
            return qv_fail(err, QV_EFORMAT,
                           "codec '%s' is not one of the usual codecs (" QV_USUAL_CODECS
                           "); convert the clip",
                           avcodec_get_name(par->codec_id));
    }
    return QV_OK;
}

static qv_status
choose_stream(qvm_source *source, qv_error *err)
{
    AVFormatContext *format = source->format;
    /* as in torchcodec, which transformers and qwen-vl-utils use */
    const int best = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    bool cover = false;
    for (unsigned i = 0; i < format->nb_streams; i++) {
        AVStream *stream = format->streams[i];
        const bool video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO;
        cover = cover || (video && (stream->disposition & AV_DISPOSITION_ATTACHED_PIC));
        if ((best < 0 ? !source->stream : i == (unsigned)best) && video &&
            !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC))
            source->stream = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    if (qvm_is_tiled(format))
        return qv_fail(err, QV_EFORMAT,
                       "tiled images (HEIC, AVIF) are not supported; convert them to JPEG or PNG");
    if (!source->stream)
        return qv_fail(err, QV_EFORMAT, "no video stream: '%s' with %u stream%s%s",
                       format->iformat->name, format->nb_streams,
                       format->nb_streams == 1 ? "" : "s",
                       cover ? ", including an attached cover picture" : "");
    const AVCodecParameters *par = source->stream->codecpar;
    if ((int64_t)par->width * par->height > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EFORMAT, "frames of %dx%d; at most 16384x16384 pixels are supported",
                       par->width, par->height);
    return qvm_check_count(avformat_index_get_entries_count(source->stream), err);
}

qv_status
qvm_source_open_decoder(qvm_source *source, int threads, qv_error *err)
{
    const AVCodecParameters *par = source->stream->codecpar;
    const int code = qvm_codec_open(&source->codec, par, source->stream->time_base, threads);
    if (code == AVERROR_DECODER_NOT_FOUND)
        return qv_fail(err, QV_EFORMAT, "codec '%s' has no decoder in this FFmpeg",
                       avcodec_get_name(par->codec_id));
    return code < 0 ? fail_av(source, code, "opening the decoder", err) : QV_OK;
}

/* Opens the file in the detected format, probes its streams, and chooses one. */
static qv_status
open_streams(qvm_source *source, const AVInputFormat *found, qv_error *err)
{
    qv_status status = open_format(source, found, err);
    if (!status)
        status = probe_streams(source, err);
    if (!status)
        status = check_codecs(source, err);
    if (!status)
        status = choose_stream(source, err);
    const char *why = status == QV_EFORMAT ? qvm_why_unread(source) : NULL;
    if (why)
        status = qv_fail(err, status, "%s", why);
    if (status)
        return status;
    source->packet = av_packet_alloc();
    source->parameters = av_packet_alloc();
    return source->packet && source->parameters ? QV_OK
                                                : qv_fail(err, QV_ENOMEM, "no memory for packets");
}

qv_status
qvm_source_open(qvm_source *source, int fd, const qvm_watch *watch, qv_error *err)
{
    const AVInputFormat *found;
    qvm_quiet();
    *source = (qvm_source){ .fd = fd, .watch = watch };
    qv_status status = open_file(source, err);
    if (!status)
        status = find_format(source, &found, err);
    if (!status && !source->is_jpeg)
        status = open_streams(source, found, err);
    if (status)
        qvm_source_close(source);
    return status;
}

void
qvm_source_close(qvm_source *source)
{
    av_packet_free(&source->packet);
    av_packet_free(&source->parameters);
    avcodec_free_context(&source->codec.av);
    avformat_close_input(&source->format);
    if (source->io)
        av_freep(&source->io->buffer);
    avio_context_free(&source->io);
    source->stream = NULL;
}

const char *
qvm_source_format(const qvm_source *source)
{
    return source->is_jpeg ? "jpeg_pipe" : source->format->iformat->name;
}

enum AVCodecID
qvm_source_codec(const qvm_source *source)
{
    return source->is_jpeg ? AV_CODEC_ID_MJPEG : source->stream->codecpar->codec_id;
}

bool
qvm_source_is_image(const qvm_source *source)
{
    const char *name = qvm_source_format(source);
    const size_t n = strlen(name);
    return (source->kind && !source->kind->may_move) || (n > 5 && !strcmp(name + n - 5, "_pipe"));
}

/* ---- packets and frames ---------------------------------------------------------------------- */

static struct qvm_first
identify(const AVPacket *packet)
{
    return (struct qvm_first){ packet->pts, packet->dts, packet->pos, packet->size };
}

qv_status
qvm_source_packet(qvm_source *source, bool *got, qv_error *err)
{
    *got = source->is_ahead;
    source->is_ahead = false;
    if (*got)
        return QV_OK;
    for (int bad = 0; bad < MAX_BAD_READS;) {
        if (is_stopped(source))
            return QV_OK;
        source->watch->alive(source->watch->user);
        const int code = av_read_frame(source->format, source->packet);
        if (source->io_errno || code == AVERROR(ENOMEM))
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
        if (!source->has_first)
            source->first = identify(source->packet);
        source->has_first = *got = true;
        return QV_OK;
    }
    return QV_OK;
}

qv_status
qvm_source_rewind(qvm_source *source, int64_t pts, bool *done, qv_error *err)
{
    const struct qvm_first *first = &source->first;
    const int64_t errors = source->errors;
    bool got = false;
    if (source->is_ahead)
        av_packet_unref(source->packet);
    source->is_ahead = false;
    source->n_read = 0;
    *done = false;
    if (av_seek_frame(source->format, source->stream->index, pts, AVSEEK_FLAG_BACKWARD) < 0)
        return QV_OK;
    const qv_status status = qvm_source_packet(source, &got, err);
    if (status || !got)
        return status;
    const struct qvm_first now = identify(source->packet);
    source->is_ahead = source->errors == errors && now.pts == first->pts && now.dts == first->dts &&
                       now.pos == first->pos && now.size == first->size;
    if (!source->is_ahead)
        av_packet_unref(source->packet);
    *done = source->is_ahead;
    return QV_OK;
}

/* ---- leaving out ----------------------------------------------------------------------------- */

void
qvm_source_leave_out(qvm_source *source, const qvm_times *times)
{
    source->times = times;
    source->n_left = 0;
    for (int64_t i = 0; i < times->n; i++)
        source->n_left += times->at[i].needed && times->at[i].packet >= source->n_read;
}

/* Seeks to the next keyframe with needed frames after it, if it is far away. Packets before it are
 * left out as usual. */
static void
leap(qvm_source *source, int32_t packet)
{
    const qvm_times *t = source->times;
    while (source->next_start < t->n_starts &&
           t->starts[source->next_start].n_left > source->n_left)
        source->next_start++;
    if (!t->can_seek || source->next_start == t->n_starts ||
        t->starts[source->next_start].n_left < source->n_left)
        return; /* needed frames lie before it */
    const qvm_time *start = &t->at[t->starts[source->next_start].frame];
    if (start->packet - packet < FAR_PACKETS)
        return;
    source->next_start++;
    if (av_seek_frame(source->format, source->stream->index, start->pts, AVSEEK_FLAG_BACKWARD) < 0)
        source->errors++;
}

/* Returns whether the packet just read must be decoded. If not, keeps its parameter sets. */
static bool
is_needed(qvm_source *source)
{
    if (!source->times)
        return true;
    const int64_t i = qvm_times_find(source->times, source->packet->pts);
    if (i < 0) { /* the file has no such packet */
        source->errors++;
        return false;
    }
    const qvm_time *time = &source->times->at[i];
    if (time->needed) {
        source->sampled = time->sampled;
        source->n_left--;
        source->emptying = time->fresh;
        return true;
    }
    bool changed;
    if (!qvm_keep_parameters(source->stream->codecpar, source->packet, source->parameters,
                             &changed))
        source->errors++;
    leap(source, time->packet);
    return false;
}

/* Prepends the parameter sets of skipped packets to this one. */
static qv_status
add_parameters(qvm_source *source, qv_error *err)
{
    AVPacket *with = source->parameters, *packet = source->packet;
    const int at = with->size;
    if (!at)
        return QV_OK;
    if (packet->size > INT32_MAX - AV_INPUT_BUFFER_PADDING_SIZE - at ||
        av_grow_packet(with, packet->size) < 0 || av_packet_copy_props(with, packet) < 0)
        return qv_fail(err, QV_ENOMEM, "no memory for a packet of %d bytes", packet->size);
    memcpy(with->data + at, packet->data, (size_t)packet->size);
    av_packet_unref(packet);
    av_packet_move_ref(packet, with);
    return QV_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Gives a packet to the decoder, in this process or in the GPU process. */
static int
send_packet(qvm_source *source, const AVPacket *packet)
{
    return source->gpu ? qvm_gpu_decoder_send(source->gpu, packet, source->sampled)
                       : avcodec_send_packet(source->codec.av, packet);
}

static int
receive_frame(qvm_source *source, AVFrame *frame)
{
    return source->gpu ? qvm_gpu_decoder_receive(source->gpu, frame)
                       : avcodec_receive_frame(source->codec.av, frame);
}

/* Gives the decoder the packet; NULL drains it. */
static qv_status
give(qvm_source *source, AVPacket *packet, qv_error *err)
{
    const int code = send_packet(source, packet);
    source->n_given += packet != NULL;
    if (packet)
        av_packet_unref(packet);
    if (code == AVERROR(ENOMEM))
        return fail_av(source, code, "decoding", err);
    if ((code < 0 && code != AVERROR_EOF) | qvm_codec_complained(&source->codec))
        source->errors++;
    return QV_OK;
}

static qv_status
feed_decoder(qvm_source *source, qv_error *err)
{
    bool got = false;
    if (source->only_first ? !source->n_given : !source->times || source->n_left) {
        qv_status status = qvm_source_packet(source, &got, err);
        if (status)
            return status;
    }
    source->draining = !got;
    if (got) {
        source->n_read++;
        if (!is_needed(source)) {
            av_packet_unref(source->packet);
            return QV_OK;
        }
        qv_status status = add_parameters(source, err);
        if (status)
            return status;
    }
    return give(source, got && !source->emptying ? source->packet : NULL, err);
}

/* Decodes the waiting packet, now that the decoder has returned all earlier frames. */
static qv_status
begin_anew(qvm_source *source, qv_error *err)
{
    source->emptying = false;
    if (source->gpu)
        qvm_gpu_decoder_begin_anew(source->gpu);
    else
        qvm_codec_begin_anew(&source->codec);
    return give(source, source->packet, err);
}

qv_status
qvm_source_next(qvm_source *source, AVFrame *frame, bool *got, qv_error *err)
{
    int bad = 0;
    *got = false;
    while (!is_stopped(source)) {
        const int code = receive_frame(source, frame);
        const bool error = code < 0 && code != AVERROR_EOF && code != AVERROR(EAGAIN);
        qv_status status = QV_OK;
        if (error | qvm_codec_complained(&source->codec))
            source->errors++;
        if (code == 0) {
            *got = true;
            return QV_OK;
        }
        if (code == AVERROR(ENOMEM))
            return fail_av(source, code, "decoding", err);
        if (error && ++bad > MAX_BAD_FRAMES)
            return QV_OK;
        if (error)
            continue;
        if (code == AVERROR_EOF && source->emptying)
            status = begin_anew(source, err);
        else if (code == AVERROR_EOF || source->draining)
            return QV_OK;
        else
            status = feed_decoder(source, err);
        if (status)
            return status;
    }
    return QV_OK;
}
