/* SPDX-License-Identifier: MIT */
/*
 * NVIDIA's video decoders, by NVIDIA's own library, which parses the stream and is asked after each picture whether it
 * was whole. Its libraries (libcuda, libnvcuvid) are opened when they are asked for. FFmpeg's decoders are not used here:
 * they tell of no damage, and open a device's decoder anew for each clip, which takes some 40 ms during which no other
 * is opened.
 */
#ifndef QVM_NVDEC_H
#define QVM_NVDEC_H

#include "remote.h"

typedef struct qvm_nvdec qvm_nvdec;

/* Who takes what comes out of a stream. */
typedef struct qvm_nvdec_sink {
    /* Returns the place in which the frame of that time is wanted, with room for so many bytes. NULL: it is not
     * wanted. */
    uint8_t *(*find)(void *user, int64_t pts, int64_t bytes, int32_t *slot);
    void (*frame)(void *user, const qvm_remote_event *event);
    void *user;
} qvm_nvdec_sink;

typedef struct qvm_nvstream qvm_nvstream;

/* Loads NVIDIA's libraries: NULL, or why they are not. The caller's, whatever came of it, until the process ends. */
const char *qvm_nvdec_load(qvm_nvdec **out);
/* Opens a GPU: NULL, or why it is not. */
const char *qvm_nvdec_open(qvm_nvdec *gpu, int number);
/* Returns whether the GPU makes decoders, now that the process is locked in. */
bool qvm_nvdec_try(qvm_nvdec *gpu);

/* Takes a stream; NULL, and why the GPU does not, in words that follow "since". */
qvm_nvstream *qvm_nvstream_open(qvm_nvdec *gpu, const qvm_remote_stream *about,
                                const qvm_nvdec_sink *sink, const char **why);
/* Takes a packet of one picture, in Annex B's form, or NULL: all frames are to come. Frames come in the order of the
 * packets. Returns NULL, or why the stream is of no use any more. */
const char *qvm_nvstream_give(qvm_nvstream *stream, const uint8_t *data, size_t n, int64_t pts,
                              int32_t period);
/* Goes on with a keyframe that refers to nothing before. */
const char *qvm_nvstream_begin_anew(qvm_nvstream *stream);
void qvm_nvstream_close(qvm_nvstream *stream);

#endif
