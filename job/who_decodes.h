/* SPDX-License-Identifier: MIT */
/* Who decodes a job's clips: the CPU or a GPU, and how many at once. */
#pragma once

#include "qwenvit_clips.h"

/* A job's readers. Each reads one clip at a time; a reader's number is its lane. */
struct qv_job_lanes {
    int n;   /* threads */
    int cpu; /* readers at work while no GPU decodes */
    int all; /* readers at work while a GPU decodes */
    int gpu; /* the first ones, for which the GPU decodes; 0: the clips' options decide */
};

/* Returns the readers of a job, of which `asked` work at once (0: chosen here). may_use_gpu: GPUs
 * decode, or may do so later. */
struct qv_job_lanes qv_job_lanes_of(int asked, int cores, int n_devices, qv_decode decode,
                                    bool may_use_gpu);

/* Returns whether a reader may take up a source. If a GPU decodes, the CPU's readers wait until all
 * GPU readers are busy. */
bool qv_job_lane_may_read(const struct qv_job_lanes *lanes, int lane, bool on_gpu, int n_reading);

/* Returns how many threads should decode a clip when this many clips are being read or wait: 0 (one
 * per core) if there are few; otherwise 1, since one clip per core is then decoded at once. */
int qv_job_threads_of(int cores, size_t clips);

/* The cases that a reader distinguishes when it opens a clip. The first one that holds decides. */
enum qv_job_case {
    QV_JOB_CLIP_ASKS,    /* the job offers no GPU, or the clip has its own options */
    QV_JOB_GPU_LOST,     /* the reader's GPU failed when the clip was opened */
    QV_JOB_CORE_IS_FREE, /* this is a CPU reader, while other readers use a GPU */
    QV_JOB_GPU_NEVER,    /* the reader's GPU cannot decode */
    QV_JOB_GPU_NOT_YET,  /* the reader's GPU is not open */
    QV_JOB_GPU_READY,    /* none of these */
    QV_JOB_CASES
};

struct qv_job_choice {
    qv_decode decode; /* what the clip is opened with */
    /* why the GPU is not used, worded to follow "since"; NULL: the GPU's own reason */
    const char *reason;
};

/* Returns who decodes a clip whose options request `asked`. holds[QV_JOB_GPU_READY] is ignored. */
struct qv_job_choice qv_job_who_decodes(qv_decode asked, const bool holds[QV_JOB_CASES]);
