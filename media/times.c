/* SPDX-License-Identifier: MIT */
/* Which frame of a file has which time, of its packets, so that a seek knows where it came to. */
#include <libavutil/avstring.h>
#include <stdlib.h>

#include "media.h"

/* With a time in each packet, and an index. Elsewhere FFmpeg makes times up, of what it has read. */
static const char exact_formats[] = "mov,matroska";

bool
qvm_times_add(qvm_times *t, const AVPacket *packet)
{
    if (packet->pts == AV_NOPTS_VALUE || packet->flags & AV_PKT_FLAG_DISCARD)
        t->lost = true;
    if (t->lost)
        return true;
    if (t->n == t->room) {
        const int64_t room = t->room ? 2 * t->room : 1024;
        qvm_time *at = realloc(t->at, (size_t)room * sizeof *at);
        if (!at)
            return false;
        t->at = at;
        t->room = room;
    }
    t->descending = t->descending || (t->n && packet->pts < t->at[t->n - 1].pts);
    t->at[t->n++] = (qvm_time){ packet->pts, (packet->flags & AV_PKT_FLAG_KEY) != 0 };
    return true;
}

/* Whose keyframes need nothing that came before them. */
static bool
are_keyframes_whole(enum AVCodecID codec)
{
    switch (codec) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
    case AV_CODEC_ID_MPEG4: return true;
    default: break;
    }
    const AVCodecDescriptor *descriptor = avcodec_descriptor_get(codec);
    return descriptor && descriptor->props & AV_CODEC_PROP_INTRA_ONLY;
}

static int
by_time(const void *a, const void *b)
{
    const qvm_time *x = a, *y = b;
    return (x->pts > y->pts) - (x->pts < y->pts);
}

void
qvm_times_finish(qvm_times *t, const AVFormatContext *format, const AVStream *stream,
                 int64_t n_frames)
{
    const AVCodecParameters *par = stream->codecpar;
    bool good = !t->lost && t->n && t->n == n_frames && are_keyframes_whole(par->codec_id) &&
                av_match_list(format->iformat->name, exact_formats, ',') > 0 &&
                !(t->descending && !par->video_delay); /* frames then come in another order */
    if (good)
        qsort(t->at, (size_t)t->n, sizeof *t->at, by_time);
    for (int64_t i = 1; good && i < t->n; i++)
        good = t->at[i - 1].pts != t->at[i].pts;
    t->n = good ? t->n : 0;
}

void
qvm_times_free(qvm_times *t)
{
    free(t->at);
    *t = (qvm_times){ 0 };
}

int64_t
qvm_times_find(const qvm_times *t, int64_t pts)
{
    const qvm_time wanted = { .pts = pts };
    const qvm_time *at =
        t->n ? bsearch(&wanted, t->at, (size_t)t->n, sizeof *t->at, by_time) : NULL;
    return at ? at - t->at : -1;
}

int64_t
qvm_times_key(const qvm_times *t, int64_t i)
{
    while (i > 0 && !t->at[i].key)
        i--;
    return i;
}
