/* SPDX-License-Identifier: MIT */
/* Decides who decodes a job's clips, from a table and numbers alone: no locks, no threads. */
#include "who_decodes.h"

#include "more.h"

#include <string.h>

enum {
    GPU_READERS = 12, /* clips that keep an H200's decoders busy */
    GPU_CORES = 2,    /* cores per such clip, so that it does not wait */
    UNKNOWN = 4       /* how many times as many clips must wait if their codec is unknown */
};

/* Cores beyond GPU_CORES per GPU clip decode further clips. With fewer cores, decoding these would
 * cost more than it gains (docs/devices.md). */
struct qv_job_lanes
qv_job_lanes_of(int asked, int cores, int n_devices, qv_decode decode, bool may_use_gpu)
{
    struct qv_job_lanes lanes = { .cpu = asked ? asked : cores };
    if (may_use_gpu) {
        const int by_gpus = GPU_READERS * n_devices, taken = GPU_CORES * by_gpus;
        lanes.gpu = asked ? asked : by_gpus;
        lanes.all = asked ? asked : by_gpus + (cores > taken ? cores - taken : 0);
    }
    lanes.n = decode == QV_DECODE_GPU || lanes.all > lanes.cpu ? lanes.all : lanes.cpu;
    return lanes;
}

bool
qv_job_lane_may_read(const struct qv_job_lanes *lanes, int lane, bool on_gpu, int n_reading)
{
    const int first = on_gpu ? lanes->gpu : 0;
    return lane < (on_gpu ? lanes->all : lanes->cpu) && (lane < first || n_reading >= first);
}

int
qv_job_threads_of(int cores, size_t clips)
{
    return clips * 2 > (size_t)cores && clips > 1 ? 1 : 0;
}

bool
qv_job_wants_gpus(int readers, const char *codec, size_t waiting)
{
    const size_t at_least = (size_t)(readers ? readers : GPU_READERS);
    const bool is_decoded_there = codec && (!strcmp(codec, "h264") || !strcmp(codec, "hevc"));
    return codec ? is_decoded_there && waiting >= at_least : waiting >= UNKNOWN * at_least;
}

/* By option and case. With QV_DECODE_AUTO the CPU decodes, and the clip may have its own reason. If
 * a requested GPU is missing or lost, the clip fails. */
static const struct qv_job_choice choices[][QV_JOB_CASES] = {
    [QV_DECODE_AUTO] = {
        [QV_JOB_CLIP_ASKS] = { QV_DECODE_AUTO, "" },
        [QV_JOB_GPU_LOST] = { QV_DECODE_CPU, NULL },
        [QV_JOB_CORE_IS_FREE] = { QV_DECODE_AUTO, "a core was free first" },
        [QV_JOB_GPU_NEVER] = { QV_DECODE_AUTO, NULL },
        [QV_JOB_GPU_NOT_YET] = { QV_DECODE_AUTO, "no GPU was open yet" },
        [QV_JOB_GPU_READY] = { QV_DECODE_GPU, "" },
    },
    [QV_DECODE_GPU] = {
        [QV_JOB_CLIP_ASKS] = { QV_DECODE_GPU, "" },
        [QV_JOB_GPU_LOST] = { QV_DECODE_GPU, "" },
        [QV_JOB_CORE_IS_FREE] = { QV_DECODE_CPU, "a core was free first" },
        [QV_JOB_GPU_NEVER] = { QV_DECODE_GPU, "" },
        [QV_JOB_GPU_NOT_YET] = { QV_DECODE_GPU, "" },
        [QV_JOB_GPU_READY] = { QV_DECODE_GPU, "" },
    },
};

struct qv_job_choice
qv_job_who_decodes(qv_decode asked, const bool holds[QV_JOB_CASES])
{
    int first = 0;
    while (first < QV_JOB_GPU_READY && !holds[first])
        first++;
    if (asked != QV_DECODE_AUTO && asked != QV_DECODE_GPU)
        return (struct qv_job_choice){ asked, "" };
    return choices[asked][first];
}
