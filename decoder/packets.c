/* SPDX-License-Identifier: MIT */
/*
 * Reads a packet's headers without decoding its pictures: whether other pictures may refer to them,
 * whether decoding may begin with them, and how many of them are shown.
 *
 * A picture that no other picture refers to may be left out: the rest still decodes to the same
 * bytes. By codec:
 * - H.264 (7.4.1): those with nal_ref_idc 0, in each slice of each field.
 * - HEVC (7.4.2.2): no picture of its own temporal layer refers to a sub-layer non-reference
 *   picture, but those of higher layers may. So only those of the stream's highest layer count.
 * - MPEG-1, MPEG-2, MPEG-4: B-pictures.
 * - Codecs with key frames alone, whose decoders keep nothing between packets: every picture.
 * - VP8, VP9, AV1: none, since any picture may leave probabilities, motion vectors and segment maps
 *   to the next one.
 */
#include "ffmpeg_compat.h"
#include "nal.h"

/* ---- H.264 ----------------------------------------------------------------------------------- */

/* Returns whether a recovery point (D.2.8) promises that all pictures from here on are
 * bit-exact. */
static bool
is_exact_recovery(const uint8_t *unit, const uint8_t *end)
{
    qvm_bits b = qvm_open_bits(unit + 1, end);
    while (b.at / 8 + 2 < b.n) {
        unsigned type = 0, size = 0, byte;
        do
            type += byte = qvm_take_bits(&b, 8);
        while (byte == 255);
        do
            size += byte = qvm_take_bits(&b, 8);
        while (byte == 255);
        if (type == 6) /* the wanted recovery_frame_cnt is 0, and exact_match_flag 1 */
            return qvm_take_bits(&b, 2) == 3;
        b.at += 8 * (size_t)size;
    }
    return false;
}

static void
look_at_h264(qvm_units units, qvm_packet *p)
{
    const uint8_t *unit, *end;
    bool referred = false, idr = false, recovery = false;
    while (qvm_next_unit(&units, &unit, &end)) {
        const int type = unit[0] & 31;
        if (type >= 1 && type <= 5) {
            referred = referred || unit[0] & 0x60;
            idr = idr || type == 5;
            p->shown += type <= 2 || type == 5 ? end - unit > 1 && unit[1] & 0x80 : 0;
        } else if (type == 6) {
            recovery = recovery || is_exact_recovery(unit, end);
        } else if (qvm_is_h264_parameters(type)) {
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
    qvm_bits b = qvm_open_bits(unit + 2, end);
    qvm_take_golomb(&b);
    qvm_take_golomb(&b);
    qvm_take_bits(&b, 1);
    return qvm_take_bits(&b, 1);
}

/* Parses an hvcC box (ISO/IEC 14496-15, 8.3.3.1): arrays of units after 22 bytes. */
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
look_at_hevc(qvm_units units, qvm_packet *p)
{
    const uint8_t *unit, *end;
    bool referred = false;
    while (qvm_next_unit(&units, &unit, &end)) {
        const int type = unit[0] >> 1 & 63;
        /* After a BLA picture or the end of a sequence, decoders drop a keyframe's leading
         * pictures. */
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

/* MPEG-4: a picture's start code is 00 00 01 B6; the next two bits are 2 in B-pictures. A picture
 * that is not coded shows nothing: only about 20 bits follow, while a picture of copied blocks has
 * one more bit per block. Codes up to 2F are headers, which apply from there on. */
static void
look_at_mpeg4(qvm_units all, qvm_packet *p)
{
    enum { MOST_NOT_CODED = 9 }; /* bytes, with the start code */
    const uint8_t *at, *end = all.end, *next;
    bool others = false;
    for (at = qvm_find_start_code(all.at, end); end - at >= 5; at = next) {
        next = qvm_find_start_code(at + 3, end);
        if (at[3] <= 0x2f)
            p->headers = hash_headers(p->headers, at, next);
        if (at[3] != 0xb6)
            continue;
        others = others || at[4] >> 6 != 2;
        p->may_hide = p->may_hide || next - at <= MOST_NOT_CODED;
        p->shown++;
    }
    p->spare = p->shown == 1 && !others && !p->headers;
    p->start = true;
}

/* MPEG-1 and MPEG-2: a picture's start code is 00 00 01 00, and after ten more bits, three bits are
 * 3 in B-pictures. Sequence headers (B3) and matrix extensions (B5, 3) before it apply to later
 * pictures too. */
static void
look_at_mpeg2(qvm_units all, qvm_packet *p)
{
    const uint8_t *at, *end = all.end;
    bool others = false;
    for (at = qvm_find_start_code(all.at, end); end - at >= 6;
         at = qvm_find_start_code(at + 3, end)) {
        others = others || at[3] == 0xb3 || (at[3] == 0xb5 && at[4] >> 4 == 3);
        if (at[3])
            continue;
        others = others || (at[5] >> 3 & 7) != 3;
        p->shown++;
    }
    p->spare = p->shown == 1 && !others;
    p->start = true;
}

/* ---- VP8, VP9, AV1 --------------------------------------------------------------------------- */

/* RFC 6386, 9.1: the first bit is 0 in key frames; the fifth is show_frame. */
static void
look_at_vp8(qvm_units all, qvm_packet *p)
{
    p->shown = *all.at >> 4 & 1;
    p->start = !(*all.at & 1);
}

/* Reads a frame's first byte (6.2), which contains everything needed. */
static void
look_at_vp9_frame(unsigned byte, bool first, qvm_packet *p)
{
    qvm_bits b = { .n = 1, .bytes = { (uint8_t)byte } };
    qvm_take_bits(&b, 2);
    if (qvm_take_bits(&b, 2) == 3) /* profile 3 has one more bit */
        qvm_take_bits(&b, 1);
    const bool shown_again = qvm_take_bits(&b, 1);
    const bool is_key = !shown_again && !qvm_take_bits(&b, 1);
    p->start = p->start || (first && is_key);
    p->shown += shown_again || qvm_take_bits(&b, 1);
}

/* A packet is a frame, or a superframe (annex B): frames, and their sizes between equal bytes. */
static void
look_at_vp9(qvm_units all, qvm_packet *p)
{
    const uint8_t *data = all.at;
    const int64_t bytes = all.end - data;
    const int last = all.end[-1];
    const int n = (last & 7) + 1, size_bytes = (last >> 3 & 3) + 1, list = 2 + n * size_bytes;
    if ((last & 0xe0) != 0xc0 || bytes < list || data[bytes - list] != last) {
        look_at_vp9_frame(data[0], true, p);
        return;
    }
    const uint8_t *sizes = data + bytes - list + 1;
    int64_t at = 0;
    for (int i = 0; i < n && at < bytes - list; i++) {
        int64_t size = 0;
        for (int k = 0; k < size_bytes; k++)
            size |= (int64_t)*sizes++ << 8 * k;
        if (size)
            look_at_vp9_frame(data[at], !i, p);
        at += size;
    }
}

/* Walks the open bitstream units (5.3, 5.9.2). With layers a packet may show several pictures. */
static void
look_at_av1(qvm_units all, qvm_packet *p)
{
    const uint8_t *at = all.at, *end = all.end;
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
            qvm_bits b = { .n = 1, .bytes = { *at } };
            const bool shown_again = qvm_take_bits(&b, 1);
            const unsigned frame_type = qvm_take_bits(&b, 2);
            const bool shown = shown_again || qvm_take_bits(&b, 1);
            p->start = p->start || (!shown_again && frame_type == 0 && shown && !p->shown);
            p->shown += shown;
        }
        at += size;
    }
}

/* ---- codecs with key frames alone ------------------------------------------------------------ */

/* Codecs for which FFmpeg makes a frame from one packet and the container's parameters, provided
 * that it has no palette and Motion JPEG's headers are equal. FFmpeg's other intra-only decoders
 * repeat frames, keep tables, or were too rare to examine: their clips are decoded completely. */
static const enum AVCodecID stateless[] = {
    AV_CODEC_ID_DNXHD,    AV_CODEC_ID_DVVIDEO,  AV_CODEC_ID_FFVHUFF, AV_CODEC_ID_HUFFYUV,
    AV_CODEC_ID_JPEG2000, AV_CODEC_ID_MAGICYUV, AV_CODEC_ID_MJPEG,   AV_CODEC_ID_PRORES,
    AV_CODEC_ID_R10K,     AV_CODEC_ID_R210,     AV_CODEC_ID_UTVIDEO, AV_CODEC_ID_V210,
    AV_CODEC_ID_Y41P,     AV_CODEC_ID_YUV4,     QVM_RAW_CODECS,
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

/* Motion JPEG's decoder keeps tables and the contents of some segments. If all packets have the
 * same segments in the same order, and tables only before the first scan, each packet replaces what
 * an earlier one left. */
static void
look_at_jpeg(qvm_units all, qvm_packet *p)
{
    enum { HASHED = 16 }; /* bytes of a segment */
    const uint8_t *at = all.at, *end = all.end;
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

/* Each function expects a packet that is not empty. */
static const struct {
    enum AVCodecID codec;
    void (*look)(qvm_units packet, qvm_packet *p);
} codecs[] = {
    { AV_CODEC_ID_H264, look_at_h264 },        { AV_CODEC_ID_HEVC, look_at_hevc },
    { AV_CODEC_ID_MPEG1VIDEO, look_at_mpeg2 }, { AV_CODEC_ID_MPEG2VIDEO, look_at_mpeg2 },
    { AV_CODEC_ID_MPEG4, look_at_mpeg4 },      { AV_CODEC_ID_VP8, look_at_vp8 },
    { AV_CODEC_ID_VP9, look_at_vp9 },          { AV_CODEC_ID_AV1, look_at_av1 },
    { AV_CODEC_ID_MJPEG, look_at_jpeg },
};
enum { N_CODECS = sizeof codecs / sizeof *codecs };

bool
qvm_has_headers(enum AVCodecID codec)
{
    for (int i = 0; i < N_CODECS; i++)
        if (codecs[i].codec == codec)
            return true;
    return qvm_is_stateless(codec);
}

qvm_packet
qvm_look_at_packet(const AVCodecParameters *par, const AVPacket *packet)
{
    qvm_packet p = { .shown = 0 };
    const qvm_units units = qvm_open_units(packet, qvm_find_length_bytes(par));
    p.changes = av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL) ||
                av_packet_get_side_data(packet, AV_PKT_DATA_PARAM_CHANGE, NULL);
    p.palette = av_packet_get_side_data(packet, AV_PKT_DATA_PALETTE, NULL);
    if (!packet->data || packet->size < 1)
        return p;
    p.shown = p.spare = p.start = qvm_is_stateless(par->codec_id);
    for (int i = 0; i < N_CODECS; i++)
        if (codecs[i].codec == par->codec_id)
            codecs[i].look(units, &p);
    p.start = p.start && packet->flags & AV_PKT_FLAG_KEY;
    return p;
}

bool
qvm_may_hide_pictures(const AVCodecParameters *par)
{
    const uint8_t *e = par->extradata;
    return par->codec_id == AV_CODEC_ID_HEVC && qvm_find_length_bytes(par) &&
           may_hvcc_hide_pictures(e, e + par->extradata_size);
}
