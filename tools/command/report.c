/* SPDX-License-Identifier: MIT */
/* Reports the result of encoding a clip, for people and for machines. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "commit.h"
#include "encode.h"
#include "error.h"
#include "files/outcome_json.h"

struct tool_rates
tool_rates(int64_t frames, int64_t tokens, double seconds)
{
    const double s = seconds > 0 ? seconds : 1e-9;
    return (struct tool_rates){ (double)frames / s, (double)tokens / s };
}

const char *
tool_rates_text(struct tool_rates rates, double load_s, char text[160])
{
    snprintf(text, 160,
             "%.1f sampled frames and %.1f tokens per second; loading the model took %.2f s before",
             rates.frames_per_s, rates.tokens_per_s, load_s);
    return text;
}

json_t *
tool_rates_json(struct tool_rates rates, double load_s)
{
    return json_pack("{s:f, s:f, s:f}", "sampled_frames_per_s", rates.frames_per_s, "tokens_per_s",
                     rates.tokens_per_s, "load_s", load_s);
}

static struct tool_rates
rates_of(const qv_job_result *r)
{
    return tool_rates(r->outcome.n_frames, r->n_tokens, r->seconds);
}

/* Returns the time of the slowest of the three stages that run at once: decoding, the device,
 * writing. The device's own time shows in how long the other stages wait for it. */
static double
slowest_stage_s(const struct tool_output *output, const qv_job_result *r)
{
    double most = r->outcome.decode_s;
    most = r->wait_device_s > most ? r->wait_device_s : most;
    return output->write_s > most ? output->write_s : most;
}

/* Places of outcome.inc in front of which the line has fields of its own. */
enum { AT_FRAMES = 3, AT_DAMAGE = 4, AT_TIMES = 7 };

static qv_status
report_json(const struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
            qv_error *err)
{
    const qv_outcome *o = &r->outcome;
    json_t *j = json_object();
    int missing = json_object_set_new(j, "clip", tool_json_text(output->clip));
    missing |= output->key ? json_object_set_new(j, "key", tool_json_text(output->key)) : 0;
    missing |= json_object_set_new(j, "status", json_string("ok"));
    missing |= json_object_set_new(j, "output", tool_json_text(output->path));
    missing |= qv_outcome_json(j, o, QV_FOR_ENCODE, 0, AT_FRAMES);
    missing |= json_object_update_new(j, json_pack("{s:I, s:I}", "tokens", (json_int_t)r->n_tokens,
                                                   "width", (json_int_t)e->model.out_hidden));
    missing |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_FRAMES, AT_DAMAGE);
    missing |= json_object_update_new(j, json_pack("{s:f, s:s}", "seconds", r->seconds, "precision",
                                                   qv_dtype_name(e->model.dtype)));
    missing |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_DAMAGE, AT_TIMES);
    missing |=
        json_object_update_new(j, json_pack("{s:s, s:I}", "lowering", e->model.lowering,
                                            "peak_rss_bytes", (json_int_t)tool_peak_bytes()));
    missing |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_TIMES, QV_LAST_PLACE);
    missing |=
        json_object_update_new(j, json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "write_s",
                                            output->write_s, "wait_decode_s", r->wait_decode_s,
                                            "wait_device_s", r->wait_device_s, "wait_write_s",
                                            r->wait_sink_s, "over_slowest_stage",
                                            r->seconds / (slowest_stage_s(output, r) + 1e-9),
                                            "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN)));
    missing |= json_object_update_new(j, tool_rates_json(rates_of(r), e->load_s));
    missing |= json_object_update_new(j, json_pack("{s:{s:s, s:s, s:i}, s:s, s:s}", "machine",
                                                   "backend", e->context.backend, "device",
                                                   e->context.device, "threads", e->context.threads,
                                                   "version", qv_version(), "commit", QV_COMMIT));
    if (missing) {
        json_decref(j);
        return qv_fail(err, QV_ENOMEM, "%s: no memory for a result", output->clip);
    }
    return tool_emit_json(e->o, j, err);
}

/* Prints where the time went, for a clip that took a second or more. */
static void
report_stages(const struct tool_encoder *e, const struct tool_output *output,
              const qv_job_result *r)
{
    char rates[160];
    if (r->outcome.is_image || r->seconds < 1)
        return;
    if (e->n == 1) /* the rates of several clips are the job's */
        tool_print("  %s\n", tool_rates_text(rates_of(r), e->load_s, rates));
    tool_print(
        "  waited %.2f s for frames, %.2f s for the device, %.2f s for writing; %lld of %lld "
        "frames were decoded; %.2f times the slowest stage\n",
        r->wait_decode_s, r->wait_device_s, r->wait_sink_s, (long long)r->outcome.decoded_frames,
        (long long)r->outcome.source_frames, r->seconds / (slowest_stage_s(output, r) + 1e-9));
}

qv_status
tool_report(const struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
            qv_error *err)
{
    if (e->o->json)
        return report_json(e, output, r, err);
    const qv_outcome *c = &r->outcome;
    tool_print("%s: %lld frame%s of %dx%d -> %lld tokens of %lld in %.2f s (%s) -> %s\n",
               output->clip, (long long)c->n_frames, c->n_frames == 1 ? "" : "s", c->width,
               c->height, (long long)r->n_tokens, (long long)e->model.out_hidden, r->seconds,
               qv_dtype_name(e->model.dtype), output->path);
    report_stages(e, output, r);
    if (c->remark)
        tool_complain("%s: %s", output->clip, qv_remark_text(c->remark));
    if (r->outcome.damaged_frames && r->outcome.is_image)
        tool_complain("%s: the image is damaged: what could not be decoded is a guess",
                      output->clip);
    else if (r->outcome.damaged_frames)
        tool_complain("%s: %lld damaged frame%s replaced by the one before", output->clip,
                      (long long)r->outcome.damaged_frames,
                      r->outcome.damaged_frames == 1 ? " was" : "s were");
    return QV_OK;
}
