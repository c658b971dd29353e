/* SPDX-License-Identifier: MIT */
/* Declarations that the parts of `qwenvit bench job` share. */
#ifndef QV_TOOLS_JOB_BENCH_H
#define QV_TOOLS_JOB_BENCH_H

#include <pthread.h>

#include "bench.h"
#include "command/encode.h"
#include "command/list.h"
#include "job_bounds.h"

struct job_bench {
    struct bench b;
    struct tool_options o; /* options of the runs, whose output is discarded */
    struct tool_devices devices;
    qv_decoder *decoder;
    qv_model_info m;
    char *made, *work; /* folder of clips, which stays; folder of output, which is removed */
    char *list_file;   /* list of the clips that are made */
    struct tool_list list;
    qv_item *items; /* [list.n]: each clip as an item, known once it is decoded */
    int64_t patches, tokens;
    uint64_t bytes; /* size of all tokens */
    void *data;     /* random bytes that stand for frames, or for a clip's tokens */
    struct qv_cache_writer *writer;
    struct job_bare *bare;      /* [list.n], of job_bare.c; NULL before its first run */
    struct qvm_nvdec *bare_gpu; /* of job_bare_gpu.c; kept until the process ends */
    bool wrong;                 /* a stage was measured wrongly */
    qv_tokens one;              /* the largest item's, for one by one */
    /* clips that a job decodes at once, and those of them that a GPU decodes; 0: none does */
    int decoders, gpu_decoders;
    int on_gpu; /* clips that a GPU decodes right now, if a stage alone decodes; under `lock` */
    pthread_mutex_t lock;
    qv_job_progress progress[BENCH_JOB_WAYS]; /* of the last run */
    double cpu_s[BENCH_JOB_WAYS];             /* of all cores, in the last run */
    int64_t peak_bytes[BENCH_JOB_WAYS]; /* of the host, as the last clip ended; 0: not known */
    struct job_beside *beside;          /* decoders beside the device; NULL: there are none */
    double beside_fps[BENCH_JOB_WAYS];  /* frames of the clips a second that these decoded */
};

enum { JOB_STREAMS = 14 }; /* clips that a GPU decodes at once: two for each decoder of an H200 */

static inline int64_t
job_rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

/* Returns how many devices work in a way. */
static inline size_t
job_devices_of(const struct job_bench *j, enum bench_job_way way)
{
    return way == BENCH_JOB_DEVICE || bench_job_ways[way].streams ? 1 : j->devices.n;
}

/* job_stages.c: runs a way once; user is a struct job_way whose bench is open. Decoding finds out
 * what the clips are, so it must come first. */
struct job_way {
    struct job_bench *j;
    enum bench_job_way way;
};
bench_work job_work;

/* Asks a job how many clips it decodes at once, and where. */
qv_status job_ask_decoders(struct job_bench *j, qv_error *err);

typedef qv_status job_crew_work(struct job_bench *j, size_t i, qv_error *err);
/* Works on each number below `times`, by so many threads; *ms: how long it took. */
qv_status job_by_crew(struct job_bench *j, job_crew_work *work, size_t times, int n_threads,
                      double *ms, qv_error *err);
/* Returns how many threads decode entry i, as a job decides: one, but every core where few clips
 * are left. */
int job_decoding_threads(const struct job_bench *j, size_t i);
/* Opens and reads a clip of the list by the given decoder, and counts its frames. */
qv_status job_decode(struct job_bench *j, size_t i, qv_decoder *decoder, qv_decode by,
                     int64_t *frames, qv_error *err);

/* job_beside.c: a GPU decodes clips of the list over and over, in several processes, or if
 * `processes` is 0 in this one and in the tower's context, until it is stopped. */
qv_status job_beside_start(struct job_bench *j, int processes, int streams, qv_error *err);
/* Stops it. *fps: frames of the clips that were decoded, a second. */
qv_status job_beside_stop(struct job_bench *j, double *fps, qv_error *err);

/* job_bare.c runs the clips through FFmpeg's libraries in this process. Of our own code it uses
 * only the choice of packets that are needed, conversion and resizing. */
bench_work job_time_bare;
/* Looks into the clips, unless that was done; then job_bare_decode decodes
 * entry i, and counts its frames. */
qv_status job_bare_open(struct job_bench *j, qv_error *err);
qv_status job_bare_decode(struct job_bench *j, size_t i, int64_t *frames, qv_error *err);
void job_free_bare(struct job_bench *j);

/* job_clips.c knows the shape of the clips that are made and copied, and how often each is repeated
 * in its file; it makes all files, and their list. */
struct tool_clip_shape job_clip_shape(const struct tool_options *o);
int job_repetitions(const struct tool_options *o);
qv_status job_make_clips(const struct job_bench *j, qv_error *err);

#endif
