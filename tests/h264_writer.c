/* SPDX-License-Identifier: MIT */
#include "h264_writer.h"

#include <string.h>

enum { MACROBLOCK = 384 }; /* bytes of 16x16 pixels in 4:2:0 */

/* ---- bits ------------------------------------------------------------------------------------ */

struct bits {
    uint8_t at[H264_MOST_BYTES / 2];
    size_t n; /* bits */
};

static void
put(struct bits *b, int n, unsigned value)
{
    while (n--) {
        const unsigned bit = value >> n & 1;
        b->at[b->n / 8] = (uint8_t)(b->at[b->n / 8] | bit << (7 - b->n % 8));
        b->n++;
    }
}

/* Puts an unsigned Exp-Golomb code (9.1). */
static void
put_ue(struct bits *b, unsigned value)
{
    int n = 0;
    while ((value + 1) >> (n + 1))
        n++;
    put(b, n, 0);
    put(b, n + 1, value + 1);
}

/* Writes the unit after a start code, with a stop bit, and without start codes inside (7.4.1). */
static size_t
end_unit(uint8_t *to, unsigned head, struct bits *b)
{
    size_t n = 5;
    memcpy(to, (const uint8_t[]){ 0, 0, 0, 1, (uint8_t)head }, n);
    put(b, 1, 1);
    int zeros = 0;
    for (size_t i = 0; i < (b->n + 7) / 8; i++) {
        if (zeros >= 2 && b->at[i] <= 3) {
            to[n++] = 3;
            zeros = 0;
        }
        zeros = b->at[i] ? 0 : zeros + 1;
        to[n++] = b->at[i];
    }
    return n;
}

/* ---- parameter sets -------------------------------------------------------------------------- */

/* Writes the display order's parameters for the decoder (E.1.1): one picture waits for a later
 * one. */
static void
put_usability(struct bits *b)
{
    put(b, 4, 0); /* nothing of aspect, overscan, signal or chroma */
    put(b, 1, 1); /* the times follow */
    put(b, 32, 1);
    put(b, 32, 20); /* fields per second */
    put(b, 1, 1);
    put(b, 3, 0); /* no HRD of either kind, and no pic_struct */
    put(b, 1, 1); /* the restrictions follow */
    put(b, 1, 1);
    put_ue(b, 0);
    put_ue(b, 0);
    put_ue(b, 10);
    put_ue(b, 10);
    put_ue(b, 1); /* max_num_reorder_frames */
    put_ue(b, 2); /* max_dec_frame_buffering */
}

size_t
h264_write_parameters(uint8_t *to)
{
    struct bits sps = { .n = 0 }, pps = { .n = 0 };
    put(&sps, 8, 77); /* profile Main */
    put(&sps, 8, 0);
    put(&sps, 8, 30); /* level 3 */
    put_ue(&sps, 0);
    put_ue(&sps, 0); /* frame_num has 4 bits */
    put_ue(&sps, 0); /* pic_order_cnt_type */
    put_ue(&sps, 4); /* pic_order_cnt_lsb has 8 bits */
    put_ue(&sps, 2); /* number of reference frames */
    put(&sps, 1, 0);
    put_ue(&sps, H264_SIDE / 16 - 1);
    put_ue(&sps, H264_SIDE / 32 - 1); /* height in rows of a field */
    put(&sps, 1, 0);                  /* frame_mbs_only_flag */
    put(&sps, 1, 0);                  /* mb_adaptive_frame_field_flag */
    put(&sps, 1, 1);                  /* direct_8x8_inference_flag */
    put(&sps, 1, 0);
    put(&sps, 1, 1);
    put_usability(&sps);
    put_ue(&pps, 0);
    put_ue(&pps, 0);
    put(&pps, 2, 0); /* CAVLC, and each field has its pic_order_cnt_lsb */
    put_ue(&pps, 0);
    put_ue(&pps, 0); /* one reference in each list */
    put_ue(&pps, 0);
    put(&pps, 3, 0);
    put_ue(&pps, 0); /* signed, as is the next one */
    put_ue(&pps, 0);
    put_ue(&pps, 0);
    put(&pps, 3, 4); /* deblocking_filter_control_present_flag */
    const size_t n = end_unit(to, 0x67, &sps);
    return n + end_unit(to + n, 0x68, &pps);
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* Returns whether all macroblocks are raw. */
static bool
is_raw(const h264_picture *p)
{
    return (p->idr || p->recovery) && !p->is_bottom;
}

/* Writes a recovery point (D.1.8): all pictures from here on, in display order, are right. */
static size_t
write_recovery(uint8_t *to)
{
    struct bits b = { .n = 0 };
    put(&b, 8, 6);
    put(&b, 8, 1);
    put_ue(&b, 0); /* recovery_frame_cnt */
    put(&b, 1, 1); /* exact_match_flag */
    put(&b, 1, 0);
    put(&b, 2, 0);
    put(&b, 3, 4); /* what fills the byte */
    return end_unit(to, 6, &b);
}

static void
put_header(struct bits *b, const h264_picture *p)
{
    put_ue(b, 0);
    put_ue(b, is_raw(p) ? 7 : 5); /* all slices of the picture are I, or all are P */
    put_ue(b, 0);
    put(b, 4, (unsigned)p->frame_num);
    put(b, 1, p->is_field);
    if (p->is_field)
        put(b, 1, p->is_bottom);
    if (p->idr && !p->is_bottom)
        put_ue(b, (unsigned)p->shows % 2); /* idr_pic_id must differ between two in a row */
    put(b, 8, (unsigned)(2 * p->place + p->is_bottom) & 255);
    if (!is_raw(p))
        put(b, 2, 0); /* the lists of references stay as they are */
    if (p->referred)
        put(b, p->idr && !p->is_bottom ? 2 : 1, 0); /* a sliding window of references */
    put_ue(b, 0);
    put_ue(b, 1); /* no deblocking */
}

/* Puts a grey level for each picture and macroblock, never so low that it looks like a start
 * code. */
static void
put_raw(struct bits *b, const h264_picture *p, int macroblock)
{
    const int grey = 40 + (37 * p->shows + 11 * macroblock + 90 * p->is_bottom) % 180;
    b->n = (b->n + 7) / 8 * 8;
    memset(b->at + b->n / 8, grey, MACROBLOCK);
    b->n += 8 * MACROBLOCK;
}

size_t
h264_write_picture(uint8_t *to, const h264_picture *p)
{
    const int all = p->is_field ? 2 : 4;
    const bool raw = is_raw(p);
    const size_t in_front = p->recovery && raw ? write_recovery(to) : 0;
    struct bits b = { .n = 0 };
    put_header(&b, p);
    for (int i = 0; i < all && raw; i++) {
        put_ue(&b, 25); /* I_PCM */
        put_raw(&b, p, i);
    }
    const int one = p->shows % all;
    if (!raw) {
        put_ue(&b, (unsigned)one); /* this many macroblocks are skipped */
        put_ue(&b, 5 + 25);
        put_raw(&b, p, one);
        if (one + 1 < all)
            put_ue(&b, (unsigned)(all - one - 1));
    }
    const unsigned type = p->idr && !p->is_bottom ? 5 : 1;
    return in_front + end_unit(to + in_front, (p->referred ? 0x60U : 0) | type, &b);
}
