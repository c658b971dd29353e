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

json_t *
tool_rates_json(int64_t frames, int64_t tokens, double seconds, double load_s)
{
    const double s = seconds > 0 ? seconds : 1e-9;
    return json_pack("{s:f, s:f, s:f}", "sampled_frames_per_s", (double)frames / s, "tokens_per_s",
                     (double)tokens / s, "load_s", load_s);
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

/* The stages are told of a clip that took a second or more; the rates of several clips are the
 * job's. */
static const char text[] =
    "{clip}: {frames} frame{frames|s} of {text.width}x{text.height} -> {tokens} tokens of {width} "
    "in {seconds|2f} s ({precision}) -> {output}\n"
    "[text.alone?  " TOOL_RATES_TEXT "\n]"
    "[text.long?  waited {wait_decode_s|2f} s for frames, {wait_device_s|2f} s for the device, "
    "{wait_write_s|2f} s for writing; {decoded_frames} of {source_frames} frames were decoded; "
    "{over_slowest_stage|2f} times the slowest stage\n]";

static qv_status
show(const struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
     qv_error *err)
{
    const qv_outcome *o = &r->outcome;
    const bool is_long = !o->is_image && r->seconds >= 1;
    json_t *j = json_pack("{s:o}", "clip", tool_json_text(output->clip));
    int lost = output->key ? json_object_set_new(j, "key", tool_json_text(output->key)) : 0;
    lost |= json_object_update_new(j, json_pack("{s:s, s:o}", "status", "ok", "output",
                                                tool_json_text(output->path)));
    lost |= qv_outcome_json(j, o, QV_FOR_ENCODE, 0, AT_FRAMES);
    lost |= json_object_update_new(j, json_pack("{s:I, s:I}", "tokens", (json_int_t)r->n_tokens,
                                                "width", (json_int_t)e->model.out_hidden));
    lost |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_FRAMES, AT_DAMAGE);
    lost |= json_object_update_new(j, json_pack("{s:f, s:s}", "seconds", r->seconds, "precision",
                                                qv_dtype_name(e->model.dtype)));
    lost |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_DAMAGE, AT_TIMES);
    lost |= json_object_update_new(j, json_pack("{s:s, s:I}", "lowering", e->model.lowering,
                                                "peak_rss_bytes", (json_int_t)tool_peak_bytes()));
    lost |= qv_outcome_json(j, o, QV_FOR_ENCODE, AT_TIMES, QV_LAST_PLACE);
    lost |=
        json_object_update_new(j, json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "write_s",
                                            output->write_s, "wait_decode_s", r->wait_decode_s,
                                            "wait_device_s", r->wait_device_s, "wait_write_s",
                                            r->wait_sink_s, "over_slowest_stage",
                                            r->seconds / (slowest_stage_s(output, r) + 1e-9),
                                            "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN)));
    lost |=
        json_object_update_new(j, tool_rates_json(o->n_frames, r->n_tokens, r->seconds, e->load_s));
    lost |= json_object_update_new(
        j, json_pack("{s:{s:s, s:s, s:i}, s:s, s:s, s:{s:i, s:i, s:b, s:b}}", "machine", "backend",
                     e->context.backend, "device", e->context.device, "threads", e->context.threads,
                     "version", qv_version(), "commit", QV_COMMIT, "text", "width", o->width,
                     "height", o->height, "long", is_long, "alone", is_long && e->n == 1));
    return tool_show(e->o, j, lost, text, err);
}

qv_status
tool_report(struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
            qv_error *err)
{
    const qv_outcome *c = &r->outcome;
    const qv_status s = show(e, output, r, err);
    if (s || e->o->json)
        return s;
    char words[80];
    snprintf(words, sizeof words, "%lld damaged frame%s replaced by the one before",
             (long long)c->damaged_frames, c->damaged_frames == 1 ? " was" : "s were");
    if (c->remark)
        tool_reasons_add(&e->notes, output->clip, qv_remark_text(c->remark));
    if (c->damaged_frames)
        tool_reasons_add(&e->notes, output->clip,
                         c->is_image ? "the image is damaged: what could not be decoded is a guess"
                                     : words);
    return QV_OK;
}
