/* SPDX-License-Identifier: MIT */
/* The job's sink: writes each clip's tokens to its file, draws them on request, and reports the
 * clip. */
#include <unistd.h>

#include "commit.h"
#include "encode.h"
#include "error.h"
#include "files/atomic_file.h"
#include "files/outcome_json.h"

/* ---- the report ------------------------------------------------------------------------------ */

/* For a list, a clip's line has no time, because most of that time goes to other clips; the job's
 * times are printed instead. A single clip's stages are printed if it took a second or more. */
static const char text[] =
    "{clip}: {frames} frame{frames|s} of {text.width}x{text.height} -> {tokens} tokens of {width} "
    "values [text.alone?in {seconds|2f} s ]({precision}) -> {output}\n"
    "[text.long?  " TOOL_RATES_TEXT "\n"
    "  waited {wait_decode_s|2f} s for frames, {wait_device_s|2f} s for the device, "
    "{wait_write_s|2f} s for writing; {decoded_frames} frames decoded, {source_frames} in file\n]";

static qv_status
show(const struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
     qv_error *err)
{
    const qv_outcome *o = &r->outcome;
    const bool alone = e->n == 1;
    json_t *j = tool_json("clip:t", output->clip);
    if (output->key)
        tool_json_add(&j, "key:t", output->key);
    tool_json_add(&j, "status:s output:t", "ok", output->path);
    tool_json_add_outcome(&j, o, QV_FOR_ENCODE);
    tool_json_add(&j,
                  "tokens:I width:I seconds:f precision:s lowering:s peak_rss_bytes:I write_s:f "
                  "wait_decode_s:f wait_device_s:f wait_write_s:f cores:I",
                  r->n_tokens, e->model.out_hidden, r->seconds, qv_dtype_name(e->model.dtype),
                  e->model.lowering, tool_peak_bytes(), output->write_s, r->wait_decode_s,
                  r->wait_device_s, r->wait_sink_s, sysconf(_SC_NPROCESSORS_ONLN));
    tool_json_add_rates(&j, "", o->n_frames, r->n_tokens, r->seconds, e->load_s);
    tool_json_add(&j,
                  "machine.backend:s machine.device:s machine.threads:i version:s commit:s "
                  "text.width:i text.height:i text.long:b text.alone:b",
                  e->context->backend, e->context->device, e->context->threads, qv_version(),
                  QV_COMMIT, o->width, o->height, alone && !o->is_image && r->seconds >= 1, alone);
    return tool_show(&e->o->to, j, text, err);
}

static qv_status
report(struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
       qv_error *err)
{
    const qv_outcome *c = &r->outcome;
    const qv_status s = show(e, output, r, err);
    if (s || e->o->to.json)
        return s;
    char words[80];
    snprintf(words, sizeof words, "%lld damaged frame%s replaced by the previous frame",
             (long long)c->damaged_frames, c->damaged_frames == 1 ? " was" : "s were");
    if (c->remark)
        tool_reasons_add(&e->notes, output->clip, qv_remark_text(c->remark));
    if (c->damaged_frames)
        tool_reasons_add(&e->notes, output->clip,
                         c->is_image ? "the image is damaged: the undecodable parts are a guess"
                                     : words);
    return QV_OK;
}

/* ---- the sink -------------------------------------------------------------------------------- */

static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    const struct tool_encoder *e = user;
    struct tool_output *output = *entry = r->user;
    const double began_s = qv_seconds();
    if (e->makes_folders)
        qv_make_folders(output->path);
    output->to = (struct qv_output){ .path = output->path,
                                     .source = output->clip,
                                     .model = &e->model,
                                     .context = e->context,
                                     .hidden = e->o->hidden };
    qv_status status = output->format->sink.begin(&output->to, r, &output->entry, err);
    if (!status && e->o->drawing)
        status = tool_drawing_open(&r->outcome, &e->model, &output->drawing, err);
    output->write_s = qv_seconds() - began_s;
    return status;
}

static void
show_progress(struct tool_encoder *e, const struct tool_output *output, const qv_job_result *r,
              int64_t n)
{
    if (e->n > 1)
        return;
    if (!e->bar.label)
        tool_progress_begin(&e->bar, output->clip, r->outcome.n_frames, e->o->to.quiet);
    tool_progress_show(&e->bar, n * r->outcome.n_frames / r->n_tokens);
}

static qv_status
put(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    struct tool_encoder *e = user;
    struct tool_output *output = entry;
    const qv_tokens *t = &rows->tokens;
    const double began_s = qv_seconds();
    if (output->drawing)
        tool_drawing_add(output->drawing, rows->frames, rows->n_frames, t->tokens, r->dtype);
    const qv_status status = output->format->sink.rows(&output->to, output->entry, r, rows, err);
    output->write_s += qv_seconds() - began_s;
    show_progress(e, output, r, rows->first + t->n);
    return status;
}

/* Reports and counts a clip's failure. A failure that stops all clips is reported once, at the
 * end. */
static void
lose(struct tool_encoder *e, const struct tool_output *output, qv_status status,
     const qv_error *err)
{
    if (tool_exit_code(status) == TOOL_DEVICE)
        return;
    e->code = tool_exit_code(status);
    e->n_failed++;
    struct tool_results to = e->o->to;
    to.json = to.json && e->many; /* for a single clip the exit code is enough */
    tool_reasons_lose(&e->failures, &to, output->clip, output->key, status, err->text);
}

static qv_status
end(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct tool_encoder *e = user;
    struct tool_output *output = r->user;
    (void)entry;
    qv_status status = r->status ? qv_fail(err, r->status, "%s", r->error) : QV_OK;
    if (!status && output->drawing)
        status = tool_drawing_write(output->drawing, e->o->drawing, err);
    qv_job_result done = *r;
    done.status = status;
    if (output->entry) {
        const qv_status ended = output->format->sink.end(&output->to, output->entry, &done, err);
        status = status ? status : ended;
    }
    tool_drawing_close(&output->drawing);
    pthread_mutex_lock(&e->lock);
    if (e->bar.label)
        tool_bar_end();
    if (!status)
        status = report(e, output, r, err);
    if (status && !r->cancelled)
        lose(e, output, status, err);
    if (!status) {
        e->n_done++;
        e->n_damaged += r->outcome.damaged_frames > 0;
        e->n_frames += r->outcome.n_frames;
        e->n_tokens += r->n_tokens;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

qv_job_sink
tool_sink(struct tool_encoder *e)
{
    return (qv_job_sink){ begin, put, end, e };
}
