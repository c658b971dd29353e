/* SPDX-License-Identifier: MIT */
/* The decoder process's side of a clip's decoder in the GPU process (gpu_decoder.h). */
#include "gpu_decoder.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ffmpeg_compat.h"

#define LOOK_MS 200 /* between checks whether the clip was stopped */

static const char other_times[] = "its frames' times are different";
static const char too_long[] = "its groups of pictures are too long";

/* ---- which streams --------------------------------------------------------------------------- */

/* Returns the filter that converts packets to Annex B; NULL for codecs that are left to the CPU:
 * MPEG-1, 2 and 4 do not specify the rounding, and GPUs do not report damage in VP8 and VP9. */
static const char *
find_filter(enum AVCodecID codec)
{
    return codec == AV_CODEC_ID_H264   ? "h264_mp4toannexb"
           : codec == AV_CODEC_ID_HEVC ? "hevc_mp4toannexb"
                                       : NULL;
}

/* Returns the bytes per sample, or 0 for formats that cannot be made from a GPU's planes. */
static int
sample_bytes(int format)
{
    switch (format) {
    case AV_PIX_FMT_YUV420P:
    case AV_PIX_FMT_YUVJ420P: return 1;
    case AV_PIX_FMT_YUV420P10: return 2;
    default: return 0;
    }
}

int64_t
qvm_gpu_decoder_slot_bytes(const AVCodecContext *codec, const AVFrame *first, const char **why)
{
    /* NVIDIA's parser rounds sizes up to multiples of 16 */
    const int64_t width = (codec->coded_width + 15) & ~15,
                  height = (codec->coded_height + 15) & ~15;
    const int64_t bytes = width * height * 3 / 2 * sample_bytes(first->format);
    *why = !find_filter(codec->codec_id) ? "its codec is neither H.264 nor HEVC"
           : !bytes                      ? "its pixels are not 4:2:0 of 8 or 10 bits"
           : qvm_is_interlaced(first)    ? "it is interlaced"
           : bytes > QVM_MOST_PLANES     ? "its frames are too large"
                                         : NULL;
    return *why ? 0 : bytes;
}

/* ---- talking --------------------------------------------------------------------------------- */

/* Gives up on the GPU for this clip; the first reason is kept. */
static int
fail(qvm_gpu_decoder *d, const char *why)
{
    if (!*d->why)
        snprintf(d->why, sizeof d->why, "%s", why);
    return AVERROR_EXTERNAL;
}

bool
qvm_gpu_decoder_can_hold(qvm_gpu_decoder *d, int64_t n)
{
    return n <= (QVM_MOST_GROUP_BYTES - d->held_bytes) / d->frame_bytes || !fail(d, too_long);
}

/* Marks the GPU process as lost for all clips. */
static int
lose(qvm_gpu_decoder *d, const char *why)
{
    d->lost = true;
    return fail(d, why);
}

/* Waits for the socket and returns its events; 0 if it failed or the clip was stopped. */
static int
wait_for(qvm_gpu_decoder *d, short events)
{
    const double until_s = qv_seconds() + d->patience_s;
    struct pollfd at = { .fd = d->socket, .events = events };
    while (!atomic_load(d->watch->stop)) {
        d->watch->alive(d->watch->user);
        const int ready = poll(&at, 1, LOOK_MS);
        if (ready > 0)
            return at.revents;
        if (ready < 0 && errno != EINTR) {
            lose(d, "cannot read from the GPU process");
            return 0;
        }
        if (!ready && qv_seconds() > until_s) {
            lose(d, "the GPU process timed out");
            return 0;
        }
    }
    fail(d, "it was stopped");
    return 0;
}

/* Takes the next event; without `wait`, returns AVERROR(EAGAIN) if there is none. A failure is
 * returned at once, ahead of earlier events. */
static int
take_event(qvm_gpu_decoder *d, bool wait)
{
    qvm_gpu_decoder_event *to = &d->came[(d->first + d->n) % QVM_MOST_EVENTS];
    if (d->n == QVM_MOST_EVENTS)
        return lose(d, "the GPU process sent too much");
    for (size_t done = 0; done < sizeof *to;) {
        const ssize_t got = recv(d->socket, (char *)to + done, sizeof *to - done, MSG_DONTWAIT);
        if (got > 0)
            done += (size_t)got;
        else if (!got || (errno != EAGAIN && errno != EINTR))
            return lose(d, "the GPU process exited");
        else if (errno == EAGAIN && !done && !wait)
            return AVERROR(EAGAIN);
        else if (errno == EAGAIN && !wait_for(d, POLLIN))
            return AVERROR_EXTERNAL;
    }
    if (to->kind != QVM_GPU_FAILED) {
        d->n++;
        return 0;
    }
    to->why[sizeof to->why - 1] = 0;
    return fail(d, to->why);
}

/* Sends all n bytes and receives events meanwhile, so that the two processes cannot deadlock. */
static int
send_all(qvm_gpu_decoder *d, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n) {
        const ssize_t sent = send(d->socket, at, n, QVM_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            n -= (size_t)sent;
            continue;
        }
        const bool closed = errno != EAGAIN && errno != EINTR; /* it may have sent the reason */
        const int ready = closed ? POLLIN : wait_for(d, POLLIN | POLLOUT);
        if (!ready)
            return AVERROR_EXTERNAL;
        const int code = ready & POLLOUT ? 0 : take_event(d, closed);
        if (code && code != AVERROR(EAGAIN))
            return code;
    }
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int
send_stream(qvm_gpu_decoder *d, const AVCodecContext *codec)
{
    const qvm_gpu_decoder_stream about = { .codec_id = codec->codec_id,
                                           .format = d->like->format,
                                           .width = codec->coded_width,
                                           .height = codec->coded_height,
                                           .scaled = d->scaled,
                                           .space = d->like->colorspace,
                                           .full_range = qvm_is_full_range(d->like) };
    const qvm_gpu_decoder_request open = { .kind = QVM_GPU_OPEN, .bytes = (int32_t)sizeof about };
    const int code = send_all(d, &open, sizeof open);
    return code ? code : send_all(d, &about, sizeof about);
}

static bool
open_filter(qvm_gpu_decoder *d, const AVStream *stream)
{
    const AVBitStreamFilter *found = av_bsf_get_by_name(find_filter(stream->codecpar->codec_id));
    d->packet = av_packet_alloc();
    if (!found || !d->packet || av_bsf_alloc(found, &d->annexb) < 0)
        return false;
    d->annexb->time_base_in = stream->time_base;
    d->begins = true;
    return avcodec_parameters_copy(d->annexb->par_in, stream->codecpar) >= 0 &&
           av_bsf_init(d->annexb) >= 0;
}

static int
next_event(qvm_gpu_decoder *d, bool wait, qvm_gpu_decoder_event *event)
{
    const int code = d->n ? 0 : take_event(d, wait);
    if (code)
        return code;
    *event = d->came[d->first];
    d->first = (d->first + 1) % QVM_MOST_EVENTS;
    d->n--;
    return 0;
}

bool
qvm_gpu_decoder_open(qvm_gpu_decoder *d, const AVStream *stream, const AVCodecContext *codec,
                     const AVFrame *first)
{
    qvm_gpu_decoder_event event;
    d->like = av_frame_clone(first);
    for (int i = 0; i < d->n_slots; i++)
        d->free[i] = true;
    d->most_held =
        (unsigned)(codec->has_b_frames < QVM_MOST_HELD ? codec->has_b_frames : QVM_MOST_HELD);
    d->last_order = INT64_MIN;
    if (!d->like || !open_filter(d, stream))
        return !fail(d, "its packets cannot be prepared");
    int code = send_stream(d, codec);
    if (!code)
        code = next_event(d, true, &event);
    if (!code && event.kind != QVM_GPU_OPENED)
        code = lose(d, "the GPU process sent an impossible reply");
    return !code;
}

void
qvm_gpu_decoder_close(qvm_gpu_decoder *d)
{
    for (; d->n_held; d->n_held--)
        av_frame_free(&d->held[d->first_held++ % QVM_MOST_GROUP].frame);
    av_frame_free(&d->like);
    free(d->first_rgb);
    d->first_rgb = NULL;
    av_packet_free(&d->packet);
    av_bsf_free(&d->annexb);
}

/* ---- packets --------------------------------------------------------------------------------- */

/* Returns a free slot, or -1 if all are in use. */
static int
find_slot(const qvm_gpu_decoder *d)
{
    for (int i = 0; i < (d->is_direct ? d->n_slots : QVM_SLOTS); i++)
        if (d->free[i])
            return i;
    return -1;
}

/* Sends a packet. The container's parameter sets precede the first packet, which may lack them. */
static int
send_packet(qvm_gpu_decoder *d, const AVPacket *packet, int slot)
{
    const AVCodecParameters *par = d->annexb->par_out;
    const int ahead = d->begins ? par->extradata_size : 0;
    const qvm_gpu_decoder_request request = {
        .kind = QVM_GPU_PACKET,
        .slot = slot,
        .period = d->period,
        .group = d->group,
        .bytes = packet->size + ahead,
        .pts = packet->pts,
    };
    if (packet->size > QVM_MOST_PACKET - ahead)
        return fail(d, "a packet is too large");
    d->begins = false;
    int code = send_all(d, &request, sizeof request);
    if (!code)
        code = send_all(d, par->extradata, (size_t)ahead);
    return code ? code : send_all(d, packet->data, (size_t)packet->size);
}

int
qvm_gpu_decoder_send(qvm_gpu_decoder *d, const AVPacket *packet, bool sampled)
{
    const qvm_gpu_decoder_request empty = { .kind = QVM_GPU_EMPTY };
    const int slot = sampled && packet ? find_slot(d) : -1;
    if (*d->why)
        return AVERROR_EXTERNAL;
    d->emptying = !packet;
    d->emptied = false;
    if (!packet)
        return send_all(d, &empty, sizeof empty);
    if (av_packet_ref(d->packet, packet) < 0)
        return fail(d, "memory ran out");
    const qvm_packet headers = qvm_look_at_packet(d->annexb->par_in, packet);
    d->period += headers.resets;
    d->group += headers.start;
    if (av_bsf_send_packet(d->annexb, d->packet) < 0 ||
        av_bsf_receive_packet(d->annexb, d->packet) < 0)
        return fail(d, "its packets are damaged");
    if (slot >= 0)
        d->free[slot] = false;
    const int code = send_packet(d, d->packet, slot);
    av_packet_unref(d->packet);
    return code;
}

void
qvm_gpu_decoder_begin_anew(qvm_gpu_decoder *d)
{
    const qvm_gpu_decoder_request request = { .kind = QVM_GPU_ANEW };
    d->begins = true;
    d->period++;
    d->group++;
    if (!*d->why)
        send_all(d, &request, sizeof request);
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* Splits a row of interleaved chroma. Samples of 10 bits lie in the upper bits of 16. */
static void
split_row(const uint8_t *from, uint8_t *u, uint8_t *v, int n, bool deep)
{
    if (!deep) {
        for (int x = 0; x < n; x++) {
            u[x] = from[2 * x];
            v[x] = from[2 * x + 1];
        }
        return;
    }
    const uint16_t *pairs = (const uint16_t *)(const void *)from;
    uint16_t *u16 = (uint16_t *)(void *)u, *v16 = (uint16_t *)(void *)v;
    for (int x = 0; x < n; x++) {
        u16[x] = pairs[2 * x] >> 6;
        v16[x] = pairs[2 * x + 1] >> 6;
    }
}

static void
copy_luma(const uint8_t *from, uint8_t *to, int n, bool deep)
{
    if (!deep) {
        memcpy(to, from, (size_t)n);
        return;
    }
    const uint16_t *from16 = (const uint16_t *)(const void *)from;
    uint16_t *to16 = (uint16_t *)(void *)to;
    for (int x = 0; x < n; x++)
        to16[x] = from16[x] >> 6;
}

/* Lays out a frame as this process's own decoder does, including line sizes, because conversion to
 * RGB chooses its routines by them. NVIDIA's parser reports where the picture ends, but always 0
 * for left and top, which are derived from the size of earlier frames. */
static int
lay_out(const qvm_gpu_decoder *d, const qvm_gpu_decoder_event *e, const uint8_t *from,
        AVFrame *frame)
{
    enum { ALIGN = 64 };
    const bool deep = sample_bytes(d->like->format) == 2;
    const int width = e->width, height = e->height;
    const size_t row = (size_t)width << deep;
    const int *lines = d->like->linesize;
    const int left = width - e->right - d->like->width, top = height - e->bottom - d->like->height;
    if (left < 0 || top < 0 || left + d->like->width > lines[0] >> deep || lines[2] != lines[1])
        return AVERROR_INVALIDDATA;
    const int n = width < lines[0] >> deep ? width : lines[0] >> deep;
    const int n2 = n / 2 < lines[1] >> deep ? n / 2 : lines[1] >> deep;
    const size_t luma = ((size_t)lines[0] * (size_t)height + ALIGN - 1) / ALIGN * ALIGN;
    const size_t chroma = ((size_t)lines[1] * (size_t)height / 2 + ALIGN - 1) / ALIGN * ALIGN;
    frame->buf[0] = av_buffer_alloc(luma + 2 * chroma + ALIGN);
    if (!frame->buf[0])
        return AVERROR(ENOMEM);
    uint8_t *at = frame->buf[0]->data;
    at += (ALIGN - (uintptr_t)at % ALIGN) % ALIGN;
    for (int p = 0; p < 3; p++) {
        frame->data[p] = at + (p ? luma + (size_t)(p - 1) * chroma : 0);
        frame->linesize[p] = lines[p];
    }
    for (int y = 0; y < height; y++, from += row)
        copy_luma(from, frame->data[0] + (size_t)y * (size_t)lines[0], n, deep);
    for (int y = 0; y < height / 2; y++, from += row)
        split_row(from, frame->data[1] + (size_t)y * (size_t)lines[1],
                  frame->data[2] + (size_t)y * (size_t)lines[2], n2, deep);
    frame->crop_left = (size_t)left;
    frame->crop_top = (size_t)top;
    frame->crop_right = (size_t)e->right;
    frame->crop_bottom = (size_t)e->bottom;
    return av_frame_apply_cropping(frame, AV_FRAME_CROP_UNALIGNED);
}

/* Copies a frame that the GPU has resized, or remembers its slot. */
static int
take_scaled(const qvm_gpu_decoder *d, int32_t slot, const uint8_t *from, AVFrame *frame)
{
    const size_t bytes = d->is_direct ? 1 : (size_t)qvm_scaled_bytes(&d->scaled);
    frame->buf[0] = av_buffer_alloc(bytes);
    if (!frame->buf[0])
        return AVERROR(ENOMEM);
    frame->format = AV_PIX_FMT_RGB24;
    frame->width = d->scaled.to_width;
    frame->height = d->scaled.to_height;
    frame->data[0] = frame->buf[0]->data;
    frame->linesize[0] = 3 * frame->width;
    frame->quality = slot; /* a member that is not used otherwise */
    if (!d->is_direct)
        memcpy(frame->data[0], from, bytes);
    return 0;
}

bool
qvm_gpu_decoder_scaled(const qvm_gpu_decoder *d, const AVFrame *frame, int32_t *slot)
{
    const bool is =
        d && d->scaled.width && frame->format == AV_PIX_FMT_RGB24; /* no decoder makes RGB24 */
    *slot = is && d->is_direct ? frame->quality : -1;
    return is;
}

/* Returns whether two frames of the same size and format have the same samples. */
static bool
are_equal(const AVFrame *a, const AVFrame *b)
{
    const int deep = sample_bytes(a->format) == 2;
    for (int p = 0; p < 3; p++) {
        const int width = p ? (a->width + 1) / 2 : a->width;
        const int height = p ? (a->height + 1) / 2 : a->height;
        for (int y = 0; y < height; y++)
            if (memcmp(a->data[p] + (ptrdiff_t)y * a->linesize[p],
                       b->data[p] + (ptrdiff_t)y * b->linesize[p], (size_t)width << deep) != 0)
                return false;
    }
    return true;
}

/* Returns whether an event's frame fits into its slot, and the slot is in use. */
static bool
is_possible(const qvm_gpu_decoder *d, const qvm_gpu_decoder_event *e)
{
    if (e->slot < 0 || e->slot >= d->n_slots || d->free[e->slot] || e->width < 1 || e->height < 1 ||
        e->width > QVM_MAX_SIDE || e->height > QVM_MAX_SIDE || e->width % 2 || e->height % 2)
        return false;
    const int64_t bytes =
        e->is_scaled ? qvm_scaled_bytes(&d->scaled)
                     : (int64_t)e->width * e->height * 3 / 2 * sample_bytes(d->like->format);
    return e->right >= 0 && e->right < e->width && e->bottom >= 0 && e->bottom < e->height &&
           bytes > 0 && bytes <= d->slot_bytes;
}

/* Returns whether a frame has the same shape as earlier frames. */
static bool
keeps_shape(qvm_gpu_decoder *d, const qvm_gpu_decoder_event *e)
{
    const int32_t shape[] = { e->width, e->height, e->right, e->bottom, e->is_scaled };
    if (!d->shape[0])
        memcpy(d->shape, shape, sizeof shape);
    return !memcmp(d->shape, shape, sizeof shape);
}

/* Takes a frame out of its slot. The first frame must equal the one from this process's decoder. */
static int
take_frame(qvm_gpu_decoder *d, const qvm_gpu_decoder_event *e, AVFrame *frame)
{
    const AVFrame *like = d->like;
    const uint8_t *from = d->planes + e->slot * d->slot_bytes;
    if (!is_possible(d, e))
        return lose(d, "the GPU process sent an impossible reply");
    frame->format = like->format;
    frame->width = e->width;
    frame->height = e->height;
    frame->color_range = like->color_range;
    frame->colorspace = like->colorspace;
    const int code = !keeps_shape(d, e) ? AVERROR_INVALIDDATA
                     : e->is_scaled     ? take_scaled(d, e->slot, from, frame)
                                        : lay_out(d, e, from, frame);
    d->free[e->slot] = !e->is_scaled || !d->is_direct;
    if (code == AVERROR(ENOMEM))
        return fail(d, "memory ran out");
    if (code < 0 ||
        (!e->is_scaled && (frame->width != like->width || frame->height != like->height)))
        return fail(d, "the size of its frames changes");
    const bool differs =
        e->is_scaled
            ? d->first_rgb && memcmp(d->first_rgb, from, (size_t)qvm_scaled_bytes(&d->scaled)) != 0
            : !are_equal(frame, like);
    if (e->pts == like->pts && differs)
        return fail(d, "the GPU's first frame is not the CPU's");
    return 0;
}

static qvm_gpu_decoder_frame *
held(qvm_gpu_decoder *d, unsigned i)
{
    return &d->held[(d->first_held + i) % QVM_MOST_GROUP];
}

/* Handles an event: a frame, which is held back, or the end of the frames. */
static int
take_in(qvm_gpu_decoder *d, const qvm_gpu_decoder_event *e)
{
    if (e->kind == QVM_GPU_EMPTIED && d->emptying) {
        d->emptying = false;
        d->emptied = true;
        d->whole = d->group + 1;
        return 0;
    }
    if (e->kind != QVM_GPU_FRAME)
        return lose(d, "the GPU process sent an impossible reply");
    if (d->n_held == QVM_MOST_GROUP)
        return fail(d, too_long);
    if (e->slot != -1 && !qvm_gpu_decoder_can_hold(d, 1))
        return AVERROR_EXTERNAL;
    qvm_gpu_decoder_frame *h = held(d, d->n_held++);
    *h = (qvm_gpu_decoder_frame){ .pts = e->pts, .order = e->order, .group = e->group };
    d->whole = e->whole > d->whole ? e->whole : d->whole;
    if (e->slot == -1)
        return 0;
    h->frame = av_frame_alloc();
    d->held_bytes += d->frame_bytes;
    return h->frame ? take_frame(d, e, h->frame) : fail(d, "memory ran out");
}

/* Moves the frame to show next to the front of the held frames; NULL if it has not arrived. */
static qvm_gpu_decoder_frame *
find_next(qvm_gpu_decoder *d)
{
    const int64_t next = qvm_times_next(d->times, d->next);
    unsigned i = 0;
    while (i < d->n_held && i <= d->most_held && next < d->times->n &&
           held(d, i)->pts != d->times->at[next].pts)
        i++;
    if (i == d->n_held || i > d->most_held || next == d->times->n)
        return NULL;
    const qvm_gpu_decoder_frame found = *held(d, i);
    for (; i; i--)
        *held(d, i) = *held(d, i - 1);
    *held(d, 0) = found;
    return held(d, 0);
}

/* Receives events until the next frame to show is there and its group is known to be whole. */
static int
wait_for_next(qvm_gpu_decoder *d)
{
    qvm_gpu_decoder_event e;
    for (;;) {
        const qvm_gpu_decoder_frame *found = find_next(d);
        if (found && found->group < d->whole)
            return 0;
        if (!found && (d->n_held > d->most_held || (d->emptied && d->n_held)))
            return fail(d, other_times);
        if (d->emptied)
            return found ? lose(d, "the GPU process sent an impossible reply") : AVERROR_EOF;
        int code = next_event(d, d->emptying || (!d->is_direct && find_slot(d) < 0), &e);
        if (!code)
            code = take_in(d, &e);
        if (code)
            return code;
    }
}

/* Returns whether the pictures' headers agree that the next frame, whose whole group has arrived,
 * is shown before all others. */
static bool
is_in_order(qvm_gpu_decoder *d)
{
    for (unsigned i = 1; i < d->n_held; i++)
        if (held(d, i)->order <= held(d, 0)->order)
            return false;
    return held(d, 0)->order > d->last_order;
}

/* Frames are returned in the order of their times, and no more are held back than in FFmpeg's
 * decoder. The order in the pictures' headers must agree, because FFmpeg uses that order. */
int
qvm_gpu_decoder_receive(qvm_gpu_decoder *d, AVFrame *frame)
{
    const int code = *d->why ? AVERROR_EXTERNAL : wait_for_next(d);
    if (code)
        return code;
    qvm_gpu_decoder_frame *h = held(d, 0);
    if (!is_in_order(d))
        return fail(d, other_times);
    d->last_order = h->order;
    d->next = qvm_times_next(d->times, d->next) + 1;
    if (h->frame) {
        av_frame_move_ref(frame, h->frame);
        av_frame_free(&h->frame);
        d->held_bytes -= d->frame_bytes;
    }
    frame->pts = h->pts;
    d->first_held = (d->first_held + 1) % QVM_MOST_GROUP;
    d->n_held--;
    return 0;
}
