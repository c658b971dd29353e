/* SPDX-License-Identifier: MIT */
/* Finds each frame's time, and the packets that given frames need. */
#include <libavutil/avstring.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

/* Formats with an index and a time per packet, whose times stay the same after a seek. In other
 * formats FFmpeg derives times from everything that it has read. */
static const char exact_formats[] = "mov,matroska";

void
qvm_times_doubt(qvm_times *t, const char *why)
{
    if (!t->unsure)
        t->unsure = why;
}

/* Follows changes in the headers. Returns false if out of memory. */
static bool
add_headers(qvm_times *t, const AVCodecParameters *par, const AVPacket *packet, const qvm_packet *p,
            bool first)
{
    bool sets_change = false;
    t->headers = first ? p->headers : t->headers;
    const bool changes = p->changes || (p->headers && p->headers != t->headers);
    if (changes)
        qvm_times_doubt(t, "its format changes midway");
    if (p->palette)
        qvm_times_doubt(t, "it has a palette");
    if (p->parameters && !t->sets_change) {
        t->sets = t->sets ? t->sets : av_packet_alloc();
        if (!t->sets)
            return false;
        const bool kept = qvm_keep_parameters(par, packet, t->sets, &sets_change);
        sets_change = sets_change || !kept; /* too many to follow counts as changed */
    }
    t->parameters = t->parameters || p->parameters;
    t->sets_change = t->sets_change || sets_change;
    t->may_lack = t->may_lack || changes || sets_change || p->may_hide || packet->size < 1 ||
                  (qvm_has_headers(par->codec_id) && !p->shown) ||
                  (first && qvm_has_headers(par->codec_id) && !p->start);
    return true;
}

bool
qvm_times_add(qvm_times *t, const AVCodecParameters *par, const AVPacket *packet)
{
    const qvm_packet p = qvm_look_at_packet(par, packet);
    const bool first = !t->n_looked++;
    if (!add_headers(t, par, packet, &p, first))
        return false;
    if (packet->pts == AV_NOPTS_VALUE)
        qvm_times_doubt(t, "a packet has no time");
    if (packet->flags & AV_PKT_FLAG_DISCARD)
        qvm_times_doubt(t, "an edit list hides frames");
    if (t->unsure)
        return true;
    if (t->n == t->room) {
        const int64_t room = t->room ? 2 * t->room : 1024;
        qvm_time *at = realloc(t->at, (size_t)room * sizeof *at);
        if (!at)
            return false;
        t->at = at;
        t->room = room;
    }
    t->each_shows_one = (t->each_shows_one || !t->n) && p.shown == 1 && !p.may_hide;
    t->descending = t->descending || (t->n && packet->pts < t->at[t->n - 1].pts);
    t->top_layer = p.layer > t->top_layer ? p.layer : t->top_layer;
    t->at[t->n] = (qvm_time){ .pts = packet->pts,
                              .packet = (int32_t)t->n,
                              .layer = (int8_t)p.layer,
                              .start = p.start,
                              .spare = p.spare };
    t->n++;
    return true;
}

/* Codecs whose keyframes need nothing before them: not MPEG-1 and MPEG-2, where the container's
 * flag does not distinguish open and closed groups. */
static bool
are_keyframes_whole(enum AVCodecID codec)
{
    return codec != AV_CODEC_ID_MPEG1VIDEO && codec != AV_CODEC_ID_MPEG2VIDEO &&
           qvm_has_headers(codec);
}

static int
by_time(const void *a, const void *b)
{
    const qvm_time *x = a, *y = b;
    return (x->pts > y->pts) - (x->pts < y->pts);
}

/* Codecs whose packet headers show that a packet is one picture and that it is displayed. */
static bool
is_countable(enum AVCodecID codec)
{
    return codec != AV_CODEC_ID_MPEG1VIDEO && codec != AV_CODEC_ID_MPEG2VIDEO &&
           codec != AV_CODEC_ID_MPEG4;
}

void
qvm_times_sort(qvm_times *t, const AVFormatContext *format, const AVStream *stream)
{
    const AVCodecParameters *par = stream->codecpar;
    const bool exact = av_match_list(format->iformat->name, exact_formats, ',') > 0;
    if (!t->n)
        qvm_times_doubt(t, "it has no packets");
    if (t->descending && !par->video_delay)
        qvm_times_doubt(t, "its frames are not in the order of their times");
    t->each_shows_one =
        t->each_shows_one && !t->unsure && t->at[0].start && is_countable(par->codec_id);
    const int64_t began = t->n ? t->at[0].pts : 0;
    if (!t->unsure)
        qsort(t->at, (size_t)t->n, sizeof *t->at, by_time);
    for (int64_t i = 1; !t->unsure && i < t->n; i++)
        if (t->at[i - 1].pts == t->at[i].pts)
            qvm_times_doubt(t, "two packets have the same time");
    /* frames earlier than the first keyframe refer to missing frames and are not shown */
    t->may_lack =
        t->may_lack || (!t->unsure && t->at[0].pts != began) || qvm_may_hide_pictures(par);
    t->each_shows_one = t->each_shows_one && !t->unsure && !t->may_lack;
    t->in_groups = are_keyframes_whole(par->codec_id);
    t->lists_leading = par->codec_id == AV_CODEC_ID_H264;
    t->can_rewind = exact && !t->unsure;
    t->can_seek = exact && t->in_groups && !t->parameters;
    for (int64_t i = 0; i < t->n; i++)
        t->at[i].spare = t->at[i].spare && t->at[i].layer == t->top_layer;
}

void
qvm_times_free(qvm_times *t)
{
    free(t->at);
    free(t->starts);
    av_packet_free(&t->sets);
    *t = (qvm_times){ 0 };
}

int64_t
qvm_times_find(const qvm_times *t, int64_t pts)
{
    const qvm_time wanted = { .pts = pts };
    const qvm_time *at =
        t->unsure || !t->n ? NULL : bsearch(&wanted, t->at, (size_t)t->n, sizeof *t->at, by_time);
    return at ? at - t->at : -1;
}

/* ---- what given frames need ------------------------------------------------------------------ */

/* A keyframe and what follows it in the file, up to the next keyframe. */
struct group {
    int64_t first;       /* the keyframe's packet */
    int64_t last_needed; /* the last packet to decode; -1: none is needed */
    int64_t n_sampled;   /* its requested frames */
    /* needs the frames earlier than the keyframe, which refer to the group before */
    bool leading_needed;
};

static bool
is_leading(const qvm_times *t, const int32_t *order, const struct group *g, int64_t packet)
{
    const qvm_time *first = &t->at[order[g->first]];
    return first->start && t->at[order[packet]].pts < first->pts;
}

/* Returns the group that ends before packet `end`; with `all`, the next group may refer to any of
 * its packets. */
static struct group
find_group(const qvm_times *t, const int32_t *order, int64_t end, bool all)
{
    struct group g = { .first = end - 1, .last_needed = -1 };
    while (g.first > 0 && !(t->in_groups && t->at[order[g.first]].start))
        g.first--;
    for (int64_t p = g.first; p < end; p++)
        if (t->at[order[p]].needed) {
            g.last_needed = p;
            g.n_sampled += t->at[order[p]].sampled;
        }
    if (all)
        g.last_needed = end - 1;
    for (int64_t p = g.first; p <= g.last_needed; p++) {
        const qvm_time *time = &t->at[order[p]];
        const bool listed = t->lists_leading && !time->spare;
        g.leading_needed =
            g.leading_needed || ((time->needed || listed) && is_leading(t, order, &g, p));
    }
    return g;
}

/* Marks what the needed packets of a group refer to. */
static void
mark_group(qvm_times *t, const int32_t *order, const struct group *g)
{
    for (int64_t p = g->first; p <= g->last_needed; p++) {
        qvm_time *time = &t->at[order[p]];
        const bool left_out = !g->leading_needed && is_leading(t, order, g, p);
        time->needed = time->needed || (!time->spare && !left_out);
    }
}

/* Returns whether the last reference picture before packet `first` is left out. */
static bool
is_left_out_before(const qvm_times *t, const int32_t *order, int64_t first)
{
    for (int64_t p = first - 1; p >= 0; p--) {
        const qvm_time *time = &t->at[order[p]];
        if (!time->spare)
            return !time->needed;
        if (time->start)
            return false; /* a keyframe that no picture refers to: here each picture is
                           * independent */
    }
    return false;
}

/* Lists the keyframes before which references were left out. */
static bool
list_starts(qvm_times *t, const int32_t *order)
{
    int64_t before = 0;
    t->n_starts = 0;
    free(t->starts);
    t->starts = malloc((size_t)t->n * sizeof *t->starts);
    for (int64_t p = 0; t->starts && p < t->n; p++) {
        qvm_time *time = &t->at[order[p]];
        time->fresh =
            p > 0 && t->in_groups && time->start && time->needed && is_left_out_before(t, order, p);
        if (time->fresh)
            t->starts[t->n_starts++] = (qvm_start){ order[p], t->n_needed - before };
        before += time->needed;
    }
    return t->starts;
}

bool
qvm_times_need(qvm_times *t, const int64_t *frames, int64_t n, int64_t n_read)
{
    int32_t *order = malloc((size_t)t->n * sizeof *order);
    if (!order)
        return false;
    for (int64_t i = 0; i < t->n; i++) {
        order[t->at[i].packet] = (int32_t)i;
        t->at[i].needed = t->at[i].packet < n_read;
        t->at[i].sampled = false;
    }
    for (int64_t i = 0; i < n; i++) {
        qvm_time *time = &t->at[frames[i] < t->n ? frames[i] : t->n - 1];
        time->needed = time->sampled = true;
    }
    bool all = false;
    t->most_sampled = 0;
    for (int64_t end = t->n; end > 0;) {
        const struct group g = find_group(t, order, end, all);
        t->most_sampled = g.n_sampled > t->most_sampled ? g.n_sampled : t->most_sampled;
        mark_group(t, order, &g);
        all = g.leading_needed;
        end = g.first;
    }
    t->n_needed = 0;
    for (int64_t i = 0; i < t->n; i++)
        t->n_needed += t->at[i].needed;
    const bool done = list_starts(t, order);
    free(order);
    return done;
}

int64_t
qvm_times_next(const qvm_times *t, int64_t i)
{
    while (i < t->n && !t->at[i].needed)
        i++;
    return i;
}
