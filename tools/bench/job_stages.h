/* SPDX-License-Identifier: MIT */
/* What `qwenvit bench job` times: stages alone, and jobs. */
#pragma once

#include <pthread.h>

#include "bench.h"
#include "command/encode.h"
#include "command/list.h"

struct job_bench {
    struct bench *b;
    struct tool_options o; /* options of the runs, whose output is discarded */
    struct tool_devices devices;
    qv_decoder *decoder;
    qv_model_info m;
    char *made_list,
        *work; /* list of the clips that are made; folder of output, which is removed */
    struct tool_list list;
    qv_item *items; /* [list.n]: each clip as an item, known once it is decoded */
    int64_t patches;
    uint64_t bytes; /* size of all tokens */
    void *data;     /* random bytes that stand for frames, or for a clip's tokens */
    struct qv_cache_writer *writer;
    /* clips that a job decodes at once, and those of them that a GPU decodes; 0: none does */
    int decoders, gpu_decoders;
    int on_gpu; /* clips that a GPU decodes right now, if a stage alone decodes; under `lock` */
    pthread_mutex_t lock;
    qv_job_progress progress[BENCH_JOB_WAYS]; /* of the last run */
};

static inline int64_t
job_rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

static inline size_t
job_devices_of(const struct job_bench *j, enum bench_job_way way)
{
    return way == BENCH_JOB_DEVICE ? 1 : j->devices.n;
}

/* Runs a way once; user is a struct job_way whose bench is open. Decoding finds out what the clips
 * are, so it must come first. */
struct job_way {
    struct job_bench *j;
    enum bench_job_way way;
};
bench_work job_work;

qv_status job_ask_decoders(struct job_bench *j, qv_error *err);
