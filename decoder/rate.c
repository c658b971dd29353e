/* SPDX-License-Identifier: MIT */
/* Measures the rate of a clip as torchcodec does, by the times of its packets. A container's header
 * may differ: Matroska rounds times to milliseconds, an edit list hides frames, and for clips with
 * a variable rate many containers give only the highest rate. */
#include "decoder.h"

void
qvm_span_add(qvm_span *span, const AVPacket *packet)
{
    const int64_t at = packet->pts != AV_NOPTS_VALUE ? packet->pts : packet->dts;
    int64_t end;
    if (packet->flags & AV_PKT_FLAG_DISCARD)
        return;
    span->n++;
    if (at == AV_NOPTS_VALUE)
        return;
    if (__builtin_add_overflow(at, packet->duration, &end))
        end = INT64_MAX;
    span->begin = span->n_timed && span->begin < at ? span->begin : at;
    span->end = span->n_timed && span->end > end ? span->end : end;
    span->n_timed++;
}

/* Returns a rate from a header; 0 if there is none. */
static double
read_rate(AVRational rate)
{
    return rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0;
}

/* The order of operations matters: 120 frames of 1/30 s that begin at 1/15 s last 4 s or slightly
 * less, so 8 or 7 frames are sampled. */
void
qvm_find_rate(const qvm_span *span, const AVStream *stream, qv_outcome *o)
{
    const AVRational unit = stream->time_base;
    const double begin_s = (double)span->begin * unit.num / unit.den;
    const double end_s = (double)span->end * unit.num / unit.den;
    const double seconds = span->n_timed ? end_s - begin_s : 0.0;
    const double measured = seconds > 0.0 ? (double)span->n / seconds : 0.0;
    const double real = read_rate(stream->r_frame_rate);
    o->header_fps = read_rate(stream->avg_frame_rate);
    o->duration_s = seconds;
    o->source_fps = measured;
    if (measured >= 1 / QVM_MAX_RATE && measured <= QVM_MAX_RATE)
        return;
    o->source_fps = real > 0.0 ? real : o->header_fps > 0.0 ? o->header_fps : QVM_DEFAULT_FPS;
    o->duration_s = (double)o->source_frames / o->source_fps;
}
