/* SPDX-License-Identifier: MIT */
/* Finds NAL units of H.264 and HEVC in a packet, and reads their bits (nal.c). */
#pragma once

#include "decoder.h"

/* The first bytes of a NAL unit's payload, without the bytes that prevent start codes. */
typedef struct qvm_bits {
    uint8_t bytes[128];
    size_t n, at; /* at: the position in bits */
} qvm_bits;

qvm_bits qvm_open_bits(const uint8_t *from, const uint8_t *end);
/* Reads n bits, at most 32. Bits past the end are 0. */
unsigned qvm_take_bits(qvm_bits *bits, int n);
/* Reads an unsigned Exp-Golomb code (9.1). */
unsigned qvm_take_golomb(qvm_bits *bits);

typedef struct qvm_units {
    const uint8_t *at, *end;
    int length_bytes; /* length of the size field in front of each unit; 0: units have start
                       * codes */
} qvm_units;

/* Returns where the next start code (00 00 01) begins, or `end`. */
const uint8_t *qvm_find_start_code(const uint8_t *at, const uint8_t *end);
/* Starts at a packet's first unit. A packet may be empty, with no data. */
qvm_units qvm_open_units(const AVPacket *packet, int length_bytes);
/* Moves to the next unit; false after the last, or if a length is too long. */
bool qvm_next_unit(qvm_units *units, const uint8_t **unit, const uint8_t **end);
/* Returns the length_bytes of a stream's packets; avcC and hvcC are recognised as in FFmpeg. */
int qvm_find_length_bytes(const AVCodecParameters *par);
/* Returns whether H.264's units of this type are parameter sets. */
bool qvm_is_h264_parameters(int type);
