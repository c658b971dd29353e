/* SPDX-License-Identifier: MIT */
/* NVIDIA's video decoders, through NVIDIA's own library, which parses the stream and reports
 * whether each picture was whole. FFmpeg's wrappers do not report damage, and reopen a device's
 * decoder for each clip: that takes about 40 ms, during which no other decoder can be opened. */
#pragma once

#include "gpu_decoder.h"

/* Returns why no GPU decodes in this build, as a text for not_gpu; "" if a GPU may. */
const char *qvm_no_nvdec(void);

typedef struct qvm_nvdec qvm_nvdec;

/* Receives the pictures of a stream. */
typedef struct qvm_nvdec_sink {
    /* Returns memory of that many bytes for the frame with time `pts`, and its slot; NULL if the
     * frame is not wanted. */
    uint8_t *(*find)(void *user, int64_t pts, int64_t bytes, int32_t *slot);
    /* Called for each frame, which is in its memory by then if it is wanted. */
    void (*frame)(void *user, const qvm_gpu_decoder_event *event);
    void *user;
} qvm_nvdec_sink;

typedef struct qvm_nvstream qvm_nvstream;

/* Loads NVIDIA's libraries. Returns NULL, or why that failed. *out lives as long as the process. */
const char *qvm_nvdec_load(qvm_nvdec **out);
/* Opens the GPU with this number. Returns NULL, or why that failed. */
const char *qvm_nvdec_open(qvm_nvdec *gpu, int number);
/* Returns whether a decoder can be made; in a locked process that may fail. */
bool qvm_nvdec_try(qvm_nvdec *gpu);

/* Opens a stream, for one thread. Returns NULL, and *why to follow "since", if the GPU refuses. */
qvm_nvstream *qvm_nvstream_open(qvm_nvdec *gpu, const qvm_gpu_decoder_stream *about,
                                const qvm_nvdec_sink *sink, const char **why);
/* Decodes a request's packet of one picture. With `data` NULL, all remaining frames are delivered,
 * and all pictures are known to be whole. Frames are delivered in the order of their packets.
 * Returns NULL, or why the stream has failed. */
const char *qvm_nvstream_give(qvm_nvstream *stream, const qvm_gpu_decoder_request *request,
                              const uint8_t *data);
/* Continues with a keyframe that refers to nothing before it. Returns as above. */
const char *qvm_nvstream_begin_anew(qvm_nvstream *stream);
void qvm_nvstream_close(qvm_nvstream *stream);
