/* SPDX-License-Identifier: MIT */
/*
 * Declares NVIDIA's video decoders, as NVIDIA's own library gives them: it parses the stream, and
 * is asked after each picture whether that was whole. NVIDIA's libraries (libcuda, libnvcuvid) are
 * opened by qvm_nvdec_load. FFmpeg's decoders are not used here: they tell of no damage, and open a
 * device's decoder anew for each clip, which takes some 40 ms during which no other is opened.
 */
#ifndef QVM_NVDEC_H
#define QVM_NVDEC_H

#include "gpu_decoder.h"

/* Returns why no GPU decodes in a program that was built without the headers of NVIDIA's decoders,
 * in words that fit into not_gpu; "" in one that was built with them. */
const char *qvm_no_nvdec(void);

typedef struct qvm_nvdec qvm_nvdec;

/* Receives the pictures of a stream. */
typedef struct qvm_nvdec_sink {
    /* Returns the place for the frame of time `pts`, which has so many bytes, and its slot; NULL:
     * it is not wanted. */
    uint8_t *(*find)(void *user, int64_t pts, int64_t bytes, int32_t *slot);
    /* Hears of each frame. A frame that is wanted is in its place by then. */
    void (*frame)(void *user, const qvm_gpu_decoder_event *event);
    void *user;
} qvm_nvdec_sink;

typedef struct qvm_nvstream qvm_nvstream;

/* Loads NVIDIA's libraries. Returns NULL, or static text that says why they are not loaded. *out is
 * the caller's in either case, and is kept until the process ends. */
const char *qvm_nvdec_load(qvm_nvdec **out);
/* Opens the GPU of this number. Returns NULL, or static text that says why it is not opened. */
const char *qvm_nvdec_open(qvm_nvdec *gpu, int number);
/* Makes a decoder and returns whether that works, since it may not in a process that is locked
 * in. */
bool qvm_nvdec_try(qvm_nvdec *gpu);

/* Opens a stream, which one thread uses. Returns NULL if the GPU does not accept it, and *why in
 * words that follow "since". */
qvm_nvstream *qvm_nvstream_open(qvm_nvdec *gpu, const qvm_gpu_decoder_stream *about,
                                const qvm_nvdec_sink *sink, const char **why);
/* Decodes the packet of a request, which has one picture. With `data` NULL, all frames come that
 * are still under way, and all pictures are then known to be whole. Frames come in the order of
 * their packets. Returns NULL, or why the stream is of no use any more. */
const char *qvm_nvstream_give(qvm_nvstream *stream, const qvm_gpu_decoder_request *request,
                              const uint8_t *data);
/* Has the stream go on with a keyframe that refers to nothing before it. Returns as
 * qvm_nvstream_give does. */
const char *qvm_nvstream_begin_anew(qvm_nvstream *stream);
void qvm_nvstream_close(qvm_nvstream *stream);

#endif
