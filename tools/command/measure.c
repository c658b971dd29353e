/* SPDX-License-Identifier: MIT */
/* --measure: encodes clips, and throws their tokens away, for how long that takes on this
 * machine. */
#include "estimate.h"

#include "encode.h"
#include "error.h"

static bool
go_on(void *user, qv_job *job)
{
    (void)user, (void)job;
    return !tool_signals_caught();
}

static qv_status
run(const struct tool_options *o, const struct tool_devices *d,
    const struct tool_entry *const *clips, size_t n, struct tool_measured *out, qv_error *err)
{
    qv_model_info model;
    qv_model_get_info(d->models[0], &model);
    const qv_job_options options = { .output = model.dtype,
                                     .chunk_rows = o->chunk_rows,
                                     .alone = n == 1,
                                     .clip = o->clip,
                                     .go_on = go_on };
    qv_job *job = NULL;
    qv_status s = qv_job_open(d->models, d->n, &options, &job, err);
    for (size_t i = 0; i < n && !s; i++) {
        const qv_clip_options own = qvm_options_merge(clips[i]->own, &o->clip);
        const qv_job_source source = { .key = clips[i]->key, .path = clips[i]->path, .clip = &own };
        s = qv_job_add(job, &source, err);
    }
    if (!s)
        s = qv_job_end(job, err);
    if (!s) {
        qv_job_progress p;
        qv_job_get_progress(job, &p);
        *out = (struct tool_measured){ p.done - p.failed, p.tokens, p.elapsed_s, d->load_s };
    }
    qv_job_close(&job);
    return s;
}

qv_status
tool_measure(const struct tool_options *o, const struct tool_entry *const *clips, size_t n,
             struct tool_measured *out, qv_error *err)
{
    struct tool_devices devices = { .n = 0 };
    *out = (struct tool_measured){ .clips = 0 };
    qv_status s = n ? tool_devices_open(o, &devices, err) : QV_OK;
    if (!s && n)
        s = run(o, &devices, clips, n, out, err);
    tool_devices_close(&devices);
    return s;
}
