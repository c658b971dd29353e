/* SPDX-License-Identifier: MIT */
/*
 * A stream of H.264 written by hand, of which every bit is known: pictures of 32x32 pixels, as frames or as fields in
 * any order (PAFF), which no encoder at hand makes. A picture is I slices of raw macroblocks, or P slices of one raw
 * macroblock and others that are copied from the picture that was referred to last: so that a picture that is wrong
 * shows in all that follow.
 */
#ifndef QV_TESTS_H264_WRITER_H
#define QV_TESTS_H264_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { H264_SIDE = 32, H264_MOST_BYTES = 4096 /* of what one call writes */ };

typedef struct h264_picture {
    int shows;      /* decides what the raw macroblocks are, and which one is raw */
    int place;      /* in the order of showing, from the last IDR picture on */
    int frame_num;  /* below 16 (7.4.3) */
    bool idr;       /* and all of it raw */
    bool is_field;  /* else a frame */
    bool is_bottom; /* of the two fields the second one */
    bool referred;  /* nal_ref_idc is not 0 */
} h264_picture;

/* Both write NAL units behind start codes, and return how many bytes. */
size_t h264_write_parameters(uint8_t *to);
size_t h264_write_picture(uint8_t *to, const h264_picture *picture);

#endif
