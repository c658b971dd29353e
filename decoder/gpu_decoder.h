/* SPDX-License-Identifier: MIT */
/* A clip's decoder in the GPU process (gpu_process.c), which opens a GPU and decodes for many
 * clips. The clip's decoder process (gpu_decoder.c) reads the file, sends packets to the GPU
 * process, and takes the sampled frames from shared memory. Neither trusts the other: after
 * anything unexpected the clip is decoded again in its decoder process. */
#pragma once

#include <libavcodec/bsf.h>

#include "decoder.h"

#define QVM_WHY_BYTES sizeof((qv_outcome *)0)->not_gpu

enum { QVM_MOST_PACKET = 64 << 20 };

/* `bytes` bytes follow each request. EMPTY: no more packets; return all frames. ANEW: a keyframe
 * follows, before which packets were left out. */
typedef enum qvm_gpu_decoder_kind {
    QVM_GPU_OPEN,
    QVM_GPU_PACKET,
    QVM_GPU_EMPTY,
    QVM_GPU_ANEW
} qvm_gpu_decoder_kind;

typedef struct qvm_gpu_decoder_request {
    int32_t kind;
    int32_t slot;   /* PACKET: the slot for the packet's frame; -1: the frame is not wanted */
    int32_t period; /* PACKET: how many times the picture order count has restarted */
    int32_t group;  /* PACKET: the packet's group of pictures; a keyframe begins the next one */
    /* of the qvm_gpu_decoder_stream (OPEN) or packet that follows; the packet is in Annex B's form,
     * with parameter sets in front where decoding begins */
    int32_t bytes;
    int64_t pts; /* PACKET: the packet's time */
} qvm_gpu_decoder_request;

enum { QVM_SCALED_MORE = 32 }; /* the most that rounding may add to a side */
/* The size of a picture's visible part, and the size to resize it to; zeros: not resized. */
typedef struct qvm_scaled {
    int32_t width, height, to_width, to_height;
} qvm_scaled;
static inline int64_t
qvm_scaled_bytes(const qvm_scaled *s)
{
    return 3 * (int64_t)s->to_width * s->to_height;
}

/* The stream to decode, in FFmpeg's numbers. */
typedef struct qvm_gpu_decoder_stream {
    int32_t codec_id, format, width, height; /* the size of the coded frames */
    /* The requested size of RGB, if the GPU process can make it; for colours see
     * qvm_find_colours. */
    qvm_scaled scaled;
    int32_t space, full_range;
} qvm_gpu_decoder_stream;

/* OPENED: the stream is accepted. FRAME: a packet's frame; each packet has one, in order. EMPTIED:
 * there are no more frames. FAILED: no event follows. */
typedef enum qvm_gpu_decoder_answer {
    QVM_GPU_OPENED,
    QVM_GPU_FRAME,
    QVM_GPU_EMPTIED,
    QVM_GPU_FAILED
} qvm_gpu_decoder_answer;

/* An event from the GPU process. A frame's slot holds the coded picture, whose sides are even, as
 * NV12 or P010 (8 or 10 bits): its luma rows and half as many chroma rows, without gaps. On request
 * it holds RGB of the visible part, resized. */
typedef struct qvm_gpu_decoder_event {
    int32_t kind;
    int32_t slot; /* -1: the frame is not wanted */
    int64_t pts;
    int64_t order;         /* position according to the pictures' headers: frames are shown in
                            * ascending order */
    int32_t group;         /* the packet's group of pictures */
    int32_t whole;         /* the pictures of all groups below this number are known to be whole */
    int32_t width, height; /* of the coded picture */
    int32_t right, bottom; /* columns and rows cropped at these sides */
    int32_t is_scaled;     /* the slot holds RGB, resized */
    char why[QVM_WHY_BYTES]; /* FAILED: the reason, as a text that follows "since" */
} qvm_gpu_decoder_event;

/* The most frames, and bytes of sampled frames, that wait until their group is known to be
 * whole. */
enum { QVM_MOST_EVENTS = 1024, QVM_MOST_GROUP = 16384 };
#define QVM_MOST_GROUP_BYTES ((int64_t)256 << 20)

/* A frame that has arrived, and waits for its group and for the frames that are shown before it. */
typedef struct qvm_gpu_decoder_frame {
    int64_t pts, order; /* as in qvm_gpu_decoder_event */
    int32_t group;
    AVFrame *frame; /* NULL: the frame is not wanted */
} qvm_gpu_decoder_frame;

typedef struct qvm_gpu_decoder {
    int socket;
    const uint8_t *planes; /* [n_slots, slot_bytes] */
    int n_slots;
    bool is_direct;                  /* resized frames stay in their slots; each has its own */
    int64_t slot_bytes, frame_bytes; /* frame_bytes: the most that a held frame has */
    double patience_s;
    const qvm_watch *watch;
    const qvm_times *times; /* the times of the frames to expect */
    AVFrame *like;          /* the first frame, as this process's own decoder made it */
    qvm_scaled scaled;      /* the requested size of frames; zeros: as planes */
    uint8_t *first_rgb;     /* the first frame at this size, as this process makes it; NULL: not
                             * wanted */
    AVBSFContext *annexb;
    AVPacket *packet;
    /* the next packet is the first one, or a keyframe after a gap */
    bool begins;
    bool free[QVM_MOST_SLOTS];                   /* slots that hold no frame and await none */
    bool emptying;                               /* all packets were sent, so all frames must
                                                  * come */
    bool emptied;                                /* all frames have come */
    qvm_gpu_decoder_event came[QVM_MOST_EVENTS]; /* a ring of n events, from `first` on */
    unsigned first, n;
    /* A ring of n_held frames in the order of arrival. At most most_held of the frames that arrived
     * before a frame are shown after it. */
    qvm_gpu_decoder_frame held[QVM_MOST_GROUP];
    unsigned first_held, n_held, most_held;
    int64_t held_bytes; /* bytes of the held frames */
    int32_t period;
    int32_t group; /* the group of the packet sent last */
    int32_t whole; /* all groups below this number are known to be whole */
    int64_t next;  /* index in `times` from which the search for the next frame to show begins */
    /* width, height, right, bottom and is_scaled of all frames' events; zeros: no frame yet */
    int32_t shape[5];
    int64_t last_order; /* `order` of the frame returned last */
    bool lost;          /* the process exited, timed out, or sent something impossible */
    /* why the GPU is no longer used, as a text after "since"; "": it is in use */
    char why[QVM_WHY_BYTES];
} qvm_gpu_decoder;

/* Returns the bytes of a slot for a stream's frames; 0, and *why as a text that follows "since", if
 * GPUs do not decode it to the same bytes. */
int64_t qvm_gpu_decoder_slot_bytes(const AVCodecContext *codec, const AVFrame *first,
                                   const char **why);
/* Returns whether n more sampled frames may wait for their group; if not, d->why is the reason. */
bool qvm_gpu_decoder_can_hold(qvm_gpu_decoder *d, int64_t n);

/* Opens the stream on the GPU. The members of `d` up to `times` must be set, `scaled` and first_rgb
 * (from malloc) may be set, and the others must be zero; `first` is the first frame as `codec` made
 * it. Returns false with d->why if the GPU refuses. The caller must call qvm_gpu_decoder_close in
 * either case. */
bool qvm_gpu_decoder_open(qvm_gpu_decoder *d, const AVStream *stream, const AVCodecContext *codec,
                          const AVFrame *first);
void qvm_gpu_decoder_close(qvm_gpu_decoder *d);
/* Returns whether a received frame is RGB of the requested size. *slot is the frame's if it was not
 * copied, else -1. */
bool qvm_gpu_decoder_scaled(const qvm_gpu_decoder *d, const AVFrame *frame, int32_t *slot);
/* Like avcodec_send_packet and avcodec_receive_frame, except that frames that were not sampled have
 * no data, a failure is final, and frames wait until their group is known to be whole. */
int qvm_gpu_decoder_send(qvm_gpu_decoder *d, const AVPacket *packet, bool sampled);
int qvm_gpu_decoder_receive(qvm_gpu_decoder *d, AVFrame *frame);
/* Makes the GPU, whose frames have all arrived, continue with a keyframe after a gap. */
void qvm_gpu_decoder_begin_anew(qvm_gpu_decoder *d);
