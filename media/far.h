/* SPDX-License-Identifier: MIT */
/* The far end of a clip as the near end has it: a thread, or a process that belongs to a stranger once it
 * has read the file. */
#ifndef QVM_FAR_H
#define QVM_FAR_H

#include "gpu.h"

struct qvm_far {
    const char *path; /* for error texts; the clip's */
    int64_t memory;   /* limit of the process that decodes, bytes */
    double patience_s;
    qvm_session session; /* what it is given; -1 for descriptors that are not there yet */
    qv_decoder *decoder, *own_decoder;
    pid_t pid; /* 0: a thread */
    pthread_t thread;
    bool has_thread;
    int socket;        /* to it; -1: none */
    bool asked;        /* it may have read the file, and is whoever made that */
    bool gives_frames; /* it may say that a frame is there */
    bool gives_index;  /* it may send an index behind the facts */
    bool gives_planes; /* it may say that a GPU decodes */
    int codec; /* the other end of session.codec, for the process that has a GPU; -1: none */
    int gpu;
    pid_t gpu_process; /* that has it; 0: none */
    /* what it said last */
    bool has_plan; /* what will be decoded */
    char why[sizeof((qv_clip_info *)0)->decodes_all];
    bool on_gpu, gpu_lost;
    char not_gpu[sizeof((qv_clip_info *)0)->not_gpu];
    int64_t damaged, decoded;
    double busy_s;
};

/* session.clip is open. QV_ENOMEM, or what the decoder's program could not be started for. */
qv_status qvm_far_start(struct qvm_far *far, const qv_clip_options *o, qv_error *err);
/* Ends it, and closes its descriptors. */
void qvm_far_close(struct qvm_far *far);

/* Has a GPU's process decode into what is behind the first `memory` bytes of the shared memory, in slots of so many
 * bytes. QV_EBACKEND. */
qv_status qvm_far_give_gpu(struct qvm_far *far, int64_t memory, int64_t plane_bytes, qv_error *err);

/* Sends a request. */
qv_status qvm_far_tell(struct qvm_far *far, const qvm_request *request, qv_error *err);
/* Sends, or waits for, n bytes that belong to the request before, or to the event. */
qv_status qvm_far_send(struct qvm_far *far, const void *bytes, size_t n, qv_error *err);
qv_status qvm_far_receive(struct qvm_far *far, void *bytes, size_t n, qv_error *err);
/* Waits for an event that is more than a sign of life. The error says why there is none: how it ended, or
 * what it failed with. */
qv_status qvm_far_next(struct qvm_far *far, qvm_event *event, qv_error *err);

#endif
