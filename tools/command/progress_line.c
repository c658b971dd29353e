/* SPDX-License-Identifier: MIT */
/* Shows a job's progress: a line while it runs, and a record at its end. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commit.h"
#include "encode.h"
#include "error.h"
#include "job/more.h"

void
tool_job_progress_begin(struct tool_job_progress *p, int64_t total, const struct tool_results *to)
{
    *p = (struct tool_job_progress){
        .to = to, .total = total, .shown_s = qv_seconds(), .terminal = isatty(2)
    };
}

/* Sets *last to the progress over at least the last 10 seconds and 8 clips; early in the job, to
 * all progress since the first clip, whose time includes starting every stage. Returns how long the
 * rest takes at that rate; infinite: unknown, and *last is the whole job. */
static double
seconds_left(struct tool_job_progress *p, const qv_job_progress *j, qv_job_progress *last)
{
    qv_job_progress *from = p->from;
    if (!from[1].done)
        from[0] = from[1] = *j;
    if (j->elapsed_s - from[1].elapsed_s >= 10 && j->done - from[1].done >= 8) {
        from[0] = from[1];
        from[1] = *j;
    }
    *last = *j;
    if (j->done == from[0].done)
        return INFINITY;
    qv_job_progress_since(last, &from[0]);
    return (double)(p->total - j->done) * last->elapsed_s / (double)last->done;
}

/* Writes a record every 10 seconds; the first at once, as it contains the total. A lost record does
 * no harm: the job's last record reports a file that cannot be written. */
static void
record_progress(struct tool_job_progress *p, const qv_job_progress *j, const qv_job_progress *last,
                double left_s, double now_s)
{
    if (!p->to->json || p->to->quiet || (p->recorded_s > 0 && now_s - p->recorded_s < 10))
        return;
    p->recorded_s = now_s;
    const double s = j->elapsed_s + 1e-9;
    json_t *left = isinf(left_s) ? json_null() : json_real(left_s);
    tool_emit_json(p->to,
                   tool_json("progress:o",
                             tool_json("total:I done:I failed:I tokens:I seconds:f clips_per_s:f "
                                       "tokens_per_s:f seconds_left:o limit:s",
                                       p->total, j->done, j->failed, j->tokens, j->elapsed_s,
                                       (double)j->done / s, (double)j->tokens / s, left,
                                       last->limit)),
                   NULL);
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
    p->limit = j.limit;
    if (*j.no_gpu && !p->told_no_gpu)
        tool_complain("the CPU decodes: %s", j.no_gpu);
    p->told_no_gpu = *j.no_gpu != 0;
    qv_job_progress last;
    const double left_s = seconds_left(p, &j, &last), s = last.elapsed_s + 1e-9;
    record_progress(p, &j, &last, left_s, now_s);
    if (p->to->quiet || now_s - p->shown_s < (p->terminal ? 0.1 : 10))
        return;
    p->shown_s = now_s;
    char text[256], left[32], failed[48] = "";
    if (j.failed)
        snprintf(failed, sizeof failed, " (%lld failed)", (long long)j.failed);
    snprintf(text, sizeof text,
             "%lld/%lld clips%s, %.1f clips/s, %.0f tokens/s, %s left, limited by %s",
             (long long)j.done, (long long)p->total, failed, (double)last.done / s,
             (double)last.tokens / s, isinf(left_s) ? "?" : time_text(left_s, left), last.limit);
    tool_bar_show(p->terminal, "%s", text);
}

void
tool_json_add_rates(json_t **object, const char *of, int64_t frames, int64_t tokens, double seconds,
                    double load_s)
{
    const double s = seconds > 0 ? seconds : 1e-9;
    char fields[80];
    snprintf(fields, sizeof fields, "%ssampled_frames_per_s:f %stokens_per_s:f %sload_s:f", of, of,
             of);
    tool_json_add(object, fields, (double)frames / s, (double)tokens / s, load_s);
}

/* The text sums up the finished clips and the packed chunks. */
static const char job_text[] =
    "[text.several?{text.done} clip{text.done|s}, {job.frames} frames, {text.tokens} tokens in "
    "{text.total_s|time} ({text.load_s|time} to load the model); then "
    "{text.sampled_frames_per_s|1f} sampled frames and {text.tokens_per_s|1f} tokens per "
    "second[job.damaged?; {job.damaged} clip{job.damaged|s} with damaged frames][job.failed?; "
    "{job.failed} failed]\n][text.packed?{text.packed} chunks, {text.full|0f}% full\n]";

qv_status
tool_report_job(const struct tool_encoder *e, qv_job *job, qv_error *err)
{
    qv_job_progress p;
    qv_job_get_progress(job, &p);
    const double s = p.elapsed_s + 1e-9, room = (double)p.capacity_rows + 1e-9;
    json_t *j =
        tool_json("clips:I failed:I damaged:I tokens:I frames:I seconds:f clips_per_s:f limit:s "
                  "chunks:I fill:f most_frame_bytes:I peak_bytes:I source_frames:I "
                  "decoded_frames:I gpu_clips:I version:s commit:s",
                  p.done, p.failed, e->n_damaged, p.tokens, e->n_frames, p.elapsed_s,
                  (double)p.done / s, p.limit, p.chunks, (double)p.rows / room, p.most_frame_bytes,
                  tool_peak_bytes(), p.source_frames, p.decoded_frames, p.gpu_clips, qv_version(),
                  QV_COMMIT);
    tool_json_add_rates(&j, "", e->n_frames, p.tokens, p.elapsed_s, e->load_s);
    tool_json_add(&j,
                  "not_done:I interrupted:b stages.decode_s:f stages.room_s:f stages.device_s:f "
                  "stages.starved_s:f stages.full_s:f stages.sink_s:f stages.decoders:i "
                  "stages.devices:i stages.sinks:i",
                  e->n - e->n_done - e->n_failed, tool_signals_caught() != 0, p.decode_s, p.room_s,
                  p.device_s, p.starved_s, p.full_s, p.sink_s, p.decoders, p.devices, p.sinks);
    json_t *all = tool_json(
        "job:o text.several:b text.done:I text.tokens:I text.total_s:f text.packed:I text.full:f",
        j, e->n > 1 && e->n_done, e->n_done, e->n_tokens, e->load_s + e->job_s, p.packed_chunks,
        100 * (double)p.packed_rows / room);
    tool_json_add_rates(&all, "text.", e->n_frames, e->n_tokens, e->job_s, e->load_s);
    return tool_show(&e->o->to, all, job_text, err);
}
