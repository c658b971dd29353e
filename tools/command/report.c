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

void
tool_json_add_outcome(json_t **object, const qv_outcome *o, unsigned readers, int from, int to)
{
    if (!*object || !qv_outcome_json(*object, o, readers, from, to))
        return;
    json_decref(*object);
    *object = NULL;
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

/* Fields of outcome.inc that follow fields of the line's own. */
enum { AT_FRAMES = 3, AT_DAMAGE = 4, AT_TIMES = 7 };

/* The stages of a clip are printed if it took a second or more; the rates of several clips are the
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
    json_t *j = tool_json("clip:t", output->clip);
    if (output->key)
        tool_json_add(&j, "key:t", output->key);
    tool_json_add(&j, "status:s output:t", "ok", output->path);
    tool_json_add_outcome(&j, o, QV_FOR_ENCODE, 0, AT_FRAMES);
    tool_json_add(&j, "tokens:I width:I", r->n_tokens, e->model.out_hidden);
    tool_json_add_outcome(&j, o, QV_FOR_ENCODE, AT_FRAMES, AT_DAMAGE);
    tool_json_add(&j, "seconds:f precision:s", r->seconds, qv_dtype_name(e->model.dtype));
    tool_json_add_outcome(&j, o, QV_FOR_ENCODE, AT_DAMAGE, AT_TIMES);
    tool_json_add(&j, "lowering:s peak_rss_bytes:I", e->model.lowering, tool_peak_bytes());
    tool_json_add_outcome(&j, o, QV_FOR_ENCODE, AT_TIMES, QV_LAST_PLACE);
    tool_json_add(&j,
                  "write_s:f wait_decode_s:f wait_device_s:f wait_write_s:f over_slowest_stage:f "
                  "cores:I",
                  output->write_s, r->wait_decode_s, r->wait_device_s, r->wait_sink_s,
                  r->seconds / (slowest_stage_s(output, r) + 1e-9), sysconf(_SC_NPROCESSORS_ONLN));
    tool_json_add_rates(&j, "", o->n_frames, r->n_tokens, r->seconds, e->load_s);
    tool_json_add(&j,
                  "machine.backend:s machine.device:s machine.threads:i version:s commit:s "
                  "text.width:i text.height:i text.long:b text.alone:b",
                  e->context.backend, e->context.device, e->context.threads, qv_version(),
                  QV_COMMIT, o->width, o->height, is_long, is_long && e->n == 1);
    return tool_show(e->o, j, text, err);
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
