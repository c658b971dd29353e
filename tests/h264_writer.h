/* SPDX-License-Identifier: MIT */
/*
 * Writes a stream of H.264 bit by bit: pictures of 32x32 pixels, as frames or as fields in any
 * order (PAFF), which no encoder at hand makes. A picture is I slices of raw macroblocks, or P
 * slices with one raw macroblock and others copied from the picture that was referred to last, so
 * that a wrong picture shows in all that follow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { H264_SIDE = 32, H264_MOST_BYTES = 4096 /* the most bytes that one call writes */ };

typedef struct h264_picture {
    int shows;      /* decides the raw macroblocks' content, and which macroblock is raw */
    int place;      /* place in the display order since the last IDR picture */
    int frame_num;  /* below 16 (7.4.3) */
    bool idr;       /* an IDR picture, entirely raw */
    bool is_field;  /* false: a frame */
    bool is_bottom; /* the second of the two fields */
    bool referred;  /* nal_ref_idc is not 0 */
    bool recovery;  /* not an IDR picture, but entirely raw, and decoding may begin with it */
} h264_picture;

/* Both write NAL units after start codes, and return the number of bytes. */
size_t h264_write_parameters(uint8_t *to);
size_t h264_write_picture(uint8_t *to, const h264_picture *picture);
