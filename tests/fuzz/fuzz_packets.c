/* SPDX-License-Identifier: MIT */
/* Reads the headers of packets of any codec, and keeps their parameter sets. An input is the codec,
 * the flags of the packets, and blocks of a length in 16 bits and as many bytes: the codec's
 * parameters, then a packet per block. */
#include "fuzz.h"
#include "../decoder/decoder.h"

static const enum AVCodecID codecs[] = {
    AV_CODEC_ID_H264,  AV_CODEC_ID_HEVC,   AV_CODEC_ID_MPEG1VIDEO, AV_CODEC_ID_MPEG2VIDEO,
    AV_CODEC_ID_MPEG4, AV_CODEC_ID_VP8,    AV_CODEC_ID_VP9,        AV_CODEC_ID_AV1,
    AV_CODEC_ID_MJPEG, AV_CODEC_ID_PRORES, AV_CODEC_ID_GIF,
};

/* Copies a block to separate memory of exactly its size, so that a sanitizer sees a read beyond
 * it. */
static uint8_t *
take_block(struct fuzz_bytes *b, int *size)
{
    size_t n = (size_t)fuzz_byte(b) << 8;
    n |= fuzz_byte(b);
    n = n < b->left ? n : b->left;
    uint8_t *block = malloc(n);
    FUZZ_CHECK(block);
    memcpy(block, b->at, n);
    b->at += n;
    b->left -= n;
    *size = (int)n;
    return block;
}

static void
look(const AVCodecParameters *par, const AVPacket *packet)
{
    const qvm_packet p = qvm_look_at_packet(par, packet);
    FUZZ_CHECK(p.shown >= 0 && p.shown <= packet->size);
    FUZZ_CHECK(p.layer >= -1 && p.layer < 7);
    FUZZ_CHECK(!p.spare || p.shown);
    FUZZ_CHECK(!p.start || packet->flags & AV_PKT_FLAG_KEY);
}

/* What is kept brings all that it brings once more: the sets of a packet that has them, in their
 * order. */
static void
keep_again(const AVCodecParameters *par, const AVPacket *kept)
{
    bool changed;
    AVPacket *again = av_packet_alloc();
    FUZZ_CHECK(again && qvm_keep_parameters(par, kept, again, &changed));
    FUZZ_CHECK(again->size == kept->size);
    FUZZ_CHECK(!kept->size || !memcmp(again->data, kept->data, (size_t)kept->size));
    av_packet_free(&again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes b = { data, size };
    AVCodecParameters *par = avcodec_parameters_alloc();
    AVPacket *packet = av_packet_alloc(), *kept = av_packet_alloc();
    bool changed = false;
    FUZZ_CHECK(par && packet && kept);
    par->codec_id = codecs[fuzz_byte(&b) % (sizeof codecs / sizeof *codecs)];
    packet->flags = fuzz_flag(&b) ? AV_PKT_FLAG_KEY : 0;
    uint8_t *extradata = take_block(&b, &par->extradata_size);
    par->extradata = extradata;
    qvm_may_hide_pictures(par);
    while (b.left) {
        uint8_t *block = packet->data = take_block(&b, &packet->size);
        look(par, packet);
        FUZZ_CHECK(qvm_keep_parameters(par, packet, kept, &changed));
        free(block);
        keep_again(par, kept);
    }
    par->extradata = packet->data = NULL;
    free(extradata);
    avcodec_parameters_free(&par);
    av_packet_free(&packet);
    av_packet_free(&kept);
    return 0;
}
