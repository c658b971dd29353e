/* SPDX-License-Identifier: MIT */
/* Keeps the parameter sets of skipped packets (H.264, HEVC). */
#include <string.h>

#include "nal.h"

#define MAX_KEPT 65536 /* bytes of parameter sets */

/* A parameter set in a packet. */
struct set {
    const uint8_t *at, *end; /* its NAL unit, without trailing zeros */
    int type;
    unsigned number;
    bool is_head; /* a head: other sets depend on it, and decoders drop them when it is replaced */
};

/* Reads the number of an HEVC SPS (7.3.2.2), which follows profiles and levels (7.3.3). */
static unsigned
take_hevc_sps_number(qvm_bits *b)
{
    qvm_take_bits(b, 4);
    const int layers = (int)qvm_take_bits(b, 3);
    b->at += 1 + 88 + 8;
    const unsigned present = qvm_take_bits(b, layers ? 16 : 0);
    for (int i = 0; i < layers; i++)
        b->at += (present >> (15 - 2 * i) & 1 ? 88 : 0) + (present >> (14 - 2 * i) & 1 ? 8 : 0);
    return qvm_take_golomb(b);
}

static bool
look_at_set(bool hevc, const uint8_t *unit, const uint8_t *end, struct set *set)
{
    const int type = hevc ? unit[0] >> 1 & 63 : unit[0] & 31;
    if (!(hevc ? type >= 32 && type <= 34 : qvm_is_h264_parameters(type)))
        return false;
    while (end - unit > 1 && !end[-1])
        end--;
    qvm_bits b = qvm_open_bits(unit + (hevc ? 2 : 1) < end ? unit + (hevc ? 2 : 1) : end, end);
    *set = (struct set){ unit, end, type, 0, hevc ? type < 34 : type == 7 || type == 15 };
    if (hevc && type == 32)
        set->number = qvm_take_bits(&b, 4);
    else if (hevc && type == 33)
        set->number = take_hevc_sps_number(&b);
    else {
        b.at = set->is_head ? 24 : 0;
        set->number = qvm_take_golomb(&b);
    }
    return true;
}

/* Finds the last kept set of the same type and number. */
static bool
find_set(qvm_units kept, bool hevc, const struct set *like, struct set *found)
{
    const uint8_t *unit, *end;
    struct set set;
    bool is_there = false;
    while (qvm_next_unit(&kept, &unit, &end))
        if (look_at_set(hevc, unit, end, &set) && set.type == like->type &&
            set.number == like->number) {
            *found = set;
            is_there = true;
        }
    return is_there;
}

static bool
is_same(const struct set *a, const struct set *b)
{
    return a->end - a->at == b->end - b->at && !memcmp(a->at, b->at, (size_t)(a->end - a->at));
}

/* Appends a set to the kept ones, with a length or a start code. */
static bool
append_set(AVPacket *kept, const struct set *set, int length_bytes)
{
    const int n = (int)(set->end - set->at), in_front = length_bytes ? length_bytes : 3;
    const int at = kept->size;
    if (n > MAX_KEPT - in_front - at || av_grow_packet(kept, in_front + n) < 0)
        return false;
    for (int i = 0; i < in_front; i++)
        kept->data[at + i] = (uint8_t)(length_bytes ? n >> 8 * (in_front - 1 - i) : i == 2);
    memcpy(kept->data + at + in_front, set->at, (size_t)n);
    return true;
}

/* Removes a kept set. */
static void
drop_set(AVPacket *kept, const struct set *set, int length_bytes)
{
    const size_t at = (size_t)(set->at - kept->data) - (size_t)(length_bytes ? length_bytes : 3);
    const size_t end = (size_t)(set->end - kept->data);
    memmove(kept->data + at, kept->data + end, (size_t)kept->size - end);
    av_shrink_packet(kept, (int)((size_t)kept->size - (end - at)));
}

/* A head that is repeated unchanged has no effect on a decoder. A changed head drops the sets that
 * depend on it, so both heads are kept, with everything between them. Of other sets only the last
 * is kept, in its place, because its meaning depends on the heads before it. */
bool
qvm_keep_parameters(const AVCodecParameters *par, const AVPacket *packet, AVPacket *kept,
                    bool *changed)
{
    qvm_units units = qvm_open_units(packet, qvm_find_length_bytes(par));
    const bool hevc = par->codec_id == AV_CODEC_ID_HEVC;
    const uint8_t *unit, *end;
    struct set set, last = { NULL, NULL, 0, 0, false };
    *changed = false;
    if (!hevc && par->codec_id != AV_CODEC_ID_H264)
        return true;
    while (qvm_next_unit(&units, &unit, &end)) {
        if (!look_at_set(hevc, unit, end, &set))
            continue;
        const qvm_units all = qvm_open_units(kept, units.length_bytes);
        const bool again = find_set(all, hevc, &set, &last);
        const bool same = again && is_same(&set, &last);
        const size_t n = (size_t)(set.end - set.at);
        *changed = *changed || (again && !same) ||
                   (par->extradata_size &&
                    !memmem(par->extradata, (size_t)par->extradata_size, set.at, n));
        if (same && set.is_head)
            continue;
        if (again && !set.is_head)
            drop_set(kept, &last, units.length_bytes);
        if (!append_set(kept, &set, units.length_bytes))
            return false;
    }
    return true;
}
