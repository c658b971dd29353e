/* SPDX-License-Identifier: MIT */
/* Decodes a file: what it is, then the frames that are asked for, upright, in RGB and resized. */
#include <stdlib.h>
#include <string.h>

#include "media.h"

#define DEFAULT_FPS 24.0

/* From the beginning of the file. */
static qv_status
restart(qvm_reader *r, bool single, qv_error *err)
{
    qvm_source_close(&r->source);
    r->single = single;
    r->sought = false;
    r->n_decoded = 0;
    r->n_corrupt = 0;
    return qvm_source_open(&r->source, r->fd, single ? 1 : r->threads, r->watch, err);
}

/* Goes ahead to a frame, if that leaves out some. */
static qv_status
seek(qvm_reader *r, int64_t index, qv_error *err)
{
    const int64_t key = index < r->times.n ? qvm_times_key(&r->times, index) : 0;
    if (key <= r->n_decoded || r->source.errors || r->n_corrupt)
        return QV_OK;
    if (!qvm_source_seek(&r->source, r->times.at[key].pts))
        return restart(r, r->single, err);
    r->sought = true;
    r->landed = false;
    r->target = index;
    return QV_OK;
}

/* Behind a seek, numbers the frame that came by its time; `skip`: it lies in front of the first
 * keyframe, and may refer to what was not decoded. False where the seek went wrong: behind its target,
 * or to frames of other times than the file has from its beginning on. */
static bool
follow(qvm_reader *r, bool got, bool *skip)
{
    const int64_t i = got ? qvm_times_find(&r->times, r->frame->pts) : r->times.n;
    if (r->landed)
        return i == r->n_decoded;
    if (i < 0 || i > r->target)
        return false;
    *skip = !r->times.at[i].key;
    r->landed = !*skip;
    if (r->landed)
        r->n_decoded = i;
    return true;
}

/*
 * Decodes one more frame into r->last; *got is false at the end of the file. What threads make of
 * damaged data depends on their timing, and what comes of it behind a seek on where that began. Frames
 * that came before the first damage do not: decoding starts over with one thread, and those are
 * skipped.
 */
static qv_status
next_frame(qvm_reader *r, bool *got, qv_error *err)
{
    for (;;) {
        qv_status status = qvm_source_next(&r->source, r->frame, got, err);
        if (status)
            return status;
        const bool stopped = atomic_load(r->watch->stop);
        const bool corrupt =
            *got && (r->frame->decode_error_flags || r->frame->flags & AV_FRAME_FLAG_CORRUPT);
        const bool damaged = corrupt || r->source.errors;
        bool skip = false;
        const bool astray = r->sought && !stopped && (damaged || !follow(r, *got, &skip));
        if (skip) {
            av_frame_unref(r->frame);
            continue;
        }
        if (astray || (damaged && !r->single && !stopped)) {
            av_frame_unref(r->frame);
            const int64_t resume = r->n_decoded;
            status = restart(r, damaged || r->single, err);
            while (!status && r->n_decoded < resume) {
                status = next_frame(r, got, err);
                if (!status && !*got)
                    return QV_OK;
            }
            if (status)
                return status;
            continue;
        }
        r->n_corrupt += corrupt;
        if (*got) {
            av_frame_unref(r->last);
            av_frame_move_ref(r->last, r->frame);
            r->n_decoded++;
        }
        return QV_OK;
    }
}

static bool
is_animation(const char *format)
{
    return !strcmp(format, "gif") || !strcmp(format, "apng");
}

/* Whose RGB is wanted. */
static qvm_colour
find_colour(bool is_image, enum AVCodecID codec)
{
    if (!is_image)
        return QVM_CLIP;
    return codec == AV_CODEC_ID_MJPEG ? QVM_JPEG : codec == AV_CODEC_ID_WEBP ? QVM_WEBP : QVM_IMAGE;
}

/* "Picture size 65535x65535 is invalid", or exceeds what is asked for: FFmpeg's words where it refuses a size. */
static bool
find_refused_size(const char *words, unsigned long size[2])
{
    static const char begin[] = "Picture size ";
    char *end = NULL;
    if (strncmp(words, begin, sizeof begin - 1) != 0)
        return false;
    size[0] = strtoul(words + sizeof begin - 1, &end, 10);
    size[1] = *end == 'x' ? strtoul(end + 1, NULL, 10) : 0;
    return size[0] && size[1];
}

/* In words, why no frame came. */
static qv_status
fail_unread(const qvm_reader *r, const qv_clip_info *info, qv_error *err)
{
    const qvm_source *s = &r->source;
    const char *why = qvm_why_unread(s);
    const bool spoke = atomic_load(&s->has_words) == 2;
    unsigned long size[2];
    if (why)
        return qv_fail(err, QV_EFORMAT, "%s", why);
    if (!s->errors)
        return qv_fail(err, QV_EFORMAT, "no frame in the '%s' video", info->codec);
    if (spoke && find_refused_size(s->words, size))
        return qv_fail(err, QV_EFORMAT, "frames of %lux%lu; at most 16384x16384 pixels are read",
                       size[0], size[1]);
    return qv_fail(err, QV_EFORMAT,
                   info->is_image ? "the '%s' image cannot be decoded: %s%s"
                                  : "no frame of the '%s' video can be decoded: %s%s",
                   info->codec,
                   spoke ? "FFmpeg's decoder says: "
                         : "it is damaged, or of a kind that this FFmpeg lacks",
                   spoke ? s->words : "");
}

/* Reads what the file says about itself and its first frame. */
static qv_status
look_into(qvm_reader *r, qv_clip_info *info, qv_error *err)
{
    qv_status status = qvm_source_open(&r->source, r->fd, r->threads, r->watch, err);
    if (status)
        return status;
    const char *format = r->source.format->iformat->name;
    snprintf(info->format, sizeof info->format, "%s", format);
    snprintf(info->codec, sizeof info->codec, "%s",
             avcodec_get_name(r->source.stream->codecpar->codec_id));
    info->is_image = qvm_source_is_image(&r->source);

    bool got;
    status = next_frame(r, &got, err);
    if (status)
        return status;
    if (!got)
        return fail_unread(r, info, err);
    const AVPixFmtDescriptor *pixels = av_pix_fmt_desc_get(r->last->format);
    if (info->is_image && pixels && pixels->flags & AV_PIX_FMT_FLAG_FLOAT)
        return qv_fail(err, QV_EFORMAT, "%s", QVM_FLOATS);

    info->source_frames = 1;
    if (!info->is_image) {
        status = qvm_count_frames(r->fd, r->threads, r->watch, r->watch->cut ? &r->times : NULL,
                                  &info->source_frames, err);
        if (status)
            return status;
        if (r->times.n && r->times.at[0].pts != r->last->pts) /* it begins otherwise */
            r->times.n = 0;
        if (info->source_frames < 1)
            info->source_frames = 1;
        info->is_image = is_animation(format) && info->source_frames == 1;
    }
    if (!info->is_image) {
        const AVRational rate = r->source.stream->avg_frame_rate;
        info->source_fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : DEFAULT_FPS;
        info->duration_s = (double)info->source_frames / info->source_fps;
    }
    r->converter.colour = find_colour(info->is_image, r->source.codec->codec_id);
    r->converter.on_white = info->is_image && r->watch->like == QV_LIKE_QWEN_VL_UTILS;
    const qvm_turn turn = qvm_find_turn(r->last, r->source.stream);
    info->rotation = qvm_turn_degrees(turn);
    info->source_width = turn.transpose ? r->last->height : r->last->width;
    info->source_height = turn.transpose ? r->last->width : r->last->height;
    return QV_OK;
}

qv_status
qvm_reader_open(qvm_reader *r, int fd, int threads, const qvm_watch *watch, qv_clip_info *info,
                qv_error *err)
{
    *r = (qvm_reader){
        .fd = fd, .threads = threads, .watch = watch, .n_image = -1, .single = threads == 1
    };
    memset(info, 0, sizeof *info);
    r->frame = av_frame_alloc();
    r->last = av_frame_alloc();
    if (!r->frame || !r->last)
        return qv_fail(err, QV_ENOMEM, "no memory for frames");
    return look_into(r, info, err);
}

static qv_status
open_resizer(qvm_reader *r, const int size[4], qv_error *err)
{
    qvm_resizer_free(&r->resizer);
    qvm_resampler_free(&r->resampler);
    if (r->watch->like == QV_LIKE_TRANSFORMERS)
        return qvm_resizer_create(size[0], size[1], size[2], size[3], 1, QVM_BEST, &r->resizer,
                                  err);
    return qvm_resampler_create(size[0], size[1], size[2], size[3],
                                r->converter.colour == QVM_CLIP ? QVM_TORCH_FLOAT : QVM_PIL,
                                &r->resampler, err);
}

/* A clip may change its frame size on the way; the output size stays. */
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
        qvm_resizer_run(r->resizer, 0, r->image.rgb, r->image.stride, dst, 0, height);
    return QV_OK;
}

qv_status
qvm_reader_read(qvm_reader *r, int64_t index, int height, int width, uint8_t *dst, qv_error *err)
{
    qv_status status = r->n_image < 0 && r->watch->cut ? seek(r, index, err) : QV_OK;
    if (status)
        return status;
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
    if (r->n_image != r->n_decoded - 1) {
        const qvm_turn turn = qvm_find_turn(r->last, r->source.stream);
        status = qvm_convert(&r->converter, r->last, turn, &r->image, err);
        if (status)
            return status;
        r->n_image = r->n_decoded - 1;
    }
    return resize_into(r, height, width, dst, err);
}

/* The counts overlap, so the largest. */
int64_t
qvm_reader_damaged(const qvm_reader *r)
{
    int64_t n = r->source.errors > r->n_corrupt ? r->source.errors : r->n_corrupt;
    return n > r->n_missing ? n : r->n_missing;
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
