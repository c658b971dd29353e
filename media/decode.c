/* SPDX-License-Identifier: MIT */
/*
 * A clip: what to read is decided on opening, then one thread decodes, converts and resizes the
 * sampled frames into a bounded ring that the caller empties.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "media.h"

#define RING_FRAMES 16
#define RING_BYTES (64 << 20)
#define CAP_TOKENS 768 /* qwen-vl-utils' VIDEO_MAX_TOKEN_NUM */
#define DEFAULT_FPS 24.0

struct qv_clip {
    char *path;
    int threads;
    qv_clip_info info;
    int64_t *indices; /* [info.n_frames], ascending, may repeat */

    /* the worker's, once it runs */
    qvm_source source;
    qvm_converter converter;
    qvm_resizer *resizer;
    int resizer_width, resizer_height; /* of the frames that it takes */
    AVFrame *frame;                    /* being received */
    AVFrame *last;                     /* the last one that came, number n_decoded - 1 */
    int64_t n_decoded;
    int64_t n_corrupt; /* concealed by the decoder */
    bool single;       /* damage was seen: decoding with one thread */

    uint8_t *ring; /* [n_slots, height, width, 3] */
    size_t frame_bytes;
    int n_slots;
    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double began_s, waited_s; /* of the worker, for slots */
    /* under the lock */
    int64_t n_put, n_taken;
    double busy_s;
    bool ended;
    qv_status status; /* why it ended early */
    qv_error error;

    atomic_bool stop;
    atomic_llong damaged;
};

/* ---- frames ---------------------------------------------------------------------------------- */

static void
note_damage(qv_clip *clip, int64_t repeated)
{
    /* different views of the same trouble */
    int64_t n = clip->source.errors > clip->n_corrupt ? clip->source.errors : clip->n_corrupt;
    n = n > repeated ? n : repeated;
    atomic_store(&clip->damaged, n);
}

/* What threads make of damaged data depends on their timing. Frames that came before the first
 * damage do not: decoding starts over with one thread, and those are skipped. */
static qv_status
restart_single(qv_clip *clip, qv_error *err)
{
    qvm_source_close(&clip->source);
    clip->single = true;
    clip->n_decoded = 0;
    clip->n_corrupt = 0;
    return qvm_source_open(&clip->source, clip->path, 1, &clip->stop, err);
}

/* Decodes one more frame into clip->last; *got is false at the end of the file. */
static qv_status
next_frame(qv_clip *clip, bool *got, qv_error *err)
{
    for (;;) {
        qv_status status = qvm_source_next(&clip->source, clip->frame, got, err);
        if (status)
            return status;
        const bool corrupt =
            *got && (clip->frame->decode_error_flags || clip->frame->flags & AV_FRAME_FLAG_CORRUPT);
        if (!clip->single && (corrupt || clip->source.errors) && !atomic_load(&clip->stop)) {
            av_frame_unref(clip->frame);
            const int64_t resume = clip->n_decoded;
            status = restart_single(clip, err);
            if (status)
                return status;
            while (clip->n_decoded < resume) {
                status = next_frame(clip, got, err);
                if (status || !*got)
                    return status;
            }
            continue;
        }
        clip->n_corrupt += corrupt;
        note_damage(clip, 0);
        if (*got) {
            av_frame_unref(clip->last);
            av_frame_move_ref(clip->last, clip->frame);
            clip->n_decoded++;
        }
        return QV_OK;
    }
}

/* The last decoded frame, upright and in RGB. */
static qv_status
convert_last(qv_clip *clip, qvm_image *image, qv_error *err)
{
    const qvm_turn turn = qvm_find_turn(clip->last, clip->source.stream);
    return qvm_convert(&clip->converter, clip->last, turn, clip->path, image, err);
}

/* A clip may change its frame size on the way; the output size stays. */
static qv_status
resize_into(qv_clip *clip, const qvm_image *image, uint8_t *dst, qv_error *err)
{
    if (!clip->resizer || clip->resizer_width != image->width ||
        clip->resizer_height != image->height) {
        qvm_resizer_free(&clip->resizer);
        qv_status status = qvm_resizer_create(image->height, image->width, clip->info.height,
                                              clip->info.width, 1, QVM_BEST, &clip->resizer, err);
        if (status)
            return status;
        clip->resizer_width = image->width;
        clip->resizer_height = image->height;
    }
    qvm_resizer_run(clip->resizer, 0, image->rgb, image->stride, dst, 0, clip->info.height);
    return QV_OK;
}

/* ---- the worker ------------------------------------------------------------------------------ */

static double
now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A free slot of the ring; NULL when the clip is being closed. */
static uint8_t *
wait_for_slot(qv_clip *clip)
{
    const double began_s = now_s();
    pthread_mutex_lock(&clip->lock);
    while (clip->n_put - clip->n_taken == clip->n_slots && !atomic_load(&clip->stop))
        pthread_cond_wait(&clip->changed, &clip->lock);
    const int slot = (int)(clip->n_put % clip->n_slots);
    pthread_mutex_unlock(&clip->lock);
    clip->waited_s += now_s() - began_s;
    return atomic_load(&clip->stop) ? NULL : clip->ring + (size_t)slot * clip->frame_bytes;
}

static void
publish_frame(qv_clip *clip)
{
    const double busy_s = now_s() - clip->began_s - clip->waited_s;
    pthread_mutex_lock(&clip->lock);
    clip->busy_s = busy_s;
    clip->n_put++;
    pthread_cond_broadcast(&clip->changed);
    pthread_mutex_unlock(&clip->lock);
}

/* Sampled frame number `wanted`, or the last one there is, as `image`. */
static qv_status
reach_frame(qv_clip *clip, int64_t wanted, bool *at_end, qvm_image *image, qv_error *err)
{
    const int64_t before = image->rgb ? clip->n_decoded : -1;
    while (clip->n_decoded <= wanted && !*at_end && !atomic_load(&clip->stop)) {
        bool got;
        qv_status status = next_frame(clip, &got, err);
        if (status)
            return status;
        *at_end = !got;
    }
    if (clip->n_decoded == before || atomic_load(&clip->stop))
        return QV_OK;
    return convert_last(clip, image, err);
}

static qv_status
produce(qv_clip *clip, qv_error *err)
{
    qvm_image image = { 0 };
    bool at_end = false;
    int64_t repeated = 0;
    for (int64_t i = 0; i < clip->info.n_frames; i++) {
        qv_status status = reach_frame(clip, clip->indices[i], &at_end, &image, err);
        if (status)
            return status;
        if (clip->indices[i] >= clip->n_decoded)
            note_damage(clip, ++repeated);
        uint8_t *slot = wait_for_slot(clip);
        if (!slot)
            return QV_OK;
        status = resize_into(clip, &image, slot, err);
        if (status)
            return status;
        publish_frame(clip);
    }
    return QV_OK;
}

static void *
work(void *user)
{
    qv_clip *clip = user;
    qv_error error = { QV_OK, "" };
    clip->began_s = now_s();
    const qv_status status = produce(clip, &error);
    /* what decoding holds is not needed while the caller empties the ring */
    qvm_source_close(&clip->source);
    qvm_converter_close(&clip->converter);
    pthread_mutex_lock(&clip->lock);
    clip->ended = true;
    clip->status = status;
    clip->error = error;
    pthread_cond_broadcast(&clip->changed);
    pthread_mutex_unlock(&clip->lock);
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static qv_status
check_options(const char *path, const qv_clip_options *o, qv_error *err)
{
    if (o->fps != 0.0 && o->num_frames != 0)
        return qv_fail(err, QV_EINVAL, "%s: fps %g and num_frames %lld exclude each other", path,
                       o->fps, (long long)o->num_frames);
    if (!(o->fps >= 0.0 && o->fps <= 1e6))
        return qv_fail(err, QV_EINVAL, "%s: fps %g; above 0, or 0 for the model's", path, o->fps);
    if (o->num_frames < 0 || o->num_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: num_frames %lld; 1 to %d", path,
                       (long long)o->num_frames, QVM_MAX_SAMPLED);
    if (o->min_frames < 0 || o->max_frames < 0 || o->max_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: min_frames %lld, max_frames %lld; 1 to %d", path,
                       (long long)o->min_frames, (long long)o->max_frames, QVM_MAX_SAMPLED);
    if (o->min_pixels < 0 || o->max_pixels < 0)
        return qv_fail(err, QV_EINVAL, "%s: min_pixels %lld, max_pixels %lld; at least 1", path,
                       (long long)o->min_pixels, (long long)o->max_pixels);
    if (o->threads < 0)
        return qv_fail(err, QV_EINVAL, "%s: %d threads; at least 1, or 0 for FFmpeg's choice", path,
                       o->threads);
    for (size_t i = 0; i < sizeof o->reserved / sizeof o->reserved[0]; i++)
        if (o->reserved[i])
            return qv_fail(err, QV_EINVAL, "%s: clip options: reserved field %zu is not zero", path,
                           i);
    return QV_OK;
}

static bool
is_animation(const char *format)
{
    return !strcmp(format, "gif") || !strcmp(format, "apng");
}

/* Reads what the file says about itself and its first frame. */
static qv_status
look_into(qv_clip *clip, qv_error *err)
{
    qv_clip_info *info = &clip->info;
    qv_status status = qvm_source_open(&clip->source, clip->path, clip->threads, &clip->stop, err);
    if (status)
        return status;
    const char *format = clip->source.format->iformat->name;
    snprintf(info->format, sizeof info->format, "%s", format);
    snprintf(info->codec, sizeof info->codec, "%s",
             avcodec_get_name(clip->source.stream->codecpar->codec_id));
    info->picture = qvm_source_is_picture(&clip->source);

    bool got;
    status = next_frame(clip, &got, err);
    if (status)
        return status;
    if (!got)
        return qv_fail(err, QV_EFORMAT,
                       "%s: no frame of the '%s' video can be decoded (%lld "
                       "failures; frames above 16384x16384 pixels are refused)",
                       clip->path, info->codec, (long long)clip->source.errors);

    info->source_frames = 1;
    if (!info->picture) {
        status =
            qvm_count_frames(clip->path, clip->threads, &clip->stop, &info->source_frames, err);
        if (status)
            return status;
        if (info->source_frames < 1)
            info->source_frames = 1;
        info->picture = is_animation(format) && info->source_frames == 1;
    }
    if (!info->picture) {
        const AVRational rate = clip->source.stream->avg_frame_rate;
        info->source_fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : DEFAULT_FPS;
        info->duration_s = (double)info->source_frames / info->source_fps;
    }
    const enum AVCodecID codec = clip->source.codec->codec_id;
    if (info->picture)
        clip->converter.colour = codec == AV_CODEC_ID_MJPEG  ? QVM_JPEG
                                 : codec == AV_CODEC_ID_WEBP ? QVM_WEBP
                                                             : QVM_PICTURE;

    const qvm_turn turn = qvm_find_turn(clip->last, clip->source.stream);
    info->rotation = qvm_turn_degrees(turn);
    info->source_width = turn.transpose ? clip->last->height : clip->last->width;
    info->source_height = turn.transpose ? clip->last->width : clip->last->height;
    return QV_OK;
}

static qv_status
sample(qv_clip *clip, const qv_preprocess *p, const qv_clip_options *o, qv_error *err)
{
    qv_clip_info *info = &clip->info;
    const int64_t least = o->min_frames ? o->min_frames : p->min_frames;
    const int64_t most = o->max_frames ? o->max_frames : p->max_frames;
    const double fps = o->fps > 0.0 ? o->fps : p->fps;
    info->n_frames = 1;
    if (!info->picture)
        info->n_frames = qv_sample_frames(info->source_frames, info->source_fps, fps, o->num_frames,
                                          least, most, NULL);
    if (info->n_frames < 1 || info->n_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: %lld frames would be sampled; 1 to %d", clip->path,
                       (long long)info->n_frames, QVM_MAX_SAMPLED);
    clip->indices = calloc((size_t)info->n_frames, sizeof *clip->indices);
    if (!clip->indices)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %lld frame numbers", clip->path,
                       (long long)info->n_frames);
    if (!info->picture)
        qv_sample_frames(info->source_frames, info->source_fps, fps, o->num_frames, least, most,
                         clip->indices);
    return QV_OK;
}

/* transformers' resize(cap_pixels_per_frame=True). */
static int64_t
capped_pixels(const qv_preprocess *p, int64_t n_frames)
{
    const int64_t factor = (int64_t)p->patch_size * p->merge_size;
    int64_t pixels = CAP_TOKENS * factor * factor;
    if (pixels > p->max_pixels / n_frames)
        pixels = p->max_pixels / n_frames;
    const int64_t least = (int64_t)((double)p->min_pixels * 1.05);
    return (pixels < least ? least : pixels) * n_frames;
}

static qv_status
choose_size(qv_clip *clip, const qv_preprocess *preprocess, const qv_clip_options *o, qv_error *err)
{
    qv_clip_info *info = &clip->info;
    qv_preprocess p = *preprocess;
    if (o->min_pixels)
        p.min_pixels = o->min_pixels;
    if (o->max_pixels)
        p.max_pixels = o->max_pixels;
    if (o->cap_pixels && !info->picture)
        p.max_pixels = capped_pixels(&p, info->n_frames);
    int64_t height, width;
    qv_error inner;
    qv_status status = qv_smart_resize(info->picture ? 0 : info->n_frames, info->source_height,
                                       info->source_width, &p, &height, &width, &inner);
    if (status) /* options are right: then it is the file's shape */
        return qv_fail(err, p.min_pixels > 0 && p.max_pixels >= p.min_pixels ? QV_EFORMAT : status,
                       "%s: %s", clip->path, inner.text);
    if (height > QVM_MAX_SIDE || width > QVM_MAX_SIDE || height * width > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EINVAL,
                       "%s: would be resized to %lldx%lld; at most %d pixels, see "
                       "max_pixels",
                       clip->path, (long long)width, (long long)height, QVM_MAX_PIXELS);
    info->height = (int)height;
    info->width = (int)width;
    info->grid_thw[0] = (info->n_frames + p.temporal_patch_size - 1) / p.temporal_patch_size;
    info->grid_thw[1] = height / p.patch_size;
    info->grid_thw[2] = width / p.patch_size;
    return QV_OK;
}

static qv_status
start_worker(qv_clip *clip, qv_error *err)
{
    clip->frame_bytes = 3 * (size_t)clip->info.width * (size_t)clip->info.height;
    int64_t slots = (int64_t)(RING_BYTES / clip->frame_bytes);
    slots = slots < 2 ? 2 : slots > RING_FRAMES ? RING_FRAMES : slots;
    clip->n_slots = (int)(slots > clip->info.n_frames ? clip->info.n_frames : slots);
    clip->ring = malloc((size_t)clip->n_slots * clip->frame_bytes);
    if (!clip->ring)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for %d frames of %dx%d", clip->path,
                       clip->n_slots, clip->info.width, clip->info.height);
    if (pthread_mutex_init(&clip->lock, NULL))
        return qv_fail(err, QV_ENOMEM, "%s: no lock can be made", clip->path);
    if (pthread_cond_init(&clip->changed, NULL)) {
        pthread_mutex_destroy(&clip->lock);
        return qv_fail(err, QV_ENOMEM, "%s: no condition variable can be made", clip->path);
    }
    clip->has_lock = true;
    if (pthread_create(&clip->thread, NULL, work, clip))
        return qv_fail(err, QV_ENOMEM, "%s: no thread can be started", clip->path);
    clip->has_thread = true;
    return QV_OK;
}

qv_status
qv_clip_open(const char *path, const qv_preprocess *image, const qv_preprocess *video,
             const qv_clip_options *options, qv_clip **out, qv_error *err)
{
    static const qv_clip_options defaults;
    if (!path || !out)
        return qv_fail(err, QV_EINVAL, "open clip: %s is NULL", path ? "out" : "path");
    const qv_clip_options *o = options ? options : &defaults;
    qv_status status = check_options(path, o, err);
    if (status)
        return status;

    qv_clip *clip = calloc(1, sizeof *clip);
    if (!clip)
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a clip", path);
    clip->source.fd = -1;
    clip->threads = o->threads;
    clip->single = o->threads == 1;
    atomic_init(&clip->stop, false);
    atomic_init(&clip->damaged, 0);
    clip->path = strdup(path);
    clip->frame = av_frame_alloc();
    clip->last = av_frame_alloc();
    if (!clip->path || !clip->frame || !clip->last) {
        status = qv_fail(err, QV_ENOMEM, "%s: no memory for a clip", path);
        goto fail;
    }
    status = look_into(clip, err);
    if (status)
        goto fail;

    const bool picture = clip->info.picture;
    const qv_preprocess standard = qv_preprocess_default(picture);
    const qv_preprocess *p = picture ? image : video;
    if (!p)
        p = &standard;
    status = sample(clip, p, o, err);
    if (!status)
        status = choose_size(clip, p, o, err);
    if (!status)
        status = start_worker(clip, err);
    if (status)
        goto fail;
    *out = clip;
    return QV_OK;

fail:
    qv_clip_close(&clip);
    return status;
}

void
qv_clip_close(qv_clip **handle)
{
    qv_clip *clip = handle ? *handle : NULL;
    if (!clip)
        return;
    if (clip->has_thread) {
        pthread_mutex_lock(&clip->lock); /* so that the worker cannot miss it and sleep */
        atomic_store(&clip->stop, true);
        pthread_cond_broadcast(&clip->changed);
        pthread_mutex_unlock(&clip->lock);
        pthread_join(clip->thread, NULL);
    }
    if (clip->has_lock) {
        pthread_cond_destroy(&clip->changed);
        pthread_mutex_destroy(&clip->lock);
    }
    qvm_source_close(&clip->source);
    qvm_converter_close(&clip->converter);
    qvm_resizer_free(&clip->resizer);
    av_frame_free(&clip->frame);
    av_frame_free(&clip->last);
    free(clip->ring);
    free(clip->indices);
    free(clip->path);
    free(clip);
    *handle = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

void
qv_clip_get_info(const qv_clip *clip, qv_clip_info *out)
{
    *out = clip->info;
}

double
qv_clip_busy_seconds(qv_clip *clip)
{
    pthread_mutex_lock(&clip->lock);
    const double busy_s = clip->busy_s;
    pthread_mutex_unlock(&clip->lock);
    return busy_s;
}

int64_t
qv_clip_damaged(const qv_clip *clip)
{
    return (int64_t)atomic_load(&clip->damaged);
}

/* The next full slot; NULL at the end. */
static const uint8_t *
wait_for_frame(qv_clip *clip)
{
    pthread_mutex_lock(&clip->lock);
    while (clip->n_put == clip->n_taken && !clip->ended)
        pthread_cond_wait(&clip->changed, &clip->lock);
    const bool got = clip->n_put > clip->n_taken;
    const int slot = (int)(clip->n_taken % clip->n_slots);
    pthread_mutex_unlock(&clip->lock);
    return got ? clip->ring + (size_t)slot * clip->frame_bytes : NULL;
}

qv_status
qv_clip_read(qv_clip *clip, uint8_t *dst, int64_t n_max, int64_t *n, double *timestamps_s,
             qv_error *err)
{
    if (!clip || !dst || !n || n_max < 1)
        return qv_fail(err, QV_EINVAL, "read clip: %s",
                       !clip  ? "clip is NULL"
                       : !dst ? "dst is NULL"
                       : !n   ? "n is NULL"
                              : "n_max is below 1");
    int64_t count = 0;
    while (count < n_max) {
        const uint8_t *frame = wait_for_frame(clip);
        if (!frame)
            break;
        memcpy(dst + (size_t)count * clip->frame_bytes, frame, clip->frame_bytes);
        if (timestamps_s)
            timestamps_s[count] =
                clip->info.picture ? 0.0
                                   : (double)clip->indices[clip->n_taken] / clip->info.source_fps;
        count++;
        pthread_mutex_lock(&clip->lock);
        clip->n_taken++;
        pthread_cond_broadcast(&clip->changed);
        pthread_mutex_unlock(&clip->lock);
    }
    if (!count && clip->status) /* the worker has ended: nobody writes it any more */
        return qv_fail(err, clip->status, "%s", clip->error.text);
    *n = count;
    return QV_OK;
}
