/* SPDX-License-Identifier: MIT */
/* Reports a job's progress, and which stage limits it. */
#include "state.h"
#include "more.h"

/* Names the busiest stage, or "input" if none is busy because sources come too slowly. Decoders
 * that share a CPU with the device are always busy: they are the limit only if the device waits. */
static const char *
find_limit(const qv_job_progress *p)
{
    const double all_s = p->elapsed_s + 1e-9;
    const double decoding = p->decode_s / (all_s * p->decoders),
                 device = p->device_s / (all_s * p->devices), sink = p->sink_s / (all_s * p->sinks);
    const bool waits = device < 0.9;
    if (decoding < 0.5 && device < 0.5 && sink < 0.5)
        return "input";
    if (waits && decoding > device && decoding > sink)
        return "decoding";
    return device > sink ? "device" : "sink";
}

void
qv_job_progress_since(qv_job_progress *p, const qv_job_progress *before)
{
    if (!p || !before)
        return;
    p->added -= before->added;
    p->done -= before->done;
    p->failed -= before->failed;
    p->tokens -= before->tokens;
    p->source_frames -= before->source_frames;
    p->decoded_frames -= before->decoded_frames;
    p->chunks -= before->chunks;
    p->rows -= before->rows;
    p->capacity_rows -= before->capacity_rows;
    p->packed -= before->packed;
    p->packed_chunks -= before->packed_chunks;
    p->packed_rows -= before->packed_rows;
    p->rest_rows -= before->rest_rows;
    p->rest_capacity_rows -= before->rest_capacity_rows;
    p->elapsed_s -= before->elapsed_s;
    p->decode_s -= before->decode_s;
    p->room_s -= before->room_s;
    p->device_s -= before->device_s;
    p->starved_s -= before->starved_s;
    p->full_s -= before->full_s;
    p->sink_s -= before->sink_s;
    p->gpu_clips -= before->gpu_clips;
    p->limit = find_limit(p);
}

/* Sums up every stage's seconds, including work in progress. The lock must be held. */
static void
read_clocks(const qv_job *job, double now_s, qv_job_progress *out)
{
    for (int i = 0; i < job->lanes.n; i++) {
        const struct qv_job_item *item = job->readers[i].item;
        if (item) {
            const double room_s = qv_job_clock_read(&item->room, now_s);
            out->decode_s += now_s - item->began_s - room_s;
            out->room_s += room_s;
        }
    }
    for (int i = 0; i < job->n_devices; i++)
        out->device_s += qv_job_clock_read(&job->devices[i].busy, now_s);
    for (int i = 0; i < job->n_sinks; i++)
        out->sink_s += qv_job_clock_read(&job->sinks[i].busy, now_s);
}

void
qv_job_get_progress(qv_job *job, qv_job_progress *out)
{
    QV_NEED_OR(, job, out);
    pthread_mutex_lock(&job->lock);
    const double now_s = qv_seconds();
    *out = job->progress;
    out->frame_bytes = job->used;
    out->ended = job->status != QV_OK;
    out->pack_rows = job->pack_rows;
    out->decoders = job->on_gpu ? job->lanes.all : job->lanes.cpu;
    out->gpu_decoders = job->on_gpu ? job->lanes.gpu : 0;
    read_clocks(job, now_s, out);
    pthread_mutex_unlock(&job->lock);
    out->elapsed_s = now_s - job->opened_s;
    out->devices = job->n_devices;
    out->sinks = job->n_sinks;
    out->limit = find_limit(out);
}
