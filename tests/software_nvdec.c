/* SPDX-License-Identifier: MIT */
/*
 * Stands in for a GPU's decoders (decoder/nvdec.c): FFmpeg decodes, and frames arrive as from a
 * GPU. With device.c and decoder.c it is a qwenvit-decoder that needs no GPU. QV_GPU_FAULT sets a
 * fault, as "FAULT" or "FAULT N": from this process's Nth packet on.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../decoder/nvdec.h"
#include "locked.h"
#include "wrap.h"

enum { MOST_SENT = 64 };

struct qvm_nvdec {
    atomic_int n_packets;
};

struct qvm_nvstream {
    qvm_nvdec *gpu;
    qvm_nvdec_sink sink;
    qvm_gpu_decoder_stream about;
    AVCodecContext *codec;
    AVPacket *packet;
    AVFrame *frame;
    struct sent {
        int64_t pts;
        AVFrame *frame; /* NULL: it has not come yet */
        int64_t order;
        int32_t group;
    } sent[MOST_SENT]; /* [n_sent]: frames come in the order of their packets, as from a GPU */
    int n_sent;
    int64_t n_shown;
    int n_late;    /* wanted frames since damage that is reported late */
    int32_t whole; /* groups before this one are whole */
    const char *why;
};

static qvm_nvdec gpu;

/* Returns whether this fault is set and has begun. */
static bool
is(const char *fault)
{
    const char *value = getenv("QV_GPU_FAULT");
    const size_t n = strlen(fault);
    return value && !strncmp(value, fault, n) && (!value[n] || value[n] == ' ') &&
           atomic_load(&gpu.n_packets) >= atoi(value + n);
}

WRAPPED(const char *, qvm_sandbox_files, (void))
{
    errno = ENOTSUP;
    return is("no lock") ? "Landlock" : __real_qvm_sandbox_files();
}

WRAPPED(bool, qvm_times_need, (qvm_times * times, const int64_t *frames, int64_t n, int64_t n_read))
{
    const bool done = __real_qvm_times_need(times, frames, n, n_read);
    if (is("long"))
        times->most_sampled = 1 << 20;
    return done;
}

WRAPPED(bool, qvm_gpu_decoder_open,
        (qvm_gpu_decoder * d, const AVStream *stream, const AVCodecContext *codec,
         const AVFrame *first))
{
    if (is("copied")) { /* as if there were too many frames for a slot each */
        d->is_direct = false;
        d->frame_bytes = d->slot_bytes;
    }
    return __real_qvm_gpu_decoder_open(d, stream, codec, first);
}

const char *
qvm_no_nvdec(void)
{
    return "";
}

const char *
qvm_nvdec_load(qvm_nvdec **out)
{
    *out = &gpu;
    locked = (struct locked){ .victim = getppid() };
    qvm_quiet();
    return is("no driver") ? "NVIDIA's driver (libcuda.so.1) was not found" : NULL;
}

static sem_t asked, told;
static char through[2][40]; /* the rows that were not shut, for each of two threads */
static int n_tried[2];

/* A thread that the driver made before the process was locked down, in which no signal is let
 * through. */
static void *
wait_to_escape(void *none)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (sem_wait(&asked))
        ;
    n_tried[1] = locked_try(LOCKED_GPU, through[1], sizeof through[1]);
    sem_post(&told);
    return none;
}

/* Tries all rows of decoder/lock.inc, in two threads, and returns what came of it. */
static const char *
try_rows(void)
{
    static char text[128];
    n_tried[0] = locked_try(LOCKED_GPU, through[0], sizeof through[0]);
    sem_post(&asked);
    while (sem_wait(&told))
        ;
    snprintf(text, sizeof text, "%d and %d rows tried, through:%s%s", n_tried[0], n_tried[1],
             through[0], through[1]);
    return text;
}

/* Tries the calls that Landlock alone refuses, before the filter is installed. */
static const char *
try_files(void)
{
    static char text[128], files[64];
    const int n = locked_try(LOCKED_FILES_ONLY, files, sizeof files);
    snprintf(text, sizeof text, "%d rows tried, through:%s", n, files);
    return text;
}

const char *
qvm_nvdec_open(qvm_nvdec *g, int number)
{
    pthread_t thread;
    sem_init(&asked, 0, 0);
    sem_init(&told, 0, 0);
    pthread_create(&thread, NULL, wait_to_escape, NULL);
    qvm_warm_up(); /* Nothing is opened later. */
    if (is("dies at its start"))
        _exit(1);
    if (is("files"))
        return try_files();
    return number > 1 ? "invalid device ordinal" : NULL;
}

bool
qvm_nvdec_try(qvm_nvdec *g)
{
    return !is("no decoder");
}

static bool
open_codec(qvm_nvstream *s)
{
    const AVCodec *codec = avcodec_find_decoder((enum AVCodecID)s->about.codec_id);
    s->codec = codec ? avcodec_alloc_context3(codec) : NULL;
    if (!s->codec)
        return false;
    s->codec->thread_count = 1;
    s->codec->apply_cropping = 0; /* The coded pictures are asked for. */
    return !avcodec_open2(s->codec, codec, NULL);
}

qvm_nvstream *
qvm_nvstream_open(qvm_nvdec *g, const qvm_gpu_decoder_stream *about, const qvm_nvdec_sink *sink,
                  const char **why)
{
    qvm_nvstream *s = calloc(1, sizeof *s);
    *why = about->width < 48 ? "its frames are smaller than the GPU decodes" : NULL;
    if (is("full"))
        *why = "the GPU cannot open more streams";
    if (!s || *why) {
        free(s);
        return NULL;
    }
    *s = (qvm_nvstream){ .gpu = g, .sink = *sink, .about = *about };
    s->packet = av_packet_alloc();
    s->frame = av_frame_alloc();
    if (s->packet && s->frame && open_codec(s))
        return s;
    qvm_nvstream_close(s);
    *why = "the GPU cannot open more streams";
    return NULL;
}

/* Lays a plane out, of `step` interleaved ones, in rows of `width` samples. */
static void
put_plane(const AVFrame *f, int plane, bool deep, uint8_t *to, int width, int step)
{
    const int across = plane ? f->width / 2 : f->width, down = plane ? f->height / 2 : f->height;
    for (int y = 0; y < down; y++)
        for (int x = 0; x < across; x++) {
            const uint8_t *row = f->data[plane] + (ptrdiff_t)y * f->linesize[plane];
            const int at = y * width + x * step;
            if (deep)
                ((uint16_t *)(void *)to)[at] =
                    (uint16_t)(((const uint16_t *)(const void *)row)[x] << 6);
            else
                to[at] = row[x];
        }
}

/* Lays planes out as NV12 or P010, in rows of `width` samples. */
static void
put_planes(const AVFrame *f, bool deep, uint8_t *to, int width, int height)
{
    put_plane(f, 0, deep, to, width, 1);
    to += (size_t)width * (size_t)height << deep;
    put_plane(f, 1, deep, to, width, 2);
    put_plane(f, 2, deep, to + (deep ? 2 : 1), width, 2);
}

/* Makes RGB of the visible part, of the size that was asked for, as scale.cu does. */
static void
put_scaled(const qvm_nvstream *s, const AVFrame *f, int left, int top, uint8_t *to)
{
    const qvm_scaled *z = &s->about.scaled;
    uint8_t *rgb = malloc(3 * (size_t)z->width * (size_t)z->height), *at = rgb;
    qvm_resizer *resizer = NULL;
    qvm_colours colours;
    qvm_find_colours(s->about.space, s->about.full_range, &colours);
    for (int y = top; y < top + z->height; y++)
        for (int x = left; x < left + z->width; x++, at += 3) {
            int pixel[3];
            qvm_to_rgb(&colours, f->data[0][y * f->linesize[0] + x],
                       f->data[1][y / 2 * f->linesize[1] + x / 2],
                       f->data[2][y / 2 * f->linesize[2] + x / 2], pixel);
            for (int c = 0; c < 3; c++)
                at[c] = (uint8_t)pixel[c];
        }
    if (!qvm_resizer_create(z->height, z->width, z->to_height, z->to_width, QVM_PORTABLE, &resizer,
                            NULL))
        qvm_resizer_run(resizer, rgb, 3 * (int64_t)z->width, to);
    qvm_resizer_free(&resizer);
    free(rgb);
}

/* Returns whether a frame is reported at all; the faults change the report. */
static bool
change(qvm_gpu_decoder_event *e, uint8_t *to)
{
    if (is("time"))
        e->pts += 7;
    if (is("slot"))
        e->slot = 77;
    if (is("slot again"))
        e->slot = 3;
    if (is("size"))
        e->width += 16;
    if (is("crop"))
        e->right = e->width;
    if (is("group"))
        e->group += 1000;
    if (is("kind"))
        e->kind = 99;
    if (is(e->is_scaled ? "rgb" : "pixel") && to)
        to[5] ^= 1;
    return !is("lost");
}

/* Damages frames, and reports the damage three wanted frames later. */
static void
damage_late(qvm_nvstream *s, uint8_t *to)
{
    enum { LATE = 3 };
    if (to && ++s->n_late > LATE)
        s->why = "it is damaged";
    if (to)
        to[5] ^= 1;
}

static void
put_frame(qvm_nvstream *s, const struct sent *sent)
{
    const AVFrame *f = sent->frame;
    const bool deep = s->about.format == AV_PIX_FMT_YUV420P10;
    const int width = (f->width + 15) & ~15,
              height = (f->height + 15) & ~15; /* as NVIDIA's parser */
    qvm_gpu_decoder_event e = { .kind = QVM_GPU_FRAME,
                                .slot = -1,
                                .pts = f->pts,
                                .order = sent->order,
                                .group = sent->group,
                                .whole = s->whole,
                                .width = width,
                                .height = height,
                                .right = width - f->width + (int)f->crop_right,
                                .bottom = height - f->height + (int)f->crop_bottom };
    const int left = width - e.right - s->about.scaled.width;
    const int top = height - e.bottom - s->about.scaled.height;
    e.is_scaled = s->about.scaled.width && !is("planes") && !is("pixel");
    uint8_t *to = s->sink.find(s->sink.user, f->pts,
                               e.is_scaled ? qvm_scaled_bytes(&s->about.scaled)
                                           : (int64_t)width * height * 3 / 2 << deep,
                               &e.slot);
    if (f->decode_error_flags || f->flags & AV_FRAME_FLAG_CORRUPT)
        s->why = "it is damaged";
    if (to && e.is_scaled)
        put_scaled(s, f, left, top, to);
    else if (to)
        put_planes(f, deep, to, width, height);
    if (is("late"))
        damage_late(s, to);
    else
        s->whole = e.whole = sent->group; /* the frames before it were put */
    if (!s->why && change(&e, to))
        s->sink.frame(s->sink.user, &e);
}

static void
forget(qvm_nvstream *s)
{
    av_frame_free(&s->sent[0].frame);
    memmove(s->sent, s->sent + 1, (size_t)--s->n_sent * sizeof *s->sent);
}

/* Takes what FFmpeg shows next, and gives what is complete in the order of the packets. */
static void
take_frame(qvm_nvstream *s)
{
    int i = 0;
    while (i < s->n_sent && s->sent[i].pts != s->frame->pts)
        i++;
    if (i == s->n_sent)
        return;
    s->sent[i].frame = av_frame_clone(s->frame);
    s->sent[i].order = s->n_shown++;
    for (; s->n_sent && s->sent[0].frame; forget(s))
        put_frame(s, &s->sent[0]);
}

static void
go_wrong(void)
{
    if (is("crash"))
        raise(SIGSEGV);
    if (is("exit"))
        _exit(0);
    while (is("silent"))
        sleep(1);
}

const char *
qvm_nvstream_give(qvm_nvstream *s, const qvm_gpu_decoder_request *r, const uint8_t *data)
{
    int code = data ? av_new_packet(s->packet, r->bytes) : 0;
    atomic_fetch_add(&gpu.n_packets, 1);
    go_wrong();
    if (is("damage"))
        s->why = "it is damaged";
    if (is("rows"))
        s->why = try_rows();
    if (code < 0)
        return "the GPU process is out of memory";
    if (data) {
        memcpy(s->packet->data, data, (size_t)r->bytes);
        s->packet->pts = r->pts;
        if (s->n_sent == MOST_SENT)
            forget(s);
        s->sent[s->n_sent++] = (struct sent){ .pts = r->pts, .group = r->group };
    }
    code = avcodec_send_packet(s->codec, data ? s->packet : NULL);
    av_packet_unref(s->packet);
    if (code < 0)
        s->why = "it is damaged";
    while (!s->why && avcodec_receive_frame(s->codec, s->frame) >= 0) {
        take_frame(s);
        av_frame_unref(s->frame);
    }
    while (!data && s->n_sent)
        forget(s);
    if (!data && s->n_late)
        s->why = "it is damaged";
    return s->why;
}

const char *
qvm_nvstream_begin_anew(qvm_nvstream *s)
{
    avcodec_flush_buffers(s->codec);
    if (s->codec->codec_id == AV_CODEC_ID_H264)
        s->codec->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
    return s->why;
}

void
qvm_nvstream_close(qvm_nvstream *s)
{
    while (s->n_sent)
        forget(s);
    av_packet_free(&s->packet);
    av_frame_free(&s->frame);
    avcodec_free_context(&s->codec);
    free(s);
}
