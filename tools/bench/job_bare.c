/* SPDX-License-Identifier: MIT */
/*
 * The loop over FFmpeg's libraries that `qwenvit bench job` compares decoding with. It runs in this
 * process with a thread for each clip, as one would write it for one's own clips. It gives the
 * decoder only the packets that are needed, and converts and resizes the sampled frames by our
 * code. It knows which packets these are before the clock runs, opens each file once, checks
 * nothing, and starts nothing over. With --decode gpu NVIDIA's library decodes (job_bare_gpu.c).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cores.h"
#include "error.h"
#include "job_bare_gpu.h"

#include <libavcodec/bsf.h>

/* A clip of the list, which is looked into before the clock runs. */
struct job_bare {
    qv_outcome info;
    int64_t *frames; /* [info.n_frames]: numbers of the sampled frames */
    qvm_times times; /* which packets are needed */
    bool by_time;    /* false: all packets are needed, and frames are counted */
    int stream;
};

/* ---- before the clock runs ------------------------------------------------------------------- */

static void
ignore(void *user)
{
    (void)user;
}

/* Our own reader for an entry of the list, in this process. */
struct entry_reader {
    atomic_bool stop;
    qvm_watch watch;
    int fd;
    qvm_reader reader;
};

static qv_status
open_reader(struct entry_reader *e, const struct job_bench *j, size_t i, qv_outcome *info,
            qv_error *err)
{
    const struct tool_entry *entry = &j->list.at[i];
    const qv_clip_options o = qvm_options_merge(entry->own, &j->o.clip);
    *e = (struct entry_reader){ .fd = open(entry->path, O_RDONLY | O_CLOEXEC) };
    atomic_init(&e->stop, false);
    e->watch = (qvm_watch){ .stop = &e->stop, .alive = ignore, .asked = o };
    return e->fd < 0 ? qv_fail(err, QV_EIO, "%s: cannot be opened", entry->path)
                     : qvm_reader_open(&e->reader, e->fd, 1, &e->watch, info, err);
}

static void
close_reader(struct entry_reader *e)
{
    qvm_reader_close(&e->reader);
    if (e->fd >= 0)
        close(e->fd);
}

static qv_status
prepare(struct job_bench *j, size_t i, qv_error *err)
{
    const struct tool_entry *entry = &j->list.at[i];
    const qv_clip_options o = qvm_options_merge(entry->own, &j->o.clip);
    struct job_bare *b = &j->bare[i];
    struct entry_reader e;
    qv_status s = open_reader(&e, j, i, &b->info, err);
    const bool is_image = b->info.is_image;
    if (!s)
        s = qvm_choose(entry->path, is_image ? &j->m.image : &j->m.video, &o, &b->info, &b->frames,
                       err);
    if (!s && !is_image)
        s = qvm_reader_start(&e.reader, b->frames, b->info.n_frames, err);
    if (!s && !is_image) {
        b->stream = e.reader.source.stream->index;
        b->by_time = e.reader.by_time;
        b->times = e.reader.times;
        e.reader.times = (qvm_times){ 0 };
    }
    close_reader(&e);
    return s;
}

void
job_free_bare(struct job_bench *j)
{
    for (size_t i = 0; j->bare && i < j->list.n; i++) {
        qvm_times_free(&j->bare[i].times);
        free(j->bare[i].frames);
    }
    free(j->bare);
    j->bare = NULL;
}

/* ---- the loop -------------------------------------------------------------------------------- */

struct loop {
    const struct job_bare *clip;
    qv_like like;
    AVFormatContext *format;
    AVCodecContext *codec;   /* NULL: a GPU decodes */
    job_bare_stream *stream; /* NULL: the CPU decodes */
    AVBSFContext *annexb;    /* brings packets into the form that a GPU takes */
    AVPacket *packet;
    AVFrame *frame;
    qvm_converter converter;
    qvm_resizer *resizer;
    qvm_resampler *resampler;
    uint8_t *rgb;           /* [info.n_frames, height, width, 3] */
    int64_t n_came, n_done; /* frames that came from the decoder; frames that were resized */
};

static qv_status
fail(const char *path, int code, qv_error *err)
{
    return qv_fail(err, QV_EFORMAT, "%s: a bare loop of FFmpeg fails: %s", path, av_err2str(code));
}

/* Returns the file's name, or a name for the part of it that is the clip, for free(); NULL if
 * out of memory. */
static char *
name_input(const char *path, const qv_clip_options *own)
{
    char *name = NULL;
    if (!own || (!own->offset && !own->length))
        return strdup(path);
    const long long end = own->length ? (long long)(own->offset + own->length) : 0;
    const int n =
        asprintf(&name, "subfile,,start,%lld,end,%lld,,:%s", (long long)own->offset, end, path);
    return n < 0 ? NULL : name;
}

static int
open_codec(struct loop *l, int threads)
{
    const AVStream *stream = l->format->streams[l->clip->stream];
    const AVCodec *codec = avcodec_find_decoder(stream->codecpar->codec_id);
    l->codec = codec ? avcodec_alloc_context3(codec) : NULL;
    const int e = l->codec ? avcodec_parameters_to_context(l->codec, stream->codecpar)
                           : AVERROR_DECODER_NOT_FOUND;
    if (e < 0)
        return e;
    l->codec->thread_count = threads;
    l->codec->pkt_timebase = stream->time_base;
    return avcodec_open2(l->codec, codec, NULL);
}

/* Opens the file, but no decoder. */
static qv_status
open_loop(struct loop *l, const char *path, const qv_clip_options *own, qv_error *err)
{
    char *input = name_input(path, own);
    const qv_outcome *info = &l->clip->info;
    l->converter.colour = QVM_CLIP;
    l->packet = av_packet_alloc();
    l->frame = av_frame_alloc();
    l->rgb = malloc((size_t)info->n_frames * (size_t)info->height * (size_t)info->width * 3);
    int e = input && l->packet && l->frame && l->rgb ? 0 : AVERROR(ENOMEM);
    if (e >= 0)
        e = avformat_open_input(&l->format, input, NULL, NULL);
    free(input);
    if (e >= 0)
        e = avformat_find_stream_info(l->format, NULL);
    if (e >= 0 && l->clip->stream >= (int)l->format->nb_streams)
        e = AVERROR_STREAM_NOT_FOUND;
    return e < 0 ? fail(path, e, err) : QV_OK;
}

static void
close_loop(struct loop *l)
{
    free(l->rgb);
    qvm_converter_close(&l->converter);
    qvm_resizer_free(&l->resizer);
    qvm_resampler_free(&l->resampler);
    av_packet_free(&l->packet);
    av_frame_free(&l->frame);
    avcodec_free_context(&l->codec);
    job_bare_stream_close(&l->stream);
    av_bsf_free(&l->annexb);
    avformat_close_input(&l->format);
}

static qv_status
resize(struct loop *l, qvm_image image, uint8_t *dst, qv_error *err)
{
    const int height = (int)l->clip->info.height, width = (int)l->clip->info.width;
    qv_status s = QV_OK;
    if (l->like == QV_LIKE_TRANSFORMERS) {
        if (!l->resizer)
            s = qvm_resizer_create(image.height, image.width, height, width, QVM_BEST, &l->resizer,
                                   err);
        if (!s)
            qvm_resizer_run(l->resizer, image.rgb, image.stride, dst);
        return s;
    }
    if (!l->resampler)
        s = qvm_resampler_create(image.height, image.width, height, width, QVM_TORCH_FLOAT,
                                 &l->resampler, err);
    if (!s)
        qvm_resampler_run(l->resampler, image.rgb, image.stride, dst);
    return s;
}

/* Takes the frames that the decoder has; sampled frames are converted and resized. */
static qv_status
take_frames(struct loop *l, qv_error *err)
{
    const struct job_bare *clip = l->clip;
    const size_t bytes = (size_t)clip->info.height * (size_t)clip->info.width * 3;
    const AVStream *stream = l->format->streams[clip->stream];
    qv_status s = QV_OK;
    while (!s && avcodec_receive_frame(l->codec, l->frame) >= 0) {
        const int64_t number =
            clip->by_time ? qvm_times_find(&clip->times, l->frame->pts) : l->n_came++;
        qvm_image image = { .rgb = NULL };
        while (!s && l->n_done < clip->info.n_frames && clip->frames[l->n_done] == number) {
            if (!image.rgb)
                s = qvm_convert(&l->converter, l->frame, qvm_find_turn(stream), &image, err);
            if (!s)
                s = resize(l, image, l->rgb + (size_t)l->n_done++ * bytes, err);
        }
    }
    return s;
}

/* Finds the first place of a frame among the sampled ones, or n_frames. */
static int64_t
find_place(const struct job_bare *clip, int64_t pts)
{
    const int64_t number = qvm_times_find(&clip->times, pts);
    int64_t i = 0;
    while (i < clip->info.n_frames && clip->frames[i] != number)
        i++;
    return i;
}

static bool
wants(void *user, int64_t pts)
{
    const struct loop *l = user;
    return find_place(l->clip, pts) < l->clip->info.n_frames;
}

/* Takes a sampled frame from a GPU. */
static qv_status
take(void *user, const AVFrame *frame, qv_error *err)
{
    struct loop *l = user;
    const struct job_bare *clip = l->clip;
    const size_t bytes = (size_t)clip->info.height * (size_t)clip->info.width * 3;
    qvm_image image;
    qv_status s = qvm_convert(&l->converter, frame, qvm_find_turn(l->format->streams[clip->stream]),
                              &image, err);
    const int64_t place = find_place(clip, frame->pts);
    for (int64_t i = place; !s && i < clip->info.n_frames && clip->frames[i] == clip->frames[place];
         i++, l->n_done++)
        s = resize(l, image, l->rgb + (size_t)i * bytes, err);
    return s;
}

static qv_status
open_stream(struct loop *l, const struct job_bench *j, qv_error *err)
{
    const struct job_bare_sink sink = { wants, take, l };
    const AVStream *stream = l->format->streams[l->clip->stream];
    const bool h264 = stream->codecpar->codec_id == AV_CODEC_ID_H264;
    const AVBitStreamFilter *filter =
        av_bsf_get_by_name(h264 ? "h264_mp4toannexb" : "hevc_mp4toannexb");
    int e = filter ? av_bsf_alloc(filter, &l->annexb) : AVERROR_BSF_NOT_FOUND;
    if (e >= 0)
        e = avcodec_parameters_copy(l->annexb->par_in, stream->codecpar);
    if (e >= 0)
        e = av_bsf_init(l->annexb);
    return e < 0 ? fail("the clip", e, err)
                 : job_bare_stream_open(j, stream->codecpar, &sink, &l->stream, err);
}

static qv_status
give_stream(struct loop *l, AVPacket *packet, qv_error *err)
{
    if (!packet)
        return job_bare_stream_give(l->stream, NULL, err);
    const int e = av_bsf_send_packet(l->annexb, packet);
    if (e < 0 || av_bsf_receive_packet(l->annexb, packet) < 0)
        return fail("the clip", e, err);
    return job_bare_stream_give(l->stream, packet, err);
}

/* Gives the decoder a packet, or NULL at an end. */
static qv_status
give(struct loop *l, AVPacket *packet, qv_error *err)
{
    if (l->stream)
        return give_stream(l, packet, err);
    avcodec_send_packet(l->codec, packet);
    return take_frames(l, err);
}

static qv_status
give_needed(struct loop *l, qv_error *err)
{
    const struct job_bare *clip = l->clip;
    const int64_t i = clip->by_time ? qvm_times_find(&clip->times, l->packet->pts) : -1;
    const qvm_time *time = i < 0 ? NULL : &clip->times.at[i];
    if (time && !time->needed)
        return QV_OK;
    if (time && time->fresh && l->codec) {
        const qv_status s = give(l, NULL, err);
        if (s)
            return s;
        avcodec_flush_buffers(l->codec);
    }
    return give(l, l->packet, err);
}

/* Reads an image by our reader in this process, as images need no loop. */
static qv_status
read_image(struct job_bench *j, size_t i, qv_error *err)
{
    struct entry_reader e;
    qv_outcome found;
    const qv_outcome *info = &j->bare[i].info;
    uint8_t *rgb = malloc((size_t)info->height * (size_t)info->width * 3);
    qv_status s = open_reader(&e, j, i, &found, err);
    if (!s && !rgb)
        s = qv_fail(err, QV_ENOMEM, "no memory for an image");
    if (!s)
        s = qvm_reader_read(&e.reader, 0, (int)info->height, (int)info->width, rgb, err);
    close_reader(&e);
    free(rgb);
    return s;
}

static qv_status
decode_entry(struct job_bench *j, size_t i, qv_error *err)
{
    if (j->bare[i].info.is_image)
        return read_image(j, i, err);
    const struct tool_entry *entry = &j->list.at[i];
    struct loop l = { .clip = &j->bare[i], .like = qvm_options_merge(entry->own, &j->o.clip).like };
    qv_status s = open_loop(&l, entry->path, entry->own, err);
    if (!s && j->bare_gpu)
        s = open_stream(&l, j, err);
    else if (!s) {
        const int e = open_codec(&l, job_decoding_threads(j, i));
        s = e < 0 ? fail(entry->path, e, err) : QV_OK;
    }
    while (!s && l.n_done < l.clip->info.n_frames && av_read_frame(l.format, l.packet) >= 0) {
        if (l.packet->stream_index == l.clip->stream)
            s = give_needed(&l, err);
        av_packet_unref(l.packet);
    }
    if (!s && l.n_done < l.clip->info.n_frames)
        s = give(&l, NULL, err);
    if (!s && l.n_done < l.clip->info.n_frames)
        s = qv_fail(err, QV_EFORMAT, "%s: a bare loop of FFmpeg has %lld of %lld frames",
                    entry->path, (long long)l.n_done, (long long)l.clip->info.n_frames);
    close_loop(&l);
    return s;
}

qv_status
job_bare_decode(struct job_bench *j, size_t i, int64_t *frames, qv_error *err)
{
    *frames = j->bare[i].info.source_frames;
    return decode_entry(j, i, err);
}

qv_status
job_bare_open(struct job_bench *j, qv_error *err)
{
    double ms;
    if (j->bare)
        return QV_OK;
    j->bare = calloc(j->list.n, sizeof *j->bare);
    if (!j->bare)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu clips", j->list.n);
    const qv_status s = j->gpu_decoders ? job_bare_gpu_open(j, err) : QV_OK;
    return s ? s : job_by_crew(j, prepare, j->list.n, qv_usable_cores(), &ms, err);
}

qv_status
job_time_bare(void *user, double *ms, qv_error *err)
{
    struct job_bench *j = user;
    const qv_status s = job_bare_open(j, err);
    const int n = j->bare_gpu ? JOB_STREAMS : qv_usable_cores();
    return s ? s : job_by_crew(j, decode_entry, j->list.n, n, ms, err);
}
