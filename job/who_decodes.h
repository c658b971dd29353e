/* SPDX-License-Identifier: MIT */
/* Who decodes a job's clips: the CPU or a GPU, and how many at once. */
#pragma once

#include "qwenvit_clips.h"

/* A job's readers. Each has one clip decoded at a time; its lane is its number. */
struct qv_job_lanes {
    int n;   /* threads */
    int cpu; /* readers at work while no GPU decodes */
    int all; /* readers at work while a GPU decodes */
    int gpu; /* the first ones, for whom the GPU decodes; 0: the clips' options decide */
};

/* Returns the readers of a job: `asked` at once, or 0. may_use_gpu: GPUs decode, or may later. */
struct qv_job_lanes qv_job_lanes_of(int asked, int cores, int n_devices, qv_decode decode,
                                    bool may_use_gpu);

/* Returns whether a reader may take a source. If a GPU decodes, the CPU's readers wait until all of
 * the GPU's are busy. */
bool qv_job_lane_may_read(const struct qv_job_lanes *lanes, int lane, bool on_gpu, int n_reading);

/* Returns how many threads decode a clip, if so many are read or wait: 0, one per core, if they are
 * few; else 1, since then a clip per core is decoded at once. */
int qv_job_threads_of(int cores, size_t clips);

/* What a reader knows when it opens a clip. The first case that holds decides. */
enum qv_job_case {
    QV_JOB_CLIP_ASKS,    /* the job has no GPU to give, or the clip has options of its own */
    QV_JOB_GPU_LOST,     /* the reader's GPU failed when the clip was opened */
    QV_JOB_CORE_IS_FREE, /* the reader is the CPU's, while others are a GPU's */
    QV_JOB_GPU_NEVER,    /* the reader's GPU decodes nothing */
    QV_JOB_GPU_NOT_YET,  /* the reader's GPU is not open */
    QV_JOB_GPU_READY,    /* none of these */
    QV_JOB_CASES
};

struct qv_job_choice {
    qv_decode decode; /* what the clip is opened with */
    /* why not the GPU, to follow "since"; NULL: the GPU's reason */
    const char *reason;
};

/* Returns who decodes a clip whose options ask for `asked`. holds[QV_JOB_GPU_READY] is ignored. */
struct qv_job_choice qv_job_who_decodes(qv_decode asked, const bool holds[QV_JOB_CASES]);
