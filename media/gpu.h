/* SPDX-License-Identifier: MIT */
/* The processes that have a GPU open, from outside (gpu.c). */
#ifndef QVM_GPU_H
#define QVM_GPU_H

#include "media.h"

enum {
    QVM_MOST_GPUS = 16,
    QVM_MOST_RETIRED = 8,
    /* Clips that a process serves: what one of them did to it does not last longer. */
    QVM_GPU_CLIPS = 512,
    /* One process in so many clips may come into doubt, and three at once, before the GPU is left alone: what clips can
     * do to it would otherwise have processes start without end. */
    QVM_GPU_DOUBT = 64,
    QVM_MOST_DOUBTS = 3 * QVM_GPU_DOUBT,
    QVM_MOST_HELD = 16, /* frames of a clip that wait for one which is shown before them */
    QVM_GPU_DELAY = 3,  /* frames that are being decoded while the next packets come */
    /* Room for a clip's sampled frames under way: with one more than can wait, a next one always comes. */
    QVM_SLOTS = QVM_MOST_HELD + QVM_GPU_DELAY + 1,
    QVM_MOST_PLANES = 8192 * 8192 * 3 /* bytes of a slot: the planes of a frame with 10 bits */
};

/* The one message of a process with a GPU to whoever started it: whether it is ready. */
typedef struct qvm_gpu_hello {
    int32_t ready;
    char text[156]; /* why the process is not ready */
} qvm_gpu_hello;

struct qvm_gpu_process {
    pid_t pid; /* 0: there is no process */
    int socket;
    double began_s;
    bool ready;
    int given; /* clips that it was given */
};

struct qvm_gpu {
    struct qvm_gpu_process now, next;
    bool unlocked;
    int doubts; /* QVM_GPU_DOUBT for each process in doubt, less one for each clip that was given */
    char why[sizeof((qvm_gpu_hello *)0)
                 ->text]; /* why nothing is decoded there any more; "": clips are */
};

struct qvm_gpus {
    pthread_mutex_t lock;
    struct qvm_gpu at[QVM_MOST_GPUS];
    struct qvm_gpu_process retired[QVM_MOST_RETIRED]; /* processes that end with their last clip */
    int next_retired;
};

enum { QVM_GPU_FDS = 2 }; /* the clip's socket, and the memory that it shares */

typedef struct qvm_gpu_request {
    int gpu;
    bool unlocked;
    qvm_order order;
    int fds[QVM_GPU_FDS];
} qvm_gpu_request;

/* Gives a process the clip's end of a stream, once it is ready. QV_EBACKEND: nothing is decoded there;
 * QV_ESTATE: any more, as too many processes came into doubt. */
qv_status qvm_gpu_give(qv_decoder *decoder, const qvm_gpu_request *request, pid_t *pid,
                       qv_error *err);
/* A clip says that the process has ended, is silent, or said what cannot be: the process gets no further clips. */
void qvm_gpu_doubt(qv_decoder *decoder, int gpu, pid_t pid);
void qvm_gpus_stop(struct qvm_gpus *gpus);

#endif
