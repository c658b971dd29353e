/* SPDX-License-Identifier: MIT */
/* Opens FFmpeg's decoders and counts the errors that they log. */
#include <pthread.h>
#include <string.h>

#include "decoder.h"

/* Chooses the pixel format as FFmpeg does. hear_log identifies our codec contexts by it. */
static enum AVPixelFormat
choose_format(AVCodecContext *av, const enum AVPixelFormat *formats)
{
    return avcodec_default_get_format(av, formats);
}

/* FFmpeg's H.264 decoder logs this when the stream drops a picture that the decoder does not have.
 * After a recovery point it is harmless, because nothing refers to earlier pictures. */
static const char forgets[] = "mmco: unref short failure";

/* Keeps the first error message, without its newline. */
static void
keep_words(qvm_codec *codec, const char *format, va_list args)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&codec->has_words, &none, 1))
        return;
    vsnprintf(codec->words, sizeof codec->words, format, args);
    codec->words[strcspn(codec->words, "\r\n")] = 0;
    atomic_store(&codec->has_words, 2);
}

/* Counts errors and prints nothing. Most decoders conceal damage and report it only in the log,
 * H.264 sometimes by a single message. Checks of frame sizes log as a decoder too. */
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
    const AVCodecContext *av = speaker;
    if (av->get_format != choose_format)
        return;
    qvm_codec *codec = av->opaque;
    if (atomic_load(&codec->recovers) && !strncmp(format, forgets, sizeof forgets - 1))
        return;
    keep_words(codec, format, args);
    if (speaker == who)
        atomic_fetch_add(&codec->complaints, 1);
}

void
qvm_quiet(void)
{
    av_log_set_callback(hear_log);
}

static void *
do_nothing(void *user)
{
    return user;
}

void
qvm_warm_up(void)
{
    static const enum AVCodecID usual[] = { AV_CODEC_ID_H264,  AV_CODEC_ID_HEVC,  AV_CODEC_ID_VP9,
                                            AV_CODEC_ID_MPEG4, AV_CODEC_ID_MJPEG, AV_CODEC_ID_PNG };
    pthread_t thread;
    /* the first and second thread make the loader search all libraries for what the C library
     * calls: do it once here, not in each process */
    for (int i = 0; i < 2; i++)
        if (!pthread_create(&thread, NULL, do_nothing, NULL))
            pthread_join(thread, NULL);
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

/* With several threads some decoders silently make different frames from damaged data, and frames
 * may vary from run to run. HEVC's decoder does so too, but is allowed threads because they speed
 * it up so much. */
static int
choose_threads(enum AVCodecID codec, int asked)
{
    switch (codec) {
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO:
    case AV_CODEC_ID_MPEG4:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_PNG:
    case AV_CODEC_ID_APNG: return 1;
    case AV_CODEC_ID_HEVC: return asked ? asked : 1;
    default: return asked;
    }
}

int
qvm_codec_open(qvm_codec *codec, const AVCodecParameters *par, AVRational time_base, int threads)
{
    const AVCodec *found = avcodec_find_decoder(par->codec_id);
    if (!found)
        return AVERROR_DECODER_NOT_FOUND;
    AVCodecContext *av = codec->av = avcodec_alloc_context3(found);
    if (!av)
        return AVERROR(ENOMEM);
    const int code = avcodec_parameters_to_context(av, par);
    av->thread_count = choose_threads(par->codec_id, threads);
    av->pkt_timebase = time_base;
    av->max_pixels = QVM_MAX_PIXELS;
    av->opaque = codec;
    av->get_format = choose_format;
    return code < 0 ? code : avcodec_open2(av, found, NULL);
}

bool
qvm_codec_complained(qvm_codec *codec)
{
    const int now = atomic_load(&codec->complaints);
    const bool grown = now != codec->heard;
    codec->heard = now;
    return grown;
}

/* Once flushed, FFmpeg's H.264 decoder holds back frames after a recovery point. Decoding restarts
 * only at exact recovery points, so these frames are right. */
void
qvm_codec_begin_anew(qvm_codec *codec)
{
    avcodec_flush_buffers(codec->av);
    if (codec->av->codec_id == AV_CODEC_ID_H264) {
        codec->av->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
        atomic_store(&codec->recovers, true);
    }
}
