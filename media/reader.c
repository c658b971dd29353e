/* SPDX-License-Identifier: MIT */
/* Decodes a file: what it is, then the frames that are asked for, upright, in RGB and resized. */
#include <string.h>

#include "media.h"

#define DEFAULT_FPS 24.0

/* What threads make of damaged data depends on their timing. Frames that came before the first
 * damage do not: decoding starts over with one thread, and those are skipped. */
static qv_status
restart_single(qvm_decoder *d, qv_error *err)
{
    qvm_source_close(&d->source);
    d->single = true;
    d->n_decoded = 0;
    d->n_corrupt = 0;
    return qvm_source_open(&d->source, d->fd, 1, d->watch, err);
}

/* Decodes one more frame into d->last; *got is false at the end of the file. */
static qv_status
next_frame(qvm_decoder *d, bool *got, qv_error *err)
{
    for (;;) {
        qv_status status = qvm_source_next(&d->source, d->frame, got, err);
        if (status)
            return status;
        const bool corrupt =
            *got && (d->frame->decode_error_flags || d->frame->flags & AV_FRAME_FLAG_CORRUPT);
        if (!d->single && (corrupt || d->source.errors) && !atomic_load(d->watch->stop)) {
            av_frame_unref(d->frame);
            const int64_t resume = d->n_decoded;
            status = restart_single(d, err);
            while (!status && d->n_decoded < resume) {
                status = next_frame(d, got, err);
                if (!status && !*got)
                    return QV_OK;
            }
            if (status)
                return status;
            continue;
        }
        d->n_corrupt += corrupt;
        if (*got) {
            av_frame_unref(d->last);
            av_frame_move_ref(d->last, d->frame);
            d->n_decoded++;
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
find_colour(bool picture, enum AVCodecID codec)
{
    if (!picture)
        return QVM_CLIP;
    return codec == AV_CODEC_ID_MJPEG  ? QVM_JPEG
           : codec == AV_CODEC_ID_WEBP ? QVM_WEBP
                                       : QVM_PICTURE;
}

/* Reads what the file says about itself and its first frame. */
static qv_status
look_into(qvm_decoder *d, qv_clip_info *info, qv_error *err)
{
    qv_status status = qvm_source_open(&d->source, d->fd, d->threads, d->watch, err);
    if (status)
        return status;
    const char *format = d->source.format->iformat->name;
    snprintf(info->format, sizeof info->format, "%s", format);
    snprintf(info->codec, sizeof info->codec, "%s",
             avcodec_get_name(d->source.stream->codecpar->codec_id));
    info->picture = qvm_source_is_picture(&d->source);

    bool got;
    status = next_frame(d, &got, err);
    if (status)
        return status;
    if (!got && !d->source.errors)
        return qv_fail(err, QV_EFORMAT, "no frame in the '%s' video", info->codec);
    if (!got)
        return qv_fail(err, QV_EFORMAT,
                       "no frame of the '%s' video can be decoded (%lld failures; frames above "
                       "16384x16384 pixels are refused)",
                       info->codec, (long long)d->source.errors);

    info->source_frames = 1;
    if (!info->picture) {
        status = qvm_count_frames(d->fd, d->threads, d->watch, &info->source_frames, err);
        if (status)
            return status;
        if (info->source_frames < 1)
            info->source_frames = 1;
        info->picture = is_animation(format) && info->source_frames == 1;
    }
    if (!info->picture) {
        const AVRational rate = d->source.stream->avg_frame_rate;
        info->source_fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : DEFAULT_FPS;
        info->duration_s = (double)info->source_frames / info->source_fps;
    }
    d->converter.colour = find_colour(info->picture, d->source.codec->codec_id);
    const qvm_turn turn = qvm_find_turn(d->last, d->source.stream);
    info->rotation = qvm_turn_degrees(turn);
    info->source_width = turn.transpose ? d->last->height : d->last->width;
    info->source_height = turn.transpose ? d->last->width : d->last->height;
    return QV_OK;
}

qv_status
qvm_decoder_open(qvm_decoder *d, int fd, int threads, const qvm_watch *watch, qv_clip_info *info,
                 qv_error *err)
{
    *d = (qvm_decoder){
        .fd = fd, .threads = threads, .watch = watch, .n_image = -1, .single = threads == 1
    };
    memset(info, 0, sizeof *info);
    d->frame = av_frame_alloc();
    d->last = av_frame_alloc();
    if (!d->frame || !d->last)
        return qv_fail(err, QV_ENOMEM, "no memory for frames");
    return look_into(d, info, err);
}

/* A clip may change its frame size on the way; the output size stays. */
static qv_status
resize_into(qvm_decoder *d, int height, int width, uint8_t *dst, qv_error *err)
{
    const int size[4] = { d->image.height, d->image.width, height, width };
    if (!d->resizer || memcmp(d->resizer_size, size, sizeof size)) {
        qvm_resizer_free(&d->resizer);
        qv_status status =
            qvm_resizer_create(size[0], size[1], size[2], size[3], 1, QVM_BEST, &d->resizer, err);
        if (status)
            return status;
        memcpy(d->resizer_size, size, sizeof size);
    }
    qvm_resizer_run(d->resizer, 0, d->image.rgb, d->image.stride, dst, 0, height);
    return QV_OK;
}

qv_status
qvm_decoder_read(qvm_decoder *d, int64_t index, int height, int width, uint8_t *dst, qv_error *err)
{
    while (d->n_decoded <= index && !d->at_end && !atomic_load(d->watch->stop)) {
        bool got;
        qv_status status = next_frame(d, &got, err);
        if (status)
            return status;
        d->at_end = !got;
    }
    if (atomic_load(d->watch->stop))
        return QV_OK;
    d->n_missing += index >= d->n_decoded;
    if (d->n_image != d->n_decoded - 1) {
        const qvm_turn turn = qvm_find_turn(d->last, d->source.stream);
        qv_status status = qvm_convert(&d->converter, d->last, turn, &d->image, err);
        if (status)
            return status;
        d->n_image = d->n_decoded - 1;
    }
    return resize_into(d, height, width, dst, err);
}

/* Different views of the same trouble: the largest. */
int64_t
qvm_decoder_damaged(const qvm_decoder *d)
{
    int64_t n = d->source.errors > d->n_corrupt ? d->source.errors : d->n_corrupt;
    return n > d->n_missing ? n : d->n_missing;
}

void
qvm_decoder_close(qvm_decoder *d)
{
    qvm_source_close(&d->source);
    qvm_converter_close(&d->converter);
    qvm_resizer_free(&d->resizer);
    av_frame_free(&d->frame);
    av_frame_free(&d->last);
}
