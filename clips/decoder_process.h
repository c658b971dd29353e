/* SPDX-License-Identifier: MIT */
/* A clip's side of its decoder process. Once that process has read the file, the file's author may
 * control it, so nothing that it sends is trusted. */
#pragma once

#include "gpu.h"

struct qvm_process {
    const struct qvm_task *task; /* the clip's */
    qv_outcome *outcome;         /* the clip's; the decoder's reports are written to it */
    qvm_session session;         /* descriptors that the decoder is given; -1: not open */
    qv_decoder *decoder, *own_decoder;
    qvm_server server; /* the process itself; pid is 0: there is none */
    bool program_lost; /* no process decodes the clip, because the decoder program ended */
    int socket;        /* this end of the socket to the decoder; -1: none is open */
    bool asked;        /* it may have read the file, so the file's author may control it */
    bool gives_frames; /* a FRAME is allowed now */
    bool gives_index;  /* an index after the facts is allowed now */
    bool gives_planes; /* reporting that a GPU decodes is allowed now */
    int64_t n_direct;  /* slots that may hold finished frames */
    int codec;         /* the other side of session.codec, for the GPU process; -1: none */
    pid_t gpu_process; /* the GPU process that decodes the clip; 0: none */
    /* why no GPU process got the clip; NULL: one did, or no GPU was wanted */
    const char *gpu_is_avoided;
    /* the decoder's last message: */
    bool has_plan; /* it has reported which packets it will decode */
    bool gpu_lost;
};

/* Starts the decoder for the open session.clip. Returns QV_ENOMEM, or errors of the program's
 * start. */
qv_status qvm_process_start(struct qvm_process *p, qv_error *err);
/* Initialises `p` without a decoder, for a clip's task, outcome and descriptor (-1: not opened
 * yet). */
void qvm_process_init(struct qvm_process *p, const struct qvm_task *task, qv_outcome *outcome,
                      int clip);
/* Ends the decoder and closes all descriptors of `p` but session.clip. */
void qvm_process_close(struct qvm_process *p);

/* Makes a GPU process decode into the shared memory that `start` lays out, from `memory` on.
 * Returns QV_EBACKEND if no GPU process can, or QV_ESTATE if they failed so often that the CPU must
 * decode. */
qv_status qvm_process_give_gpu(struct qvm_process *p, const qvm_request *start, qv_error *err);

/* Sends a request. */
qv_status qvm_process_tell(struct qvm_process *p, const qvm_request *request, qv_error *err);
/* Send and receive n bytes that belong to the last request or event. */
qv_status qvm_process_send(struct qvm_process *p, const void *bytes, size_t n, qv_error *err);
qv_status qvm_process_receive(struct qvm_process *p, void *bytes, size_t n, qv_error *err);
/* Waits for an event other than a sign of life. If none comes, the error gives the reason. */
qv_status qvm_process_next(struct qvm_process *p, qvm_event *event, qv_error *err);
