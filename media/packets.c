/* SPDX-License-Identifier: MIT */
/*
 * Reads what a packet's headers say of its pictures, without decoding them: whether other pictures
 * may refer to them, whether decoding may begin with them, and how many of them are shown.
 *
 * A picture to which no other refers may be left out, and every other is decoded to the same bytes.
 * By codec:
 * - H.264 (7.4.1): those with nal_ref_idc 0, in each slice of each field.
 * - HEVC (7.4.2.2): no picture of its own temporal layer refers to a sub-layer non-reference
 *   picture, but those of higher layers may. So only those of the stream's highest layer count.
 * - MPEG-1, MPEG-2, MPEG-4: B-pictures.
 * - Codecs with key frames alone, whose decoders keep nothing between packets: every picture.
 * - VP8, VP9, AV1: none, since any picture may leave probabilities, motion vectors and segment maps
 *   to the next one.
 */
#define _GNU_SOURCE /* for memmem */
#include <string.h>

#include "media.h"

#define MAX_KEPT 65536 /* bytes of parameter sets */

/* ---- bits ------------------------------------------------------------------------------------ */

/* The first bytes of a NAL unit's payload, without the bytes that prevent start codes. */
struct bits {
    uint8_t bytes[128];
    size_t n, at; /* at: the position in bits */
};

static struct bits
open_bits(const uint8_t *from, const uint8_t *end)
{
    struct bits b = { .n = 0 };
    for (int zeros = 0; from < end && b.n < sizeof b.bytes; from++) {
        if (zeros >= 2 && *from == 3) {
            zeros = 0;
            continue;
        }
        zeros = *from ? 0 : zeros + 1;
        b.bytes[b.n++] = *from;
    }
    return b;
}

static unsigned
take_bits(struct bits *b, int n)
{
    unsigned value = 0;
    for (; n; n--, b->at++)
        value = value << 1 | (b->at / 8 < b->n ? b->bytes[b->at / 8] >> (7 - b->at % 8) & 1U : 0U);
    return value;
}

/* Takes an unsigned Exp-Golomb code (9.1). */
static unsigned
take_golomb(struct bits *b)
{
    int zeros = 0;
    while (zeros < 31 && b->at < 8 * b->n && !take_bits(b, 1))
        zeros++;
    return (1U << zeros) - 1 + take_bits(b, zeros);
}

/* ---- NAL units ------------------------------------------------------------------------------- */

struct units {
    const uint8_t *at, *end;
    int length_bytes; /* length of the size field before each unit; 0: units have start codes */
};

static const uint8_t *
find_start_code(const uint8_t *at, const uint8_t *end)
{
    for (; end - at >= 3; at++)
        if (!at[0] && !at[1] && at[2] == 1)
            return at;
    return end;
}

/* Takes the next unit, *unit up to *end. Returns false after the last, or if a length is too
 * long. */
static bool
next_unit(struct units *u, const uint8_t **unit, const uint8_t **end)
{
    if (!u->length_bytes) {
        const uint8_t *code = find_start_code(u->at, u->end);
        if (u->end - code < 4)
            return false;
        *unit = code + 3;
        *end = u->at = find_start_code(*unit, u->end);
        return true;
    }
    int64_t n = 0;
    if (u->end - u->at <= u->length_bytes)
        return false;
    for (int i = 0; i < u->length_bytes; i++)
        n = n << 8 | *u->at++;
    if (n < 1 || n > u->end - u->at)
        return false;
    *unit = u->at;
    *end = u->at += n;
    return true;
}

/* Tells avcC and hvcC from start codes as FFmpeg does. */
static int
find_length_bytes(const AVCodecParameters *par)
{
    const uint8_t *e = par->extradata;
    if (par->codec_id == AV_CODEC_ID_H264 && par->extradata_size >= 7 && e[0] == 1)
        return (e[4] & 3) + 1;
    if (par->codec_id == AV_CODEC_ID_HEVC && par->extradata_size >= 23 &&
        (e[0] || e[1] || e[2] > 1))
        return (e[21] & 3) + 1;
    return 0;
}

/* ---- H.264 ----------------------------------------------------------------------------------- */

/* Returns whether a recovery point (D.2.8) says that all pictures from here on are right to the
 * bit. */
static bool
is_exact_recovery(const uint8_t *unit, const uint8_t *end)
{
    struct bits b = open_bits(unit + 1, end);
    while (b.at / 8 + 2 < b.n) {
        unsigned type = 0, size = 0, byte;
        do
            type += byte = take_bits(&b, 8);
        while (byte == 255);
        do
            size += byte = take_bits(&b, 8);
        while (byte == 255);
        if (type == 6) /* the wanted recovery_frame_cnt is 0, and exact_match_flag 1 */
            return take_bits(&b, 2) == 3;
        b.at += 8 * (size_t)size;
    }
    return false;
}

static bool
is_h264_parameters(int type)
{
    return type == 7 || type == 8 || type == 13 || type == 15;
}

static void
look_at_h264(struct units units, qvm_packet *p)
{
    const uint8_t *unit, *end;
    bool referred = false, idr = false, recovery = false;
    while (next_unit(&units, &unit, &end)) {
        const int type = unit[0] & 31;
        if (type >= 1 && type <= 5) {
            referred = referred || unit[0] & 0x60;
            idr = idr || type == 5;
            p->shown += type <= 2 || type == 5 ? end - unit > 1 && unit[1] & 0x80 : 0;
        } else if (type == 6) {
            recovery = recovery || is_exact_recovery(unit, end);
        } else if (is_h264_parameters(type)) {
            p->parameters = true;
        }
    }
    p->spare = p->shown && !referred;
    p->start = idr || recovery;
    p->resets = idr;
}

/* ---- HEVC ------------------------------------------------------------------------------------ */

/* Reads output_flag_present_flag of a picture parameter set (7.3.2.3). */
static bool
may_hide_pictures(const uint8_t *unit, const uint8_t *end)
{
    struct bits b = open_bits(unit + 2, end);
    take_golomb(&b);
    take_golomb(&b);
    take_bits(&b, 1);
    return take_bits(&b, 1);
}

/* Looks through the parameter sets of an hvcC box (ISO/IEC 14496-15, 8.3.3.1), which are arrays
 * of units behind 22 bytes. */
static bool
may_hvcc_hide_pictures(const uint8_t *at, const uint8_t *end)
{
    at += 22;
    for (int arrays = *at++; arrays > 0 && end - at >= 3; arrays--) {
        const int type = at[0] & 63;
        int n = at[1] << 8 | at[2];
        at += 3;
        for (; n > 0 && end - at >= 2; n--) {
            const int size = at[0] << 8 | at[1];
            at += 2;
            if (size > end - at)
                return true;
            if (type == 34 && size > 2 && may_hide_pictures(at, at + size))
                return true;
            at += size;
        }
    }
    return false;
}

static void
look_at_hevc(struct units units, qvm_packet *p)
{
    const uint8_t *unit, *end;
    bool referred = false;
    while (next_unit(&units, &unit, &end)) {
        const int type = unit[0] >> 1 & 63;
        /* Behind a BLA picture, and behind the end of a sequence, decoders drop the pictures that lead a keyframe. */
        p->changes = p->changes || (type >= 16 && type <= 18) || type == 36 || type == 37;
        if (end - unit < 3)
            continue;
        const int layer = (unit[0] & 1) << 5 | unit[1] >> 3;
        if (type < 32 &&
            /* of the types up to 15, the even ones are sub-layer non-reference pictures */
            !layer) {
            referred = referred || type > 14 || type % 2;
            p->start = p->start || (type >= 16 && type <= 21);
            p->resets = p->resets || (type >= 16 && type <= 20); /* not CRA, 21 */
            p->layer = (unit[1] & 7) - 1;
            p->shown += (unit[2] & 0x80) != 0;
        } else if (type >= 32 && type <= 34) {
            p->parameters = true;
            p->may_hide = p->may_hide || (type == 34 && may_hide_pictures(unit, end));
        }
    }
    p->spare = p->shown && !referred;
}

/* ---- MPEG-1, 2 and 4 ------------------------------------------------------------------------- */

static uint64_t
hash_headers(uint64_t hash, const uint8_t *at, const uint8_t *end)
{
    hash = hash ? hash : 0xcbf29ce484222325U;
    for (; at < end; at++)
        hash = (hash ^ *at) * 0x100000001b3U;
    return hash ? hash : 1;
}

/* MPEG-4: a picture's start code is 00 00 01 B6, and the two bits behind it are 2 in B-pictures. One that is not coded
 * shows nothing; it has some 20 bits behind its start code, where one whose blocks are all copied has a bit for each and
 * some 20 more. Codes up to 2F are headers, which hold for all pictures that follow. */
static void
look_at_mpeg4(const AVPacket *packet, qvm_packet *p)
{
    enum { MOST_NOT_CODED = 9 }; /* bytes, with the start code */
    const uint8_t *at = packet->data, *end = at + packet->size, *next;
    bool others = false;
    for (at = find_start_code(at, end); end - at >= 5; at = next) {
        next = find_start_code(at + 3, end);
        if (at[3] <= 0x2f)
            p->headers = hash_headers(p->headers, at, next);
        if (at[3] != 0xb6)
            continue;
        others = others || at[4] >> 6 != 2;
        p->may_hide = p->may_hide || next - at <= MOST_NOT_CODED;
        p->shown++;
    }
    p->spare = p->shown == 1 && !others && !p->headers;
    p->start = packet->flags & AV_PKT_FLAG_KEY;
}

/* MPEG-1 and MPEG-2: a picture's start code is 00 00 01 00, and three bits behind the next ten are 3 in B-pictures.
 * Sequence headers (B3) and extensions (B5) with matrices (3) may stand in front of a B-picture, and hold for others. */
static void
look_at_mpeg2(const AVPacket *packet, qvm_packet *p)
{
    const uint8_t *at = packet->data, *end = at + packet->size;
    bool others = false;
    for (at = find_start_code(at, end); end - at >= 6; at = find_start_code(at + 3, end)) {
        others = others || at[3] == 0xb3 || (at[3] == 0xb5 && at[4] >> 4 == 3);
        if (at[3])
            continue;
        others = others || (at[5] >> 3 & 7) != 3;
        p->shown++;
    }
    p->spare = p->shown == 1 && !others;
    p->start = packet->flags & AV_PKT_FLAG_KEY;
}

/* ---- VP8, VP9, AV1 --------------------------------------------------------------------------- */

/* RFC 6386, 9.1: the first bit is 0 in key frames; the fifth is show_frame. */
static void
look_at_vp8(const AVPacket *packet, qvm_packet *p)
{
    p->shown = packet->data[0] >> 4 & 1;
    p->start = !(packet->data[0] & 1);
}

/* Reads one frame's first byte (6.2), which says all that is needed. */
static void
look_at_vp9_frame(unsigned byte, bool first, qvm_packet *p)
{
    struct bits b = { .n = 1, .bytes = { (uint8_t)byte } };
    take_bits(&b, 2);
    if (take_bits(&b, 2) == 3) /* profile 3 has one bit more */
        take_bits(&b, 1);
    const bool shown_again = take_bits(&b, 1);
    const bool is_key = !shown_again && !take_bits(&b, 1);
    p->start = p->start || (first && is_key);
    p->shown += shown_again || take_bits(&b, 1);
}

/* A packet is a frame, or a superframe (annex B): several frames, and behind them a list of
 * their sizes between two equal bytes. */
static void
look_at_vp9(const AVPacket *packet, qvm_packet *p)
{
    const uint8_t *data = packet->data;
    const int last = data[packet->size - 1];
    const int n = (last & 7) + 1, size_bytes = (last >> 3 & 3) + 1, list = 2 + n * size_bytes;
    if ((last & 0xe0) != 0xc0 || packet->size < list || data[packet->size - list] != last) {
        look_at_vp9_frame(data[0], true, p);
        return;
    }
    const uint8_t *sizes = data + packet->size - list + 1;
    int64_t at = 0;
    for (int i = 0; i < n && at < packet->size - list; i++) {
        int64_t size = 0;
        for (int k = 0; k < size_bytes; k++)
            size |= (int64_t)*sizes++ << 8 * k;
        if (size)
            look_at_vp9_frame(data[at], !i, p);
        at += size;
    }
}

/* Walks the open bitstream units (5.3, 5.9.2). A packet of a file with layers may show several
 * pictures. */
static void
look_at_av1(const AVPacket *packet, qvm_packet *p)
{
    const uint8_t *at = packet->data, *end = at + packet->size;
    while (at < end) {
        const int type = *at >> 3 & 15;
        const bool is_extended = *at & 4, has_size = *at & 2;
        at += is_extended ? 2 : 1;
        int64_t size = end - at;
        if (has_size) {
            size = 0;
            for (int i = 0, more = 1; more && i < 5 && at < end; i++, at++) {
                size |= (int64_t)(*at & 127) << 7 * i;
                more = *at >> 7;
            }
        }
        if (size < 0 || size > end - at)
            break;
        p->may_hide = p->may_hide || is_extended;
        if (type == 1) /* a sequence header */
            p->headers = hash_headers(p->headers, at, at + size);
        if ((type == 3 || type == 6) && size) {
            struct bits b = { .n = 1, .bytes = { *at } };
            const bool shown_again = take_bits(&b, 1);
            const unsigned frame_type = take_bits(&b, 2);
            const bool shown = shown_again || take_bits(&b, 1);
            p->start = p->start || (!shown_again && frame_type == 0 && shown && !p->shown);
            p->shown += shown;
        }
        at += size;
    }
}

/* ---- codecs with key frames alone ------------------------------------------------------------ */

/* Codecs whose decoders in FFmpeg make a frame of one packet and of the container's parameters, where there is no
 * palette and Motion JPEG's headers are equal. Of the others that FFmpeg calls intra-only some repeat the frame before,
 * some keep tables, and the rest are too rare to be looked at: they are decoded whole. */
static const enum AVCodecID stateless[] = {
    AV_CODEC_ID_AYUV,    AV_CODEC_ID_DNXHD,    AV_CODEC_ID_DVVIDEO,  AV_CODEC_ID_FFVHUFF,
    AV_CODEC_ID_HUFFYUV, AV_CODEC_ID_JPEG2000, AV_CODEC_ID_MAGICYUV, AV_CODEC_ID_MJPEG,
    AV_CODEC_ID_PRORES,  AV_CODEC_ID_R10K,     AV_CODEC_ID_R210,     AV_CODEC_ID_RAWVIDEO,
    AV_CODEC_ID_UTVIDEO, AV_CODEC_ID_V210,     AV_CODEC_ID_V308,     AV_CODEC_ID_V408,
    AV_CODEC_ID_V410,    AV_CODEC_ID_Y41P,     AV_CODEC_ID_YUV4,
};

bool
qvm_is_stateless(enum AVCodecID codec)
{
    for (size_t i = 0; i < sizeof stateless / sizeof *stateless; i++)
        if (stateless[i] == codec)
            return true;
    return false;
}

enum { SOF0 = 0xc0, DHT = 0xc4, RST0 = 0xd0, SOI = 0xd8, EOI = 0xd9, SOS = 0xda, DQT = 0xdb };

/* Hashes the numbers of the tables in a segment. */
static uint64_t
hash_tables(uint64_t hash, int marker, const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        int64_t n = marker == DQT ? 1 + (at[0] >> 4 ? 128 : 64) : 17;
        if (marker == DHT && end - at >= 17)
            for (int i = 1; i <= 16; i++)
                n += at[i];
        hash = hash_headers(hash, at, at + 1);
        at += n < end - at ? n : end - at;
    }
    return hash;
}

/* Motion JPEG's decoder keeps tables, and what some comments and APPn segments say. If all packets have the same
 * segments in the same order, and tables in front of each picture's first scan alone, then each replaces whatever of
 * these an earlier packet may have left. */
static void
look_at_jpeg(const AVPacket *packet, qvm_packet *p)
{
    enum { HASHED = 16 }; /* bytes of a segment */
    const uint8_t *at = packet->data, *end = at + packet->size;
    bool in_scans = false;
    while (end - at >= 2) {
        const int marker = at[1];
        if (at[0] != 0xff || marker < SOF0 || marker == 0xff || (marker >= RST0 && marker < SOI)) {
            at++; /* a scan's data */
            continue;
        }
        const bool is_table = marker == DHT || marker == DQT,
                   is_alone = marker <= EOI && marker >= SOI;
        const int64_t n = is_alone || end - at < 4 ? 2 : 2 + (at[2] << 8 | at[3]);
        const uint8_t *segment = at;
        at += n < end - at ? n : end - at;
        p->changes = p->changes || (in_scans && is_table);
        in_scans = marker == SOS || (in_scans && marker != SOI);
        p->headers = hash_headers(p->headers, segment + 1, segment + 2);
        p->headers = is_table && at - segment > 4
                         ? hash_tables(p->headers, marker, segment + 4, at)
                         : hash_headers(p->headers, segment + 1,
                                        at - segment < HASHED ? at : segment + HASHED);
    }
}

/* ---- any ------------------------------------------------------------------------------------- */

bool
qvm_has_headers(enum AVCodecID codec)
{
    switch (codec) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO:
    case AV_CODEC_ID_MPEG4:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1: return true;
    default: return qvm_is_stateless(codec);
    }
}

qvm_packet
qvm_look_at_packet(const AVCodecParameters *par, const AVPacket *packet)
{
    qvm_packet p = { .shown = 0 };
    const struct units units = { packet->data, packet->data + packet->size,
                                 find_length_bytes(par) };
    p.changes = av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL) ||
                av_packet_get_side_data(packet, AV_PKT_DATA_PARAM_CHANGE, NULL);
    p.palette = av_packet_get_side_data(packet, AV_PKT_DATA_PALETTE, NULL);
    if (!packet->data || packet->size < 1)
        return p;
    switch (par->codec_id) {
    case AV_CODEC_ID_H264: look_at_h264(units, &p); break;
    case AV_CODEC_ID_HEVC: look_at_hevc(units, &p); break;
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO: look_at_mpeg2(packet, &p); break;
    case AV_CODEC_ID_MPEG4: look_at_mpeg4(packet, &p); break;
    case AV_CODEC_ID_VP8: look_at_vp8(packet, &p); break;
    case AV_CODEC_ID_VP9: look_at_vp9(packet, &p); break;
    case AV_CODEC_ID_AV1: look_at_av1(packet, &p); break;
    case AV_CODEC_ID_MJPEG: look_at_jpeg(packet, &p); /* fallthrough */
    default: p.shown = p.spare = p.start = qvm_is_stateless(par->codec_id);
    }
    p.start = p.start && packet->flags & AV_PKT_FLAG_KEY;
    return p;
}

bool
qvm_may_hide_pictures(const AVCodecParameters *par)
{
    const uint8_t *e = par->extradata;
    return par->codec_id == AV_CODEC_ID_HEVC && find_length_bytes(par) &&
           may_hvcc_hide_pictures(e, e + par->extradata_size);
}

/* ---- parameter sets -------------------------------------------------------------------------- */

/* A parameter set in a packet. */
struct set {
    const uint8_t *at, *end; /* its NAL unit, without the zeros that may follow */
    int type;
    unsigned number;
    bool
        is_head; /* other sets lean on it: decoders drop those when it is replaced by another one */
};

/* Reads the number of an HEVC sequence parameter set (7.3.2.2), which stands behind profiles and levels (7.3.3). */
static unsigned
take_hevc_sps_number(struct bits *b)
{
    take_bits(b, 4);
    const int layers = (int)take_bits(b, 3);
    b->at += 1 + 88 + 8;
    const unsigned present = take_bits(b, layers ? 16 : 0);
    for (int i = 0; i < layers; i++)
        b->at += (present >> (15 - 2 * i) & 1 ? 88 : 0) + (present >> (14 - 2 * i) & 1 ? 8 : 0);
    return take_golomb(b);
}

static bool
look_at_set(bool hevc, const uint8_t *unit, const uint8_t *end, struct set *set)
{
    const int type = hevc ? unit[0] >> 1 & 63 : unit[0] & 31;
    if (!(hevc ? type >= 32 && type <= 34 : is_h264_parameters(type)))
        return false;
    struct bits b = open_bits(unit + (hevc ? 2 : 1) < end ? unit + (hevc ? 2 : 1) : end, end);
    while (end - unit > 1 && !end[-1])
        end--;
    *set = (struct set){ unit, end, type, 0, hevc ? type < 34 : type == 7 || type == 15 };
    if (hevc && type == 32)
        set->number = take_bits(&b, 4);
    else if (hevc && type == 33)
        set->number = take_hevc_sps_number(&b);
    else {
        b.at = set->is_head ? 24 : 0;
        set->number = take_golomb(&b);
    }
    return true;
}

/* Finds the last kept set of the same type and number. */
static bool
find_set(struct units kept, bool hevc, const struct set *like, struct set *found)
{
    const uint8_t *unit, *end;
    struct set set;
    bool is_there = false;
    while (next_unit(&kept, &unit, &end))
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

/* Puts a set behind those that are kept, with a length or a start code. */
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

/* Takes a set out of those that are kept. */
static void
drop_set(AVPacket *kept, const struct set *set, int length_bytes)
{
    const size_t at = (size_t)(set->at - kept->data) - (size_t)(length_bytes ? length_bytes : 3);
    const size_t end = (size_t)(set->end - kept->data);
    memmove(kept->data + at, kept->data + end, (size_t)kept->size - end);
    av_shrink_packet(kept, (int)((size_t)kept->size - (end - at)));
}

/* A head that comes again as it was changes nothing in a decoder. One that comes changed drops the sets that lean on it,
 * so both stay, with what lies between them. Of sets on which no other leans the last one counts alone, in its place:
 * its meaning depends on the heads before it. */
bool
qvm_keep_parameters(const AVCodecParameters *par, const AVPacket *packet, AVPacket *kept,
                    bool *changed)
{
    struct units units = { packet->data, packet->data + packet->size, find_length_bytes(par) };
    const bool hevc = par->codec_id == AV_CODEC_ID_HEVC;
    const uint8_t *unit, *end;
    struct set set, last = { NULL, NULL, 0, 0, false };
    *changed = false;
    if (!hevc && par->codec_id != AV_CODEC_ID_H264)
        return true;
    while (next_unit(&units, &unit, &end)) {
        if (!look_at_set(hevc, unit, end, &set))
            continue;
        const struct units all = { kept->data, kept->data + kept->size, units.length_bytes };
        const bool again = kept->size && find_set(all, hevc, &set, &last);
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
