/* SPDX-License-Identifier: MIT */
/* Reads a file: finds out what it is, and returns its frames upright, in RGB and resized. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_decoder.h"
#include "numbers.h"

/* Rewinds to the first packet: by the container's index if it leads there, which keeps the source
 * open, otherwise by reopening the file. No decoder is open afterwards. */
static qv_status
go_back(qvm_reader *r, bool by_index, qv_error *err)
{
    qvm_source *s = &r->source;
    bool done = false;
    r->n_given += s->n_given;
    s->n_given = 0;
    qv_status status = by_index ? qvm_source_rewind(s, r->times.at[0].pts, &done, err) : QV_OK;
    if (done) {
        avcodec_free_context(&s->codec.av);
        s->only_first = s->draining = s->emptying = false;
    } else if (!status) {
        qvm_source_close(s);
        status = qvm_source_open(s, r->fd, r->watch, err);
    }
    return status;
}

/* Restarts at the first packet, with a decoder in this process. */
static qv_status
restart(qvm_reader *r, bool by_index, qv_error *err)
{
    r->n_decoded = r->n_corrupt = 0;
    const qv_status status = go_back(r, by_index, err);
    return status ? status : qvm_source_open_decoder(&r->source, r->threads, err);
}

/* Why decoding must restart at the first packet. Frames from damaged data depend on thread timing
 * and on the skipped packets; frames before the first damage do not. */
enum cause { GO_ON, DAMAGED, OTHER_TIMES, GPU_FAILED };

/* The consequences of each cause. */
static const struct change {
    const char *why; /* why all packets are decoded after that; NULL: not all are */
    bool one_thread;
} changes[] = {
    [DAMAGED] = { "it is damaged", true },
    [OTHER_TIMES] = { "its frames' times differ from its packets'", false },
    [GPU_FAILED] = { NULL, false },
};

static qv_status
begin_again(qvm_reader *r, enum cause cause, qv_error *err)
{
    const struct change *c = &changes[cause];
    if (cause == GPU_FAILED)
        r->not_gpu = *r->gpu->why ? r->gpu->why : "its frames' times are different";
    r->why = c->why;
    r->threads = c->one_thread ? 1 : r->threads;
    const qv_status status = restart(r, false, err);
    if (!status && !c->why)
        qvm_source_leave_out(&r->source, &r->times);
    return status;
}

/* Returns whether the received frame (got), which becomes number r->n_decoded, or the end of the
 * file is what was needed next. */
static bool
follow(qvm_reader *r, bool got)
{
    const int64_t next = qvm_times_next(&r->times, r->n_decoded);
    if (!got)
        return next == r->times.n;
    if (next == r->times.n || r->times.at[next].pts != r->frame->pts)
        return false;
    r->n_decoded = next;
    return true;
}

static bool
is_corrupt(const AVFrame *frame)
{
    return frame->decode_error_flags || frame->flags & AV_FRAME_FLAG_CORRUPT;
}

/* Checks the received frame (got), or the end of the file. */
static enum cause
find_cause(qvm_reader *r, bool got)
{
    const qvm_source *s = &r->source;
    enum cause cause = GO_ON;
    if (atomic_load(r->watch->stop))
        return GO_ON;
    if (s->errors || (got && is_corrupt(r->frame)))
        cause = s->times || r->threads != 1 ? DAMAGED : GO_ON;
    else if (s->times && !follow(r, got))
        cause = OTHER_TIMES;
    else if (s->gpu && got && r->times.at[r->n_decoded].sampled && !r->frame->buf[0])
        cause = GPU_FAILED; /* its process had no slot for the frame */
    return cause && s->gpu ? GPU_FAILED : cause;
}

/* Decodes one more frame into r->last; *got becomes false at the end. If decoding must restart,
 * earlier frames are skipped. */
static qv_status
next_frame(qvm_reader *r, bool *got, qv_error *err)
{
    const int64_t n_had = r->n_decoded;
    for (;;) {
        qv_status status = qvm_source_next(&r->source, r->frame, got, err);
        if (status)
            return status;
        const enum cause cause = find_cause(r, *got);
        if (cause) {
            av_frame_unref(r->frame);
            status = begin_again(r, cause, err);
            if (status)
                return status;
            continue;
        }
        if (!*got)
            return QV_OK;
        r->n_corrupt += is_corrupt(r->frame);
        av_frame_unref(r->last);
        av_frame_move_ref(r->last, r->frame);
        if (++r->n_decoded > n_had)
            return QV_OK;
    }
}

static bool
is_animation(const char *format)
{
    return !strcmp(format, "gif") || !strcmp(format, "apng");
}

/* Returns the library whose RGB the pixels must equal: torchcodec for clips and their first
 * frames. */
static qvm_colour
find_colour(const qvm_reader *r, bool is_image)
{
    if (!is_image ||
        !(qvm_source_is_image(&r->source) || is_animation(qvm_source_format(&r->source))))
        return QVM_CLIP;
    switch (qvm_source_codec(&r->source)) {
    case AV_CODEC_ID_MJPEG: return QVM_JPEG;
    case AV_CODEC_ID_WEBP: return QVM_WEBP;
    case AV_CODEC_ID_AV1: return QVM_AVIF;
    case AV_CODEC_ID_TIFF: return qvm_tiff_is_packed(&r->source) ? QVM_TIFF : QVM_RAW_TIFF;
    case AV_CODEC_ID_PPM:
    case AV_CODEC_ID_PAM: return QVM_NETPBM;
    default: return QVM_IMAGE;
    }
}

/* Returns a remark on unexpected pixels. */
static qv_remark
find_remark(const qvm_reader *r)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(r->last->format);
    if (r->converter.colour == QVM_CLIP || !format)
        return QV_REMARK_NONE;
    if (r->source.more_jpegs)
        return QV_REMARK_MORE_JPEGS;
    if (format->nb_components == 1 && qvm_is_wide(format))
        return QV_REMARK_GRAY16;
    if (r->converter.colour == QVM_JPEG && !r->source.is_jpeg)
        return QV_REMARK_JPEG;
    const bool gray = format->nb_components == 1 && format->comp[0].depth == 8;
    return r->converter.colour == QVM_AVIF && !gray && !qvm_is_plain_yuv(format) ? QV_REMARK_AVIF
                                                                                 : QV_REMARK_NONE;
}

/* Lists all packets of a clip, unless another reader has done so, and rewinds to the first. */
static qv_status
read_packets(qvm_reader *r, qv_error *err)
{
    const qvm_index *known = r->watch->index;
    if (known) {
        r->span = known->span;
        return qvm_index_take(known, &r->source, &r->times)
                   ? QV_OK
                   : qv_fail(err, QV_ENOMEM, "no memory for times");
    }
    const qv_status status = qvm_count_packets(&r->source, &r->times, &r->span, err);
    return status ? status : go_back(r, r->times.can_rewind, err);
}

/* Fails with the reason why there is no frame. */
static qv_status
fail_unread(const qvm_reader *r, const qv_outcome *o, qv_error *err)
{
    const qvm_source *s = &r->source;
    const char *why = qvm_why_unread(s);
    const bool spoke = atomic_load(&s->codec.has_words) == 2;
    char width[12], height[12];
    if (why)
        return qv_fail(err, QV_EFORMAT, "%s", why);
    if (!s->errors)
        return qv_fail(err, QV_EFORMAT, "the '%s' video has no frames", o->codec);
    /* FFmpeg rejects a size in these words, followed by "is invalid" or "exceeds" */
    if (spoke && sscanf(s->codec.words, "Picture size %11[0-9]x%11[0-9]", width, height) == 2 &&
        *width != '0' && *height != '0')
        return qv_fail(err, QV_EFORMAT, "frames of %sx%s; at most 16384x16384 pixels are supported",
                       width, height);
    return qv_fail(err, QV_EFORMAT,
                   o->is_image ? "the '%s' image cannot be decoded: %s%s"
                               : "no frame of the '%s' video can be decoded: %s%s",
                   o->codec,
                   spoke ? "FFmpeg's decoder reports: "
                         : "it is damaged, or this FFmpeg does not support it",
                   spoke ? s->codec.words : "");
}

/* Returns why no GPU may decode these packets, as a text that follows "since"; NULL if a GPU may. A
 * GPU's parser that starts over uses the container's parameter sets. */
static const char *
find_why_not_gpu(const qvm_times *t)
{
    return t->unsure        ? t->unsure
           : !t->n          ? "it is an image"
           : t->sets_change ? "its parameter sets change"
                            : NULL;
}

/* Decodes only the first packet. Its frame suffices if a GPU decodes the others, and FFmpeg would
 * return it only after more packets. If it is not the clip's first frame, starts over. */
static qv_status
peek(qvm_reader *r, bool *got, qv_error *err)
{
    r->source.only_first = true;
    const qv_status status = next_frame(r, got, err);
    if (status ||
        (*got && !r->source.errors && !r->n_corrupt && r->last->pts == r->times.at[0].pts))
        return status;
    return restart(r, false, err);
}

static qv_status
read_first_frame(qvm_reader *r, const qv_outcome *o, qv_error *err)
{
    bool got = false;
    if (r->source.is_jpeg) {
        r->n_decoded = 1;
        return qvm_jpeg_read(&r->source, r->last, err);
    }
    qv_status status = qvm_source_open_decoder(&r->source, r->threads, err);
    if (status)
        return status;
    if (r->watch->has_gpu && !find_why_not_gpu(&r->times))
        status = peek(r, &got, err);
    if (!status && !r->n_decoded)
        status = next_frame(r, &got, err);
    if (status)
        return status;
    if (!got)
        return fail_unread(r, o, err);
    const AVPixFmtDescriptor *pixels = av_pix_fmt_desc_get(r->last->format);
    if (o->is_image && pixels && pixels->flags & AV_PIX_FMT_FLAG_FLOAT)
        return qv_fail(err, QV_EFORMAT, "%s", QVM_FLOATS);
    const bool tiff = o->is_image && qvm_source_codec(&r->source) == AV_CODEC_ID_TIFF;
    const char *why = tiff ? qvm_why_unread(&r->source) : NULL;
    if (why)
        return qv_fail(err, QV_EFORMAT, "%s", why);
    return QV_OK;
}

/* Sets the number of frames: the number of packets if each is one frame, otherwise of frames that
 * can be decoded. Also collects why packets' times are unreliable. */
static qv_status
settle_count(qvm_reader *r, int64_t *n_frames, qv_error *err)
{
    const qvm_index *known = r->watch->index;
    struct qvm_count count = { .frames = r->span.n };
    if (known) {
        count = (struct qvm_count){ .frames = known->n_frames, .errors = known->errors };
    } else if (!r->times.are_frames) {
        qv_status status = qvm_count_decoded(r->fd, r->watch->asked.threads, r->watch, &count, err);
        if (status)
            return status;
    }
    if (count.errors)
        qvm_times_doubt(&r->times, "it is damaged");
    if (count.frames != r->span.n)
        qvm_times_doubt(&r->times, "its packets are not its frames");
    if (!r->times.unsure && r->times.at[0].pts != r->last->pts)
        qvm_times_doubt(&r->times, "its first frame's time differs from its packets'");
    r->n_given = count.decoded;
    r->count = count;
    *n_frames = count.frames < 1 ? 1 : count.frames;
    return QV_OK;
}

/* Finds how images are rotated by EXIF, and clips by their container. qwen-vl-utils rotates no
 * images except TIFF, which Pillow rotates by itself. */
static qv_status
find_turn(qvm_reader *r, bool is_image, qv_error *err)
{
    const enum AVCodecID codec = qvm_source_codec(&r->source);
    const int exif = is_image ? qvm_find_orientation(&r->source) : 0;
    if (exif < 0)
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(errno));
    if (is_image && r->watch->asked.like == QV_LIKE_QWEN_VL_UTILS && codec != AV_CODEC_ID_TIFF)
        return QV_OK;
    r->turn = exif ? qvm_exif_turn(exif) : qvm_find_turn(r->source.stream);
    return QV_OK;
}

/* Decides whether transparent pixels are put on white, as qwen-vl-utils does with images. A BMP's
 * fourth byte is alpha only if the file has bit masks. */
static qv_status
find_white(qvm_reader *r, bool is_image, qv_error *err)
{
    enum { COMPRESSION_AT = 30, MASKS = 3 };
    uint8_t compression = MASKS;
    if (qvm_source_codec(&r->source) == AV_CODEC_ID_BMP &&
        qvm_source_read(&r->source, COMPRESSION_AT, &compression, 1) < 0)
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(errno));
    r->converter.on_white =
        is_image && r->watch->asked.like == QV_LIKE_QWEN_VL_UTILS && compression == MASKS;
    return QV_OK;
}

/* Reads the file's properties and its first frame. */
static qv_status
look_into(qvm_reader *r, qv_outcome *o, qv_error *err)
{
    qv_status status = qvm_source_open(&r->source, r->fd, r->watch, err);
    if (status)
        return status;
    snprintf(o->format, sizeof o->format, "%s", qvm_source_format(&r->source));
    snprintf(o->codec, sizeof o->codec, "%s", avcodec_get_name(qvm_source_codec(&r->source)));
    o->is_image = r->watch->asked.first_frame || qvm_source_is_image(&r->source);
    o->source_frames = 1;
    if (!o->is_image)
        status = read_packets(r, err);
    if (!status)
        status = read_first_frame(r, o, err);
    if (!status && !o->is_image)
        status = settle_count(r, &o->source_frames, err);
    if (status)
        return status;
    o->is_image = o->is_image || (is_animation(o->format) && o->source_frames == 1);
    if (!o->is_image)
        qvm_find_rate(&r->span, r->source.stream, o);
    r->converter.colour = find_colour(r, o->is_image);
    o->remark = find_remark(r);
    if (r->converter.colour == QVM_TIFF)
        qvm_find_levels(&r->source, r->converter.levels);
    status = find_white(r, o->is_image, err);
    if (!status)
        status = find_turn(r, o->is_image, err);
    if (status)
        return status;
    o->rotation = qvm_turn_degrees(r->turn);
    o->source_width = r->turn.transpose ? r->last->height : r->last->width;
    o->source_height = r->turn.transpose ? r->last->width : r->last->height;
    return QV_OK;
}

qv_status
qvm_reader_open(qvm_reader *r, int fd, const qvm_watch *watch, qv_outcome *o, qv_error *err)
{
    *r = (qvm_reader){
        .fd = fd, .threads = watch->asked.threads, .watch = watch, .n_image = -1, .gpu_slot = -1
    };
    memset(o, 0, sizeof *o);
    r->frame = av_frame_alloc();
    r->last = av_frame_alloc();
    if (!r->frame || !r->last)
        return qv_fail(err, QV_ENOMEM, "no memory for frames");
    return look_into(r, o, err);
}

int64_t
qvm_reader_plane_bytes(qvm_reader *r)
{
    r->not_gpu = find_why_not_gpu(&r->times);
    return r->not_gpu ? 0 : qvm_gpu_decoder_slot_bytes(r->source.codec.av, r->last, &r->not_gpu);
}

/* Marks the packets that must be decoded. */
static qv_status
choose_packets(qvm_reader *r, const int64_t *frames, int64_t n, int64_t n_read, qv_error *err)
{
    if (qvm_times_need(&r->times, frames, n, n_read))
        return QV_OK;
    return qv_fail(err, QV_ENOMEM, "no memory to choose among %lld packets", (long long)r->times.n);
}

static qv_status
open_resizer(qvm_reader *r, const int size[4], qv_error *err)
{
    qvm_resizer_free(&r->resizer);
    qvm_resampler_free(&r->resampler);
    if (r->watch->asked.like == QV_LIKE_TRANSFORMERS)
        return qvm_resizer_create(size[0], size[1], size[2], size[3], QVM_BEST, &r->resizer, err);
    return qvm_resampler_create(size[0], size[1], size[2], size[3],
                                r->converter.colour == QVM_CLIP ? QVM_TORCH_FLOAT : QVM_PIL,
                                &r->resampler, err);
}

/* A clip may change its frame size midway; the output size stays the same. */
static qv_status
resize_into(qvm_reader *r, int height, int width, uint8_t *dst, qv_error *err)
{
    const int size[4] = { r->image.height, r->image.width, height, width };
    const bool open = r->resizer || r->resampler;
    if (!open || memcmp(r->resizer_size, size, sizeof size)) {
        qv_status status = open_resizer(r, size, err);
        if (status)
            return status;
        memcpy(r->resizer_size, size, sizeof size);
    }
    if (r->resampler)
        qvm_resampler_run(r->resampler, r->image.rgb, r->image.stride, dst);
    else
        qvm_resizer_run(r->resizer, r->image.rgb, r->image.stride, dst);
    return QV_OK;
}

/* Returns why this process must convert and resize frames that the GPU decodes, as a text that
 * follows "since"; NULL if it need not. */
static const char *
find_why_here(const qvm_reader *r, int height, int width)
{
    const AVFrame *f = r->last;
    return r->turn.transpose || r->turn.flip_x || r->turn.flip_y ? "it is rotated"
           : r->watch->asked.like != QV_LIKE_TRANSFORMERS        ? "qwen-vl-utils resizes in floats"
           : f->width % 2 || f->height % 2                       ? "its sides are odd"
           : f->format == AV_PIX_FMT_YUV420P10                   ? "its samples have 10 bits"
           : width > f->width + QVM_SCALED_MORE || height > f->height + QVM_SCALED_MORE ||
                   3 * (int64_t)width * height > r->gpu->slot_bytes
               ? "it is enlarged"
               : NULL;
}

/* Requests frames of the final size from the GPU, if it makes them exactly as this process would.
 * The first frame is also made here, for comparison. */
static qv_status
ask_for_scaled(qvm_reader *r, bool first, int64_t n, int height, int width, qv_error *err)
{
    qvm_gpu_decoder *d = r->gpu;
    const AVFrame *f = r->last;
    const int64_t bytes = 3 * (int64_t)width * height;
    const bool direct = n <= d->n_slots && n <= QV_RING_BYTES / bytes;
    r->not_gpu = find_why_here(r, height, width);
    if (!r->not_gpu && !direct && r->times.most_sampled > QVM_MOST_GROUP_BYTES / bytes)
        r->not_gpu = "its groups of pictures are too long";
    if (r->not_gpu)
        return QV_OK;
    d->scaled = (qvm_scaled){ f->width, f->height, width, height };
    d->is_direct = direct;
    if (d->is_direct)
        d->frame_bytes = 1;
    else if (bytes > d->frame_bytes)
        d->frame_bytes = bytes;
    d->first_rgb = first ? malloc((size_t)bytes) : NULL;
    if (!first)
        return QV_OK;
    if (!d->first_rgb)
        return qv_fail(err, QV_ENOMEM, "no memory for a frame of %dx%d", width, height);
    const qv_status status = qvm_convert(&r->converter, f, r->turn, &r->image, err);
    return status ? status : resize_into(r, height, width, d->first_rgb, err);
}

/* Makes a GPU decode the stream from its first packet on, if possible. */
static qv_status
begin_on_gpu(qvm_reader *r, const int64_t *frames, int64_t n, int height, int width, qv_error *err)
{
    qvm_source *s = &r->source;
    qv_status status = choose_packets(r, frames, n, 0, err);
    if (!status)
        status = ask_for_scaled(r, !frames[0], n, height, width, err);
    if (status)
        return status;
    if (!qvm_gpu_decoder_can_hold(r->gpu, r->times.most_sampled) ||
        !qvm_gpu_decoder_open(r->gpu, s->stream, s->codec.av, r->last)) {
        r->not_gpu = r->gpu->why;
        return QV_OK;
    }
    status = go_back(r, r->times.can_rewind, err);
    if (status)
        return status;
    s->gpu = r->gpu;
    r->n_decoded = 0;
    return QV_OK;
}

qv_status
qvm_reader_start(qvm_reader *r, const int64_t *frames, int64_t n, int height, int width,
                 qv_error *err)
{
    qv_status status = QV_OK;
    if (r->times.n && (r->source.errors || r->n_corrupt))
        qvm_times_doubt(&r->times, "it is damaged");
    r->why = r->times.unsure;
    if (r->gpu && r->why)
        r->not_gpu = r->why;
    else if (r->gpu)
        status = begin_on_gpu(r, frames, n, height, width, err);
    if (!status && r->source.only_first && !r->source.gpu)
        status = restart(r, r->times.can_rewind, err);
    if (status || !r->times.n || r->why)
        return status;
    status = choose_packets(r, frames, n, r->source.n_read, err);
    if (status)
        return status;
    qvm_source_leave_out(&r->source, &r->times);
    return QV_OK;
}

qv_status
qvm_reader_read(qvm_reader *r, int64_t index, int height, int width, uint8_t *dst, qv_error *err)
{
    qv_status status = QV_OK;
    while (r->n_decoded <= index && !r->at_end && !atomic_load(r->watch->stop)) {
        bool got;
        status = next_frame(r, &got, err);
        if (status)
            return status;
        r->at_end = !got;
    }
    if (atomic_load(r->watch->stop))
        return QV_OK;
    r->n_missing += index >= r->n_decoded;
    if (qvm_gpu_decoder_scaled(r->gpu, r->last, &r->gpu_slot)) {
        if (r->gpu_slot < 0)
            memcpy(dst, r->last->data[0], 3 * (size_t)height * (size_t)width);
        return QV_OK;
    }
    if (r->source.gpu && r->gpu->scaled.width)
        r->not_gpu = "the GPU cannot convert as this CPU does";
    if (r->n_image != r->n_decoded - 1) {
        status = qvm_convert(&r->converter, r->last, r->turn, &r->image, err);
        if (status)
            return status;
        r->n_image = r->n_decoded - 1;
    }
    return resize_into(r, height, width, dst, err);
}

/* Returns the largest of the counts, because they overlap. */
int64_t
qvm_reader_damaged(const qvm_reader *r)
{
    int64_t n = r->source.errors > r->n_corrupt ? r->source.errors : r->n_corrupt;
    return n > r->n_missing ? n : r->n_missing;
}

int64_t
qvm_reader_decoded(const qvm_reader *r)
{
    return r->n_given + r->source.n_given;
}

void
qvm_reader_close(qvm_reader *r)
{
    qvm_source_close(&r->source);
    qvm_converter_close(&r->converter);
    qvm_resizer_free(&r->resizer);
    qvm_resampler_free(&r->resampler);
    av_frame_free(&r->frame);
    av_frame_free(&r->last);
    qvm_times_free(&r->times);
}
