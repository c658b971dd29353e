/* SPDX-License-Identifier: MIT */
/* Shows the progress of a job: a line while it runs, and a record at its end. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commit.h"
#include "encode.h"
#include "error.h"

void
tool_job_progress_begin(struct tool_job_progress *p, int64_t total, const struct tool_options *o)
{
    *p = (struct tool_job_progress){
        .o = o, .total = total, .shown_s = qv_seconds(), .terminal = isatty(2)
    };
}

/* Writes a progress record. Losing one does no harm: the job's last record reports a file that
 * cannot be written. */
static void
emit_record(const struct tool_options *o, json_t *record)
{
    qv_error err;
    if (record)
        tool_emit_json(o, record, &err);
}

void
tool_record_failure(const struct tool_options *o, const char *clip, const char *key,
                    qv_status status, const char *words)
{
    if (!o->json)
        return;
    json_t *j = json_object();
    int missing = clip ? json_object_set_new(j, "clip", tool_json_text(clip)) : 0;
    missing |= key ? json_object_set_new(j, "key", tool_json_text(key)) : 0;
    missing |= json_object_update_new(j, json_pack("{s:s, s:s, s:o}", "status", "failed", "code",
                                                   qv_status_name(status), "error",
                                                   tool_json_text(words)));
    if (missing) {
        json_decref(j);
        j = NULL;
    }
    emit_record(o, j);
}

static double
seconds_left(const struct tool_job_progress *p, const qv_job_progress *j)
{
    return (double)(p->total - j->done) * j->elapsed_s / (double)j->done;
}

/* Writes a record every 10 seconds; the first one comes at once, since it has the total. */
static void
record_progress(struct tool_job_progress *p, const qv_job_progress *j, double now_s)
{
    if (!p->o->json || p->o->quiet || (p->recorded_s > 0 && now_s - p->recorded_s < 10))
        return;
    p->recorded_s = now_s;
    const double s = j->elapsed_s + 1e-9;
    json_t *left = j->done ? json_real(seconds_left(p, j)) : json_null();
    emit_record(p->o,
                json_pack("{s:{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:s}}", "progress", "total",
                          (json_int_t)p->total, "done", (json_int_t)j->done, "failed",
                          (json_int_t)j->failed, "tokens", (json_int_t)j->tokens, "seconds",
                          j->elapsed_s, "clips_per_s", (double)j->done / s, "tokens_per_s",
                          (double)j->tokens / s, "seconds_left", left, "limit", j->limit));
}

/* Prints "3:05" or "2:03:05". */
static const char *
time_text(double seconds, char text[32])
{
    const long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : 1000000000;
    if (s < 3600)
        snprintf(text, 32, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(text, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return text;
}

void
tool_job_progress_show(struct tool_job_progress *p, qv_job *job)
{
    const double now_s = qv_seconds();
    qv_job_progress j;
    qv_job_get_progress(job, &j);
    record_progress(p, &j, now_s);
    if (p->o->quiet || now_s - p->shown_s < (p->terminal ? 0.1 : 10))
        return;
    p->shown_s = now_s;
    char text[256], left[32], failed[48] = "";
    const double rate = (double)j.done / (j.elapsed_s + 1e-9);
    if (j.failed)
        snprintf(failed, sizeof failed, " (%lld failed)", (long long)j.failed);
    snprintf(text, sizeof text,
             "%lld/%lld clips%s, %.1f clips/s, %.0f tokens/s, %s left, limited by %s",
             (long long)j.done, (long long)p->total, failed, rate,
             (double)j.tokens / (j.elapsed_s + 1e-9),
             j.done ? time_text(seconds_left(p, &j), left) : "?", j.limit);
    tool_bar_show(p->terminal, "%s", text);
}

/* The text is of what was done, and of the packed chunks. */
static const char job_text[] =
    "[text.several?{text.done} clips, {job.frames} frames, {text.tokens} tokens in "
    "{text.total_s|time}, of which loading the model took {text.load_s|time}; then "
    "{text.sampled_frames_per_s|1f} sampled frames and {text.tokens_per_s|1f} tokens per second"
    "[job.damaged?; {job.damaged} clip{job.damaged|s} with damaged frames][job.failed?; "
    "{job.failed} "
    "failed]\n]"
    "[text.packed?{text.packed} chunks, {text.full|0f}% full\n]";

qv_status
tool_report_job(const struct tool_encoder *e, qv_error *err)
{
    qv_job_progress p;
    qv_job_get_progress(e->job, &p);
    const double s = p.elapsed_s + 1e-9, room = (double)p.capacity_rows + 1e-9;
    json_t *j = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:s}",
        "clips", (json_int_t)p.done, "failed", (json_int_t)p.failed, "damaged",
        (json_int_t)e->n_damaged, "tokens", (json_int_t)p.tokens, "frames", (json_int_t)e->n_frames,
        "seconds", p.elapsed_s, "clips_per_s", (double)p.done / s, "limit", p.limit, "chunks",
        (json_int_t)p.chunks, "fill", (double)p.rows / room, "most_frame_bytes",
        (json_int_t)p.most_frame_bytes, "peak_bytes", (json_int_t)tool_peak_bytes(),
        "source_frames", (json_int_t)p.source_frames, "decoded_frames",
        (json_int_t)p.decoded_frames, "gpu_clips", (json_int_t)p.gpu_clips, "version", qv_version(),
        "commit", QV_COMMIT);
    const int64_t not_done = (int64_t)e->n - (int64_t)e->n_done - (int64_t)e->n_failed;
    int lost =
        json_object_update_new(j, tool_rates_json(e->n_frames, p.tokens, p.elapsed_s, e->load_s));
    lost |= json_object_update_new(
        j, json_pack("{s:I, s:b, s:{s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i}}", "not_done",
                     (json_int_t)not_done, "interrupted", tool_signals_caught() != 0, "stages",
                     "decode_s", p.decode_s, "room_s", p.room_s, "device_s", p.device_s,
                     "starved_s", p.starved_s, "full_s", p.full_s, "sink_s", p.sink_s, "decoders",
                     p.decoders, "devices", p.devices, "sinks", p.sinks));
    json_t *text = tool_rates_json(e->n_frames, e->n_tokens, e->job_s, e->load_s);
    lost |= json_object_update_new(
        text, json_pack("{s:b, s:I, s:I, s:f, s:I, s:f}", "several", e->n > 1 && e->n_done, "done",
                        (json_int_t)e->n_done, "tokens", (json_int_t)e->n_tokens, "total_s",
                        e->load_s + e->job_s, "packed", (json_int_t)p.packed_chunks, "full",
                        100 * (double)p.packed_rows / room));
    return tool_show(e->o, json_pack("{s:o, s:o}", "job", j, "text", text), lost, job_text, err);
}
