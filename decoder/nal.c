/* SPDX-License-Identifier: MIT */
/* Finds NAL units in a packet, and reads their bits. */
#include "nal.h"

/* ---- bits ------------------------------------------------------------------------------------ */

qvm_bits
qvm_open_bits(const uint8_t *from, const uint8_t *end)
{
    qvm_bits b = { .n = 0 };
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

unsigned
qvm_take_bits(qvm_bits *b, int n)
{
    unsigned value = 0;
    for (; n; n--, b->at++)
        value = value << 1 | (b->at / 8 < b->n ? b->bytes[b->at / 8] >> (7 - b->at % 8) & 1U : 0U);
    return value;
}

unsigned
qvm_take_golomb(qvm_bits *b)
{
    int zeros = 0;
    while (zeros < 31 && b->at < 8 * b->n && !qvm_take_bits(b, 1))
        zeros++;
    return (1U << zeros) - 1 + qvm_take_bits(b, zeros);
}

/* ---- NAL units ------------------------------------------------------------------------------- */

const uint8_t *
qvm_find_start_code(const uint8_t *at, const uint8_t *end)
{
    for (; end - at >= 3; at++)
        if (!at[0] && !at[1] && at[2] == 1)
            return at;
    return end;
}

qvm_units
qvm_open_units(const AVPacket *packet, int length_bytes)
{
    static const uint8_t nothing;
    const uint8_t *at = packet->data ? packet->data : &nothing;
    return (qvm_units){ at, at + packet->size, length_bytes };
}

bool
qvm_next_unit(qvm_units *u, const uint8_t **unit, const uint8_t **end)
{
    if (!u->length_bytes) {
        const uint8_t *code = qvm_find_start_code(u->at, u->end);
        if (u->end - code < 4)
            return false;
        *unit = code + 3;
        *end = u->at = qvm_find_start_code(*unit, u->end);
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

int
qvm_find_length_bytes(const AVCodecParameters *par)
{
    const uint8_t *e = par->extradata;
    if (par->codec_id == AV_CODEC_ID_H264 && par->extradata_size >= 7 && e[0] == 1)
        return (e[4] & 3) + 1;
    if (par->codec_id == AV_CODEC_ID_HEVC && par->extradata_size >= 23 &&
        (e[0] || e[1] || e[2] > 1))
        return (e[21] & 3) + 1;
    return 0;
}

bool
qvm_is_h264_parameters(int type)
{
    return type == 7 || type == 8 || type == 13 || type == 15;
}
