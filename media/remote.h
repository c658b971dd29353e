/* SPDX-License-Identifier: MIT */
/*
 * A decoder in another process, which has a device open and decodes for many clips (device.c). The clip's own process
 * (remote.c) reads the file, gives it the packets, and takes those frames that are sampled out of memory that both
 * have; all else is done there. The two talk over a stream socket, neither believes the other, and whatever is
 * unforeseen ends with the clip's being decoded again in its own process.
 */
#ifndef QVM_REMOTE_H
#define QVM_REMOTE_H

#include <libavcodec/bsf.h>

#include "gpu.h"

#define QVM_WHY_BYTES sizeof((qv_clip_info *)0)->not_gpu

enum { QVM_MOST_PACKET = 64 << 20 };

/* Each is followed by `bytes` bytes. EMPTY: no packet follows those before, all frames are to come. ANEW: a keyframe
 * follows, in front of which packets were left out. */
typedef enum qvm_remote_kind {
    QVM_REMOTE_OPEN,
    QVM_REMOTE_PACKET,
    QVM_REMOTE_EMPTY,
    QVM_REMOTE_ANEW
} qvm_remote_kind;

typedef struct qvm_remote_request {
    int32_t kind;
    int32_t slot; /* PACKET: the slot in which the packet's frame is wanted; -1: it is not wanted */
    int32_t period; /* PACKET: how often the count of the pictures' order has begun anew */
    /* OPEN: of a qvm_remote_stream that follows. PACKET: of a packet in Annex B's form that follows, with parameter sets
     * in front where decoding begins. */
    int32_t bytes;
    int64_t pts;
} qvm_remote_request;

typedef struct qvm_remote_stream {
    int32_t codec_id, format, width, height; /* of the coded frames, in FFmpeg's numbers */
} qvm_remote_stream;

/* OPENED: the stream is taken. FRAME: of every packet, in the order of the packets. EMPTIED: there are no more frames.
 * FAILED: nothing more comes. */
typedef enum qvm_remote_answer {
    QVM_REMOTE_OPENED,
    QVM_REMOTE_FRAME,
    QVM_REMOTE_EMPTIED,
    QVM_REMOTE_FAILED
} qvm_remote_answer;

/* A slot holds NV12 or P010, as the format of the stream has 8 or 10 bits: `height` rows of luma and half as many of
 * chroma, without gaps, of the coded picture, whose sizes are even. */
typedef struct qvm_remote_event {
    int32_t kind;
    int32_t slot; /* -1: the frame is not wanted */
    int64_t pts;
    int64_t order; /* by the headers of the pictures: frames are shown in ascending order */
    int32_t width, height;
    int32_t right, bottom;   /* columns and rows that are cut off at these sides */
    char why[QVM_WHY_BYTES]; /* FAILED: in words that follow "since" */
} qvm_remote_event;

enum { QVM_MOST_EVENTS = 1024 };

typedef struct qvm_remote {
    int socket;
    const uint8_t *planes; /* [QVM_SLOTS, slot_bytes] */
    int64_t slot_bytes;
    double patience_s;
    const qvm_watch *watch;
    const qvm_times *times; /* times of the frames that are to come */
    AVFrame *like;          /* the first frame, as this process's own decoder made it */
    AVBSFContext *annexb;
    AVPacket *packet;
    /* the next packet is the first one, or a keyframe in front of which packets were left out. */
    bool begins;
    bool free[QVM_SLOTS];
    bool emptying;
    qvm_remote_event came[QVM_MOST_EVENTS]; /* a ring */
    unsigned first, n;
    /* frames that came before one that is shown earlier: [n_held], of most_held and the next */
    qvm_remote_event held[QVM_MOST_HELD + 1];
    int n_held, most_held;
    int32_t period;
    int64_t next; /* number in `times` from which on the next frame to be shown is looked for */
    /* width, height, right and bottom of all events; 0: no frame came yet */
    int32_t shape[4];
    int64_t last_order; /* of the frame that was given last */
    bool lost;          /* the process ended, is silent, or said what cannot be */
    char why
        [QVM_WHY_BYTES]; /* why the device is of no use any more, in words that follow "since"; "": it is of use */
} qvm_remote;

/* Returns the bytes of a slot for the frames of a stream; 0: no device decodes the stream to the same bytes, and `why`. */
int64_t qvm_remote_slot_bytes(const AVCodecContext *codec, const AVFrame *first, const char **why);

/* Asks whether the device takes the stream. `remote` has its first six fields; `first` is the stream's first frame,
 * as `codec` made it, which it refers to from then on. False, and `why`. */
bool qvm_remote_open(qvm_remote *remote, const AVStream *stream, const AVCodecContext *codec,
                     const AVFrame *first);
void qvm_remote_close(qvm_remote *remote);
/* As avcodec_send_packet and avcodec_receive_frame; frames that were not sampled come without their data. Any failure
 * is one for good. */
int qvm_remote_send(qvm_remote *remote, const AVPacket *packet, bool sampled);
int qvm_remote_receive(qvm_remote *remote, AVFrame *frame);
void qvm_remote_begin_anew(qvm_remote *remote);

#endif
