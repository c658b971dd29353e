/* SPDX-License-Identifier: MIT */
/* Starts GPU processes, gives them clips and ends them (gpu.c). */
#pragma once

#include "clips.h"
#include "decoders.h"

enum {
    QVM_MOST_RETIRED = 8,
    /* how many clips one process serves, so that damage done by one of them does not last */
    QVM_GPU_CLIPS = 512,
    /* qvm_gpu_doubt marks a process as suspect. If more than three processes become suspect within
     * a few clips, or more than one per QVM_GPU_DOUBT clips in the long run, the GPU is no longer
     * used, because clips could otherwise cause endless restarts. */
    QVM_GPU_DOUBT = 64,
    QVM_MOST_DOUBTS = 3 * QVM_GPU_DOUBT
};
struct qvm_gpu_process {
    qvm_child child; /* the process that monitors the GPU process (gpu_process.c) */
    double began_s;  /* when the process was started, by qv_seconds */
    bool ready;      /* the process has reported that it is ready */
    int given;       /* clips that the process was given */
};

struct qvm_gpu {
    struct qvm_gpu_process now, next; /* `next` is started before `now` has served its last clip */
    int doubts; /* QVM_GPU_DOUBT for each suspect process, less one for each clip that was given */
    /* why this GPU decodes no clips until retry_s; "" if it decodes */
    char why[sizeof((qvm_gpu_hello *)0)->text];
    /* When the next process may be started; each of `failures` in a row doubles the time to it. */
    double retry_s;
    int failures;
    bool momentary; /* last time no process could be started, perhaps for lack of descriptors */
};

struct qvm_gpus {
    pthread_mutex_t lock;
    struct qvm_gpu at[QVM_MOST_GPUS];
    qvm_child retired[QVM_MOST_RETIRED]; /* processes that end with their last clip */
    int next_retired;
};

typedef struct qvm_gpu_request {
    int gpu;
    qvm_order order;
    int fds[QVM_GPU_FDS];
} qvm_gpu_request;

/* Passes a clip's socket and memory to the GPU process, once it is ready. *pid must be 0 and
 * becomes the number of the process. Returns QV_EBACKEND if the GPU cannot decode; QV_ESTATE if too
 * many processes came into doubt. */
qv_status qvm_gpu_give(qv_decoder *decoder, const qvm_gpu_request *request, pid_t *pid,
                       qv_error *err);
/* Gives a process no further clips, because a clip reports that it exited, does not answer, or sent
 * an impossible message. */
void qvm_gpu_doubt(qv_decoder *decoder, int gpu, pid_t pid);
/* Kills all processes; no clip may be in progress. In a forked process they are not ours: only its
 * descriptors of them are closed, and they keep running for their starter. */
void qvm_gpus_end(struct qvm_gpus *gpus, bool are_ours);
