/* SPDX-License-Identifier: MIT */
/* Counts a file's frames: by packets if each packet is one frame, otherwise by decoding all. */
#include "decoder.h"

/* Distinguishes frames from fields; two fields make a frame. */
struct parser {
    AVCodecParserContext *parser; /* NULL: a packet of this codec is never a field */
    AVCodecContext *codec;
};

static qv_status
open_parser(struct parser *p, const AVCodecParameters *par, qv_error *err)
{
    *p = (struct parser){ NULL, NULL };
    if (par->codec_id != AV_CODEC_ID_H264)
        return QV_OK;
    p->parser = av_parser_init(par->codec_id);
    p->codec = avcodec_alloc_context3(NULL);
    if (!p->parser || !p->codec || avcodec_parameters_to_context(p->codec, par) < 0)
        return qv_fail(err, QV_ENOMEM, "no memory to inspect packets");
    p->parser->flags |= PARSER_FLAG_COMPLETE_FRAMES;
    return QV_OK;
}

static void
close_parser(struct parser *p)
{
    if (p->parser)
        av_parser_close(p->parser);
    avcodec_free_context(&p->codec);
}

static bool
is_frame(const struct parser *p, const AVPacket *packet)
{
    uint8_t *out;
    int n;
    if (!p->parser)
        return true;
    av_parser_parse2(p->parser, p->codec, &out, &n, packet->data, packet->size, packet->pts,
                     packet->dts, packet->pos);
    return p->parser->picture_structure == AV_PICTURE_STRUCTURE_FRAME;
}

qv_status
qvm_count_packets(qvm_source *source, qvm_times *times, qvm_span *span, qv_error *err)
{
    const AVStream *stream = source->stream;
    struct parser parser;
    bool got = true;
    qv_status status = open_parser(&parser, stream->codecpar, err);
    while (!status && got) {
        AVPacket *packet = source->packet;
        status = qvm_source_packet(source, &got, err);
        if (status || !got)
            break;
        qvm_span_add(span, packet);
        if (!qvm_times_add(times, stream->codecpar, packet))
            status = qv_fail(err, QV_ENOMEM, "no memory for times");
        /* a container that knows its frames need not be asked for each */
        if (!stream->nb_frames && times->each_shows_one)
            times->each_shows_one = is_frame(&parser, packet);
        av_packet_unref(packet);
        status = status ? status : qvm_check_count(span->n, err);
    }
    close_parser(&parser);
    if (status)
        return status;
    if (source->errors)
        qvm_times_doubt(times, "it is damaged");
    qvm_times_sort(times, source->format, stream);
    times->are_frames =
        span->n > 0 && !times->may_lack &&
        (span->n == stream->nb_frames || (!stream->nb_frames && times->each_shows_one));
    return QV_OK;
}

static qv_status
count_decoded(int fd, int threads, const qvm_watch *watch, struct qvm_count *count, qv_error *err)
{
    qvm_source source;
    AVFrame *frame = av_frame_alloc();
    if (!frame)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame");
    qv_status status = qvm_source_open(&source, fd, watch, err);
    if (!status)
        status = qvm_source_open_decoder(&source, threads, err);
    if (!status) {
        /* the number of frames does not depend on their last filter */
        source.codec.av->skip_loop_filter = AVDISCARD_ALL;
        bool got = true;
        count->frames = 0;
        while (!status && got) {
            status = qvm_source_next(&source, frame, &got, err);
            count->frames += !status && got;
            av_frame_unref(frame);
        }
        count->errors = source.errors;
        count->decoded += source.n_given;
    }
    qvm_source_close(&source);
    av_frame_free(&frame);
    return status;
}

qv_status
qvm_count_decoded(int fd, int threads, const qvm_watch *watch, struct qvm_count *count,
                  qv_error *err)
{
    *count = (struct qvm_count){ 0 };
    qv_status status = count_decoded(fd, threads, watch, count, err);
    if (!status && count->errors && threads != 1) /* threads may lose different frames */
        status = count_decoded(fd, 1, watch, count, err);
    return status;
}
